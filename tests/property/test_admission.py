"""Admission is a projection: what passed it once passes again, unchanged, and survives the way through a file."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memory.core.errors import InvalidValue
from memory.core.framing import decode_line, encode_line
from memory.core.merge import merge
from memory.core.model import NewMemory
from memory.core.record import Record, decode_record, encode_record
from memory.core.state import State, same_value
from memory.policies import normalise
from memory.policies.admission import admit_new
from memory.policies.records import AdmittedRecord, admit_record
from tests.property.strategies import SLOW, exact, full_states, json_values, records

NOW = 2_000_000_000_000
SOME = settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
any_text = st.text(st.sampled_from("aB夜\0\ud800\udfff \n🦜") | st.characters(), max_size=12)


def admitted(record: Record) -> AdmittedRecord:
    try:
        return admit_record(record, now=NOW)
    except InvalidValue:
        assume(False)
        raise


@SOME
@given(records())
def test_a_record_that_was_admitted_is_admitted_again_unchanged(record: Record) -> None:
    once = admitted(record)
    data = encode_record(Record(memory_id=once.memory_id, user_id=once.user_id, state=once.state))
    again = admit_record(decode_record(decode_line(encode_line(data), 2)), now=NOW)
    assert exact(again.state) == exact(once.state)
    assert (again.user_id, again.memory_id) == (once.user_id, once.memory_id)


@SOME
@given(full_states(), full_states())
def test_what_two_admitted_records_make_together_is_admitted_too(a: State, b: State) -> None:
    one, other = (admitted(Record(memory_id=ID, user_id="u", state=state)).state for state in (a, b))
    joined = merge(one, other)
    assert exact(admit_record(Record(memory_id=ID, user_id="u", state=joined), now=NOW).state) == exact(joined)


ID = "8c5fd3ac-8f0c-4d51-a9d5-0f29f0d0b1c0"


@SOME
@given(any_text, st.lists(any_text, max_size=4), st.dictionaries(any_text, json_values | any_text, max_size=3))
def test_whatever_text_a_caller_sends_is_refused_or_can_be_stored(
    content: str, tags: list[str], metadata: dict[str, Any]
) -> None:
    try:
        changes = admit_new(NewMemory(content=content, tags=tags, metadata=metadata), now=NOW).changes
    except InvalidValue as error:
        assert error.field.startswith(("content", "tags", "metadata"))  # noqa: PT017  either is right
        return
    line = encode_line({"content": changes.scalars["content"], "tags": sorted(changes.add_tags), "m": changes.metadata})
    assert b"\0" not in line
    assert b"\\u0000" not in line
    assert same_value(decode_line(line, 1)["m"], changes.metadata)
    assert normalise.tags(changes.add_tags, "tags") == changes.add_tags


@SOME
@given(json_values)
def test_normalising_a_json_value_again_changes_nothing(value: Any) -> None:
    once = normalise.json_value(value, "metadata")
    assert same_value(normalise.json_value(once, "metadata"), once)
