"""Admission of records: what a file says is checked like what a caller says, and its stamps are kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from memory.core.clock import MAX_SKEW_MS, Stamp
from memory.core.framing import decode_line
from memory.core.merge import merge
from memory.core.record import Record, decode_record
from memory.core.state import ABSENT, State
from memory.policies import limits
from memory.policies.importance import default_importance
from memory.policies.records import MAX_EXTRA, AdmittedRecord, admit_record
from tests.unit.refusals import refusal

NOW = 1_800_000_000_000
MOMENT = 1_733_000_000_000
A_UUID = "8c5fd3ac-8f0c-4d51-a9d5-0f29f0d0b1c0"
EARLY, LATE = f"{MOMENT}.0.5f3a", f"{MOMENT + 1}.0.5f3a"
FRAMED: dict[str, Any] = {
    "kind": "memory",
    "memory_id": A_UUID,
    "user_id": "u-42",
    "content": "tea",
    "memory_type": "preference",
    "importance": 0.25,
    "status": "archived",
    "source_session": "s-1",
    "created_at": MOMENT,
    "tags": ["drink"],
    "metadata": {"x": 1},
    "stamps": {"*": EARLY},
}
PLAIN: dict[str, Any] = {"memory_id": A_UUID, "user_id": "u-42", "content": "tea", "created_at": MOMENT}


def admitted(data: dict[str, Any]) -> AdmittedRecord:
    return admit_record(decode_record(data), now=NOW)


def framed(**changes: Any) -> AdmittedRecord:
    return admitted({key: value for key, value in {**FRAMED, **changes}.items() if value is not ...})


def plain(**changes: Any) -> AdmittedRecord:
    return admitted({**PLAIN, **changes})


def values(state: State) -> dict[str, Any]:
    return {name: register.value for name, register in state.scalars.items()}


def test_a_good_record_is_admitted_as_it_is() -> None:
    record = decode_record(FRAMED)
    assert admit_record(record, now=NOW) == AdmittedRecord("u-42", A_UUID, record.state)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"user_id": ...}, "user_id", "must be a string, not NoneType"),
        ({"user_id": " "}, "user_id", "must not be empty or blank"),
        ({"user_id": "u\0"}, "user_id", "contains NUL or a lone surrogate"),
        ({"user_id": "x" * 513}, "user_id", "the limit is 512"),
        ({"user_id": 42}, "user_id", "must be a string, not int"),
        ({"memory_id": ...}, "memory_id", "must be a string, not NoneType"),
        ({"memory_id": "m-1"}, "memory_id", "'m-1' is not a UUID"),
        ({"content": ""}, "content", "must not be empty or blank"),
        ({"content": "\0"}, "content", "must not be empty or blank"),
        ({"content": None}, "content", "must be a string, not NoneType"),
        ({"content": "x" * 5_000_000}, "content", "the limit is 4,194,304"),
        ({"memory_type": "dream"}, "memory_type", "'dream' is not one of"),
        ({"memory_type": None}, "memory_type", "None is not one of"),
        ({"importance": 7}, "importance", "7 is not between 0 and 1"),
        ({"importance": "0.5"}, "importance", "must be a number, not str"),
        ({"importance": None}, "importance", "must be a number, not NoneType"),
        ({"status": "deleted"}, "status", "'deleted' is not one of"),
        ({"status": 0}, "status", "int is not one of"),
        ({"source_session": 5}, "source_session", "must be a string, not int"),
        ({"source_session": "x" * 513}, "source_session", "the limit is 512"),
        ({"created_at": -1}, "created_at", "-1 is not between 0 and"),
        ({"created_at": limits.LATEST_MS + 1}, "created_at", "is not between 0 and"),
        ({"created_at": float(MOMENT)}, "created_at", "must be an integer, not float"),
        ({"created_at": "2024-11-30T20:53:20Z"}, "created_at", "must be an integer, not str"),
        ({"created_at": None}, "created_at", "must be an integer, not NoneType"),
        ({"last_access_at": -1}, "last_access_at", "-1 is not between 0 and"),
        ({"last_access_at": -(10**30)}, "last_access_at", "is not between 0 and"),
        ({"last_access_at": 10**30}, "last_access_at", "is not between 0 and"),
        ({"tags": ["x" * 129]}, "tags[0]", "129 characters, the limit is 128"),
        ({"tags": [f"t{i}" for i in range(limits.MAX_TAGS * limits.MERGED + 1)]}, "tags", "more than 4096"),
        ({"metadata": {"x": "y" * 70_000}}, "metadata.x", "the limit is 65,536"),
        ({"metadata": {"a": 1, "a\0": 2}}, "metadata", "two keys become 'a'"),
        ({"mood": float("inf")}, "mood", "inf is not JSON"),
        ({"mood": [[[[{"a": float("nan")}]]]]}, "mood[0][0][0][0].a", "nan is not JSON"),
        ({"mo\0od": 1}, "record", "cannot keep a field of the name 'mo\\x00od'"),
        ({"\ud800": 1}, "record", "cannot keep a field of the name '\\ud800'"),
        ({"x" * 129: 1}, "record", "cannot keep a field of the name 'xxx"),
        ({f"extra{i}": i for i in range(MAX_EXTRA * limits.MERGED + 1)}, "record", "more than 1024 unknown fields"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_bad_part_is_refused_by_its_name(changes: dict[str, Any], field: str, problem: str) -> None:
    error = refusal(lambda: framed(**changes))
    assert error.field == field
    assert problem in error.problem


def test_ids_are_kept_in_canonical_spelling() -> None:
    assert framed(memory_id=A_UUID.upper()).memory_id == A_UUID


def test_text_is_cleaned_and_keeps_its_stamps() -> None:
    stamps = {"*": EARLY, "content": LATE, "tags": {"\0DRINK ": LATE}, "metadata": {"k\0": LATE}}
    state = framed(
        content="t\0ea\ud800", source_session="s\0", tags=["\0DRINK "], metadata={"k\0": "\0v"}, stamps=stamps
    ).state
    assert state.scalars["content"] == (Stamp(MOMENT + 1, 0, "5f3a"), "tea\ufffd")
    assert state.value("source_session") == "s"
    assert state.tags == {"drink": (Stamp(MOMENT + 1, 0, "5f3a"), True)}
    assert state.metadata == {"k": (Stamp(MOMENT + 1, 0, "5f3a"), "v")}


def test_numbers_take_the_form_that_stores_give_back() -> None:
    state = admitted(
        decode_line(
            b'{"content":"a","created_at":1,"user_id":"u","memory_id":"%s","mood":-0.0,'
            b'"metadata":{"big":1e20},"importance":1}' % A_UUID.encode(),
            1,
        )
    ).state
    assert [repr(state.value(name)) for name in ("mood", "importance")] == ["0.0", "1.0"]
    assert repr(state.metadata["big"].value) == "100000000000000000000"


# -- time


@pytest.mark.parametrize(
    "stamps",
    [
        {"*": f"{NOW + MAX_SKEW_MS + 1}.0.a"},
        {"*": EARLY, "importance": f"{NOW + MAX_SKEW_MS + 1}.0.a"},
        {"*": EARLY, "tags": {"gone": f"{NOW + MAX_SKEW_MS + 1}.0.a"}},
        {"*": EARLY, "metadata": {"gone": f"{NOW + MAX_SKEW_MS + 1}.0.a"}},
        {"deleted": f"{NOW + MAX_SKEW_MS + 1}.0.a"},
        {"*": "999999999999999.0.a"},
    ],
    ids=str,
)
def test_a_stamp_too_far_ahead_is_refused_for_it_would_win_against_every_later_edit(stamps: dict[str, Any]) -> None:
    error = refusal(lambda: framed(stamps=stamps))
    assert error.field == "stamps"
    assert "in the future" in error.problem
    assert "clock" in error.hint


def test_a_stamp_within_the_tolerated_skew_is_taken() -> None:
    state = framed(stamps={"*": f"{NOW + MAX_SKEW_MS}.0.a"}, last_access_at=NOW + MAX_SKEW_MS).state
    assert max(state.stamps()).ms == state.last_access == NOW + MAX_SKEW_MS


def test_a_last_access_in_the_future_is_refused() -> None:
    assert "in the future" in refusal(lambda: framed(last_access_at=NOW + MAX_SKEW_MS + 1)).problem


def test_times_of_framed_records_are_milliseconds_and_never_scaled() -> None:
    state = framed(created_at=1_733_000_000, last_access_at=1_733_000_000).state
    assert (state.value("created_at"), state.last_access) == (1_733_000_000, 1_733_000_000)


@pytest.mark.parametrize("given", [MOMENT, 1_733_000_000, 1_733_000_000.0, "2024-11-30T20:53:20Z"])
def test_times_of_plain_records_are_treated_like_a_callers(given: Any) -> None:
    assert plain(created_at=given).state.value("created_at") == MOMENT


def test_the_last_access_of_a_plain_record_may_be_in_seconds_too() -> None:
    assert plain(last_access_at=1_733_000_000).state.last_access == MOMENT


@pytest.mark.parametrize("given", [-5, float("nan"), 10**18, datetime(2024, 1, 1, tzinfo=UTC).date(), True, [1]])
def test_a_nonsense_time_of_a_plain_record_is_refused(given: Any) -> None:
    assert refusal(lambda: plain(created_at=given)).field == "created_at"


def test_a_plain_record_from_the_future_is_refused() -> None:
    error = refusal(lambda: plain(updated_at=NOW + MAX_SKEW_MS + 1))
    assert (error.field, "in the future" in error.problem) == ("updated_at", True)


# -- what is missing is no information


def test_what_a_plain_record_lacks_is_filled_in() -> None:
    state = plain(content="a" * 50, metadata={"explicit_important": True}).state
    assert values(state) == {
        "content": "a" * 50,
        "created_at": MOMENT,
        "memory_type": "fact",
        "status": "active",
        "source_session": None,
        "importance": default_importance("a" * 50, "fact", {"explicit_important": True}),
    }


def test_what_was_filled_in_never_overrides_what_is_known() -> None:
    known = framed().state
    joined = merge(known, plain(content="green tea", updated_at=MOMENT + 1_000).state)
    assert values(joined) == {**values(known), "content": "green tea"}


def test_a_framed_record_without_a_session_does_not_wipe_a_known_one() -> None:
    known = framed().state
    joined = merge(known, framed(source_session=..., content="green tea", stamps={"*": LATE}).state)
    assert values(joined) == {**values(known), "content": "green tea"}
    assert framed(source_session=...).state.value("source_session") is None


def test_a_framed_record_that_names_no_session_wipes_it() -> None:
    joined = merge(framed().state, framed(source_session=None, stamps={"*": LATE}).state)
    assert joined.value("source_session") is None


def test_importing_a_plain_record_twice_changes_nothing() -> None:
    once, twice = plain(access_count=3, tags=["A", "a"]).state, plain(access_count=3, tags=["A", "a"]).state
    assert merge(once, twice) == once


def test_a_plain_deleted_record_is_a_tombstone_even_when_the_rest_is_bad() -> None:
    state = plain(status="deleted", content="", importance=7, last_access_at=MOMENT, access_count=2).state
    assert state == State(deleted=Stamp(MOMENT, 0, "0"))


def test_of_a_tombstone_only_the_stamp_is_admitted() -> None:
    record = Record(
        memory_id=A_UUID, user_id="u-42", state=State(deleted=Stamp(5, 0, "a")), vector=np.ones(2, np.float32)
    )
    assert admit_record(record, now=NOW).state == State(deleted=Stamp(5, 0, "a"))


@pytest.mark.parametrize("name", ["user_id", "memory_id"])
def test_a_tombstone_must_say_of_whom_and_of_what(name: str) -> None:
    data = {"memory_id": A_UUID, "user_id": "u-42", "stamps": {"deleted": EARLY}}
    assert refusal(lambda: admitted({**data, name: " "})).field == name


# -- fields of later versions


def test_as_many_fields_of_later_versions_as_the_limit_allows_are_kept() -> None:
    extra = {f"extra{i}": [i, None] for i in range(MAX_EXTRA)}
    kept = values(framed(**extra).state)
    assert {name: kept[name] for name in extra} == extra


# -- registers that become one


@pytest.mark.parametrize(("stamps", "present"), [({"gone\0": LATE}, False), ({"gone\0": f"{MOMENT - 1}.0.a"}, True)])
def test_of_two_spellings_of_a_tag_the_later_register_counts(stamps: dict[str, str], present: bool) -> None:
    for tags in (["gone"], ["GONE "]):
        state = framed(tags=tags, stamps={"*": EARLY, "tags": stamps}).state
        assert (state.present_tags() == ("gone",)) is present
        assert list(state.tags) == ["gone"]


@pytest.mark.parametrize(("when", "kept"), [(LATE, ABSENT), (f"{MOMENT - 1}.0.a", 1)])
def test_of_two_spellings_of_a_metadata_key_the_later_register_counts(when: str, kept: Any) -> None:
    state = framed(metadata={"k": 1}, stamps={"*": EARLY, "metadata": {"k\0": when}}).state
    assert {key: register.value for key, register in state.metadata.items()} == {"k": kept}


def test_removed_tags_do_not_count_towards_the_limit() -> None:
    removed = {f"gone{i}": EARLY for i in range(1_000)}
    state = framed(tags=[f"t{i}" for i in range(limits.MAX_TAGS)], stamps={"*": EARLY, "tags": removed}).state
    assert len(state.present_tags()) == limits.MAX_TAGS
    assert len(state.tags) == 1_000 + limits.MAX_TAGS
