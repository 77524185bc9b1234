"""One user at the plain centre: memories with their revisions, epochs, marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import xor
from typing import Final

from memory.core.clock import Stamp, Tick, next_tick
from memory.core.rowhash import row_hash
from memory.core.state import State
from memory.core.sync import Head, Mark

MARKS_KEPT: Final = 50


@dataclass(frozen=True, slots=True)
class Row:
    """A memory, live or deleted."""

    state: State
    rev: int
    """Of the last change of its registers."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Revision of the last change of each access slot."""
    touched: int = 0
    """Revision of the last change of any slot or of the last access."""
    hash: int = 0


@dataclass(slots=True)
class User:
    """All that the centre has of one user."""

    epoch: str
    rev: int = 0
    tick: Tick = field(default_factory=Tick)
    lineage: dict[str, int] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    marks: dict[str, tuple[Mark, ...]] = field(default_factory=dict)
    """By device, oldest first."""
    pruned: dict[str, int] = field(default_factory=dict)
    """By device: the largest revision among marks that are no longer kept."""
    conflicts: dict[tuple[str, Stamp], str] = field(default_factory=dict)
    """Texts that lost to a concurrent edit."""

    def copy(self) -> User:
        """A copy that shares nothing that can change."""
        return replace(
            self,
            lineage=dict(self.lineage),
            rows=dict(self.rows),
            marks=dict(self.marks),
            pruned=dict(self.pruned),
            conflicts=dict(self.conflicts),
        )

    def put(self, memory_id: str, state: State) -> None:
        """Store a state; takes a revision if it differs from what is there."""
        before = self.rows.get(memory_id)
        held = State() if before is None else before.state
        changed = before is None or state.without_accesses() != held.without_accesses()
        slots = [writer for writer, count in state.accesses.items() if count != held.accesses.get(writer)]
        touched = bool(slots) or state.last_access != held.last_access
        if not changed and not touched:
            return
        self.rev += 1
        self.tick = max(self.tick, *(stamp.tick for stamp in state.stamps()))
        if state.deleted is not None:
            self.rows[memory_id] = Row(state, self.rev, hash=row_hash(memory_id, state))
            self.conflicts = {key: text for key, text in self.conflicts.items() if key[0] != memory_id}
            return
        self.rows[memory_id] = Row(
            state,
            rev=self.rev if changed or before is None else before.rev,
            slots={**({} if before is None else before.slots), **dict.fromkeys(slots, self.rev)},
            touched=self.rev if touched or before is None else before.touched,
            hash=row_hash(memory_id, state),
        )

    def next_stamp(self, now: int) -> Stamp:
        """A stamp of the centre's own."""
        self.tick = next_tick(self.tick, now)
        return Stamp(*self.tick, self.epoch)

    def note(self, device: str, mark: Mark) -> None:
        """Keep a mark, and only the last of them."""
        marks = (*self.marks.get(device, ()), mark)
        for old in marks[:-MARKS_KEPT]:
            self.pruned[device] = max(self.pruned.get(device, 0), old.rev)
        self.marks[device] = marks[-MARKS_KEPT:]

    def begin_epoch(self, epoch: str, bound: int) -> None:
        """Begin a new history; of the old one, what was given out up to ``bound`` is still here."""
        self.lineage[self.epoch] = bound
        self.epoch = epoch

    def bound(self, epoch: str) -> int:
        """The revision up to which what was given out in an epoch is, or was once, here."""
        return self.rev if epoch == self.epoch else self.lineage.get(epoch, 0)

    def live(self) -> dict[str, State]:
        """States of the memories that are not deleted."""
        return {memory_id: row.state for memory_id, row in self.rows.items() if row.state.deleted is None}

    def head(self, *, hashed: bool = True) -> Head:
        """What a replica must be equal to."""
        rows = [row for row in self.rows.values() if row.state.deleted is None]
        return Head(
            rev=self.rev,
            digest=reduce(xor, (row.hash for row in rows), 0) if hashed else None,
            live=len(rows),
            accesses=sum(sum(row.state.accesses.values()) for row in rows),
        )
