"""The row hash: the same of equal registers however they are written down, another as soon as anything differs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memory.core.clock import Stamp
from memory.core.record import Record, decode_record, encode_record, encode_stamps
from memory.core.rowhash import content_sha256, row_hash, stored_row_hash, tombstone_hash
from memory.core.state import ABSENT, Register, State
from tests.property.strategies import full_states, stamps, texts

ID = "6f1ed002-ab5d-4d3c-9f67-2f1b2c3d4e5f"
OLD, NEW = Stamp(1_733_000_000_000, 0, "5f3a"), Stamp(1_733_000_009_000, 2, "b")
EXAMPLE = State(
    scalars={
        "content": Register(OLD, "喝茶 tea"),
        "memory_type": Register(OLD, "fact"),
        "importance": Register(NEW, 0.7),
        "status": Register(OLD, "active"),
        "source_session": Register(OLD, None),
        "created_at": Register(OLD, 1_733_000_000_000),
        "новое поле": Register(OLD, 3),
    },
    tags={"drink": Register(OLD, value=True), 'hot "é"': Register(NEW, value=False)},
    metadata={"k": Register(OLD, [1, 2]), "gone": Register(NEW, ABSENT)},
    last_access=1_733_000_001_000,
    accesses={"5f3a": 4},
)
LINES = (
    b"6f1ed002-ab5d-4d3c-9f67-2f1b2c3d4e5f\n"
    b'"\\u043d\\u043e\\u0432\\u043e\\u0435 \\u043f\\u043e\\u043b\\u0435"=1733000000000.0.5f3a\n'
    b"content=1733000000000.0.5f3a\n"
    b"created_at=1733000000000.0.5f3a\n"
    b"importance=1733000009000.2.b\n"
    b"memory_type=1733000000000.0.5f3a\n"
    b'metadata."gone"=1733000009000.2.b\n'
    b'metadata."k"=1733000000000.0.5f3a\n'
    b"source_session=1733000000000.0.5f3a\n"
    b"status=1733000000000.0.5f3a\n"
    b'tags."drink"=1733000000000.0.5f3a\n'
    b'tags."hot \\"\\u00e9\\""=1733000009000.2.b\n'
    b"cc72b7b27a81b339f5a650e1feff50405e1c3bd4d6f6e64c6a142cb6e9db3fed\n"
)
"""Written by hand: what other programs, in other languages, must hash for EXAMPLE."""


def number(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big", signed=True)


def test_the_worked_example() -> None:
    assert hashlib.sha256("喝茶 tea".encode()).hexdigest().encode() == LINES.splitlines()[-1]
    assert row_hash(ID, EXAMPLE) == number(LINES) == -2239624537753817920


def test_the_worked_example_of_a_deleted_one() -> None:
    lines = b"6f1ed002-ab5d-4d3c-9f67-2f1b2c3d4e5f\ndeleted=1733000009000.2.b\n"
    assert (
        row_hash(ID, State(deleted=NEW))
        == tombstone_hash(ID, "1733000009000.2.b")
        == number(lines)
        == -5817486624373667072
    )


def test_it_fits_a_column_of_eight_bytes() -> None:
    hashes = {row_hash(ID, State(deleted=Stamp(ms, 0, "a"))) for ms in range(100)}
    assert len(hashes) == 100
    assert min(hashes) < 0 < max(hashes)
    assert all(-(2**63) <= value < 2**63 for value in hashes)


def having(state: State, **groups: Any) -> State:
    """The state with other groups of registers."""
    return replace(state, **groups)


def stored(state: State, given_stamps: Mapping[str, Any]) -> int:
    """As a database computes it, from its columns."""
    return stored_row_hash(
        ID,
        given_stamps,
        scalars=list(state.scalars),
        tags=state.present_tags(),
        metadata=list(state.present_metadata()),
        content_sha256=content_sha256(state.value("content")),
    )


@given(full_states())
def test_a_stored_memory_has_the_hash_of_its_state(state: State) -> None:
    assert stored(state, encode_stamps(state)) == row_hash(ID, state)


@given(full_states(), stamps)
def test_it_does_not_matter_which_stamp_is_the_default(state: State, default: Stamp) -> None:
    written = {
        "*": str(default),
        **{name: str(register.stamp) for name, register in state.scalars.items() if register.stamp != default},
        "tags": {name: str(register.stamp) for name, register in state.tags.items()},
        "metadata": {name: str(register.stamp) for name, register in state.metadata.items()},
    }
    assert stored(state, written) == row_hash(ID, state)


@given(full_states())
def test_a_record_that_has_travelled_has_the_same(state: State) -> None:
    record = decode_record(encode_record(Record(memory_id=ID, user_id="u-42", state=state)))
    assert row_hash(ID, record.state) == row_hash(ID, state)


@given(full_states(), st.randoms(use_true_random=False))
def test_the_order_of_registers_does_not_matter(state: State, rng: Any) -> None:
    def shuffled(registers: Mapping[str, Register]) -> dict[str, Register]:
        items = list(registers.items())
        rng.shuffle(items)
        return dict(items)

    groups = {name: shuffled(getattr(state, name)) for name in ("scalars", "tags", "metadata")}
    assert row_hash(ID, having(state, **groups)) == row_hash(ID, state)


@given(full_states(), st.none() | st.integers(0, 10**12), st.dictionaries(st.sampled_from("abc"), st.integers(1, 9)))
def test_accesses_do_not_change_it(state: State, last: int | None, accesses: dict[str, int]) -> None:
    assert row_hash(ID, replace(state, last_access=last, accesses=accesses)) == row_hash(ID, state)


@given(full_states(), st.data())
def test_any_one_other_stamp_changes_it(state: State, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([name for name in ("scalars", "tags", "metadata") if getattr(state, name)]))
    registers = getattr(state, group)
    name = data.draw(st.sampled_from(sorted(registers)))
    stamp = data.draw(stamps)
    assume(stamp != registers[name].stamp)
    other = having(state, **{group: {**registers, name: Register(stamp, registers[name].value)}})
    assert row_hash(ID, other) != row_hash(ID, state)


@given(full_states(), texts(min_size=1))
def test_another_content_changes_it_even_under_the_same_stamp(state: State, content: str) -> None:
    held = state.scalars["content"]
    assume(content != held.value)
    other = replace(state, scalars={**state.scalars, "content": Register(held.stamp, content)})
    assert row_hash(ID, other) != row_hash(ID, state)


@given(full_states(), st.data())
def test_one_register_more_or_less_changes_it(state: State, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from(["tags", "metadata"]))
    name, stamp = data.draw(texts(min_size=1, max_size=8)), data.draw(stamps)
    registers = dict(getattr(state, group))
    value = True if group == "tags" else 1
    if registers.pop(name, None) is None:
        registers[name] = Register(stamp, value)
    assert row_hash(ID, having(state, **{group: registers})) != row_hash(ID, state)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (State(tags={"a": Register(OLD, value=True)}), State(metadata={"a": Register(OLD, 1)})),
        (State(tags={"a": Register(OLD, value=True)}), State(scalars={"tags.a": Register(OLD, 1)})),
        (State(metadata={"a\n": Register(OLD, 1)}), State(metadata={"a": Register(OLD, 1)})),
        (State(metadata={"a=1.0.b\nz": Register(OLD, 1)}), State(metadata={"a": Register(OLD, 1)})),
    ],
    ids=["tag or key", "tag or field", "line feed", "looks like another line"],
)
def test_names_that_look_alike_are_told_apart(one: State, other: State) -> None:
    content = {"content": Register(OLD, "tea")}
    a, b = (replace(state, scalars={**content, **state.scalars}) for state in (one, other))
    assert row_hash(ID, a) != row_hash(ID, b)


@given(full_states(), st.uuids(version=4))
def test_two_memories_never_share_one(state: State, other: Any) -> None:
    assert row_hash(ID, state) != row_hash(str(other), state)


@given(full_states(), stamps)
def test_a_deletion_changes_it(state: State, stamp: Stamp) -> None:
    assert row_hash(ID, State(deleted=stamp)) != row_hash(ID, state)
