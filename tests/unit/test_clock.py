"""Stamps: a total order over writes of machines whose clocks disagree, and a form that can be read back."""

from __future__ import annotations

from itertools import combinations

import pytest

from memory.core.clock import MAX_COUNTER, Stamp, Tick, is_writer, next_tick, parse_stamp
from memory.core.errors import FormatError


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [
        (Tick(), 1_000, Tick(1_000, 0)),
        (Tick(1_000, 0), 1_001, Tick(1_001, 0)),
        (Tick(1_000, 7), 1_001, Tick(1_001, 0)),
        (Tick(1_000, 7), 1_000, Tick(1_000, 8)),
        (Tick(1_000, 7), 999, Tick(1_000, 8)),
        (Tick(1_000, 7), -1_000_000_000, Tick(1_000, 8)),
    ],
)
def test_a_tick_follows_the_wall_clock_where_it_moves_forward_and_counts_where_it_does_not(
    last: Tick, now: int, expected: Tick
) -> None:
    assert next_tick(last, now) == expected


def test_ticks_rise_even_when_the_wall_clock_goes_back_and_stands_still() -> None:
    wall = [5, 5, 3, 9, 9, 2, 10, 0, 0, 11]
    ticks = [Tick()]
    for now in wall:
        ticks.append(next_tick(ticks[-1], now))
    assert ticks == sorted(set(ticks))


def test_a_tick_is_larger_than_any_seen_before_it() -> None:
    seen = Tick(2_000_000_000_000, 41)
    assert next_tick(seen, 1_700_000_000_000) > seen


@pytest.mark.parametrize("now", [0, 1_000])
def test_after_a_forged_full_counter_the_next_stamp_is_larger_and_can_be_read(now: int) -> None:
    forged = parse_stamp(f"1000.{MAX_COUNTER}.z")
    stamp = Stamp(*next_tick(forged.tick, now), "a")
    assert stamp > forged
    assert parse_stamp(str(stamp)) == stamp


def test_stamps_are_ordered_by_time_then_counter_then_writer() -> None:
    ordered = [
        Stamp(1, 0, "a"),
        Stamp(1, 0, "b"),
        Stamp(1, 1, "a"),
        Stamp(1, 9, "a"),
        Stamp(1, 10, "a"),
        Stamp(2, 0, "0"),
        Stamp(10, 0, "0"),
    ]
    assert all(one < other for one, other in combinations(ordered, 2))
    assert not any(other < one for one, other in combinations(ordered, 2))


def test_a_stamp_knows_its_tick() -> None:
    assert Stamp(3, 4, "a").tick == Tick(3, 4)


@pytest.mark.parametrize(
    "stamp",
    [
        Stamp(0, 0, "0"),
        Stamp(1_733_000_000_000, 0, "5f3a"),
        Stamp(999_999_999_999_999, MAX_COUNTER, "z" * 32),
    ],
)
def test_a_stamp_is_written_and_read_back(stamp: Stamp) -> None:
    assert parse_stamp(str(stamp)) == stamp


def test_the_written_form_is_milliseconds_counter_writer() -> None:
    assert str(Stamp(1_733_000_000_000, 2, "5f3a")) == "1733000000000.2.5f3a"


@pytest.mark.parametrize(
    "text",
    [
        None,
        17,
        ("1", "0", "a"),
        "",
        "1",
        "1.0",
        "1.0.",
        ".0.a",
        "1..a",
        "-1.0.a",
        "+1.0.a",
        "1.0.A",
        "1.0.a b",
        "1.0.a\n",
        " 1.0.a",
        "1.0.a.b",
        "1.0.é",
        "１.0.a",
        "1_0.0.a",
        "1e3.0.a",
        "1.0." + "a" * 33,
        "1" * 16 + ".0.a",
        "1." + "1" * 10 + ".a",
        "1.0.a\0",
        "\ud800.0.a",
    ],
)
def test_anything_else_is_refused_and_quoted_in_brief(text: object) -> None:
    with pytest.raises(FormatError, match=r"stamps: .* is not of the form milliseconds\.counter\.writer"):
        parse_stamp(text)


def test_a_long_wrong_stamp_is_not_quoted_in_full() -> None:
    with pytest.raises(FormatError) as caught:
        parse_stamp("x" * 1_000_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("writer", ["0", "5f3a", "a" * 32])
def test_lower_case_letters_and_digits_make_a_writer(writer: str) -> None:
    assert is_writer(writer)


@pytest.mark.parametrize("writer", ["", "A", "-", "a b", "a\n", "é", "１", "a" * 33, "a\0", None, 5])
def test_nothing_else_is_a_writer(writer: object) -> None:
    assert not is_writer(writer)
