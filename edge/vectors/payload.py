"""What the index knows of a memory besides its vector, and which part of a filter it can answer.

Adapters translate the conditions into their library's own; nothing here depends on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge.vectors.port import Point
from memory.core.errors import VectorIndexDamaged
from memory.core.ports import Vector
from memory.policies.admission import Filter

KEYWORDS: Final = ("status", "memory_type", "tags", "source_session")
INTEGERS: Final = ("created_at",)
FLOATS: Final = ("importance",)
FIELDS: Final = frozenset((*KEYWORDS, *INTEGERS, *FLOATS))
"""Every field that a condition may name; adapters index them."""
VERSION: Final = "v"
"""Where ``Point.version`` is held."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """The field, or one of its elements if it is a list, equals one of ``values``."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """The field is a number with ``gte <= number < lt``; None leaves that side open."""

    key: str
    gte: float | None = None
    lt: float | None = None


Condition = AnyOf | Between


def pushed_down(where: Filter) -> tuple[Condition, ...]:
    """The conditions, all of which must hold, that the index applies before it searches.

    Left to the caller: ``min_relevance`` and the conditions on metadata. Times are ms UTC; up to the year 9999 they
    are exact as float64.
    """
    return tuple(_conditions(where))


def _conditions(where: Filter) -> Iterator[Condition]:
    if where.statuses:
        yield AnyOf("status", tuple(status.value for status in where.statuses))
    if where.types:
        yield AnyOf("memory_type", tuple(kind.value for kind in where.types))
    for tag in where.tags_all:
        yield AnyOf("tags", (tag,))
    if where.tags_any:
        yield AnyOf("tags", where.tags_any)
    if where.source_session is not None:
        yield AnyOf("source_session", (where.source_session,))
    if where.created_from is not None or where.created_to is not None:
        yield Between(key="created_at", gte=_float(where.created_from), lt=_float(where.created_to))
    if where.min_importance is not None:
        yield Between(key="importance", gte=where.min_importance)


def _float(number: int | None) -> float | None:
    return None if number is None else float(number)


def payload_of(point: Point, user_id: str) -> dict[str, Any]:
    """The fields of a point, as JSON values."""
    held: dict[str, Any] = {
        VERSION: point.version,
        "user_id": user_id,
        "status": point.status,
        "memory_type": point.memory_type,
        "created_at": point.created_at,
        "importance": point.importance,
        "tags": list(point.tags),
    }
    if point.source_session is not None:
        held["source_session"] = point.source_session
    return held


def as_list(vector: Vector, dimension: int) -> list[float]:
    """A vector as the libraries take it; a wrong shape is the caller's mistake, never the index's."""
    if vector.shape != (dimension,):
        raise ValueError(f"a vector of shape {vector.shape} is not of {dimension} dimensions")
    numbers: list[float] = vector.tolist()
    return numbers


def as_vector(held: object, dimension: int, memory_id: str) -> Vector:
    """A vector as the libraries give it back.

    Raises:
        VectorIndexDamaged: it is none: engines have other answers for a vector that they have lost.
    """
    if not isinstance(held, list) or len(held) != dimension:
        raise VectorIndexDamaged(f"The vector index has lost the vector of {memory_id}")
    return np.array(held, dtype=np.float32)
