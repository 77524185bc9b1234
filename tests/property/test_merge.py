"""Merge is the join of a semilattice, so replicas agree whatever they saw first, last or twice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.core.clock import Stamp
from memory.core.merge import merge
from memory.core.state import ABSENT, Register, State
from tests.property.strategies import (
    SLOW,
    alike_values,
    exact,
    few_stamps,
    full_states,
    stamps,
    states,
)

STAMP = Stamp(1_733_000_000_000, 0, "5f3a")
MANY = settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
SOME = settings(max_examples=40, deadline=None, suppress_health_check=SLOW)


def folded(seen: Sequence[State]) -> str:
    return exact(reduce(merge, seen))


@MANY
@given(states(), states())
def test_it_does_not_matter_who_merges_with_whom(a: State, b: State) -> None:
    assert exact(merge(a, b)) == exact(merge(b, a))


@MANY
@given(states(), states(), states())
def test_it_does_not_matter_which_two_of_three_meet_first(a: State, b: State, c: State) -> None:
    assert exact(merge(a, merge(b, c))) == exact(merge(merge(a, b), c))


@MANY
@given(states() | full_states())
def test_a_version_merged_with_itself_stays_as_it_is(a: State) -> None:
    assert exact(merge(a, a)) == exact(a)


@MANY
@given(states(), states())
def test_a_version_merged_a_second_time_changes_nothing(a: State, b: State) -> None:
    joined = merge(a, b)
    assert exact(merge(joined, b)) == exact(joined)
    assert exact(merge(a, joined)) == exact(joined)


@MANY
@given(st.lists(states(), min_size=1, max_size=5), st.data())
def test_any_order_and_any_repetition_of_the_same_versions_ends_equal(seen: list[State], data: st.DataObject) -> None:
    other = data.draw(st.permutations(seen + data.draw(st.lists(st.sampled_from(seen), max_size=4))))
    assert folded(seen) == folded(other)


@SOME
@given(st.lists(full_states(), min_size=2, max_size=4), st.data())
def test_versions_as_stores_hold_them_end_equal_in_any_order(seen: list[State], data: st.DataObject) -> None:
    assert folded(seen) == folded(data.draw(st.permutations(seen)))


@MANY
@given(states(), states())
def test_no_stamp_and_no_count_goes_down(a: State, b: State) -> None:
    joined = merge(a, b)
    for side in (a, b):
        if joined.deleted is not None:
            assert side.deleted is None or joined.deleted >= side.deleted
            continue
        for name in ("scalars", "tags", "metadata"):
            held = getattr(joined, name)
            for key, register in getattr(side, name).items():
                assert held[key].stamp >= register.stamp
        assert all(joined.accesses[writer] >= count for writer, count in side.accesses.items())
        assert side.last_access is None or (joined.last_access or 0) >= side.last_access


@MANY
@given(states(), states())
def test_nothing_is_invented(a: State, b: State) -> None:
    joined = merge(a, b)
    for name in ("scalars", "tags", "metadata"):
        for key, register in getattr(joined, name).items():
            offered = [getattr(side, name)[key] for side in (a, b) if key in getattr(side, name)]
            assert any(register is one for one in offered)
    assert all(count in (a.accesses.get(w), b.accesses.get(w)) for w, count in joined.accesses.items())
    assert joined.last_access in (None, a.last_access, b.last_access)


@MANY
@given(states(), states())
def test_a_register_that_one_side_lacks_is_taken_from_the_other(a: State, b: State) -> None:
    joined = merge(a, b)
    if joined.deleted is None:
        for name in ("scalars", "tags", "metadata"):
            assert getattr(joined, name).keys() == getattr(a, name).keys() | getattr(b, name).keys()


@MANY
@given(states(), stamps | few_stamps)
def test_a_deletion_absorbs_everything_however_old_it_is(a: State, when: Stamp) -> None:
    joined = merge(a, State(deleted=when))
    kept = when if a.deleted is None else max(when, a.deleted)
    assert joined == State(deleted=kept)


@MANY
@given(stamps, stamps, alike_values, alike_values)
def test_the_larger_stamp_wins_whatever_the_values(one: Stamp, two: Stamp, value: Any, other: Any) -> None:
    joined = merge(State(scalars={"content": Register(one, value)}), State(scalars={"content": Register(two, other)}))
    if one != two:
        assert joined.scalars["content"].value is (value if one > two else other)
    assert joined.scalars["content"].stamp == max(one, two)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        (False, 0),
        (1, 1.0),
        (0, 0.0),
        (True, 1.0),
        ("1", 1),
        ("", None),
        ("null", None),
        ([1], [True]),
        ([], {}),
        ({"a": [0]}, {"a": [False]}),
        ({"a": 1}, {"a": 1.0}),
        ("夜莺", "夜鶯"),
        (ABSENT, None),
        (ABSENT, ""),
        (ABSENT, "absent"),
        (ABSENT, 0),
        (ABSENT, False),
    ],
    ids=repr,
)
def test_forged_equal_stamps_choose_the_same_value_whoever_asks(one: Any, other: Any) -> None:
    a, b = (State(metadata={"k": Register(STAMP, value)}) for value in (one, other))
    chosen = merge(a, b)
    assert exact(chosen) == exact(merge(b, a))
    assert exact(chosen) in (exact(a), exact(b))
    assert exact(a) != exact(b)
    assert exact(merge(chosen, a)) == exact(merge(b, chosen)) == exact(chosen)


@MANY
@given(st.lists(alike_values | st.just(ABSENT), min_size=1, max_size=6), st.data())
def test_many_forged_values_under_one_stamp_end_in_one(values: list[Any], data: st.DataObject) -> None:
    seen = [State(metadata={"k": Register(STAMP, value)}) for value in values]
    assert folded(seen) == folded(data.draw(st.permutations(seen)))


def test_key_order_inside_a_value_is_no_difference() -> None:
    a = State(metadata={"k": Register(STAMP, {"x": 1, "y": 2})})
    b = State(metadata={"k": Register(STAMP, {"y": 2, "x": 1})})
    assert exact(merge(a, b)) == exact(merge(b, a)) == exact(a)


def test_key_order_inside_a_value_does_not_sway_the_choice_between_forged_ones() -> None:
    for number in range(10):
        other = State(metadata={"k": Register(STAMP, {"x": 1, "y": number + 3})})
        one = State(metadata={"k": Register(STAMP, {"x": 1, "y": 2})})
        same = State(metadata={"k": Register(STAMP, {"y": 2, "x": 1})})
        assert exact(merge(one, other)) == exact(merge(same, other))


def test_edits_to_different_fields_tags_and_keys_all_survive() -> None:
    early, late = Stamp(1, 0, "a"), Stamp(2, 0, "b")
    base = State(
        scalars={"content": Register(early, "tea"), "importance": Register(early, 0.5)},
        tags={"drink": Register(early, value=True)},
        metadata={"x": Register(early, 1)},
    )
    here = merge(base, State(scalars={"content": Register(late, "coffee")}, tags={"hot": Register(late, value=True)}))
    there = merge(base, State(tags={"drink": Register(late, value=False)}, metadata={"x": Register(late, ABSENT)}))
    joined = merge(here, there)
    assert joined.value("content") == "coffee"
    assert joined.value("importance") == 0.5
    assert joined.present_tags() == ("hot",)
    assert joined.present_metadata() == {}


def test_access_counts_of_different_writers_add_up_and_repeats_do_not() -> None:
    a, b = State(accesses={"a": 5, "b": 1}), State(accesses={"b": 3, "c": 2})
    joined = reduce(merge, [a, b, a, b, b])
    assert joined.accesses == {"a": 5, "b": 3, "c": 2}
