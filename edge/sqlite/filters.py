"""From the filter algebra to SQL. Keys and values are always parameters, never text of the statement."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from edge.sqlite.database import encoded_conditions
from memory.policies.admission import Filter

ONE_OF: Final = "(SELECT value FROM json_each(?))"
"""The list of an ``IN``. However many its values, the statement stays the same, and so stays prepared."""


def listed(values: Iterable[Any]) -> str:
    """The parameter of ``ONE_OF``."""
    return json.dumps(list(values), ensure_ascii=False)


class Where:
    """Conditions joined by AND, with their parameters."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.params: list[Any] = []

    def add(self, condition: str, *values: Any) -> None:
        """Add a condition and the values of its question marks."""
        self.parts.append(condition)
        self.params.extend(values)

    def __str__(self) -> str:
        return " AND ".join(self.parts) or "1"


def wide(where: Where, given: Filter) -> None:
    """The conditions that the columns in memory do not answer. The metadata come last: they are read by Python."""
    tagged = f"SELECT memory_id FROM memory_tags WHERE tag IN {ONE_OF}"
    if given.tags_all:
        where.add(
            f"m.memory_id IN ({tagged} GROUP BY memory_id HAVING count(*) = ?)",
            listed(given.tags_all),
            len(given.tags_all),
        )
    if given.tags_any:
        where.add(f"m.memory_id IN ({tagged})", listed(given.tags_any))
    if given.source_session is not None:
        where.add("m.source_session = ?", given.source_session)
    if given.min_importance is not None:
        where.add("m.importance >= ?", given.min_importance)
    if given.conditions:
        where.add("metadata_matches(m.metadata, ?)", encoded_conditions(given.conditions))
