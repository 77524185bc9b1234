"""The filter algebra in plain Python."""

from __future__ import annotations

from memory.core.state import State
from memory.policies.admission import Filter
from memory.policies.matching import conditions_hold


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
        and conditions_hold(state.present_metadata(), where.conditions)
    )
