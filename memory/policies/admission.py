"""Admission: from what a caller passed to values that any store accepts. Nothing is written before it passes."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from memory.core.errors import InvalidValue
from memory.core.model import MemoryType, NewMemory, RecallFilter, Status
from memory.core.state import Changes, State
from memory.policies import limits, normalise
from memory.policies.importance import default_importance

OPERATORS: Final = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "exists")
_ORDERED: Final = ("gt", "gte", "lt", "lte")
_UUID: Final = re.compile(r"(?:urn:uuid:)?\{?[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A new memory, ready to be written."""

    memory_id: str
    changes: Changes

    @property
    def content(self) -> str:
        """The text to embed and to index."""
        text: str = self.changes.scalars["content"]
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One typed comparison on a top-level metadata key."""

    key: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A checked ``RecallFilter``: enumerations resolved, times in ms, metadata as a list of conditions."""

    statuses: tuple[Status, ...] = (Status.ACTIVE,)
    types: tuple[MemoryType, ...] = ()
    tags_all: tuple[str, ...] = ()
    tags_any: tuple[str, ...] = ()
    created_from: int | None = None
    created_to: int | None = None
    source_session: str | None = None
    min_importance: float | None = None
    min_relevance: float | None = None
    conditions: tuple[Condition, ...] = field(default=())

    @property
    def is_narrow(self) -> bool:
        """Whether it asks for status, type and time only, which storages keep beside the vectors."""
        return not (
            self.tags_all
            or self.tags_any
            or self.source_session is not None
            or self.min_importance is not None
            or self.conditions
        )


def admit_new(item: NewMemory, *, now: int) -> Admitted:
    """Check and normalise a new memory; fills in id, importance and creation time."""
    content = normalise.required_text(item.content, "content", max_bytes=limits.MAX_CONTENT_BYTES)
    memory_type = normalise.choice(item.memory_type, "memory_type", MemoryType)
    metadata = normalise.metadata({} if item.metadata is None else item.metadata)
    importance = (
        default_importance(content, memory_type, metadata)
        if item.importance is None
        else normalise.fraction(item.importance, "importance")
    )
    scalars = {
        "content": content,
        "memory_type": memory_type.value,
        "importance": importance,
        "status": Status.ACTIVE.value,
        "source_session": _session(item.source_session),
        "created_at": now if item.created_at is None else normalise.timestamp(item.created_at, "created_at"),
    }
    changes = Changes(scalars=scalars, add_tags=normalise.tags(item.tags, "tags"), metadata=metadata)
    memory_id = str(uuid.uuid4()) if item.memory_id is None else admit_memory_id(item.memory_id)
    return Admitted(memory_id, changes)


def admit_memory_id(value: object) -> str:
    """An id that a caller gave for a new memory: a UUID, in its canonical spelling."""
    if not isinstance(value, str):
        raise InvalidValue("memory_id", f"must be a string, not {type(value).__name__}")
    # UUID() alone also takes white space, underscores and digits of other scripts for parts of a number.
    if not _UUID.fullmatch(value):
        raise InvalidValue("memory_id", f"{value!r:.80} is not a UUID", hint="leave it out to get one")
    return str(uuid.UUID(value))


def known_memory_id(value: object) -> str | None:
    """An id that a caller asks for; None when no memory can have it."""
    try:
        return admit_memory_id(value)
    except InvalidValue:
        if isinstance(value, str) and value.strip():
            return None
        hint = "pass the `memory_id` of the memory"
        raise InvalidValue("memory_id", "must be a non-empty string", hint=hint) from None


def admit_changes(changes: Mapping[str, Any]) -> Changes:
    """Check and normalise the keyword arguments of ``update_memory``."""
    unknown = sorted(changes.keys() - _CHANGEABLE.keys())
    if unknown:
        raise InvalidValue(unknown[0], "cannot be changed", hint=f"what can be: {', '.join(sorted(_CHANGEABLE))}")
    out: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    for name, value in changes.items():
        target = scalars if name in _SCALAR_CHANGES else out
        target[name] = _CHANGEABLE[name](value)
    if "tags" in out and out.keys() & {"add_tags", "remove_tags"}:
        raise InvalidValue("tags", "replaces all tags, so add_tags and remove_tags make no sense beside it")
    overlap = out.get("add_tags", frozenset()) & out.get("remove_tags", frozenset())
    if overlap:
        raise InvalidValue("remove_tags", f"{min(overlap)!r} is in add_tags too")
    overlap = out.get("metadata", {}).keys() & out.get("remove_metadata", frozenset())
    if overlap:
        raise InvalidValue("remove_metadata", f"{min(overlap)!r} is in metadata too")
    return Changes(scalars=scalars, **out)


def check_result(before: State, after: State) -> None:
    """Check what an edit leads to: each may be small, and the memory still grow too large.

    What a merge has made larger than an edit may can still be edited, as long as it does not grow further.
    """
    if len(after.present_tags()) > len(before.present_tags()):
        normalise.tags(after.present_tags(), "tags")
    held, wanted = before.present_metadata(), after.present_metadata()
    if len(json.dumps(wanted)) > len(json.dumps(held)):
        normalise.metadata(wanted)


