"""A real replica behind the driver's verbs: SQLite, a vector index, real sessions; crashes by exceptions at any step.

A crash leaves the files as they are at that moment: they are copied, and the copy is opened, while the process that has
"died" is closed without a trace in the copy.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from edge.opening import EdgeSettings, open_storage
from edge.sqlite import syncing
from edge.sqlite.conflicts import list_conflicts
from edge.sqlite.migrations import Schema
from edge.sqlite.rows import SELECT_STATE, read_state
from edge.sync.link import Link
from edge.sync.records import Model
from edge.sync.service import SyncService
from edge.vectors.port import IndexFactory
from memory.core.centre import SyncCentre
from memory.core.clock import parse_stamp
from memory.core.state import ABSENT, Changes, State
from memory.core.text import document_terms
from memory.embedding.hashing import HashingEmbedder
from memory.engine.storage import Draft, NewText, Touch
from tests.sync.model import USER
from tests.sync.ports import Crash, Fact, Position, registers_of, written_at

EMBEDDER = HashingEmbedder(dimension=16)
QUIET = EdgeSettings(synchronous="normal", drain_interval=86_400.0, tidy_interval=86_400.0)
MakeIndex = Callable[[str], IndexFactory]


class RealEdge:
    """``ports.Edge`` on a directory."""

    def __init__(
        self,
        name: str,
        carrier: SyncCentre,
        now: Callable[[], int],
        rng: random.Random,
        folder: Path,
        index: MakeIndex,
        *,
        copy_of: Path | None = None,
    ) -> None:
        self.name = name
        self._carrier, self._true_time, self._rng = carrier, now, rng
        self._folder, self._index = folder, index
        self._numbers = count()
        self._ahead = 0
        self._left: int | None = None
        self._path = self._next_path()
        if copy_of is not None:
            shutil.copytree(copy_of, self._path)
        self._open()

    def now(self) -> int:
        return self._true_time() + self._ahead

    def _next_path(self) -> Path:
        return self._folder / f"{self.name}-{next(self._numbers)}"

    def _open(self) -> None:
        self._left = None
        self._storage = open_storage(self._path, EMBEDDER, self, self._index, QUIET, step=self._step)
        self._service = SyncService(
            self._storage.users,
            Link(lambda: self._carrier),
            lambda: Model(EMBEDDER.name, EMBEDDER.dimension),
            self,
            schema=Schema().branch.head,
            received=self._storage.received,
        )

    def _step(self, _name: str) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            self._left = None
            raise Crash

    # -- verbs

    def create(self, content: str, metadata: Mapping[str, Any]) -> list[Fact]:
        memory_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        changes = Changes(
            scalars={
                "content": content,
                "memory_type": "fact",
                "importance": 0.5,
                "status": "active",
                "source_session": None,
                "created_at": self._true_time(),
            },
            add_tags=frozenset(),
            metadata=dict(metadata),
        )
        vector = EMBEDDER.embed_documents([content])[0]
        draft = Draft(memory_id=memory_id, changes=changes, terms=document_terms(content), vector=vector)
        stored = self._storage.insert(USER, [draft], fresh_ids=True)[0]
        stamp = stored.state.scalars["content"].stamp
        return [Fact(memory_id, name, stamp) for name in registers_of(stored.state)]

    def _change(self, memory_id: str, changes: Changes) -> list[Fact]:
        before = self._live(memory_id)
        content = changes.scalars.get("content")
        text = None
        if content is not None:
            text = NewText(terms=document_terms(content), vector=EMBEDDER.embed_documents([content])[0])
        after = self._storage.change(USER, memory_id, changes, text=text, expected_version=None).state
        if after == before:
            return []
        stamp = max(set(after.stamps()) - set(before.stamps()))
        return [Fact(memory_id, name, stamp) for name in written_at(after, stamp)]

    def _live(self, memory_id: str) -> State:
        return self._storage.fetch(USER, [memory_id])[memory_id].state

    def edit(self, memory_id: str, scalars: Mapping[str, Any]) -> list[Fact]:
        return self._change(memory_id, Changes(scalars=scalars))

    def tag(self, memory_id: str, tag: str, *, present: bool) -> list[Fact]:
        names = frozenset([tag])
        return self._change(memory_id, Changes(add_tags=names) if present else Changes(remove_tags=names))

    def set_metadata(self, memory_id: str, key: str, value: Any) -> list[Fact]:
        if value is ABSENT:
            return self._change(memory_id, Changes(remove_metadata=frozenset([key])))
        return self._change(memory_id, Changes(metadata={key: value}))

    def delete(self, memory_id: str) -> list[Fact]:
        self._storage.delete(USER, memory_id)
        deleted = self.states()[memory_id].deleted
        assert deleted is not None
        return [Fact(memory_id, "deleted", deleted)]

    def access(self, memory_id: str) -> tuple[str, int]:
        self._storage.touch([Touch(user_id=USER, memory_id=memory_id, count=1, last_access_at=self.now())])
        with self._storage.users.lease(USER) as replica:
            assert replica is not None
            writer = replica.author.writer
        return writer, self._live(memory_id).accesses[writer]

    # -- looking

    def states(self) -> dict[str, State]:
        with self._storage.users.lease(USER) as replica:
            if replica is None:
                return {}
            with replica.database.read() as connection:
                live = {row[0]: read_state(row).state for row in connection.execute(SELECT_STATE)}
                dead = connection.execute("SELECT memory_id, stamp FROM memory_tombstones").fetchall()
        return live | {memory_id: State(deleted=parse_stamp(stamp)) for memory_id, stamp in dead}

    def _sync_state(self) -> syncing.SyncState | None:
        with self._storage.users.lease(USER) as replica:
            if replica is None:
                return None
            with replica.database.read() as connection:
                return syncing.read_sync(connection)

    def position(self) -> Position:
        state = self._sync_state()
        return Position(None, 0) if state is None else Position(state.epoch, state.cursor)

    def digest(self) -> int:
        state = self._sync_state()
        return 0 if state is None else state.digest

    def set_aside(self) -> set[str]:
        with self._storage.users.lease(USER) as replica:
            if replica is None:
                return set()
            with replica.database.read() as connection:
                entries = list_conflicts(connection)
        return {entry.memory_id for entry in entries if entry.reason != "overwritten"}

    def index_faults(self) -> list[str]:
        with self._storage.users.lease(USER) as replica:
            if replica is None:
                return []
            with replica.database.read() as connection:
                wanted = dict(connection.execute("SELECT memory_id, version FROM memories"))
                words = connection.execute(
                    "SELECT count(*) FROM memories m WHERE number > (SELECT words_upto FROM replica)"
                ).fetchone()[0]
            index = replica.indexer._index
            held = {} if index is None else index.entries()
        wrong = [f"{key}: {held.get(key)} for {wanted[key]}" for key in wanted if held.get(key) != wanted[key]]
        extra = [f"{key} is no memory" for key in held if key not in wanted]
        return wrong + extra + ([f"{words} memories have no words"] if words else [])

    # -- life

    def sync(self, page: int) -> None:
        self._service.sync(USER, page_lines=page)
        self.drain()

    def drain(self) -> None:
        while waiting := self._storage.pending(100, after=None):
            vectors = EMBEDDER.embed_documents([item.content for item in waiting])
            self._storage.put_vectors(list(zip(waiting, vectors, strict=True)))
        with self._storage.users.lease(USER) as replica:
            if replica is not None:
                replica.drain()

    def crash_after(self, steps: int | None) -> None:
        self._left = steps

    def set_clock(self, ahead: int) -> None:
        self._ahead = ahead

    def reopen(self) -> None:
        self._move_to(self._path)

    def _move_to(self, source: Path) -> None:
        self._left = None
        target = self._next_path()
        shutil.copytree(source, target)
        self._close_storage()
        shutil.rmtree(self._path)
        self._path = target
        self._open()

    def backup(self) -> Path:
        target = self._folder / f"backup-{self._rng.getrandbits(64):016x}"
        shutil.copytree(self._path, target)
        return target

    def restore(self, backup: Path) -> None:
        self._move_to(backup)

    def clone(self, name: str) -> RealEdge:
        return RealEdge(name, self._carrier, self._true_time, self._rng, self._folder, self._index, copy_of=self._path)

    def _close_storage(self) -> None:
        self._left = None
        self._storage.close()

    def close(self) -> None:
        self._close_storage()
