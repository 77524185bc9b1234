"""A vector index in memory, for tests in which the real one does not matter, or must be made to lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from edge.vectors.payload import AnyOf, Between, payload_of, pushed_down
from edge.vectors.port import Hit, IndexFactory, Place, Point, VectorIndex
from memory.core.ports import Vector
from memory.policies.admission import Filter


class PlainIndex:
    """One user's points, in the dictionary it is given."""

    def __init__(self, points: dict[str, Point], place: Place) -> None:
        self._points, self._place = points, place

    def search(self, vector: Vector, limit: int, where: Filter) -> list[Hit]:
        found = [
            Hit(point.memory_id, float(_scaled(point.vector) @ vector))
            for point in list(self._points.values())
            if all(_holds(payload_of(point, self._place.user_id), condition) for condition in pushed_down(where))
        ]
        return sorted(found, key=lambda hit: -hit.cosine)[:limit]

    def upsert(self, points: Sequence[Point]) -> None:
        self._points.update((point.memory_id, point) for point in points)

    def remove(self, memory_ids: Collection[str]) -> None:
        for memory_id in memory_ids:
            self._points.pop(memory_id, None)

    def flush(self) -> None:
        pass

    def entries(self) -> dict[str, str]:
        return {memory_id: point.version for memory_id, point in self._points.items()}

    def vectors(self, memory_ids: Sequence[str]) -> dict[str, Vector]:
        return {
            memory_id: _scaled(self._points[memory_id].vector) for memory_id in memory_ids if memory_id in self._points
        }

    def count(self) -> int:
        return len(self._points)

    def compact(self) -> None:
        pass

    def close(self) -> None:
        pass


class PlainFactory:
    """Keeps its indexes from one opening to the next, as files would be kept."""

    name = "plain"

    def __init__(self) -> None:
        self.points: dict[tuple[str, str], dict[str, Point]] = {}
        """By folder and model, then by memory."""

    def open(self, place: Place) -> VectorIndex:
        return PlainIndex(self.points.setdefault((str(place.folder), place.model), {}), place)

    def discard(self, place: Place) -> None:
        self.points.pop((str(place.folder), place.model), None)

    def close(self) -> None:
        pass


def plain_index(factory: PlainFactory | None = None) -> Callable[[str], IndexFactory]:
    """For ``open_replica``: this factory at each opening, or one that begins empty."""
    kept = factory or PlainFactory()
    return lambda _replica: kept


def _scaled(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return np.asarray(vector / length, np.float32) if length else vector


def _holds(payload: dict[str, Any], condition: AnyOf | Between) -> bool:
    held = payload.get(condition.key)
    if isinstance(condition, AnyOf):
        values = held if isinstance(held, list) else [held]
        return any(value in condition.values for value in values)
    return (
        held is not None
        and (condition.gte is None or held >= condition.gte)
        and (condition.lt is None or held < condition.lt)
    )
