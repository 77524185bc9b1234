"""The filter algebra in plain Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from memory.core.state import State
from memory.policies.admission import Condition, Filter

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    name: getattr(operator, python)
    for name, python in {"eq": "eq", "ne": "ne", "gt": "gt", "gte": "ge", "lt": "lt", "lte": "le"}.items()
}


def matches(state: State, where: Filter) -> bool:
    """Whether a live memory satisfies every condition (``min_relevance`` aside)."""
    tags = set(state.present_tags())
    created = state.value("created_at")
    return (
        state.value("status") in where.statuses
        and (not where.types or state.value("memory_type") in where.types)
        and tags.issuperset(where.tags_all)
        and (not where.tags_any or not tags.isdisjoint(where.tags_any))
        and (where.created_from is None or created >= where.created_from)
        and (where.created_to is None or created < where.created_to)
        and (where.source_session is None or state.value("source_session") == where.source_session)
        and (where.min_importance is None or state.value("importance") >= where.min_importance)
        and all(_holds(state.present_metadata(), condition) for condition in where.conditions)
    )


def _holds(metadata: dict[str, Any], condition: Condition) -> bool:
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