def admit_filter(value: RecallFilter | Mapping[str, Any] | None) -> Filter:
    """Check a filter, given as ``RecallFilter`` or as a mapping of its fields."""
    given = _as_recall_filter(value)
    created_from = _time(given.created_from, "filters.created_from")
    created_to = _time(given.created_to, "filters.created_to")
    statuses = _choices(given.statuses, "filters.statuses", Status)
    if not statuses:
        raise InvalidValue("filters.statuses", "must name at least one status")
    return Filter(
        statuses=statuses,
        types=_choices(given.types, "filters.types", MemoryType),
        tags_all=tuple(sorted(normalise.tags(given.tags_all, "filters.tags_all"))),
        tags_any=tuple(sorted(normalise.tags(given.tags_any, "filters.tags_any"))),
        created_from=created_from,
        created_to=created_to,
        source_session=_session(given.source_session, "filters.source_session"),
        min_importance=_optional_fraction(given.min_importance, "filters.min_importance"),
        min_relevance=_optional_fraction(given.min_relevance, "filters.min_relevance"),
        conditions=_conditions(given.metadata),
    )


def _as_recall_filter(value: RecallFilter | Mapping[str, Any] | None) -> RecallFilter:
    if value is None:
        return RecallFilter()
    if isinstance(value, RecallFilter):
        return value
    if not isinstance(value, Mapping):
        raise InvalidValue("filters", f"must be a RecallFilter or a mapping, not {type(value).__name__}")
    names = [f.name for f in fields(RecallFilter)]
    unknown = sorted(str(key) for key in value if key not in names)
    if unknown:
        raise InvalidValue(f"filters.{unknown[0]:.80}", "is not a filter", hint=f"known: {', '.join(names)}")
    return RecallFilter(**value)


def _conditions(value: object) -> tuple[Condition, ...]:
    if not isinstance(value, Mapping):
        raise InvalidValue("filters.metadata", f"must be a mapping, not {type(value).__name__}")
    out: list[Condition] = []
    for raw_key, wanted in value.items():
        key = normalise.clean_text(raw_key, "filters.metadata key", max_bytes=limits.MAX_METADATA_BYTES)
        name = f"filters.metadata.{key:.80}"
        operations = wanted if isinstance(wanted, Mapping) else {"eq": wanted}
        if not operations:
            raise InvalidValue(name, "has no operator", hint=f"known: {', '.join(OPERATORS)}")
        out.extend(_condition(key, operator, operand, name) for operator, operand in operations.items())
    values = sum(len(condition.value) if condition.operator == "in" else 1 for condition in out)
    if values > limits.MAX_FILTER_VALUES:
        raise InvalidValue(
            "filters.metadata", f"{values:,} values to compare, the limit is {limits.MAX_FILTER_VALUES:,}"
        )
    return tuple(out)


def _condition(key: str, operator: object, operand: object, name: str) -> Condition:
    if not isinstance(operator, str) or operator not in OPERATORS:
        problem = f"unknown operator {normalise.shown(operator)}"
        raise InvalidValue(name, problem, hint=f"known: {', '.join(OPERATORS)}")
    if operator == "exists":
        if not isinstance(operand, bool):
            raise InvalidValue(f"{name}.exists", "must be True or False")
        return Condition(key=key, operator=operator, value=operand)
    if operator == "in":
        if not isinstance(operand, list | tuple | set | frozenset):
            raise InvalidValue(f"{name}.in", "must be a list of values")
        if len(operand) > limits.MAX_FILTER_VALUES:
            raise InvalidValue(f"{name}.in", f"more than {limits.MAX_FILTER_VALUES} values")
        return Condition(key=key, operator=operator, value=[_scalar(item, f"{name}.in") for item in operand])
    scalar = _scalar(operand, f"{name}.{operator}")
    if operator in _ORDERED and (scalar is None or isinstance(scalar, bool)):
        raise InvalidValue(f"{name}.{operator}", "orders only numbers and strings")
    return Condition(key=key, operator=operator, value=scalar)


def _scalar(value: object, name: str) -> Any:
    if value is not None and not isinstance(value, str | int | float | bool):
        raise InvalidValue(name, f"must be a string, number, boolean or null, not {type(value).__name__}")
    return normalise.json_value(value, name)


def _choices(value: object, name: str, options: type[Any]) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise InvalidValue(name, "must be a list", hint=f"write {name.rsplit('.', 1)[-1]}=[…]")
    return tuple(dict.fromkeys(normalise.choice(item, name, options) for item in value))


def _session(value: object, name: str = "source_session") -> str | None:
    if value is None:
        return None
    return normalise.required_text(value, name, max_bytes=limits.MAX_ID_BYTES)


def _time(value: object, name: str) -> int | None:
    return None if value is None else normalise.timestamp(value, name)


def _optional_fraction(value: object, name: str) -> float | None:
    return None if value is None else normalise.fraction(value, name)


def _keys(value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise InvalidValue("remove_metadata", "must be a list of keys", hint="write remove_metadata=[…]")
    size = limits.MAX_METADATA_BYTES
    return frozenset(normalise.clean_text(key, "remove_metadata", max_bytes=size) for key in value)


_CHANGEABLE: Final[dict[str, Any]] = {
    "content": lambda v: normalise.required_text(v, "content", max_bytes=limits.MAX_CONTENT_BYTES),
    "memory_type": lambda v: normalise.choice(v, "memory_type", MemoryType).value,
    "importance": lambda v: normalise.fraction(v, "importance"),
    "status": lambda v: normalise.choice(v, "status", Status).value,
    "source_session": _session,
    "tags": lambda v: normalise.tags(v, "tags"),
    "add_tags": lambda v: normalise.tags(v, "add_tags"),
    "remove_tags": lambda v: normalise.tags(v, "remove_tags"),
    "metadata": normalise.metadata,
    "remove_metadata": _keys,
}
_SCALAR_CHANGES: Final = frozenset({"content", "memory_type", "importance", "status", "source_session"})
