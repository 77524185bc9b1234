"""One SQLite file: its connections, transactions, write-ahead log, and the driver's errors told as ours.

One connection writes, under a lock of ours; readers have connections of their own and see the state of when
they began. So nobody in this process ever waits for SQLite's own lock, and a reader never for a writer.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

from edge.steps import Step, no_step
from memory.core.errors import (
    IntegrityFailure,
    SchemaMismatch,
    StoreBusy,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    Unsupported,
)
from memory.policies.admission import Condition
from memory.policies.matching import conditions_hold

logger = logging.getLogger(__name__)
Db = sqlite3.Connection
BUSY_TIMEOUT_MS: Final = 5_000
"""For others that have the file open: a backup, the sqlite3 shell."""
WAL_AUTOCHECKPOINT_PAGES: Final = 1_000
READER_CACHE_KIB: Final = 8_192
MAX_IDLE_READERS: Final = 4
LOCAL_DISK: Final = "keep it on a local disk; memories travel by export, import and sync"

_BY_CODE: Final[dict[int, type[StoreError]]] = {
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreDenied,
    sqlite3.SQLITE_AUTH: StoreDenied,
    sqlite3.SQLITE_CANTOPEN: StoreDenied,
    sqlite3.SQLITE_IOERR: StoreUnavailable,
    sqlite3.SQLITE_CORRUPT: IntegrityFailure,
    sqlite3.SQLITE_NOTADB: IntegrityFailure,
    sqlite3.SQLITE_CONSTRAINT: IntegrityFailure,
    sqlite3.SQLITE_SCHEMA: SchemaMismatch,
}
_HINTS: Final[dict[type[StoreError], str]] = {
    StoreBusy: "close what else has this file open (a backup, the sqlite3 shell), then repeat the call",
    StoreDenied: "give this account the right to read and write the directory and all files in it",
    StoreReadOnly: "give this account the right to write to the directory and all files in it",
    StoreUnavailable: "check the disk (dmesg, SMART) and repeat the call",
    IntegrityFailure: "damaged, or copied while in use: copy the whole folder again, or run `memory doctor`",
}


class translated:  # noqa: N801  reads like the function that it is used as
    """Raises SQLite's errors as the tree of ``memory.core.errors``, the cause kept. May be entered by several."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Translate."""
        if isinstance(error, sqlite3.Error):
            primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
            kind = _BY_CODE.get(primary, StoreError)
            message = f"{self._path}: {(kind.__doc__ or '').splitlines()[0]} [{error}]"
            raise kind(message, hint=_HINTS.get(kind, "")) from error


