"""Admission of records: what another store, or a file, says is checked like what a caller says.

One difference: times in framed records are milliseconds already and are never scaled; only plain records,
which other programs wrote, get the treatment of a caller's input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from memory.core.clock import MAX_SKEW_MS, Stamp
from memory.core.errors import InvalidValue
from memory.core.merge import merge
from memory.core.model import MemoryType, Status
from memory.core.record import PLAIN_WRITER, Record
from memory.core.state import ABSENT, Register, State
from memory.policies import limits, normalise
from memory.policies.admission import admit_memory_id
from memory.policies.importance import default_importance

MAX_EXTRA: Final = 64
"""Registers of later versions that one record may carry."""
MAX_NAME: Final = 128
"""Characters in the name of such a register."""
_NEVER: Final = Stamp(0, 0, PLAIN_WRITER)
"""Stamp of values made up for what a record lacks: missing means "no information", so anything known wins."""


@dataclass(frozen=True, slots=True)
class AdmittedRecord:
    """A record that may be merged."""

    user_id: str
    memory_id: str
    state: State


def admit_record(record: Record, *, now: int) -> AdmittedRecord:
    """Check and normalise a decoded record; ``now`` in ms UTC bounds its stamps.

    Raises:
        InvalidValue: the field at fault is named.
    """
    user_id = normalise.identifier(record.user_id, "user_id")
    memory_id = admit_memory_id(record.memory_id)
    state = replace(record.state, last_access=_last_access(record.state.last_access, plain=record.plain))
    latest = max((*(stamp.ms for stamp in state.stamps()), state.last_access or 0))
    if latest > now + MAX_SKEW_MS:
        raise InvalidValue(
            "stamps" if not record.plain else "updated_at",
            f"{latest} lies {(latest - now) / 1000:,.0f} s in the future",
            hint="set the clock of the machine that wrote it, or of this one, and repeat",
        )
    if state.deleted is not None:
        return AdmittedRecord(user_id, memory_id, State(deleted=state.deleted))
    return AdmittedRecord(user_id, memory_id, _live(state, plain=record.plain))


def is_settled(record: Record) -> bool:
    """Whether a record can be kept as it is, without looking into every tag and key: its scalars are well-formed.

    For records that have been admitted once, where they come from: reading thousands of them again takes longer than
    storing them. Others go through ``admit_record``, which says what is wrong.
    """
    state, ident = record.state, record.memory_id
    if record.plain or not isinstance(record.user_id, str) or not isinstance(ident, str) or not _ID.fullmatch(ident):
        return False
    if state.deleted is not None:
        return True
    value = {name: register.value for name, register in state.scalars.items()}
    importance, created = value.get("importance"), value.get("created_at")
    return (
        isinstance(value.get("content"), str)
        and bool(value["content"])
        and value.get("memory_type") in _TYPES
        and value.get("status") in _STATUSES
        and isinstance(importance, float | int)
        and not isinstance(importance, bool)
        and 0 <= importance <= 1
        and isinstance(created, int)
        and not isinstance(created, bool)
        and limits.EARLIEST_MS <= created <= limits.LATEST_MS
        and isinstance(value.get("source_session", 0), str | None)
    )


_ID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TYPES: Final = frozenset(kind.value for kind in MemoryType)
_STATUSES: Final = frozenset(status.value for status in Status)


def _live(state: State, *, plain: bool) -> State:
    metadata = _metadata(state.metadata)
    scalars = dict(state.scalars)
    for name, value in {"source_session": None, **(_PLAIN_DEFAULTS if plain else {})}.items():
        scalars.setdefault(name, Register(_NEVER, value))
    checked = {name: replace_value(r, _check(name, r.value, plain=plain)) for name, r in scalars.items()}
    if len(checked) - len(_CHECKS) > MAX_EXTRA * limits.MERGED:
        raise InvalidValue("record", f"has more than {MAX_EXTRA * limits.MERGED} unknown fields")
    if "importance" not in checked:
        present = {key: r.value for key, r in metadata.items() if r.value is not ABSENT}
        value = default_importance(checked["content"].value, checked["memory_type"].value, present)
        checked["importance"] = Register(_NEVER, value)
    return replace(state, scalars=checked, tags=_tags(state.tags), metadata=metadata)


_PLAIN_DEFAULTS: Final[Mapping[str, Any]] = {
    "memory_type": MemoryType.FACT.value,
    "status": Status.ACTIVE.value,
}


def replace_value(register: Register, value: Any) -> Register:
    """The register with another value and the same stamp."""
    return Register(register.stamp, value)


def _check(name: str, value: Any, *, plain: bool) -> Any:
    if name == "created_at" and not plain:
        return normalise.whole_number(value, name, low=limits.EARLIEST_MS, high=limits.LATEST_MS)
    check = _CHECKS.get(name)
    return _unknown(name, value) if check is None else check(value)


def _unknown(name: str, value: Any) -> Any:
    if len(name) > MAX_NAME or normalise.clean_text(name, "record", max_bytes=4 * MAX_NAME) != name:
        raise InvalidValue("record", f"cannot keep a field of the name {name!r:.80}")
    return normalise.json_value(value, name)


def _last_access(value: int | None, *, plain: bool) -> int | None:
    if value is None:
        return None
    if plain:
        return normalise.timestamp(value, "last_access_at")
    return normalise.whole_number(value, "last_access_at", low=limits.EARLIEST_MS, high=limits.LATEST_MS)


def _content(value: Any) -> str:
    return normalise.required_text(value, "content", max_bytes=limits.MAX_CONTENT_BYTES)


def _session(value: Any) -> str | None:
    if value is None:
        return None
    return normalise.clean_text(value, "source_session", max_bytes=limits.MAX_ID_BYTES)


_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "content": _content,
    "memory_type": lambda value: normalise.choice(value, "memory_type", MemoryType).value,
    "importance": lambda value: normalise.fraction(value, "importance"),
    "status": lambda value: normalise.choice(value, "status", Status).value,
    "source_session": _session,
    "created_at": lambda value: normalise.timestamp(value, "created_at"),
}


def _tags(tags: Mapping[str, Register]) -> dict[str, Register]:
    out: dict[str, Register] = {}
    for tag, register in tags.items():
        for name in normalise.tags([tag], "tags"):
            # Two spellings may become one tag; then the later register counts, as in any merge.
            out[name] = _joined(out.get(name), register)
    if sum(1 for register in out.values() if register.value) > limits.MAX_TAGS * limits.MERGED:
        raise InvalidValue(
            "tags", f"more than {limits.MAX_TAGS * limits.MERGED}", limit=limits.MAX_TAGS * limits.MERGED
        )
    return out


def _joined(held: Register | None, register: Register) -> Register:
    if held is None:
        return register
    return merge(State(tags={"": held}), State(tags={"": register})).tags[""]


def _metadata(metadata: Mapping[str, Register]) -> dict[str, Register]:
    present = {key: r.value for key, r in metadata.items() if r.value is not ABSENT}
    cleaned = normalise.metadata(present, max_bytes=limits.MAX_METADATA_BYTES * limits.MERGED)
    out: dict[str, Register] = {}
    for key, register in metadata.items():
        name = normalise.clean_text(key, "metadata key", max_bytes=limits.MAX_METADATA_BYTES)
        checked = register if register.value is ABSENT else replace_value(register, cleaned[name])
        out[name] = _joined(out.get(name), checked)
    return out
