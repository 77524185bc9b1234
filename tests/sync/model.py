"""An edge in pure Python: its disk is one value, replaced whole at every commit; local verbs; the vector index.

``cp`` is called where a process can die; what is in memory is then lost, and the disk is as it was. ``without`` names
rules that are switched off, to show that the machine finds what they are for. Sessions are in ``model_sync``.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from memory.core.centre import SyncCentre
from memory.core.clock import Stamp, Tick, next_tick
from memory.core.rowhash import row_hash
from memory.core.state import ABSENT, Changes, State, created_state
from memory.core.sync import Mark
from tests.sync import model_rules as rules
from tests.sync.model_rules import Row
from tests.sync.ports import Crash, Fact, Position, written_at

USER = "u-42"


@dataclass(frozen=True, slots=True)
class Disk:
    """All that is durable at an edge, but for the vector index."""

    device: str
    rows: Mapping[str, Row] = field(default_factory=dict)
    tick: Tick = field(default_factory=Tick)
    seq: int = 0
    epoch: str | None = None
    cursor: int = 0
    marks: tuple[Mark, ...] = ()
    offset: int = 0
    """True time less the device's clock, as learnt from the centre."""
    todo: frozenset[str] = frozenset()
    """What the vector index has not seen."""
    conflicts: tuple[tuple[str, str, State], ...] = ()
    """(memory, reason, what it held)"""
    writer: str = ""
    """Only with the rule ``writer`` switched off."""


class LocalEdge:
    """A replica that works on its own."""

    def __init__(
        self,
        name: str,
        carrier: SyncCentre,
        now: Callable[[], int],
        rng: random.Random,
        without: Collection[str] = (),
    ) -> None:
        self.name = name
        self.disk = Disk(device=name)
        self.index: dict[str, int] = {}
        self._carrier, self._now, self._rng, self._without = carrier, now, rng, without
        self._ahead = 0
        self._crash: int | None = None
        self.reopen()

    # -- what is durable, and what is not

    def cp(self) -> None:
        """Here the process may die."""
        if self._crash is not None:
            self._crash -= 1
            if self._crash < 0:
                self._crash = None
                raise Crash

    def _commit(self, disk: Disk) -> None:
        self.cp()
        if "queue" in self._without and disk.todo > self.disk.todo:
            self.disk = replace(disk, todo=self.disk.todo)
            self.cp()
        self.disk = disk
        self.cp()

    def reopen(self) -> None:
        self._crash = None
        self._centre_rev = 0
        """As far as this session has been told."""
        self._writer = f"{self._rng.getrandbits(64):016x}"
        if "writer" in self._without:
            self._writer = self.disk.writer or self._writer
            self.disk = replace(self.disk, writer=self._writer)

    def crash_after(self, steps: int | None) -> None:
        self._crash = steps

    def set_clock(self, ahead: int) -> None:
        self._ahead = ahead

    def backup(self) -> Any:
        return self.disk, dict(self.index)

    def restore(self, backup: Any) -> None:
        self.disk, self.index = backup[0], dict(backup[1])
        self.reopen()

    def clone(self, name: str) -> Self:
        copy = type(self)(name, self._carrier, self._now, self._rng, self._without)
        copy.restore(self.backup())
        return copy

    def close(self) -> None:
        pass

    # -- local verbs

    def create(self, content: str, metadata: Mapping[str, Any]) -> list[Fact]:
        memory_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        scalars = {
            "content": content,
            "memory_type": "fact",
            "importance": 0.5,
            "status": "active",
            "source_session": None,
            "created_at": max(0, self._now()),
        }
        stamp = self._next_stamp()
        state = created_state(stamp, Changes(scalars=scalars, metadata=metadata))
        return self._write(memory_id, Row(state), stamp)

    def edit(self, memory_id: str, scalars: Mapping[str, Any]) -> list[Fact]:
        return self._change(memory_id, Changes(scalars=scalars))

    def tag(self, memory_id: str, tag: str, *, present: bool) -> list[Fact]:
        tags = frozenset({tag})
        return self._change(memory_id, Changes(add_tags=tags) if present else Changes(remove_tags=tags))

    def set_metadata(self, memory_id: str, key: str, value: Any) -> list[Fact]:
        removed = Changes(remove_metadata=frozenset({key}))
        return self._change(memory_id, removed if value is ABSENT else Changes(metadata={key: value}))

    def delete(self, memory_id: str) -> list[Fact]:
        stamp = self._next_stamp()
        return self._write(memory_id, replace(self._live(memory_id), state=State(deleted=stamp), acked={}), stamp)

    def access(self, memory_id: str) -> tuple[str, int]:
        row = self._live(memory_id)
        count = row.state.accesses.get(self._writer, 0) + 1
        last = max(0, self._wall())
        slots = {**row.state.accesses, self._writer: count}
        state = replace(row.state, accesses=slots, last_access=max(last, row.state.last_access or 0))
        self._commit(replace(self.disk, rows={**self.disk.rows, memory_id: replace(row, state=state)}))
        return self._writer, count

    def _live(self, memory_id: str) -> Row:
        row = self.disk.rows[memory_id]
        assert row.live
        return row

    def _change(self, memory_id: str, changes: Changes) -> list[Fact]:
        row, stamp = self._live(memory_id), self._next_stamp()
        state = row.state.written(stamp, changes)
        return [] if state == row.state else self._write(memory_id, replace(row, state=state), stamp)

    def _write(self, memory_id: str, row: Row, stamp: Stamp) -> list[Fact]:
        disk, seq = self.disk, self.disk.seq + 1
        rows = {**disk.rows, memory_id: replace(row, seq=seq, dirty=True)}
        self._commit(replace(disk, rows=rows, seq=seq, tick=stamp.tick, todo=disk.todo | {memory_id}))
        return [Fact(memory_id, name, stamp) for name in written_at(row.state, stamp)]

    def _wall(self) -> int:
        return self._now() + self._ahead + self.disk.offset

    def _next_stamp(self) -> Stamp:
        wall = max(0, self._wall())
        return Stamp(*(Tick(wall) if "clock" in self._without else next_tick(self.disk.tick, wall)), self._writer)

    # -- what it holds

    def states(self) -> Mapping[str, State]:
        return {memory_id: row.state for memory_id, row in self.disk.rows.items()}

    def position(self) -> Position:
        return Position(self.disk.epoch, self.disk.cursor)

    def digest(self) -> int:
        return rules.head_of(self.disk.rows, self.disk.cursor).digest or 0

    def set_aside(self) -> set[str]:
        return {memory_id for memory_id, reason, _ in self.disk.conflicts if reason != rules.OVERWRITTEN}

    # -- the vector index: derived from the rows, never the other way round

    def drain(self) -> None:
        for memory_id in sorted(self.disk.todo):
            version = self._version(memory_id)
            self.cp()
            if version is None:
                self.index.pop(memory_id, None)
            else:
                self.index[memory_id] = version
            self._commit(replace(self.disk, todo=self.disk.todo - {memory_id}))

    def _version(self, memory_id: str) -> int | None:
        row = self.disk.rows.get(memory_id)
        return row_hash(memory_id, row.state) if row is not None and row.live else None

    def index_faults(self) -> list[str]:
        ids = {*self.index, *self.disk.rows} - self.disk.todo
        return [memory_id for memory_id in sorted(ids) if self.index.get(memory_id) != self._version(memory_id)]