class Database:
    """A user's file, open. Methods may be called from any thread."""

    def __init__(self, path: Path, *, synchronous: str, step: Step = no_step) -> None:
        """Open an existing file and switch it to WAL.

        Args:
            path: The file.
            synchronous: ``full``: a commit survives power loss; ``normal``: it may not, the file stays sound.
            step: Told before and after each commit and check-point.

        Raises:
            Unsupported: WAL is not possible here. StoreError: the file cannot be opened.
        """
        self.path, self._synchronous, self._step = path, synchronous, step
        self._translated = translated(path)
        self._write_lock = threading.RLock()
        self._readers: list[Db] = []
        self._readers_lock = threading.Lock()
        self._closed = False
        with translated(path):
            self._writer = connect(path, synchronous=synchronous)
        try:
            with translated(path):
                _require_wal(self._writer, path)
        except BaseException:
            self._writer.close()
            raise

    def write(self) -> WriteTransaction:
        """One transaction on the one writing connection; committed when the block ends well."""
        return WriteTransaction(self._writer, self._write_lock, self._translated, self._step)

    @contextmanager
    def read(self) -> Iterator[Db]:
        """A consistent view; writers go on."""
        with self._translated:
            connection = self._lent()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._take_back(connection)

    @contextmanager
    def inspect(self) -> Iterator[Db]:
        """A consistent view on a connection of its own, for whoever needs temporary tables; nothing is kept."""
        with self._translated, closing(connect(self.path)) as connection:
            connection.execute("BEGIN")
            yield connection

    def _lent(self) -> Db:
        with self._readers_lock:
            if self._readers:
                return self._readers.pop()
        connection = connect(self.path, synchronous=self._synchronous)
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
        return connection

    def _take_back(self, connection: Db) -> None:
        with self._readers_lock:
            if not self._closed and len(self._readers) < MAX_IDLE_READERS:
                self._readers.append(connection)
                return
        connection.close()

    def wal_bytes(self) -> int:
        """Size of the write-ahead log."""
        try:
            return wal_path(self.path).stat().st_size
        except FileNotFoundError:
            return 0

    def checkpoint(self) -> bool:
        """Move the log into the file and cut it to nothing; False while a reader is still on an older state."""
        with self._write_lock, self._translated:
            # Readers need not be waited for: the next checkpoint comes soon enough.
            self._writer.execute("PRAGMA busy_timeout = 0")
            try:
                busy, _, _ = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._writer.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        self._step("log cut")
        return not busy

    def close(self) -> None:
        """Check-point and close every connection. Idempotent. A log that cannot be cut stays, and loses nothing."""
        with self._write_lock:
            if self._closed:
                return
            with self._readers_lock:
                self._closed = True
                idle, self._readers = self._readers, []
            for reader in idle:
                reader.close()
            try:
                if not self.checkpoint():
                    logger.warning("%s: closed while it is still being read; its log stays", self.path)
            except StoreError as error:
                logger.warning("closed, its log stays: %s", error)
            finally:
                self._writer.close()


class WriteTransaction:
    """A block that holds the lock of writers. A class, for it is entered for every single write."""

    __slots__ = ("_connection", "_lock", "_step", "_translated")

    def __init__(self, connection: Db, lock: threading.RLock, errors: translated, step: Step) -> None:
        self._connection, self._lock, self._translated, self._step = connection, lock, errors, step

    def __enter__(self) -> Db:
        self._lock.acquire()
        try:
            with self._translated:
                self._connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._lock.release()
            raise
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        try:
            with self._translated:
                if error is not None:
                    raise error
                self._step("written")
                self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite itself rolls back after some errors
                with self._translated:
                    self._connection.execute("ROLLBACK")
            raise
        finally:
            self._lock.release()
        self._step("committed")


def connect(path: Path, *, synchronous: str = "full") -> Db:
    """A connection with our settings, in autocommit mode. The file must exist."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        for setting in (
            f"busy_timeout = {BUSY_TIMEOUT_MS}",
            f"synchronous = {synchronous}",
            f"wal_autocheckpoint = {WAL_AUTOCHECKPOINT_PAGES}",
            "foreign_keys = ON",
            "secure_delete = ON",
        ):
            connection.execute(f"PRAGMA {setting}")
        connection.create_function("metadata_matches", 2, _metadata_matches, deterministic=True)
    except BaseException:
        connection.close()
        raise
    return connection


def wal_path(path: Path) -> Path:
    """The write-ahead log of a file."""
    return path.with_name(path.name + "-wal")


def encoded_conditions(conditions: tuple[Condition, ...]) -> str:
    """Conditions on metadata as the second argument of the SQL function ``metadata_matches``."""
    return json.dumps([[item.key, item.operator, item.value] for item in conditions], ensure_ascii=False)


@lru_cache(maxsize=64)
def _decoded_conditions(text: str) -> tuple[Condition, ...]:
    return tuple(Condition(key=key, operator=name, value=value) for key, name, value in json.loads(text))


def _metadata_matches(metadata: str, conditions: str) -> bool:
    return conditions_hold(json.loads(metadata), _decoded_conditions(conditions))


def _require_wal(connection: Db, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise Unsupported(
            f"{path}: SQLite's write-ahead log is not possible here (it stays in mode {mode!r})", hint=LOCAL_DISK
        )
