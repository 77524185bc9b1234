"""All vector indexes behave alike: the engine, the client's local mode, and a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge.vectors.client
import edge.vectors.client_values
import edge.vectors.engine
from edge.vectors.port import Point, VectorIndex
from memory.core.errors import VectorIndexDamaged, VectorIndexUnavailable
from memory.core.model import MemoryType, Status
from memory.policies import limits
from memory.policies.admission import Condition, Filter
from tests.integration.edge.indexes import (
    DIMENSION,
    KINDS,
    START,
    Kit,
    assert_exact,
    everything,
    identity,
    make_kit,
    make_points,
    matches,
    unit,
)

FILTERS = {
    "default": Filter(),
    "everything": everything(),
    "statuses": Filter(statuses=(Status.ARCHIVED, Status.SUPERSEDED)),
    "types": Filter(types=(MemoryType.EVENT, MemoryType.PREFERENCE)),
    "one tag": Filter(tags_all=("tag1",)),
    "every tag": Filter(statuses=(), tags_all=("tag0", "tag2", "夜莺")),
    "any tag": Filter(statuses=(), tags_any=("tag5", "夜莺")),
    "quoted tag": Filter(tags_any=('a "quoted" tag',)),
    "unknown tag": Filter(tags_any=("tag",)),
    "no such tags together": Filter(tags_all=("tag0", "tag1", "tag2", "tag3")),
    "from": Filter(created_from=START + 150_000),
    "to": Filter(created_to=START + 150_000),
    "between": Filter(statuses=(), created_from=START + 50_000, created_to=START + 51_000),
    "never": Filter(created_from=START + 2, created_to=START + 1),
    "session": Filter(statuses=(), source_session="session 4"),
    "important": Filter(min_importance=0.7),
    "exactly as important": Filter(statuses=(), min_importance=0.1 + 0.2),
    "all at once": Filter(
        types=(MemoryType.FACT,),
        tags_any=("tag1", "tag3"),
        created_from=START + 10_000,
        created_to=START + 290_000,
        source_session="session 1",
        min_importance=0.2,
    ),
    "what it does not know": Filter(min_relevance=1.0, conditions=(Condition(key="k", operator="eq", value=1),)),
}


@pytest.fixture(params=KINDS)
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    with make_kit(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def index(kit: Kit) -> Iterator[VectorIndex]:
    with kit.opened() as opened:
        yield opened


@pytest.fixture
def points(index: VectorIndex) -> list[Point]:
    """300 points that the index holds."""
    made = make_points(300)
    index.upsert(made)
    index.flush()
    return made


def versions(points: list[Point]) -> dict[str, str]:
    return {point.memory_id: point.version for point in points}


def test_a_search_finds_what_comparing_every_vector_finds(index: VectorIndex, points: list[Point]) -> None:
    for name, where in FILTERS.items():
        expected = {"unknown tag", "no such tags together", "never"}
        assert any(matches(point, where) for point in points) == (name not in expected), name
        assert_exact(index, points, where)


def test_filters_may_be_combined_at_will(index: VectorIndex, points: list[Point]) -> None:
    rng = np.random.default_rng(3)
    parts: dict[str, list[Any]] = {
        "statuses": [(), (Status.ACTIVE,), (Status.ACTIVE, Status.SUPERSEDED)],
        "types": [(), (), (MemoryType.FACT, MemoryType.EVENT)],
        "tags_all": [(), (), ("tag1",), ("tag0", "夜莺")],
        "tags_any": [(), (), ("tag1", "tag2"), ("tag6", 'a "quoted" tag')],
        "created_from": [None, START, START + 40_000],
        "created_to": [None, START + 200_000],
        "source_session": [None, None, "session 2"],
        "min_importance": [None, 0.0, 0.5, 1.0],
    }
    for asked in unit(rng, 60):
        where = Filter(**{name: values[rng.integers(len(values))] for name, values in parts.items()})
        assert_exact(index, points, where, asked=asked, limit=int(rng.integers(1, 400)))


def test_bounds_are_compared_as_they_were_given(index: VectorIndex) -> None:
    importances = [0.0, 5e-324, 0.1 + 0.2, 0.3, 1 / 3, 0.7, float(np.nextafter(0.5, 1)), 0.5, 1.0]
    times = [0, 1, START, START + 1, limits.LATEST_MS - 1, limits.LATEST_MS]
    held = [
        replace(point, importance=importances[i % 9], created_at=times[i % 6])
        for i, point in enumerate(make_points(36))
    ]
    index.upsert(held)
    for bound in importances:
        for value in (bound, float(np.nextafter(bound, 2))):
            assert_exact(index, held, Filter(statuses=(), min_importance=value), limit=50)
    for time in times:
        assert_exact(index, held, Filter(statuses=(), created_from=time), limit=50)
        assert_exact(index, held, Filter(statuses=(), created_to=time), limit=50)


def test_fewer_points_than_asked_for_are_all_found(index: VectorIndex, points: list[Point]) -> None:
    assert_exact(index, points, everything(), limit=1_000)
    assert index.search(points[0].vector, 0, everything()) == []


def test_an_empty_index_finds_nothing(index: VectorIndex) -> None:
    asked = unit(np.random.default_rng(1), 1)[0]
    assert index.search(asked, 10, everything()) == []
    assert (index.entries(), index.count(), index.vectors([identity(1)])) == ({}, 0, {})
    index.upsert([])
    index.remove([])
    index.flush()
    index.compact()
    assert index.count() == 0


def test_writing_points_again_changes_nothing(index: VectorIndex, points: list[Point]) -> None:
    index.upsert(points[:50])
    assert index.count() == 300
    assert index.entries() == versions(points)
    assert_exact(index, points, Filter())


def test_a_written_point_replaces_vector_and_fields(index: VectorIndex, points: list[Point]) -> None:
    fresh = make_points(40, seed=8, status="archived", source_session=None, tags=("new",), version="new")
    index.upsert(fresh)
    held = [*fresh, *points[40:]]
    assert index.entries() == versions(held)
    for where in (*FILTERS.values(), Filter(statuses=(), tags_all=("new",))):
        assert_exact(index, held, where)


def test_removed_points_are_gone_and_unknown_ones_are_passed_over(index: VectorIndex, points: list[Point]) -> None:
    gone = {point.memory_id for point in points[::3]}
    index.remove([*gone, identity(10_000)])
    index.remove(gone)
    left = [point for point in points if point.memory_id not in gone]
    assert index.entries() == versions(left)
    assert index.count() == len(left)
    assert index.vectors(list(gone)) == {}
    assert_exact(index, left, everything(), limit=500)
    index.upsert(points[:3])
    assert index.count() == len(left) + 1


def test_vectors_come_back_as_they_went_in(index: VectorIndex, points: list[Point]) -> None:
    held = index.vectors([point.memory_id for point in points] + [identity(10_000)])
    assert held.keys() == {point.memory_id for point in points}
    for point in points:
        vector = held[point.memory_id]
        assert vector.dtype == np.float32
        assert vector.shape == (DIMENSION,)
        np.testing.assert_allclose(vector, point.vector, atol=1e-6)


def test_lists_that_take_several_requests_are_complete(
    index: VectorIndex, points: list[Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge.vectors.client, "_PAGE", 7)
    monkeypatch.setattr(edge.vectors.engine, "_PAGE", 7)
    monkeypatch.setattr(edge.vectors.client, "REQUEST", 10_000)
    monkeypatch.setattr(edge.vectors.client_values, "REQUEST", 10_000)
    assert index.entries() == versions(points)
    assert len(index.vectors([point.memory_id for point in points])) == 300
    more = make_points(350)
    index.upsert(more)
    assert index.entries() == versions(more)


def test_what_was_flushed_is_there_when_opened_again(kit: Kit) -> None:
    points = make_points(120)
    with kit.opened() as index:
        index.upsert(points)
        index.remove([points[0].memory_id])
        index.flush()
    for _ in range(2):
        with kit.opened() as index:
            assert index.entries() == versions(points[1:])
            assert_exact(index, points[1:], Filter())
            index.upsert([points[1]])
            index.flush()


def test_users_see_their_own_points_only(kit: Kit) -> None:
    mine, theirs = make_points(60), make_points(80, seed=5, version="theirs")
    with kit.opened(kit.place("ann")) as ann, kit.opened(kit.place("bob")) as bob:
        ann.upsert(mine)
        bob.upsert(theirs)
        for index, held in ((ann, mine), (bob, theirs)):
            assert index.entries() == versions(held)
            assert index.count() == len(held)
            assert_exact(index, held, everything(), limit=200)
            np.testing.assert_allclose(index.vectors([identity(0)])[identity(0)], held[0].vector, atol=1e-6)
        ann.remove([point.memory_id for point in theirs])
        assert (ann.count(), bob.count()) == (0, 80)
    kit.factory.discard(kit.place("ann"))
    with kit.opened(kit.place("bob")) as bob:
        assert bob.entries() == versions(theirs)


@pytest.mark.parametrize(
    "user_id",
    ["夜莺 🦜", 'o\'neil "x" {}', "../../etc", "u" * limits.MAX_ID_BYTES, "é" * (limits.MAX_ID_BYTES // 2), "*"],
)
def test_any_text_serves_as_user_tag_or_session(kit: Kit, user_id: str) -> None:
    texts = ["日本語 🦜", "it's", 'say "x"', "a\\b", "[0].x", "x" * limits.MAX_TAG_LENGTH, "a.b[]", "%_"]
    points = [
        replace(point, tags=(texts[i % 8], "t"), source_session=texts[-1 - i % 8], version=f"{user_id}{i}")
        for i, point in enumerate(make_points(24))
    ]
    with kit.opened(kit.place(user_id)) as index, kit.opened(kit.place("someone else")) as other:
        index.upsert(points)
        assert index.entries() == versions(points)
        for text in texts:
            assert_exact(index, points, Filter(statuses=(), tags_all=(text, "t")))
            assert_exact(index, points, Filter(statuses=(), source_session=text))
        assert other.count() == 0


@pytest.mark.parametrize("dimension", [1, 1536])
def test_any_dimension_will_do(kit: Kit, dimension: int) -> None:
    place = kit.place(dimension=dimension)
    points = make_points(1 if dimension == 1 else 40, dimension=dimension)
    with kit.opened(place) as index:
        index.upsert(points)
        index.flush()
    with kit.opened(place) as index:
        assert_exact(index, points, everything())
        np.testing.assert_allclose(index.vectors([identity(0)])[identity(0)], points[0].vector, atol=1e-6)


@pytest.mark.parametrize("other", [{"model": "model-b"}, {"dimension": DIMENSION + 1}])
def test_vectors_of_another_model_are_damage_that_a_discard_removes(kit: Kit, other: dict[str, Any]) -> None:
    with kit.opened() as index:
        index.upsert(make_points(10))
        index.flush()
    place = kit.place(**other)
    for _ in range(2):
        with pytest.raises(VectorIndexDamaged):
            kit.factory.open(place)
    kit.factory.discard(place)
    points = make_points(30, dimension=place.dimension)
    with kit.opened(place) as index:
        assert index.entries() == {}
        index.upsert(points)
        assert_exact(index, points, Filter())


def test_discarding_what_is_not_there_is_no_error(kit: Kit) -> None:
    kit.factory.discard(kit.place())
    with kit.opened() as index:
        index.upsert(make_points(3))
    kit.factory.discard(kit.place())
    kit.factory.discard(kit.place())
    with kit.opened() as index:
        assert index.count() == 0


def test_a_closed_index_is_unavailable(kit: Kit) -> None:
    index = kit.factory.open(kit.place())
    point = make_points(1)[0]
    index.upsert([point])
    index.close()
    index.close()
    for call in (
        lambda: index.search(point.vector, 1, Filter()),
        lambda: index.upsert([point]),
        lambda: index.remove([point.memory_id]),
        index.entries,
        lambda: index.vectors([point.memory_id]),
        index.count,
    ):
        with pytest.raises(VectorIndexUnavailable):
            call()


def test_a_vector_of_the_wrong_shape_is_the_callers_mistake(index: VectorIndex, points: list[Point]) -> None:
    wrong = make_points(1, dimension=DIMENSION - 1)[0]
    with pytest.raises(ValueError, match="dimensions"):
        index.search(wrong.vector, 1, Filter())
    with pytest.raises(ValueError, match="dimensions"):
        index.upsert([wrong])
    assert_exact(index, points, Filter())


def test_threads_search_while_another_writes(index: VectorIndex, points: list[Point]) -> None:
    fresh, stop = make_points(300, seed=11, version="new"), threading.Event()
    wrong: list[object] = []

    def look(seed: int) -> None:
        asked = unit(np.random.default_rng(seed), 1)[0]
        known = {point.memory_id for point in points}
        while not stop.is_set():
            try:
                found = index.search(asked, 20, everything())
            except Exception as error:
                wrong.append(error)
                raise
            scores = [hit.cosine for hit in found]
            if len({hit.memory_id for hit in found} & known) != 20 or scores != sorted(scores, reverse=True):
                wrong.append(found)

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    try:
        for start in range(0, 300, 50):
            index.upsert(fresh[start : start + 50])
            index.flush()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert index.entries() == versions(fresh)
    assert_exact(index, fresh, Filter())


def test_compacting_changes_no_answer(kit: Kit) -> None:
    points = make_points(2_400 if kit.kind == "engine" else 200)
    left = points[: len(points) // 4]
    with kit.opened() as index:
        for start in range(0, len(points), 400):
            index.upsert(points[start : start + 400])
        index.remove([point.memory_id for point in points[len(left) :]])
        index.flush()
        index.compact()
        for where in FILTERS.values():
            assert_exact(index, left, where)
        index.upsert(points[len(left) : len(left) + 20])
        index.flush()
    with kit.opened() as index:
        left = points[: len(left) + 20]
        assert index.entries() == versions(left)
        for where in FILTERS.values():
            assert_exact(index, left, where)
