"""The doctor of a replica, on vectors and their index: what cannot be used is embedded or written anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.directory import folder_name
from edge.vectors.port import Place, VectorIndex
from memory.core.errors import VectorIndexUnavailable
from memory.testing.base import everything
from tests.integration.edge.examined import EN, FIRST, ZH, Sql, found, repaired
from tests.plain_index import PlainFactory, plain_index
from tests.replicas import findings, open_replica, settle

VECTORS: dict[str, tuple[str, dict[str, int], int]] = {
    "a vector lost": (f"DELETE FROM memory_vectors WHERE number = {FIRST}", {"vectors": 1, "points": 1}, 1),
    "a vector of another length": (
        f"UPDATE memory_vectors SET embedding = zeroblob(12) WHERE number = {FIRST}",
        {"vectors": 1, "points": 1},
        1,
    ),
    "a vector that is none": (
        f"UPDATE memory_vectors SET embedding = x'00' WHERE number = {FIRST}",
        {"vectors": 1, "points": 1},
        1,
    ),
    "a vector that is not finite": (
        f"UPDATE memory_vectors SET embedding = x'{'0000c07f' * 64}' WHERE number = {FIRST}",
        {"vectors": 1, "points": 1},
        1,
    ),
    "all said to wait": ("UPDATE memories SET embedding_due = 1", {"vectors": 3, "embedding_pending": 3}, 0),
}


@pytest.mark.parametrize("breach", VECTORS)
def test_memories_without_a_usable_vector_are_embedded_again(
    path: Path, factory: PlainFactory, sql: Sql, own_fields: Callable[[], list[Any]], breach: str
) -> None:
    statement, expected, waiting = VECTORS[breach]
    sql(statement)
    before = own_fields()
    assert found(path, factory) == expected
    assert repaired(path, factory)["vectors"] == expected["vectors"]
    assert found(path, factory) == ({"embedding_pending": waiting} if waiting else {})
    assert own_fields() == before
    with open_replica(path, index=plain_index(factory)) as store:
        store.embed_pending()
        settle(store)
        assert store.stats().pending_embeddings == 0
        assert store.recall(ZH, user_id="u", top_k=1)[0].relevance > 0.9
    assert found(path, factory) == {}


def test_a_broken_vector_keeps_nobody_from_searching(path: Path, factory: PlainFactory, sql: Sql) -> None:
    sql(f"UPDATE memory_vectors SET embedding = x'00' WHERE number = {FIRST}")
    factory.points.clear()
    with open_replica(path, index=plain_index(factory)) as store:
        for _ in range(2):
            assert store.recall(EN, user_id="u")[0].memory.content == EN
            assert store.recall("夜莺", user_id="u")[0].memory.content == ZH
            settle(store)


def points_of(factory: PlainFactory, user_id: str = "u") -> dict[str, Any]:
    [(_, points)] = [item for item in factory.points.items() if item[0][0].endswith(folder_name(user_id))]
    return points


def lose(points: dict[str, Any]) -> None:
    points.pop(min(points))


def grow_old(points: dict[str, Any]) -> None:
    points[min(points)] = replace(points[min(points)], version="1.other")


def leave_over(points: dict[str, Any]) -> None:
    points["00000000-0000-4000-8000-000000000000"] = points[min(points)]


def turn(points: dict[str, Any]) -> None:
    points[min(points)] = replace(points[min(points)], vector=-points[min(points)].vector)


@pytest.mark.parametrize("damage", [lose, grow_old, leave_over, turn])
def test_points_that_are_not_as_the_file_says_are_made_anew(
    path: Path,
    factory: PlainFactory,
    own_fields: Callable[[], list[Any]],
    damage: Callable[[dict[str, Any]], None],
) -> None:
    right = {memory_id: point.version for memory_id, point in points_of(factory).items()}
    damage(points_of(factory))
    before = own_fields()
    assert repaired(path, factory) == {"points": 1}
    assert found(path, factory) == {}
    assert repaired(path, factory) == {}
    assert {memory_id: point.version for memory_id, point in points_of(factory).items()} == right
    assert own_fields() == before
    damage(points_of(factory))
    assert found(path, factory) == {"points": 1}


class Silent(PlainFactory):
    def open(self, place: Place) -> VectorIndex:
        raise VectorIndexUnavailable("nobody answers")


def test_an_index_that_does_not_answer_is_worth_knowing_and_no_problem(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert found(path, Silent()) == {"index_silent": 2}
    assert repaired(path, Silent()) == {}
    assert findings(path, index=lambda _replica: Silent()) == {}


def test_what_is_alive_and_deleted_is_deleted_and_readers_hear_of_it(
    path: Path, factory: PlainFactory, sql: Sql
) -> None:
    with open_replica(path, index=plain_index(factory)) as store:
        store.export_memories(path.parent / "before.jsonl")
    [(memory_id,)] = sql("SELECT memory_id FROM memories WHERE content = ?", ZH)
    sql("INSERT INTO memory_tombstones SELECT ?, user_id, stamp, 2, NULL, 0, NULL FROM memory_tombstones", memory_id)
    assert found(path, factory) == {"alive_and_deleted": 1}
    assert repaired(path, factory) == {"alive_and_deleted": 1}
    assert found(path, factory) == {}
    assert repaired(path, factory) == {}
    with open_replica(path, index=plain_index(factory)) as store:
        told = store.export_memories(path.parent / "after.jsonl", after=path.parent / "before.jsonl")
        assert (told.memories, told.deletions) == (0, 1)
        assert ZH not in [item.content for item in everything(store, "u")]
        assert ZH not in [hit.memory.content for hit in store.recall("夜莺", user_id="u")]
    assert memory_id not in points_of(factory)
