"""The memory of a device: the verbs on its replica, and what brings it together with the centre."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge.home import Home
from edge.sqlite.conflicts import Conflict, dismiss, list_conflicts, read_conflict
from edge.sqlite.migrations import Schema
from edge.storage import EdgeStorage
from edge.sync import files
from edge.sync.link import Dial, Link
from edge.sync.loop import SyncLoop
from edge.sync.plan import DELETED, GONE
from edge.sync.records import Model
from edge.sync.report import SyncReport, SyncStatus
from edge.sync.service import SyncService
from edge.sync.talk import Progress, no_progress
from memory.core.errors import Error, NotFound
from memory.core.model import Memory
from memory.core.ports import Clock, Embedder
from memory.engine.provider import EngineSettings, StorageProvider
from memory.policies import normalise


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """How a device keeps in touch with its centre."""

    background: bool = True
    """Sync at intervals, after local writes, and when the centre tells of changes."""
    interval: float = 60.0
    """Seconds between looks at the centre."""


class EdgeMemory(StorageProvider):
    """See :class:`~memory.core.provider.MemoryProvider`; works without a network, and syncs when there is one."""

    def __init__(
        self,
        storage: EdgeStorage,
        embedder: Embedder,
        clock: Clock,
        settings: EngineSettings,
        *,
        dial: Dial | None = None,
        sync: SyncSettings | None = None,
    ) -> None:
        """Take over an open storage; ``dial`` reaches the centre, None: there is none."""
        super().__init__(storage, embedder, clock, settings)
        self._edge = storage
        self._link = Link(dial)
        self._service = SyncService(
            storage.users, self._link, lambda: _model(storage.home), clock, schema=_schema(), received=self._received
        )
        wanted = sync or SyncSettings()
        self._loop = SyncLoop(self._service, self._link, storage.users, interval=wanted.interval)
        if dial is not None and wanted.background:
            storage.on_write = self._loop.wrote
            self._loop.start()

    # -- sync

    def sync_now(
        self, user_id: str | None = None, *, verify: bool = False, progress: Progress = no_progress
    ) -> list[SyncReport]:
        """Bring this device and the centre together now.

        Args:
            user_id: Whose memories; they come to this device if they are not here yet. None: all users on this device.
            verify: Compute the hashes of all rows again, to find damage on this device's disk.
            progress: Called with a phase (``push``, ``pull``, ``compare``), what is done of it and its total.

        Raises:
            ConfigError: there is no centre. StoreUnavailable: it is not reached. SyncError: see its kinds. Users that
            were done before stay done; every other is tried before the first error is raised.
        """
        self._check_open()
        self._accesses.flush()
        users = self._edge.users.known() if user_id is None else [normalise.identifier(user_id, "user_id")]
        self._link.require_dial()
        self._link.begin_round()
        reports: list[SyncReport] = []
        failed: list[Error] = []
        for one in users:
            try:
                done = self._service.sync(one, create=user_id is not None, verify=verify, progress=progress)
                reports += [] if done is None else [done]
            except Error as error:
                failed.append(error)
            self._loop.meet(one)
        if failed:
            raise failed[0]
        return reports

    def sync_status(self, user_id: str | None = None) -> list[SyncStatus]:
        """How this device stands to the centre, without asking it; of one user or of all."""
        self._check_open()
        users = self._edge.users.known() if user_id is None else [normalise.identifier(user_id, "user_id")]
        return [self._service.status(one) for one in users]

    def reconcile(self, user_id: str, *, progress: Progress = no_progress) -> SyncReport:
        """Compare everything with the centre, and mend what differs on either side."""
        user_id = self._ready(user_id)
        self._link.require_dial()
        self._link.begin_round()
        self._service.suspect(user_id)
        report = self._service.sync(user_id, create=False, verify=True, progress=progress)
        if report is None:
            raise NotFound("this user has no replica here", user_id=user_id)
        return report

    def forget_user(self, user_id: str) -> int:
        """Remove a user's memories from this device, and only from it; returns how many changes were never sent.

        If the centre can be reached they are sent first.
        """
        user_id = self._ready(user_id)
        self._accesses.flush()
        if self._link.has_centre and self._edge.users.exists(user_id):
            self._send_at_last(user_id)
        return self._service.wipe(user_id)

    def _send_at_last(self, user_id: str) -> None:
        self._link.begin_round()
        try:
            self._service.sync(user_id, create=False)
        except Error:
            return  # how much is lost with it is counted, and told

    # -- sync by file

    def write_changes(self, user_id: str, target: str | Path) -> files.Written:
        """Write what the centre lacks into a file, for a centre that this device cannot reach.

        There, ``edge.sync.files.answer_request`` or `memory edge answer` makes the answer; ``read_answer`` takes it in.
        """
        user_id = self._ready(user_id)
        self._accesses.flush()
        return files.write_request(
            self._edge.users, user_id, target, model=_model(self._edge.home), clock=self._clock, schema=_schema()
        )

    def read_answer(self, user_id: str, source: str | Path) -> SyncReport:
        """Take in the centre's answer to ``write_changes``; repeated, it changes nothing.

        Raises:
            FileDamaged: the file is cut or altered. FormatError: it is for another user or device, or one that comes
            before it has not been taken in. Nothing is taken in then.
        """
        user_id = self._ready(user_id)
        report = files.read_answer(
            self._edge.users, user_id, source, model=_model(self._edge.home), clock=self._clock, schema=_schema()
        )
        self._received(user_id)
        return report

    # -- conflicts

    def conflicts(self, user_id: str) -> list[Conflict]:
        """What could not be kept where it was: texts that lost to another edit, records that the centre refused."""
        user_id = self._ready(user_id)
        with self._edge.users.lease(user_id) as replica:
            if replica is None:
                return []
            with replica.database.read() as connection:
                return list_conflicts(connection)

    def restore_conflict(self, user_id: str, number: int) -> Memory:
        """Write the text of an entry again, as a new edit; of a memory that is gone, as a new memory.

        Raises:
            NotFound: there is no such entry.
        """
        user_id = self._ready(user_id)
        entry = self._entry(user_id, number)
        record = entry.record
        live = entry.reason not in (DELETED, GONE) and self._edge.fetch(user_id, [entry.memory_id])
        if live:
            memory = self.update_memory(entry.memory_id, user_id=user_id, content=str(entry.content))
        else:
            memory = self.add_memory(
                str(entry.content),
                user_id=user_id,
                memory_type=record["memory_type"],
                importance=record["importance"],
                tags=record["tags"],
                metadata=record["metadata"],
                source_session=record.get("source_session"),
                created_at=record["created_at"],
            )
        self.dismiss_conflict(user_id, number)
        return memory

    def dismiss_conflict(self, user_id: str, number: int) -> None:
        """Remove an entry for good.

        Raises:
            NotFound: there is no such entry.
        """
        user_id = self._ready(user_id)
        self._entry(user_id, number)
        with self._edge.users.writing(user_id) as replica, replica.database.write() as connection:
            dismiss(connection, number)

    def _entry(self, user_id: str, number: int) -> Conflict:
        number = normalise.whole_number(number, "number", low=1, high=2**63 - 1)
        with self._edge.users.lease(user_id) as replica:
            entry = None
            if replica is not None:
                with replica.database.read() as connection:
                    entry = read_conflict(connection, number)
        if entry is None:
            raise NotFound(
                "there is no such entry", hint="`memory edge conflicts` lists them", user_id=user_id, number=number
            )
        return entry

    def _received(self, user_id: str) -> None:
        self._edge.received(user_id)
        self._backlog.wake()

    def close(self) -> None:
        """See ``MemoryProvider``; the background loop ends first."""
        self._service.end()
        self._loop.stop()
        super().close()
        self._link.close()


def _model(home: Home) -> Model:
    return Model(home.description.model, home.description.dimension)


def _schema() -> str:
    return Schema().branch.head
