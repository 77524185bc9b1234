"""Conditions on metadata, decided in plain Python: by storages without an index of their own for them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from memory.policies.admission import Condition

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    name: getattr(operator, python)
    for name, python in {"eq": "eq", "ne": "ne", "gt": "gt", "gte": "ge", "lt": "lt", "lte": "le"}.items()
}


def conditions_hold(metadata: Mapping[str, Any], conditions: Iterable[Condition]) -> bool:
    """Whether a memory's metadata satisfy every condition. Typed: another JSON type never matches."""
    return all(_holds(metadata, condition) for condition in conditions)


def _holds(metadata: Mapping[str, Any], condition: Condition) -> bool:
    wanted, comparison = condition.value, condition.operator
    present = condition.key in metadata
    if comparison == "exists":
        return present is wanted
    if not present:
        return False
    held = metadata[condition.key]
    if comparison == "in":
        return any(_kind(held) == _kind(item) and held == item for item in wanted)
    if _kind(held) != _kind(wanted):
        return False
    return bool(_COMPARISONS[comparison](held, wanted))


def _kind(value: Any) -> str:
    """The JSON type, which decides whether two values compare at all."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "null" if value is None else type(value).__name__
