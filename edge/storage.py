"""The ``Storage`` of a device: a replica for each user, each verb one transaction on that user's file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from edge.home import Home
from edge.maintenance import Maintenance
from edge.recall import find_candidates
from edge.replica import Replica
from edge.sqlite import models, reading, writing
from edge.sqlite.database import Db
from edge.sqlite.figures import Figures, count_user
from edge.sqlite.merging import Merging
from edge.sqlite.snapshot import live_records, tombstone_records
from edge.users import Users
from memory.core.errors import NotFound, StoreError
from memory.core.model import Stats
from memory.core.ports import Clock, Vector
from memory.core.state import Changes
from memory.engine.storage import (
    Draft,
    Incoming,
    NewText,
    Outcome,
    Pending,
    Query,
    Scope,
    Snapshot,
    Stored,
    Touch,
)
from memory.policies.admission import Filter
from memory.policies.ranking import Candidate

logger = logging.getLogger(__name__)


class EdgeStorage:
    """See :class:`~memory.engine.storage.Storage`."""

    def __init__(self, home: Home, users: Users, maintenance: Maintenance, clock: Clock, *, index_name: str) -> None:
        self.home, self.users, self._maintenance, self._clock = home, users, maintenance, clock
        self._index_name = index_name
        self.on_write: Callable[[str], None] = _ignore
        """Called with a user's id after each change made here."""
        self._written: dict[str, object] = {}
        """Of each user something new at every write."""
        self._settled: dict[str, object] = {}
        """What that was when nothing of the user waited for a vector, so that asking again need not open them all."""

    @property
    def dimension(self) -> int:
        """See ``Storage``."""
        return self.home.description.dimension

    # -- writing

    def insert(self, user_id: str, drafts: Sequence[Draft], *, fresh_ids: bool) -> list[Stored]:
        """See ``Storage``."""
        with self.users.writing(user_id) as replica:
            with replica.database.write() as connection:
                stored = writing.insert(connection, replica.author, drafts, now=self._now(replica), fresh_ids=fresh_ids)
            self._wrote(replica, len(drafts))
        return stored

    def change(
        self,
        user_id: str,
        memory_id: str,
        changes: Changes,
        *,
        text: NewText | None,
        expected_version: str | None,
    ) -> Stored:
        """See ``Storage``."""
        with self.users.lease(user_id) as replica:
            if replica is None:
                raise NotFound(memory_id=memory_id)
            with replica.database.write() as connection:
                stored = writing.change(
                    connection,
                    replica.author,
                    memory_id,
                    changes,
                    text=text,
                    expected_version=expected_version,
                    now=self._now(replica),
                )
            self._wrote(replica, 1)
        return stored

    def delete(self, user_id: str, memory_id: str) -> None:
        """See ``Storage``."""
        with self.users.lease(user_id) as replica:
            if replica is None:
                raise NotFound(memory_id=memory_id)
            with replica.database.write() as connection:
                writing.delete(connection, replica.author, memory_id, now=self._now(replica))
            self._wrote(replica, 1)

    def touch(self, touches: Sequence[Touch]) -> None:
        """See ``Storage``. A transaction for each user; whose fails keeps nobody else's from being written."""
        by_user: dict[str, list[Touch]] = {}
        for item in touches:
            by_user.setdefault(item.user_id, []).append(item)
        failed: list[tuple[StoreError, list[Touch]]] = []
        for user_id, mine in by_user.items():
            try:
                self._touch_one(user_id, mine)
            except StoreError as error:
                failed.append((error, mine))
        if failed:
            first = failed[0][0]
            first.fields["unwritten"] = [item for _, mine in failed for item in mine]
            raise first

    def _touch_one(self, user_id: str, touches: Sequence[Touch]) -> None:
        with self.users.lease(user_id) as replica:
            if replica is not None:
                with replica.database.write() as connection:
                    writing.touch(connection, replica.author, touches)
                self.on_write(user_id)

    def merge(self, incoming: Sequence[Incoming]) -> list[Outcome]:
        """See ``Storage``. A transaction for each user: users are files of their own."""
        outcomes: dict[int, Outcome] = {}
        for user_id in dict.fromkeys(item.user_id for item in incoming):
            mine = {i: item for i, item in enumerate(incoming) if item.user_id == user_id}
            with self.users.writing(user_id) as replica:
                with replica.database.write() as connection:
                    found = Merging(connection, replica.author).run(list(mine.values()))
                outcomes |= zip(mine, found, strict=True)
                self._wrote(replica, len(mine))
        return [outcomes[i] for i in range(len(incoming))]

    def _now(self, replica: Replica) -> int:
        """The time for stamps: this device's clock, put right by what the centre has told."""
        return max(0, self._clock.now() + replica.clock_offset)

    def received(self, user_id: str) -> None:
        """Memories of a user have come from the centre: some may wait for a vector."""
        self._written[user_id] = object()

    def _wrote(self, replica: Replica, changes: int) -> None:
        """After a commit: nothing that goes wrong here may make the verb fail."""
        self._written[replica.user_id] = object()
        self.on_write(replica.user_id)
        if replica.wrote(changes):
            self._maintenance.catch_up(replica)

    # -- reading

    def fetch(self, user_id: str, memory_ids: Sequence[str]) -> dict[str, Stored]:
        """See ``Storage``."""
        with self._reading(user_id) as (_, connection):
            return {} if connection is None else reading.fetch(connection, memory_ids)

    def list_page(self, user_id: str, where: Filter, *, limit: int, before: tuple[int, str] | None) -> list[Stored]:
        """See ``Storage``."""
        with self._reading(user_id) as (replica, connection):
            if replica is None or connection is None:
                return []
            view = replica.columns.current(connection)
            return reading.list_page(connection, view, where, limit=limit, before=before)

    def candidates(self, user_id: str, query: Query, where: Filter) -> list[Candidate]:
        """See ``Storage``."""
        with self.users.lease(user_id) as replica:
            if replica is None:
                return []
            search = replica.indexer.searcher()  # before the view begins, see there
            with replica.database.read() as connection:
                return find_candidates(connection, replica.columns.current(connection), search, query, where)

    @contextmanager
    def _reading(self, user_id: str) -> Iterator[tuple[Replica | None, Db | None]]:
        with self.users.lease(user_id) as replica:
            if replica is None:
                yield None, None
                return
            with replica.database.read() as connection:
                yield replica, connection

    # -- late vectors

    def pending(self, limit: int, *, after: tuple[str, str] | None) -> list[Pending]:
        """See ``Storage``. A user who cannot be opened keeps nobody else waiting."""
        found: list[Pending] = []
        start, position = after or ("", "")
        for user_id in self.users.known(damaged=self._report):
            written = self._written.get(user_id)
            if user_id < start or self._settled.get(user_id, self) is written or len(found) >= limit:
                continue
            try:
                from_id = position if user_id == start else None
                here = self._pending_of(user_id, limit - len(found), from_id)
                if not here and from_id is None:
                    self._settled[user_id] = written  # unless it was written to while we looked
                found += here
            except StoreError as error:
                self._report(error)
        return found

    def _pending_of(self, user_id: str, limit: int, position: str | None) -> list[Pending]:
        with self._reading(user_id) as (_, connection):
            return [] if connection is None else models.pending(connection, user_id, limit, after=position)

    @staticmethod
    def _report(error: StoreError) -> None:
        logger.warning("%s", error)

    def put_vectors(self, vectors: Sequence[tuple[Pending, Vector]]) -> int:
        """See ``Storage``."""
        stored = 0
        for user_id in dict.fromkeys(item.user_id for item, _ in vectors):
            mine = [pair for pair in vectors if pair[0].user_id == user_id]
            with self.users.lease(user_id) as replica:
                if replica is not None:
                    with replica.database.write() as connection:
                        count = writing.put_vectors(connection, mine)
                    self._wrote(replica, count)
                    stored += count
        return stored

    # -- the whole

    @contextmanager
    def snapshot(self, scope: Scope) -> Iterator[Snapshot]:
        """See ``Storage``. The views of all users begin before the first is read.

        Of more users than may be open at a time each has its view when it is read: what changed since the revision
        stated here is then in it, and once more in a later export that continues this one.
        """
        users = self.users.known() if scope.user_id is None else [scope.user_id]
        revisions: dict[str, int] = {}
        with ExitStack() as stack:
            held: dict[str, Db | None] = {}
            for user_id in users:
                view = self._reading(user_id)
                if len(users) <= self.users.max_open:
                    _, held[user_id] = stack.enter_context(view)
                    rev = _revision(held[user_id])
                else:
                    with view as (_, connection):
                        rev = _revision(connection)
                if rev:
                    revisions[user_id] = rev
            with closing(self._records(users, held, scope)) as records:
                yield Snapshot(self.home.description.replica, revisions, records)

    def _records(
        self, users: Sequence[str], held: Mapping[str, Db | None], scope: Scope
    ) -> Generator[Mapping[str, Any]]:
        model = self.home.description.model
        for part in ("live", "deleted") if scope.complete else ("live",):
            for user_id in users:
                after = None if scope.after is None else scope.after.get(user_id, 0)
                with self._viewing(user_id, held) as connection:
                    if connection is None:
                        continue
                    if part == "live":
                        yield from live_records(connection, scope, after=after, model=model)
                    else:
                        yield from tombstone_records(connection, after=after)

    @contextmanager
    def _viewing(self, user_id: str, held: Mapping[str, Db | None]) -> Iterator[Db | None]:
        if user_id in held:
            yield held[user_id]
            return
        with self._reading(user_id) as (_, connection):
            yield connection

    def stats(self, user_id: str | None) -> Stats:
        """See ``Storage``. ``details`` hold the size of the logs and how far the indexes are behind, in memories."""
        figures, log, size = Figures(), 0, 0
        for one in self.users.known() if user_id is None else [user_id]:
            with self._reading(one) as (replica, connection):
                if replica is not None and connection is not None:
                    figures.add(count_user(connection))
                    log += replica.database.wal_bytes()
                    size += replica.size()
        description = self.home.description
        return Stats(
            users=figures.users,
            memories_by_status=dict(sorted(figures.by_status.items())),
            deletions=figures.deletions,
            accesses=figures.accesses,
            pending_embeddings=figures.pending,
            embedding_model=description.model,
            embedding_dimension=description.dimension,
            storage_bytes=size,
            details={
                "index": self._index_name,
                "index_backlog_words": figures.waiting_words,
                "index_backlog_vectors": figures.waiting_vectors,
                "wal_bytes": log,
            },
        )

    def drain(self) -> None:
        """Bring the indexes of all open users up to date now."""
        self._maintenance.drain_all()

    def tidy(self) -> None:
        """Cut the logs of all open users now, and remove what deleted memories have left."""
        self._maintenance.tidy_all()

    def close(self) -> None:
        """See ``Storage``."""
        self._maintenance.stop()
        try:
            self.users.close()
        finally:
            self.home.close()


def _ignore(_user_id: str) -> None:
    """Nobody wants to know."""


def _revision(connection: Db | None) -> int:
    return 0 if connection is None else int(connection.execute("SELECT rev FROM replica").fetchone()[0])
