"""Effective importance: it fades with time, and nothing is ever written back."""

from __future__ import annotations

import math

import pytest

from memory.policies.forgetting import DAY_MS, decay, effective_importance

CREATED = 1_733_000_000_000


def effective(
    importance: float = 0.8,
    *,
    days: float,
    last_access_at: int | None = None,
    time_constant_days: float = 90.0,
) -> float:
    return effective_importance(
        importance,
        created_at=CREATED,
        last_access_at=last_access_at,
        now=CREATED + round(days * DAY_MS),
        time_constant_days=time_constant_days,
    )


def test_a_fresh_memory_has_its_stored_importance() -> None:
    assert effective(0.8, days=0) == 0.8


def test_after_the_time_constant_a_share_of_one_over_e_remains() -> None:
    assert effective(0.8, days=90) == pytest.approx(0.8 * math.exp(-1))
    assert decay(30 * DAY_MS, 30.0) == pytest.approx(0.37, abs=0.003)


@pytest.mark.parametrize("time_constant", [1.0, 30.0, 90.0, 365.0])
def test_it_fades_exponentially_with_the_given_time_constant(time_constant: float) -> None:
    faded = effective(0.5, days=45, time_constant_days=time_constant)
    assert faded == pytest.approx(0.5 * math.exp(-45 / time_constant))


def test_half_a_day_counts_half() -> None:
    assert effective(1.0, days=0.5, time_constant_days=1.0) == pytest.approx(math.exp(-0.5))


def test_an_access_starts_the_clock_anew() -> None:
    accessed = CREATED + 60 * DAY_MS
    assert effective(0.8, days=60, last_access_at=accessed) == 0.8
    assert effective(0.8, days=150, last_access_at=accessed) == pytest.approx(0.8 * math.exp(-1))


@pytest.mark.parametrize("last_access_at", [None, 0, 1, CREATED - DAY_MS, CREATED])
def test_an_access_before_the_creation_changes_nothing(last_access_at: int | None) -> None:
    assert effective(days=30, last_access_at=last_access_at) == effective(days=30)


@pytest.mark.parametrize("ahead", [1, DAY_MS, 10_000 * DAY_MS])
def test_a_time_in_the_future_counts_as_now(ahead: int) -> None:
    assert decay(-ahead, 30.0) == 1.0
    assert effective(0.8, days=-ahead / DAY_MS) == 0.8
    assert effective(0.8, days=3, last_access_at=CREATED + 3 * DAY_MS + ahead) == 0.8


def test_asking_twice_or_late_gives_the_same_as_asking_once() -> None:
    assert effective(days=10) == effective(days=10)
    assert effective(days=20) == pytest.approx(effective(days=10) ** 2 / effective(days=0))


def test_it_only_falls_and_stays_between_zero_and_the_stored_value() -> None:
    course = [effective(0.9, days=days) for days in (0, 0.001, 1, 7, 90, 1_000, 10_000, 1_000_000)]
    assert course == sorted(course, reverse=True)
    assert all(0.0 <= value <= 0.9 for value in course)


def test_nothing_stays_nothing() -> None:
    assert effective(0.0, days=5) == 0.0
