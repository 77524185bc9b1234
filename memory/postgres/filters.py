"""From the filter algebra to SQL. Keys and values are always parameters, never text of the statement."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from psycopg.types.json import Jsonb

from memory.policies.admission import Condition, Filter

_OPERATORS: Final = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "eq": "=", "ne": "<>"}


class Where:
    """Conditions joined by AND, with their parameters."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.params: dict[str, Any] = {}

    def add(self, template: str, value: Any = None) -> None:
        """Add a condition; ``{}`` in it stands for the parameter that holds ``value``."""
        name = f"w{len(self.params)}"
        if "{}" in template:
            self.params[name] = value
        self.parts.append(template.replace("{}", f"%({name})s"))

    def bind(self, value: Any) -> str:
        """A placeholder for a further value."""
        name = f"w{len(self.params)}"
        self.params[name] = value
        return f"%({name})s"

    def __str__(self) -> str:
        return " AND ".join(self.parts)


def narrow(where: Where, alias: str, given: Filter) -> None:
    """Conditions on columns that memories and vectors both have."""
    where.add(f"{alias}.status = ANY({{}})", list(given.statuses))
    if given.types:
        where.add(f"{alias}.memory_type = ANY({{}})", list(given.types))
    if given.created_from is not None:
        where.add(f"{alias}.created_at >= {{}}", given.created_from)
    if given.created_to is not None:
        where.add(f"{alias}.created_at < {{}}", given.created_to)


def wide(where: Where, alias: str, given: Filter) -> None:
    """The conditions that only the memory itself can answer."""
    tagged = (
        f"EXISTS (SELECT FROM memory_tags t WHERE t.user_id = {alias}.user_id"
        f" AND t.memory_id = {alias}.memory_id AND t.tag = ANY({{}}))"
    )
    if given.tags_all:
        # Counted in one go: as many EXISTS as tags take the planner seconds.
        where.add(
            f"(SELECT count(*) FROM memory_tags t WHERE t.user_id = {alias}.user_id"
            f" AND t.memory_id = {alias}.memory_id AND t.tag = ANY({{}})) = {len(given.tags_all)}",
            list(given.tags_all),
        )
    if given.tags_any:
        where.add(tagged, list(given.tags_any))
    if given.source_session is not None:
        where.add(f"{alias}.source_session = {{}}", given.source_session)
    if given.min_importance is not None:
        where.add(f"{alias}.importance >= {{}}", given.min_importance)
    for condition in given.conditions:
        where.parts.append(_metadata(where, alias, condition))


def _metadata(where: Where, alias: str, condition: Condition) -> str:
    key = where.bind(condition.key)
    if condition.operator == "exists":
        present = f"({alias}.metadata ? {key}::text)"
        return present if condition.value else f"NOT {present}"
    held = f"({alias}.metadata -> {key}::text)"
    if condition.operator == "in":
        parts = [_comparison(where, held, "eq", value) for value in condition.value]
        return f"({' OR '.join(parts)})" if parts else "false"
    return _comparison(where, held, condition.operator, condition.value)


def _comparison(where: Where, held: str, operator: str, wanted: Any) -> str:
    """Typed: another JSON type gives false. CASE keeps the cast from being tried on it."""
    if operator in ("eq", "ne") and (wanted is None or isinstance(wanted, bool)):
        kind, left, right = ("null" if wanted is None else "boolean"), held, where.bind(Jsonb(wanted))
    elif isinstance(wanted, str):
        kind, left, right = "string", f"({held} #>> '{{}}') COLLATE \"C\"", f"{where.bind(wanted)}::text"
    else:
        number = Decimal(repr(wanted)) if isinstance(wanted, float) else Decimal(wanted)
        kind, left, right = "number", f"({held} #>> '{{}}')::numeric", f"{where.bind(number)}::numeric"
    return f"CASE WHEN jsonb_typeof({held}) = '{kind}' THEN {left} {_OPERATORS[operator]} {right} ELSE false END"
