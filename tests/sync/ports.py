"""What the driver asks of a stack under test: edges, a centre, and how to make them.

``tests.sync.model`` is the stack of pure Python. Others put real replicas, or a real Postgres, behind the same verbs.
All is about one user. Registers are named ``content``, ``tags.NAME``, ``metadata.NAME``, ``deleted`` and so on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from memory.core.centre import SyncCentre
from memory.core.clock import Stamp
from memory.core.state import Register, State


class Crash(Exception):
    """The process of an edge has died: what was in memory is lost."""


class Fact(NamedTuple):
    """A write that has been acknowledged: from now on it is there, or something later is."""

    memory_id: str
    register: str
    stamp: Stamp


class Position(NamedTuple):
    """What must never go back."""

    epoch: str | None
    rev: int


class Writer(Protocol):
    """The verbs that edges and the centre share. Each returns what it has acknowledged, after it is durable."""

    def create(self, content: str, metadata: Mapping[str, Any]) -> list[Fact]:
        """Write a new memory; the facts name its id."""

    def edit(self, memory_id: str, scalars: Mapping[str, Any]) -> list[Fact]:
        """Write scalar registers of a live memory."""

    def tag(self, memory_id: str, tag: str, *, present: bool) -> list[Fact]:
        """Set or remove a tag; no fact if nothing changes."""

    def set_metadata(self, memory_id: str, key: str, value: Any) -> list[Fact]:
        """Write a metadata key; ``ABSENT`` removes it."""

    def delete(self, memory_id: str) -> list[Fact]:
        """Delete a live memory; the one fact is of the register ``deleted``."""

    def access(self, memory_id: str) -> tuple[str, int]:
        """Count one access; returns the slot's writer and what the slot now holds."""

    def states(self) -> Mapping[str, State]:
        """All that is durable: every memory, live and deleted, with all access slots."""

    def position(self) -> Position:
        """Edge: epoch and cursor. Centre: epoch and revision."""

    def digest(self) -> int:
        """XOR of row hashes: of the live memories, at an edge of those that it thinks the centre has."""


class Edge(Writer, Protocol):
    """A replica. Every verb may raise Crash, once ``crash_after`` was called; the driver then calls ``reopen``."""

    name: str

    def sync(self, page: int) -> None:
        """One session, with pages of so many lines, and the vector index brought up to date. Ends with any error."""

    def drain(self) -> None:
        """Bring the vector index up to date."""

    def reopen(self) -> None:
        """What a new process does: everything in memory is lost, a new writer is drawn."""

    def crash_after(self, steps: int | None) -> None:
        """Raise Crash at the durable step after so many; None: never."""

    def set_clock(self, ahead: int) -> None:
        """From now on the device's clock differs from the true time by so many ms."""

    def backup(self) -> Any:
        """All that is durable."""

    def restore(self, backup: Any) -> None:
        """Put a backup back and reopen."""

    def clone(self, name: str) -> Edge:
        """A second replica from a copy of this one's disk."""

    def set_aside(self) -> set[str]:
        """Ids in the log of conflicts whose record was not merged: deleted elsewhere, gone, or rejected."""

    def index_faults(self) -> list[str]:
        """In what way the vector index, when it has been brought up to date, differs from the memories."""

    def close(self) -> None:
        """Let go of everything."""


class Centre(Writer, Protocol):
    """The centre, as its other writers and its operators see it."""

    port: SyncCentre
    """What carriers are put in front of."""

    def raw_edit(self, memory_id: str, scalars: Mapping[str, Any]) -> list[Fact]:
        """Edit behind the program's back, as with psql."""

    def backup(self) -> Any:
        """All of it."""

    def restore(self, backup: Any, *, known: bool) -> None:
        """Put a backup back: noticed at once, or not."""

    def close(self) -> None:
        """Let go of everything."""


class Stack(Protocol):
    """A centre and the means to make edges."""

    centre: Centre

    def new_edge(self, name: str, carrier: SyncCentre) -> Edge:
        """An empty replica that reaches the centre over a carrier."""

    def close(self) -> None:
        """Let go of the centre, and of what edges have left behind."""


MakeStack = Callable[[Callable[[], int], random.Random], Stack]
"""From the true time, ms, and a source of randomness."""


def registers_of(state: State) -> dict[str, Register]:
    """All registers of a state by the names that facts use."""
    if state.deleted is not None:
        return {"deleted": Register(state.deleted, value=True)}
    return {
        **state.scalars,
        **{f"tags.{name}": register for name, register in state.tags.items()},
        **{f"metadata.{name}": register for name, register in state.metadata.items()},
    }


def written_at(state: State, stamp: Stamp) -> list[str]:
    """Names of the registers that hold a stamp."""
    return [name for name, register in registers_of(state).items() if register.stamp == stamp]
