"""The wire record: what is written is what is read, and what cannot be read is named."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.core.clock import Stamp
from memory.core.errors import FormatError
from memory.core.framing import decode_line, encode_line
from memory.core.merge import merge
from memory.core.record import Record, decode_record, encode_record
from memory.core.state import ABSENT, Register, State
from tests.property.strategies import (
    SLOW,
    UNKNOWN_NAMES,
    exact,
    full_states,
    json_values,
    records,
    stamps,
    texts,
)

MANY = settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
SOME = settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
PLAIN: dict[str, Any] = {
    "memory_id": "8c5fd3ac-8f0c-4d51-a9d5-0f29f0d0b1c0",
    "content": "项目代号叫夜莺",
    "memory_type": "fact",
    "importance": 0.7,
    "created_at": 1_733_000_000_000,
    "updated_at": 1_733_000_001_000,
    "last_access_at": 1_733_000_002_000,
    "access_count": 3,
    "status": "active",
    "source_session": "s-1",
    "user_id": "u-42",
    "embedding_version": "bge-large-zh",
    "vector_synced": 1,
    "tags": ["project"],
    "vector": [0.25, -0.5, 1e-3],
}
"""What other programs export: one object a line, no stamps, a list of numbers as vector."""

PLAIN_OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "updated_at": st.none() | st.integers(-1, 10**13) | st.floats(0, 1e12),
    "last_access_at": st.none() | st.integers(0, 10**13),
    "access_count": st.none() | st.integers(0, 99),
    "status": st.sampled_from(["active", "archived", "deleted"]),
    "importance": st.floats(0, 1),
    "tags": st.none() | st.lists(texts(max_size=5), max_size=3),
    "metadata": st.none() | st.dictionaries(texts(max_size=5), json_values, max_size=2),
    "vector": st.none() | st.lists(st.floats(width=32), max_size=4),
    "mood": json_values,
}


def through_text(record: Record) -> Record:
    return decode_record(decode_line(encode_line(encode_record(record)), 2))


def bits(record: Record) -> bytes | None:
    return None if record.vector is None else record.vector.tobytes()


@MANY
@given(records())
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    back = through_text(record)
    assert exact(back.state) == exact(record.state)
    assert bits(back) == bits(record)
    assert replace(back, state=State(), vector=None) == replace(record, state=State(), vector=None)


@SOME
@given(records())
def test_it_is_one_line_of_utf_8(record: Record) -> None:
    line = encode_line(encode_record(record))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line.decode("utf-8")) == encode_record(record)


@SOME
@given(records())
def test_a_second_round_writes_the_same_bytes(record: Record) -> None:
    line = encode_line(encode_record(through_text(record)))
    assert line == encode_line(encode_record(through_text(through_text(record))))


@SOME
@given(full_states(), full_states())
def test_a_joined_state_comes_back_as_it_was(a: State, b: State) -> None:
    joined = merge(a, b)
    record = Record(memory_id="m", user_id="u", state=joined)
    assert exact(through_text(record).state) == exact(joined)


@SOME
@given(full_states(), stamps)
def test_of_a_deleted_memory_nothing_but_the_stamp_is_written(state: State, when: Stamp) -> None:
    data = encode_record(Record(memory_id="m", user_id="u", state=merge(state, State(deleted=when)), rev=3))
    assert data == {
        "kind": "memory",
        "memory_id": "m",
        "user_id": "u",
        "status": "deleted",
        "stamps": {"deleted": str(when)},
        "rev": 3,
    }


@SOME
@given(full_states(), st.sampled_from(UNKNOWN_NAMES), json_values)
def test_fields_of_a_later_version_are_kept_with_their_stamps(state: State, name: str, value: Any) -> None:
    register = Register(Stamp(5, 6, "later"), value)
    state = replace(state, scalars={**state.scalars, name: register})
    back = through_text(Record(memory_id="m", user_id="u", state=state)).state
    assert back.scalars[name].stamp == register.stamp
    assert json.dumps(back.scalars[name].value) == json.dumps(value)


@SOME
@given(
    full_states(),
    st.sampled_from(["*", "deleted", "vector_synced", "updated_at", "access_count"]),
    json_values,
)
def test_a_key_with_a_meaning_of_its_own_never_becomes_a_field(state: State, name: str, value: Any) -> None:
    data = encode_record(Record(memory_id="m", user_id="u", state=state))
    assert exact(decode_record({**data, name: value}).state) == exact(state)


def test_a_memory_whose_plain_record_has_a_deleted_column_survives_export_after_an_edit() -> None:
    data = {"memory_id": "m", "user_id": "u", "content": "tea", "created_at": 1_733_000_000_000, "deleted": 0}
    scalars = decode_record(data).state.scalars
    complete = dict.fromkeys(("memory_type", "importance", "status", "source_session"), Register(Stamp(1, 0, "a"), 0))
    edited = Register(Stamp(1_800_000_000_000, 0, "a"), "coffee")
    state = State(scalars={**complete, **scalars, "content": edited})
    assert through_text(Record(memory_id="m", user_id="u", state=state)).state.value("content") == "coffee"


def test_removed_tags_and_keys_are_written_as_stamps_without_values() -> None:
    old, new = Stamp(1, 0, "a"), Stamp(2, 0, "a")
    scalars = {"content": Register(old, "tea")}
    state = State(
        scalars=scalars,
        tags={"hot": Register(new, value=False), "drink": Register(old, value=True)},
        metadata={"x": Register(new, ABSENT), "y": Register(old, None)},
    )
    data = encode_record(Record(memory_id="m", user_id="u", state=state))
    assert data["tags"] == ["drink"]
    assert data["metadata"] == {"y": None}
    assert data["stamps"] == {"*": "1.0.a", "tags": {"hot": "2.0.a"}, "metadata": {"x": "2.0.a"}}


def test_the_written_form_is_the_documented_one() -> None:
    stamp = Stamp(1_733_000_000_000, 0, "5f3a")
    values = {"content": "夜莺", "memory_type": "fact", "importance": 0.7, "status": "active"}
    scalars = {k: Register(stamp, v) for k, v in {**values, "source_session": None, "created_at": 5}.items()}
    scalars["importance"] = Register(Stamp(1_733_000_009_000, 2, "5f3a"), 0.7)
    state = State(scalars=scalars, tags={"project": Register(stamp, value=True)}, accesses={"5f3a": 2, "c": 1})
    vector = np.array([1.0, -0.5], dtype=np.float32)
    record = Record(memory_id="m", user_id="u", state=state, vector=vector, model="hashing-v1-2", rev=17)
    assert encode_record(record) == {
        "kind": "memory",
        "memory_id": "m",
        "user_id": "u",
        **values,
        "source_session": None,
        "created_at": 5,
        "updated_at": 1_733_000_009_000,
        "last_access_at": None,
        "access_count": 3,
        "tags": ["project"],
        "metadata": {},
        "embedding_version": "hashing-v1-2",
        "vector": base64.b64encode(bytes.fromhex("0000803f000000bf")).decode(),
        "accesses": {"5f3a": 2, "c": 1},
        "stamps": {"*": "1733000000000.0.5f3a", "importance": "1733000009000.2.5f3a"},
        "rev": 17,
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"content": ...}, "content"),
        ({"memory_type": ...}, "memory_type"),
        ({"importance": ...}, "importance"),
        ({"status": ...}, "status"),
        ({"created_at": ...}, "created_at"),
        ({"stamps": []}, "stamps"),
        ({"stamps": {}}, "stamps"),
        ({"stamps": {"*": 7}}, "stamps"),
        ({"stamps": {"*": "1.2"}}, "stamps"),
        ({"stamps": {"*": "-1.0.a"}}, "stamps"),
        ({"stamps": {"*": "1.0.A"}}, "stamps"),
        ({"stamps": {"*": "1.0.a", "content": None}}, "stamps"),
        ({"stamps": {"*": "1.0.a", "tags": ["x"]}}, "stamps.tags"),
        ({"stamps": {"*": "1.0.a", "metadata": 3}}, "stamps.metadata"),
        ({"stamps": {"*": "1.0.a", "tags": {"x": "now"}}}, "stamps"),
        ({"stamps": {"deleted": "yesterday"}}, "stamps"),
        ({"tags": "project"}, "tags"),
        ({"tags": {"project": 1}}, "tags"),
        ({"tags": [1]}, "tags"),
        ({"metadata": ["a"]}, "metadata"),
        ({"metadata": "a"}, "metadata"),
        ({"accesses": [1]}, "accesses"),
        ({"accesses": {"a": "2"}}, "accesses"),
        ({"accesses": {"a": True}}, "accesses"),
        ({"accesses": {"a": -1}}, "accesses"),
        ({"accesses": {"a": 2**53}}, "accesses"),
        ({"accesses": {"a\0": 1}}, "accesses"),
        ({"accesses": {"\ud800": 1}}, "accesses"),
        ({"accesses": {"w" * 33: 1}}, "accesses"),
        ({"accesses": {"": 1}}, "accesses"),
        ({"last_access_at": "2026-11-30"}, "last_access_at"),
        ({"last_access_at": True}, "last_access_at"),
        ({"rev": "17"}, "rev"),
        ({"embedding_version": 3}, "embedding_version"),
        ({"vector": 3}, "vector"),
        ({"vector": {"0": 1.0}}, "vector"),
        ({"vector": "not base64!"}, "vector"),
        ({"vector": "夜莺"}, "vector"),
        ({"vector": "AAAAAAA="}, "vector"),
        ({"vector": [[1.0]]}, "vector"),
        ({"vector": [None]}, "vector"),
        ({"vector": ["north"]}, "vector"),
        ({"vector": [10**400]}, "vector"),
    ],
)
def test_a_part_of_the_wrong_shape_is_named(changes: dict[str, Any], named: str) -> None:
    good = {
        "kind": "memory",
        "memory_id": "m",
        "user_id": "u",
        "content": "tea",
        "memory_type": "fact",
        "importance": 0.5,
        "status": "active",
        "created_at": 1,
        "stamps": {"*": "1.0.a"},
    }
    decode_record(good)
    bad = {key: value for key, value in {**good, **changes}.items() if value is not ...}
    with pytest.raises(FormatError, match=rf"^{named}\b") as caught:
        decode_record(bad)
    assert len(str(caught.value)) < 300


def test_every_column_is_taken() -> None:
    record = decode_record(decode_line(encode_line(PLAIN), 1))
    state = record.state
    assert record.plain
    assert (record.memory_id, record.user_id, record.model) == (
        PLAIN["memory_id"],
        "u-42",
        "bge-large-zh",
    )
    assert {name: r.value for name, r in state.scalars.items()} == {
        name: PLAIN[name] for name in ("content", "memory_type", "importance", "created_at", "status", "source_session")
    }
    assert state.present_tags() == ("project",)
    assert state.last_access == 1_733_000_002_000
    assert sum(state.accesses.values()) == 3
    assert set(state.stamps()) == {Stamp(1_733_000_001_000, 0, "0")}
    assert record.vector is not None
    assert record.vector.tobytes() == np.array([0.25, -0.5, 1e-3], dtype=np.float32).tobytes()


@SOME
@given(
    st.fixed_dictionaries({"content": texts(min_size=1), "created_at": st.integers(0, 10**13)}, optional=PLAIN_OPTIONAL)
)
def test_reading_it_twice_gives_equal_states_and_merging_them_changes_nothing(data: dict[str, Any]) -> None:
    first, second = decode_record(data).state, decode_record(data).state
    assert exact(first) == exact(second) == exact(merge(first, second))


def test_a_deleted_one_is_a_tombstone() -> None:
    record = decode_record({**PLAIN, "status": "deleted"})
    assert record.state == State(deleted=Stamp(1_733_000_001_000, 0, "0"))


@pytest.mark.parametrize(
    ("times", "ms"),
    [
        ({"updated_at": 1_733_000_001, "created_at": 1}, 1_733_000_001_000),
        ({"updated_at": 1_733_000_001.5, "created_at": 1}, 1_733_000_001_500),
        ({"updated_at": None, "created_at": 1_733_000_000_000}, 1_733_000_000_000),
        ({"updated_at": "2026-11-30T00:00:00Z", "created_at": 1_733_000_000_000}, 1_733_000_000_000),
        ({"updated_at": -5, "created_at": "2026-11-30T00:00:00Z"}, 0),
        ({"updated_at": True, "created_at": "2026-11-30T00:00:00Z"}, 0),
        ({"updated_at": 1e300, "created_at": "2026-11-30T00:00:00Z"}, 0),
    ],
)
def test_its_stamp_is_when_it_was_last_changed_as_far_as_it_says(times: dict[str, Any], ms: int) -> None:
    assert set(decode_record({**PLAIN, **times}).state.stamps()) == {Stamp(ms, 0, "0")}


def test_a_number_too_large_for_float32_does_no_harm() -> None:
    vector = decode_record({**PLAIN, "vector": [1e300, 1.0]}).vector
    assert vector is not None
    assert vector.tolist() == [float("inf"), 1.0]


@pytest.mark.parametrize("name", ["content", "created_at"])
def test_one_without_content_or_creation_time_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match=f"{name}: is missing"):
        decode_record({key: value for key, value in PLAIN.items() if key != name})
