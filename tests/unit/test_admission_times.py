"""Times of callers: milliseconds, seconds, aware datetimes and their ISO text; nonsense is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from memory.core.model import NewMemory, RecallFilter
from memory.policies import limits
from memory.policies.admission import admit_filter, admit_new
from memory.policies.normalise import timestamp
from tests.unit.refusals import refusal

MOMENT = 1_733_000_000_000
AT_MOMENT = datetime(2024, 11, 30, 20, 53, 20, tzinfo=UTC)
EAST = timezone(timedelta(hours=8))


class Nowhere(tzinfo):
    """A time zone that does not know its offset, which makes a datetime as naive as none at all."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, when: datetime | None) -> str | None:
        return None


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (MOMENT, MOMENT),
        (float(MOMENT), MOMENT),
        (MOMENT + 0.4, MOMENT),
        (MOMENT + 0.6, MOMENT + 1),
        (1_733_000_000, MOMENT),
        (1_733_000_000.0, MOMENT),
        (1_733_000_000.123, MOMENT + 123),
        (0, 0),
        (-0.0, 0),
        (1, 1_000),
        (99_999_999_999, 99_999_999_999_000),
        (100_000_000_000, 100_000_000_000),
        (limits.LATEST_MS, limits.LATEST_MS),
        (AT_MOMENT, MOMENT),
        (AT_MOMENT.astimezone(EAST), MOMENT),
        (AT_MOMENT + timedelta(microseconds=1_600), MOMENT + 2),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 8, tzinfo=EAST), 0),
        (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), limits.LATEST_MS),
        ("2024-11-30T20:53:20Z", MOMENT),
        ("2024-11-30T20:53:20+00:00", MOMENT),
        ("2024-12-01T04:53:20+08:00", MOMENT),
        ("2024-11-30 20:53:20.123Z", MOMENT + 123),
        ("20241130T205320Z", MOMENT),
    ],
    ids=str,
)
def test_a_time_becomes_milliseconds_utc(given: Any, ms: int) -> None:
    stored = timestamp(given, "created_at")
    assert type(stored) is int
    assert stored == ms


@pytest.mark.parametrize(
    ("given", "problem", "hint"),
    [
        (float("nan"), "nan is not a finite number", ""),
        (float("inf"), "inf is not a finite number", ""),
        (float("-inf"), "-inf is not a finite number", ""),
        (10**400, "is not a finite number", ""),
        (-1, "-1 is not between the years 1970 and 9999", ""),
        (-0.001, "is not between the years 1970 and 9999", ""),
        (-MOMENT, "is not between the years 1970 and 9999", ""),
        (limits.LATEST_MS + 1, "is not between the years 1970 and 9999", ""),
        (884_541_340_800_000, "is not between the years 1970 and 9999", ""),  # the year 30,000
        (10**18, "is not between the years 1970 and 9999", ""),
        (1e300, "is not between the years 1970 and 9999", ""),
        (datetime(2024, 11, 30), "has no time zone", "timezone.utc"),  # noqa: DTZ001  naive on purpose
        (datetime(2024, 11, 30, tzinfo=Nowhere()), "has no time zone", "timezone.utc"),
        (datetime(1969, 12, 31, tzinfo=UTC), "is not between the years 1970 and 9999", ""),
        (datetime.min.replace(tzinfo=EAST), "is not between the years 1970 and 9999", ""),
        (
            datetime.max.replace(tzinfo=timezone(-timedelta(hours=8))),
            "is not between the years 1970 and 9999",
            "",
        ),
        ("2024-11-30", "has no time zone", "timezone.utc"),
        ("2024-11-30T20:53:20", "has no time zone", "timezone.utc"),
        ("1969-12-31T23:59:59Z", "is not between the years 1970 and 9999", ""),
        ("+30000-01-01T00:00:00Z", "is not an ISO 8601 time", ""),
        ("next Friday", "'next Friday' is not an ISO 8601 time", ""),
        ("1733000000000", "is not an ISO 8601 time", ""),
        ("", "'' is not an ISO 8601 time", ""),
        ("\ud800", "is not an ISO 8601 time", ""),
        ("9" * 1_000_000, "is not an ISO 8601 time", ""),
        (True, "must be a number, not bool", ""),
        (b"2024", "must be a number, not bytes", ""),
        (date(2024, 11, 30), "must be a number, not date", ""),
        ([MOMENT], "must be a number, not list", ""),
    ],
    ids=lambda value: ascii(value)[:40] if not isinstance(value, int) or abs(value) < 10**30 else "huge",
)
def test_a_time_that_makes_no_sense_is_refused(given: Any, problem: str, hint: str) -> None:
    error = refusal(lambda: timestamp(given, "created_at"))
    assert error.field == "created_at"
    assert problem in error.problem
    assert hint in error.hint


def test_a_new_memory_takes_the_time_it_is_given_and_otherwise_now() -> None:
    given = admit_new(NewMemory(content="tea", created_at=AT_MOMENT), now=5)
    assert given.changes.scalars["created_at"] == MOMENT
    assert admit_new(NewMemory(content="tea"), now=5).changes.scalars["created_at"] == 5


def test_the_own_clock_is_never_taken_for_seconds() -> None:
    assert admit_new(NewMemory(content="tea"), now=1_733_000_000).changes.scalars["created_at"] == 1_733_000_000


def test_a_bad_time_of_a_new_memory_is_refused_by_its_name() -> None:
    assert refusal(lambda: admit_new(NewMemory(content="tea", created_at=-1), now=5)).field == "created_at"


@pytest.mark.parametrize("name", ["created_from", "created_to"])
def test_times_of_a_filter_are_treated_alike(name: str) -> None:
    for given in (MOMENT, 1_733_000_000, AT_MOMENT, "2024-11-30T20:53:20Z"):
        assert getattr(admit_filter({name: given}), name) == MOMENT
    assert getattr(admit_filter(RecallFilter()), name) is None
    assert refusal(lambda: admit_filter({name: float("nan")})).field == f"filters.{name}"
