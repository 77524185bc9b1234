"""The vector indexes under test, points to put into them, and what a search must find."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_client import QdrantClient

from edge.vectors.client import QdrantLocalFactory, QdrantServerFactory
from edge.vectors.engine import EdgeEngineFactory
from edge.vectors.port import Hit, IndexFactory, Place, Point, VectorIndex
from memory.core.ports import Vector, Vectors
from memory.policies.admission import Filter
from tests.integration.edge.qdrant_stub import QdrantStub

KINDS = ("engine", "local", "server", "http")
"""``server`` runs the server's adapter on the client's local engine, ``http`` against a socket."""
DIMENSION = 24
START = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Kit:
    """A factory, and places for its indexes."""

    kind: str
    factory: IndexFactory
    root: Path

    def place(self, user_id: str = "ann", *, model: str = "model-a", dimension: int = DIMENSION) -> Place:
        folder = self.root / uuid.uuid5(uuid.NAMESPACE_OID, user_id).hex
        return Place(user_id=user_id, folder=folder, model=model, dimension=dimension)

    @contextmanager
    def opened(self, place: Place | None = None) -> Iterator[VectorIndex]:
        index = self.factory.open(place or self.place())
        try:
            yield index
        finally:
            index.close()


@contextmanager
def make_kit(kind: str, root: Path) -> Iterator[Kit]:
    with ExitStack() as stack:
        if kind == "engine":
            factory: IndexFactory = EdgeEngineFactory()
        elif kind == "local":
            factory = QdrantLocalFactory()
        elif kind == "server":
            client = QdrantClient(":memory:")
            stack.callback(client.close)
            factory = QdrantServerFactory(client=client)
        else:
            stub = QdrantStub()
            stack.callback(stub.stop)
            stub.start()
            factory = QdrantServerFactory(stub.url)
        stack.callback(factory.close)
        yield Kit(kind, factory, root)


def unit(rng: np.random.Generator, count: int, dimension: int = DIMENSION) -> Vectors:
    rows = rng.standard_normal((count, dimension)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def identity(number: int) -> str:
    return str(uuid.UUID(int=number + 1, version=4))


def make_points(count: int, *, dimension: int = DIMENSION, seed: int = 7, **fields: Any) -> list[Point]:
    rows = unit(np.random.default_rng(seed), count, dimension)
    return [
        replace(
            Point(
                memory_id=identity(i),
                version=f"v{i}",
                vector=rows[i],
                status=("active", "active", "archived", "superseded")[i % 4],
                memory_type=("fact", "preference", "event", "summary", "fact")[i % 5],
                created_at=START + 1_000 * i,
                importance=(i % 11) / 10 if i % 11 != 3 else 0.1 + 0.2,
                source_session=None if i % 3 == 0 else f"session {i % 6}",
                tags=tuple(sorted({f"tag{i % 2}", f"tag{i % 7}", "夜莺" if i % 6 == 0 else 'a "quoted" tag'})),
            ),
            **fields,
        )
        for i in range(count)
    ]


def matches(point: Point, where: Filter) -> bool:
    """The filter in plain Python."""
    tags = set(point.tags)
    return all(
        (
            not where.statuses or point.status in where.statuses,
            not where.types or point.memory_type in where.types,
            tags.issuperset(where.tags_all),
            not where.tags_any or not tags.isdisjoint(where.tags_any),
            where.created_from is None or point.created_at >= where.created_from,
            where.created_to is None or point.created_at < where.created_to,
            where.source_session is None or point.source_session == where.source_session,
            where.min_importance is None or point.importance >= where.min_importance,
        )
    )


def nearest(points: Sequence[Point], asked: Vector, limit: int, where: Filter) -> list[Hit]:
    """What a search must find."""
    fitting = [point for point in points if matches(point, where)]
    scored = [Hit(p.memory_id, float(p.vector.astype(np.float64) @ asked.astype(np.float64))) for p in fitting]
    return sorted(scored, key=lambda hit: -hit.cosine)[:limit]


def assert_exact(
    index: VectorIndex, points: Sequence[Point], where: Filter, *, limit: int = 20, asked: Vector | None = None
) -> None:
    """A search finds what plain Python finds, in its order, by the same cosine."""
    question = unit(np.random.default_rng(99), 1, points[0].vector.size)[0] if asked is None else asked
    found, wanted = index.search(question, limit, where), nearest(points, question, limit, where)
    assert [hit.memory_id for hit in found] == [hit.memory_id for hit in wanted]
    np.testing.assert_allclose([hit.cosine for hit in found], [hit.cosine for hit in wanted], atol=1e-6)


def everything() -> Filter:
    return Filter(statuses=())


Change = Callable[[Path], None]
