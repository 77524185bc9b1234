"""Points and conditions as qdrant-client takes them and gives them back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from qdrant_client import models

from edge.vectors.payload import FLOATS, INTEGERS, KEYWORDS, AnyOf, Condition, as_list, payload_of
from edge.vectors.port import Place, Point
from memory.core.errors import VectorIndexDamaged

MEMORY: Final = "memory_id"
USER: Final = "user_id"
MODEL: Final = "model"
REQUEST: Final = 8 * 1024 * 1024
"""About how many bytes a request may have; a server takes 32 MB."""
DIGITS: Final = 16
"""About how many bytes a number of a vector takes as JSON."""
SCHEMAS: Final[dict[str, models.PayloadSchemaType | models.KeywordIndexParams]] = {
    USER: models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    MODEL: models.PayloadSchemaType.KEYWORD,
    **dict.fromkeys(KEYWORDS, models.PayloadSchemaType.KEYWORD),
    **dict.fromkeys(INTEGERS, models.PayloadSchemaType.INTEGER),
    **dict.fromkeys(FLOATS, models.PayloadSchemaType.FLOAT),
}


def batches(points: Sequence[Point]) -> Iterator[list[Point]]:
    """The points, as many at a time as a request may hold."""
    batch: list[Point] = []
    size = 0
    for point in points:
        size += size_of(point)
        if batch and size > REQUEST:
            yield batch
            batch, size = [], size_of(point)
        batch.append(point)
    if batch:
        yield batch


def size_of(point: Point) -> int:
    """About how many bytes a point takes as JSON."""
    return DIGITS * point.vector.size + 2_048 + 4 * sum(map(len, point.tags))


def equals(key: str, value: str) -> models.FieldCondition:
    """The field has this value."""
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))


def condition(given: Condition) -> models.FieldCondition:
    """A condition of ours."""
    if isinstance(given, AnyOf):
        return models.FieldCondition(key=given.key, match=models.MatchAny(any=list(given.values)))
    return models.FieldCondition(key=given.key, range=models.Range(gte=given.gte, lt=given.lt))


def field(point: models.Record | models.ScoredPoint, key: str) -> str:
    """A text that every point has.

    Raises:
        VectorIndexDamaged: this one has not.
    """
    held = (point.payload or {}).get(key)
    if not isinstance(held, str):
        raise VectorIndexDamaged(f"Point {point.id} of the vector index has no {key}")
    return held


def struct(point_id: str, point: Point, place: Place) -> models.PointStruct:
    """A point with all its fields."""
    payload = payload_of(point, place.user_id) | {MEMORY: point.memory_id, MODEL: place.model}
    return models.PointStruct(id=point_id, vector=as_list(point.vector, place.dimension), payload=payload)
