"""A memory as replicas see it: registers with stamps. Callers see :class:`~memory.core.model.Memory`.

Every scalar field, every tag and every top-level metadata key is a register of its own, so that edits to
different ones never overwrite each other. ``memory.core.merge`` joins two states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, NamedTuple

from memory.core.clock import Stamp
from memory.core.model import Memory, MemoryType, Status

SCALARS: Final = ("content", "memory_type", "importance", "status", "source_session", "created_at")
"""The scalar registers this version knows; others are kept and passed on untouched."""


UNCOUNTED: Final = "-"
"""Writer of the slot that holds a last access without any count."""


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""The value of a metadata register whose key was removed."""


class Register(NamedTuple):
    """A value and when it was written. Tags hold True (present) or False (removed)."""

    stamp: Stamp
    value: Any


@dataclass(frozen=True, slots=True)
class State:
    """The registers of one memory, or, with ``deleted`` set, its tombstone (then all else is empty)."""

    scalars: Mapping[str, Register] = field(default_factory=dict)
    tags: Mapping[str, Register] = field(default_factory=dict)
    metadata: Mapping[str, Register] = field(default_factory=dict)
    deleted: Stamp | None = None
    last_access: int | None = None
    accesses: Mapping[str, int] = field(default_factory=dict)
    """Recall count per writer."""

    def stamps(self) -> Iterator[Stamp]:
        """Every stamp in the state."""
        for registers in (self.scalars, self.tags, self.metadata):
            for register in registers.values():
                yield register.stamp
        if self.deleted is not None:
            yield self.deleted

    def value(self, name: str) -> Any:
        """The value of a scalar register, None when there is no information."""
        register = self.scalars.get(name)
        return None if register is None else register.value

    def updated_at(self) -> int:
        """Time of the latest register, ms UTC."""
        latest = 0
        for registers in (self.scalars, self.tags, self.metadata):
            for register in registers.values():
                latest = max(latest, register.stamp.ms)
        return latest if self.deleted is None else self.deleted.ms

    def extra(self) -> dict[str, Any]:
        """Values of scalar registers that this version does not know."""
        return {name: register.value for name, register in self.scalars.items() if name not in SCALARS}

    def without_accesses(self) -> State:
        """The registers alone: recalls do not count as a change of the memory."""
        return replace(self, accesses={}, last_access=None)

    def access_slots(self) -> list[tuple[str, int, int]]:
        """Access counts as rows of a table: (writer, count, last access in ms UTC or 0)."""
        last = self.last_access or 0
        counts = self.accesses or ({UNCOUNTED: 0} if last else {})
        return [(writer, count, last) for writer, count in counts.items()]

    def present_tags(self) -> tuple[str, ...]:
        """The tags that are set, in code-point order."""
        return tuple(sorted(tag for tag, register in self.tags.items() if register.value))

    def present_metadata(self) -> dict[str, Any]:
        """The metadata keys that are set, with their values."""
        return {key: r.value for key, r in self.metadata.items() if r.value is not ABSENT}

    def written(self, stamp: Stamp, changes: Changes) -> State:
        """The state after a local edit. Fields already holding the wanted value keep their stamp."""
        scalars = dict(self.scalars)
        for name, value in changes.scalars.items():
            if name not in scalars or scalars[name].value != value:
                scalars[name] = Register(stamp, value)
        return replace(
            self,
            scalars=scalars,
            tags=_edited(self.tags, changes.tag_edits(self.present_tags()), stamp, missing=False),
            metadata=_edited(self.metadata, changes.metadata_edits(), stamp, missing=ABSENT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A normalised edit: what ``update_memory`` was asked for, after admission."""

    scalars: Mapping[str, Any] = field(default_factory=dict)
    tags: frozenset[str] | None = None
    """The whole new set, or None to leave the tags alone."""
    add_tags: frozenset[str] = frozenset()
    remove_tags: frozenset[str] = frozenset()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    remove_metadata: frozenset[str] = frozenset()

    def tag_edits(self, present: tuple[str, ...]) -> dict[str, bool]:
        """Tag → wanted presence."""
        edits: dict[str, bool] = {}
        if self.tags is not None:
            edits |= dict.fromkeys(set(present) - self.tags, False) | dict.fromkeys(self.tags, True)
        return edits | dict.fromkeys(self.add_tags, True) | dict.fromkeys(self.remove_tags, False)

    def metadata_edits(self) -> dict[str, Any]:
        """Key → wanted value, ABSENT to remove it."""
        return {**self.metadata, **dict.fromkeys(self.remove_metadata, ABSENT)}


def _edited(
    registers: Mapping[str, Register], edits: Mapping[str, Any], stamp: Stamp, *, missing: Any
) -> Mapping[str, Register]:
    """Apply edits; removing what was never there writes nothing."""
    out = dict(registers)
    for key, value in edits.items():
        held = out[key].value if key in out else missing
        if not same_value(held, value):
            out[key] = Register(stamp, value)
    return out


def same_value(a: Any, b: Any) -> bool:
    """Equality that tells True from 1 and 1 from 1.0, at any depth of a JSON value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b)


def created_state(stamp: Stamp, changes: Changes) -> State:
    """The state of a memory that has just been written for the first time: ``State().written``, made directly."""
    return State(
        scalars={name: Register(stamp, value) for name, value in changes.scalars.items()},
        tags=dict.fromkeys((changes.tags or frozenset()) | changes.add_tags, Register(stamp, value=True)),
        metadata={key: Register(stamp, value) for key, value in changes.metadata.items()},
    )


def as_memory(memory_id: str, user_id: str, state: State, *, version: str) -> Memory:
    """What a caller sees of a live state."""
    return Memory(
        memory_id=memory_id,
        user_id=user_id,
        content=state.value("content"),
        memory_type=MemoryType(state.value("memory_type")),
        importance=state.value("importance"),
        status=Status(state.value("status")),
        tags=state.present_tags(),
        metadata=state.present_metadata(),
        source_session=state.value("source_session"),
        created_at=state.value("created_at"),
        updated_at=state.updated_at(),
        last_access_at=state.last_access,
        access_count=sum(state.accesses.values()),
        version=version,
    )
