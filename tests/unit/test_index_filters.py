"""What of a filter, and of a point, the vector indexes are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge.vectors.payload import FIELDS, AnyOf, Between, as_list, as_vector, payload_of, pushed_down
from edge.vectors.port import Point
from memory.core.errors import VectorIndexDamaged
from memory.core.model import MemoryType, Status
from memory.policies import limits
from memory.policies.admission import Condition, Filter

POINT = Point(
    memory_id="6f1c5f0e-0c3c-4f6e-8a51-2f0d6f0f5a11",
    version="7",
    vector=np.array([0.6, 0.8], dtype=np.float32),
    status="active",
    memory_type="fact",
    created_at=5,
    importance=0.5,
    source_session="s",
    tags=("a", "夜莺"),
)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (Filter(), (AnyOf("status", ("active",)),)),
        (Filter(statuses=()), ()),
        (Filter(statuses=(Status.ARCHIVED, Status.ACTIVE)), (AnyOf("status", ("archived", "active")),)),
        (Filter(statuses=(), types=(MemoryType.EVENT,)), (AnyOf("memory_type", ("event",)),)),
        (Filter(statuses=(), tags_all=("a", "b")), (AnyOf("tags", ("a",)), AnyOf("tags", ("b",)))),
        (Filter(statuses=(), tags_any=("a", "b")), (AnyOf("tags", ("a", "b")),)),
        (Filter(statuses=(), source_session=""), (AnyOf("source_session", ("",)),)),
        (Filter(statuses=(), created_from=0), (Between(key="created_at", gte=0.0),)),
        (Filter(statuses=(), created_to=0), (Between(key="created_at", lt=0.0),)),
        (Filter(statuses=(), created_from=1, created_to=2), (Between(key="created_at", gte=1.0, lt=2.0),)),
        (Filter(statuses=(), min_importance=0.0), (Between(key="importance", gte=0.0),)),
        (Filter(statuses=(), min_importance=0.1 + 0.2), (Between(key="importance", gte=0.1 + 0.2),)),
        (Filter(statuses=(), min_relevance=0.9), ()),
        (Filter(statuses=(), conditions=(Condition(key="k", operator="eq", value=1),)), ()),
    ],
)
def test_each_part_of_a_filter_becomes_conditions_that_must_all_hold(
    where: Filter, told: tuple[AnyOf | Between, ...]
) -> None:
    assert pushed_down(where) == told


@pytest.mark.parametrize("time", [limits.LATEST_MS, limits.LATEST_MS - 1, 1_700_000_000_001])
def test_times_stay_exact_as_numbers_with_a_fraction(time: int) -> None:
    (condition,) = pushed_down(Filter(statuses=(), created_from=time))
    assert isinstance(condition, Between)
    assert condition.gte == time
    assert float(time + 1) != float(time)


def test_conditions_name_only_fields_that_points_have_and_indexes_know() -> None:
    everything = Filter(
        types=(MemoryType.FACT,),
        tags_all=("a",),
        tags_any=("b",),
        created_from=1,
        created_to=2,
        source_session="s",
        min_importance=0.1,
    )
    named = {condition.key for condition in pushed_down(everything)}
    assert named == FIELDS
    assert named <= payload_of(POINT, "ann").keys()


def test_the_fields_of_a_point_are_json_and_name_the_user() -> None:
    held = payload_of(POINT, "ann")
    assert held == {
        "v": "7",
        "user_id": "ann",
        "status": "active",
        "memory_type": "fact",
        "created_at": 5,
        "importance": 0.5,
        "source_session": "s",
        "tags": ["a", "夜莺"],
    }
    assert "source_session" not in payload_of(replace(POINT, source_session=None), "ann")


def test_vectors_become_lists_and_come_back() -> None:
    assert as_vector(as_list(POINT.vector, 2), 2, "x").tolist() == POINT.vector.tolist()
    with pytest.raises(ValueError, match="of 3 dimensions"):
        as_list(POINT.vector, 3)
    answers: tuple[object, ...] = (None, {}, [], [0.1], [[0.1, 0.2]])
    for lost in answers:
        with pytest.raises(VectorIndexDamaged):
            as_vector(lost, 2, "x")
