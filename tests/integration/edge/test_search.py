"""Searches that need more from the index than they want: ties, conditions it does not know, points that are stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import memory
from edge.vectors.engine import EdgeEngineFactory
from edge.vectors.port import Hit, Place, Point, VectorIndex
from memory.core.ports import Vector
from memory.engine.provider import StorageProvider
from memory.policies.admission import Filter
from memory.testing.base import DAY, NOW
from tests.replicas import open_replica, settle

MEANING: dict[str, Any] = {"semantic_share": 1.0, "track_access": False, "now": NOW}


class Watched:
    """An index that notes how much it is asked for, and may have a mind of its own."""

    def __init__(self, real: VectorIndex, factory: WatchedFactory) -> None:
        self._real, self._factory = real, factory

    def search(self, vector: Vector, limit: int, where: Filter) -> list[Hit]:
        self._factory.limits.append(limit)
        return self._factory.twist(self._real.search(vector, limit, where))

    def upsert(self, points: Sequence[Point]) -> None:
        self._real.upsert(points)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class WatchedFactory(EdgeEngineFactory):
    def __init__(self) -> None:
        self.limits: list[int] = []
        self.twist: Callable[[list[Hit]], list[Hit]] = lambda hits: hits

    def open(self, place: Place) -> VectorIndex:
        return Watched(super().open(place), self)


@pytest.fixture
def factory() -> WatchedFactory:
    return WatchedFactory()


Pair = Callable[[list[memory.NewMemory]], tuple[StorageProvider, StorageProvider]]


@pytest.fixture
def both(tmp_path: Path, factory: WatchedFactory) -> Iterator[Pair]:
    """Makes a replica, indexed, and the plain store with the same memories."""
    plain = memory.connect("memory://", embedding_model="hashing", **MEANING)
    replica = open_replica(tmp_path / "replica", index=lambda _: factory, **MEANING)

    def fill(items: list[memory.NewMemory]) -> tuple[StorageProvider, StorageProvider]:
        plain.add_many(items, user_id="u")
        plain.export_memories(tmp_path / "all.jsonl")
        replica.import_memories(tmp_path / "all.jsonl")
        settle(replica)
        return replica, plain

    yield fill
    replica.close()
    plain.close()


def found(store: StorageProvider, query: str, **filters: Any) -> list[tuple[str, float]]:
    return [
        (hit.memory.memory_id, round(hit.relevance, 5))
        for hit in store.recall(query, user_id="u", filters=filters, top_k=20)
    ]


def test_of_many_equals_the_newest_are_found_then_the_smallest_ids(both: Pair, factory: WatchedFactory) -> None:
    items = [memory.NewMemory(content="green tea", created_at=NOW - (i % 40) * DAY) for i in range(1_000)]
    replica, plain = both(items)
    assert found(replica, "green tea") == found(plain, "green tea")
    assert max(factory.limits) >= 1_000, "a tie at the end of an answer must be followed to its end"


def test_a_condition_that_the_index_does_not_know_leaves_enough(both: Pair, factory: WatchedFactory) -> None:
    words = ("tea", "coffee", "deadline", "budget", "夜莺")
    items = [
        memory.NewMemory(content=f"{words[i % 5]} {words[i // 5 % 5]} {i}", metadata={"n": i % 2}) for i in range(1_400)
    ]
    replica, plain = both(items)
    for query in ("tea deadline", "夜莺", "budget 7"):
        assert found(replica, query, metadata={"n": 1}) == found(plain, query, metadata={"n": 1})
    assert factory.limits, "so many matches are searched for, not compared one by one"
    asked = len(factory.limits)
    assert found(replica, "tea 3", metadata={"n": 1}, types=["event"]) == []
    few: dict[str, Any] = {"metadata": {"n": 1}, "created_from": NOW + 1}
    assert found(replica, "tea", **few) == found(plain, "tea", **few)
    assert len(factory.limits) == asked, "of a handful the index need not be asked"


def test_what_an_index_names_without_right_is_replaced_by_more(both: Pair, factory: WatchedFactory) -> None:
    items = [memory.NewMemory(content=f"note {i} of tea") for i in range(300)]
    replica, plain = both(items)
    strangers = [Hit(f"00000000-0000-4000-8000-{i:012d}", 2.0) for i in range(60)]
    factory.twist = lambda hits: (strangers + hits)[: len(hits)]
    assert found(replica, "note 7 of tea") == found(plain, "note 7 of tea")
    assert max(factory.limits) > 76


def test_scores_come_from_the_file_whatever_the_index_says(both: Pair, factory: WatchedFactory) -> None:
    items = [memory.NewMemory(content=text) for text in ("green tea", "black coffee", "deadline on friday")]
    replica, plain = both(items)
    factory.twist = lambda hits: [Hit(hit.memory_id, 0.99 - i / 100) for i, hit in enumerate(reversed(hits))]
    assert found(replica, "green tea") == found(plain, "green tea")


def test_new_changed_and_deleted_memories_are_seen_before_the_index_knows(both: Pair) -> None:
    replica, _ = both([memory.NewMemory(content=f"filler {i}") for i in range(100)])
    mine = replica.add_memory("夜莺 project", user_id="u")
    assert found(replica, "夜莺 project")[0] == (mine.memory_id, 1.0)
    settle(replica)
    replica.update_memory(mine.memory_id, user_id="u", content="咖啡 meeting")
    assert found(replica, "咖啡 meeting")[0] == (mine.memory_id, 1.0)
    assert dict(found(replica, "夜莺 project")).get(mine.memory_id, 0.0) < 1.0
    replica.archive_memory(mine.memory_id, user_id="u")
    assert mine.memory_id not in dict(found(replica, "咖啡 meeting"))
    assert found(replica, "咖啡 meeting", statuses=["archived"])[0] == (mine.memory_id, 1.0)
    replica.delete_memory(mine.memory_id, user_id="u")
    assert found(replica, "咖啡 meeting", statuses=["active", "archived"])[0][0] != mine.memory_id
