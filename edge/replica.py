"""One user's replica: a folder with the file that is the truth, and the index that follows it.

Layout of the folder::

    user.txt             whose it is
    memory.db            SQLite, with -wal and -shm beside it while it is open
    in-use               there while the file is open, so that a copy made meanwhile without its log is noticed
    index/               the vector index, derived from the file
    memory.db.<revision> a copy from before the last upgrade of the schema, for thirty days
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from edge.directory import Description, directory_errors, folder_name, origin_of, sync_directory, write_whole
from edge.indexing import Indexer
from edge.sqlite import models, syncing, todo
from edge.sqlite.columns import Columns
from edge.sqlite.database import Database, connect, translated, wal_path
from edge.sqlite.migrations import Schema
from edge.sqlite.rows import Author
from edge.steps import Step, no_step
from edge.vectors.port import IndexFactory, Place
from memory.core.errors import IntegrityFailure, StoreError

logger = logging.getLogger(__name__)
DATABASE_FILE: Final = "memory.db"
IN_USE: Final = "in-use"
OWNER_FILE: Final = "user.txt"
KEEP_COPIES_SECONDS: Final = 30 * 86_400
LARGE_WAL_BYTES: Final = 64 * 1024 * 1024
"""Worth a warning."""
DRAIN_AT_CLOSE: Final = 100
"""Queued changes that are carried out before a file is closed."""
BACKLOG_LIMIT: Final = 2_000
"""Queued changes at which whoever writes carries them out before going on: searches read them one by one."""

RECEIVED_AT_ONCE: Final = 50_000
"""Memories that a sync brings before it stops for the indexes; until then searches read them one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What every replica of a directory is opened with."""

    factory: IndexFactory
    copied: Callable[[], None]
    """Called when a file turns out to be a copy of another."""
    schema: Schema = field(default_factory=Schema)
    synchronous: str = "full"
    writer: str = field(default_factory=lambda: secrets.token_hex(8))
    """Names this opening of the directory in stamps and counts. Drawn at random and never stored, so that a copy
    cannot write under the same name."""
    step: Step = no_step
    """Called with the name of each durable step when it is done; tests end the process there."""


class Replica:
    """A user's folder, open. Methods may be called from any thread."""

    def __init__(self, folder: Path, user_id: str, kit: Kit, description: Description) -> None:
        """Open an existing folder.

        Raises:
            IntegrityFailure: it is another user's, damaged, or copied in part. SchemaMismatch: it is newer than
            this program.
        """
        self.user_id, self._folder, self._kit = user_id, folder, kit
        path = folder / DATABASE_FILE
        with directory_errors(folder):
            _require_complete(folder, path)
            kit.schema.prepare(path)
        self.database = Database(path, synchronous=kit.synchronous, step=kit.step)
        try:
            with directory_errors(folder):
                self._adopt(description)
                sync_directory(folder)  # the log is there to stay before the mark says that it must be
                (folder / IN_USE).touch()
                kit.step("marked as in use")
                _drop_old_copies(folder)
            with self.database.read() as connection:
                backlog = todo.backlog(connection)
                offset = syncing.read_sync(connection).clock_offset
        except BaseException:
            self.database.close()
            (folder / IN_USE).unlink(missing_ok=True)  # the log has gone with the file's closing
            raise
        place = Place(user_id=user_id, folder=folder, model=description.model, dimension=description.dimension)
        self.indexer = Indexer(self.database, kit.factory, place, kit.step)
        self.columns = Columns()
        self.author = Author(user_id, kit.writer, floor=time.time_ns() // 1_000)
        self.clock_offset = offset
        """ms to be added to this device's clock, as the centre has told."""
        self.step = kit.step
        self._queued = max(backlog.words, backlog.vectors)
        self._behind = self._queued > 0
        self.is_receiving = False
        """Whether a sync is bringing many memories: it sees to the indexes itself, for two that work at once slow each
        other down to less than one after the other."""

    def _adopt(self, description: Description) -> None:
        with self.database.write() as connection:
            user_id, origin = connection.execute("SELECT user_id, origin FROM replica").fetchone() or (None, None)
            if user_id != self.user_id:
                raise IntegrityFailure(
                    f"{self._folder}: holds the memories of another user than its name says",
                    hint="move it out of the way; the name is the beginning of the SHA-256 of the user's id",
                )
            if models.adopt(connection, description.model, description.dimension):
                logger.info("%s: vectors are now of %s", self._folder.name, description.model)
            here = origin_of(self.database.path)
            if origin != here:
                connection.execute("UPDATE replica SET origin = ?", (here,))
                if origin is not None:
                    self._kit.copied()  # before the commit: a crash in between must not hide it

    def wrote(self, changes: int) -> bool:
        """Note committed changes; returns whether too much is queued for searches to read it one by one."""
        self._queued += changes
        return self._queued >= BACKLOG_LIMIT

    def drain(self) -> None:
        """Bring both indexes up to date, as far as they answer."""
        self._queued, self._behind = 0, True
        self._behind = not self.indexer.drain()

    def drain_if_far_behind(self) -> None:
        """Bring the indexes up to date if so much is queued that searches, which read it one by one, would be slow."""
        if self._queued >= RECEIVED_AT_ONCE:
            self.drain()

    @property
    def is_behind(self) -> bool:
        """Whether something may be queued."""
        return self._behind or self._queued > 0

    def tidy(self) -> None:
        """Remove what deleted memories have left in the files, and cut the log."""
        if self._remove_traces():
            self.indexer.compact()
        if not self.database.checkpoint():
            size = self.database.wal_bytes()
            level = logging.WARNING if size > LARGE_WAL_BYTES else logging.INFO
            logger.log(level, "%s: the log, %d bytes, cannot be cut while a reader is open", self._folder.name, size)

    def _remove_traces(self) -> bool:
        with self.database.read() as connection:
            if not todo.has_traces_of_words(connection):
                return False
        with self.database.write() as connection:
            todo.remove_traces_of_words(connection)
        return True

    def size(self) -> int:
        """Bytes that the files of the folder take on disk."""
        total = 0
        for file in self._folder.rglob("*"):
            with suppress(FileNotFoundError):  # indexes come and go
                total += file.stat().st_blocks * 512
        return total

    def close(self) -> None:
        """Finish what is under way, cut the log, let go of the files. Idempotent.

        What cannot be done any more is logged: whoever closes a replica could do nothing about it.
        """
        if self._queued >= DRAIN_AT_CLOSE:  # programs that live shortly would leave ever more to read one by one
            self._drain_at_last()
        self.indexer.close()
        try:
            self._leave_clean()
        finally:
            self.database.close()

    def _drain_at_last(self) -> None:
        try:
            self.drain()
        except StoreError as error:
            logger.warning("%s: the indexes could not follow: %s", self._folder.name, error)

    def _leave_clean(self) -> None:
        try:
            self._remove_traces()
        except StoreError as error:
            logger.warning("%s: words of deleted memories stay in the file: %s", self._folder.name, error)
        try:
            with directory_errors(self._folder):
                (self._folder / IN_USE).unlink(missing_ok=True)
        except StoreError as error:
            logger.warning("%s: still looks as if it were in use: %s", self._folder.name, error)
        self._kit.step("mark removed")


def create_folder(users: Path, user_id: str, kit: Kit, description: Description) -> Path:
    """Make a user's folder; it appears whole or not at all."""
    folder = users / folder_name(user_id)
    with directory_errors(folder):
        building = users / f".{folder.name}.{secrets.token_hex(4)}"
        building.mkdir(mode=0o700)
        path = building / DATABASE_FILE
        path.touch(mode=0o600)
        path.write_bytes(kit.schema.blank)
        with translated(path), closing(connect(path)) as connection:
            connection.execute(
                "INSERT INTO replica (user_id, rev, hlc_ms, hlc_counter, numbers, words_upto, points_upto,"
                " words_removed, origin, model, dimension) VALUES (?, 0, 0, 0, 0, 0, 0, 0, ?, ?, ?)",
                (user_id, origin_of(path), description.model, description.dimension),
            )
        write_whole(building / OWNER_FILE, user_id.encode())
        kit.step("folder built")
        building.rename(folder)
        sync_directory(users)
        kit.step("folder in place")
    return folder


def remove_unfinished(users: Path) -> None:
    """Remove folders whose making a crash has cut short."""
    with directory_errors(users):
        for left in users.glob(".*.*"):
            if left.is_dir():
                shutil.rmtree(left)


def owner_of(folder: Path) -> str:
    """The user whose folder it is.

    Raises:
        IntegrityFailure: it does not say.
    """
    try:
        return (folder / OWNER_FILE).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _incomplete(folder, f"{OWNER_FILE} is missing or unreadable") from error


def user_folders(users: Path) -> list[Path]:
    """The folders of all users."""
    with directory_errors(users):
        return sorted(folder for folder in users.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def holds_memories(folder: Path) -> bool:
    """Whether a user's file, not open, has any memory."""
    return _asked(folder, "SELECT 1 FROM memories LIMIT 1") is not None


def model_of(folder: Path) -> tuple[str, int]:
    """Name and dimension of the model of a user's file, not open."""
    row = _asked(folder, "SELECT model, dimension FROM replica")
    if row is None:
        raise _incomplete(folder, "it does not say whose it is")
    return row[0], row[1]


def revision_of(folder: Path, schema: Schema) -> str:
    """The schema's revision of a user's file, not open."""
    path = folder / DATABASE_FILE
    with directory_errors(folder):
        _require_complete(folder, path)
    return schema.revision(path) or "none"


def _asked(folder: Path, question: str) -> Any:
    path = folder / DATABASE_FILE
    with directory_errors(folder):
        _require_complete(folder, path)
    with translated(path), closing(connect(path)) as connection:
        return connection.execute(question).fetchone()


def _require_complete(folder: Path, path: Path) -> None:
    """Notice a folder that was copied in part."""
    if not path.is_file():
        raise _incomplete(folder, f"{DATABASE_FILE} is missing")
    if (folder / IN_USE).exists():
        if not wal_path(path).exists():
            raise _incomplete(folder, f"{wal_path(path).name} is missing, and with it perhaps the latest changes")
        # From here on the log may go into the file at any time.
        (folder / IN_USE).unlink()


def _incomplete(folder: Path, what: str) -> IntegrityFailure:
    return IntegrityFailure(
        f"{folder}: {what}: it was copied in part, or damaged",
        hint="copy the folder again whole while no program has it open; to go on with what is there, delete the file"
        f" {IN_USE!r} in it, or the folder (the sqlite3 shell removes the log of a crashed program, and loses nothing)",
    )


def _drop_old_copies(folder: Path) -> None:
    oldest = time.time() - KEEP_COPIES_SECONDS
    for copy in folder.glob(f"{DATABASE_FILE}.*"):
        if copy.stat().st_mtime < oldest:
            copy.unlink()
