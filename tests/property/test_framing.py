"""The framing: a stream is read as it was written, or, when anything happened to it, not at all."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.core.errors import FileDamaged, FormatError, FormatTooNew
from memory.core.framing import (
    FORMAT,
    VERSION,
    Begin,
    decode_begin,
    decode_line,
    encode_line,
    frame,
    is_begin,
    verify,
)
from memory.core.record import encode_record
from tests.property.strategies import (
    SLOW,
    json_values,
    records,
    texts,
)

BEGIN = Begin(
    created_at=1_733_000_000_000,
    model="hashing-v1-8",
    dimension=8,
    filters={"user_id": "u-42"},
    epoch="5f3a",
    revisions={"u-42": 17, "张三": 2},
    after={"epoch": "5f3a", "revisions": {"u-42": 3}},
)
RECORDS = [{"kind": "memory", "content": content, "rev": rev} for rev, content in enumerate(["夜莺", "tea", 'a"\n'])]
LINES = list(frame(BEGIN, map(encode_line, RECORDS)))
STREAM = b"".join(LINES)
Read = tuple[Begin, int, str, list[bytes]]


def read(data: bytes) -> Read:
    """All that a reader takes from a stream."""
    begin, end = verify(io.BytesIO(data))
    return begin, end.count, end.sha256, data.splitlines(keepends=True)[1 : end.count + 1]


def is_refused(data: bytes) -> bool:
    try:
        verify(io.BytesIO(data))
    except FormatError:
        return True
    return False


revisions = st.dictionaries(texts(min_size=1), st.integers(0, 2**63 - 1), max_size=3)
begins = st.builds(
    Begin,
    created_at=st.integers(0, 2**43),
    model=texts(),
    dimension=st.integers(1, 4096),
    filters=st.dictionaries(st.sampled_from(["user_id", "tags"]), json_values),
    epoch=texts(),
    revisions=revisions,
    after=st.none() | st.fixed_dictionaries({"epoch": texts(), "revisions": revisions}),
)


@settings(max_examples=50, deadline=None, suppress_health_check=SLOW)
@given(begins, st.lists(records().map(encode_record), max_size=4))
def test_what_was_framed_is_accepted_and_read_as_it_was(begin: Begin, written: list[dict[str, Any]]) -> None:
    lines = list(frame(begin, map(encode_line, written)))
    begun, end = verify(lines)
    assert begun == begin
    assert end.count == len(written)
    assert [decode_line(line, 2) for line in lines[1:-1]] == written


@settings(max_examples=50, deadline=None, suppress_health_check=SLOW)
@given(st.dictionaries(texts(), json_values, max_size=4))
def test_a_line_comes_back_as_it_was(value: dict[str, Any]) -> None:
    line = encode_line(value)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.dumps(decode_line(line, 1)) == json.dumps(value)


def test_the_stream_is_begin_records_end_with_count_and_hash_of_the_lines_between() -> None:
    first, last = json.loads(LINES[0]), json.loads(LINES[-1])
    assert (first["kind"], first["format"], first["version"]) == ("begin", FORMAT, VERSION)
    assert LINES[1:-1] == [encode_line(record) for record in RECORDS]
    assert (last["kind"], last["count"]) == ("end", 3)
    assert last["sha256"] == hashlib.sha256(b"".join(LINES[1:-1])).hexdigest()


def test_an_empty_stream_has_a_begin_and_an_end() -> None:
    lines = list(frame(BEGIN, []))
    assert len(lines) == 2
    assert verify(lines)[1].count == 0


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_anywhere_goes_unnoticed(bit: int) -> None:
    whole = read(STREAM)
    for offset in range(len(STREAM)):
        damaged = bytearray(STREAM)
        damaged[offset] ^= 1 << bit
        assert is_refused(bytes(damaged)) or read(bytes(damaged)) == whole, damaged[: offset + 1]


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(st.integers(0, len(STREAM) - 1), st.integers(0, 255))
def test_no_changed_byte_makes_a_reader_take_anything_else(offset: int, byte: int) -> None:
    damaged = STREAM[:offset] + bytes([byte]) + STREAM[offset + 1 :]
    assert is_refused(damaged) or read(damaged) == read(STREAM)


def test_a_changed_byte_in_any_record_is_refused() -> None:
    for offset in range(len(LINES[0]), len(STREAM) - len(LINES[-1])):
        damaged = STREAM[:offset] + bytes([STREAM[offset] ^ 1]) + STREAM[offset + 1 :]
        with pytest.raises(FileDamaged):
            verify(io.BytesIO(damaged))


def test_changed_revisions_are_refused_for_an_incremental_export_would_start_there() -> None:
    assert STREAM.count(b'"u-42":17') == 1
    with pytest.raises(FileDamaged, match="begin line"):
        verify(io.BytesIO(STREAM.replace(b'"u-42":17', b'"u-42":97')))


def test_a_stream_whose_end_names_only_count_and_hash_is_accepted() -> None:
    end = json.loads(LINES[-1])
    end.pop("begin", None)
    assert verify([*LINES[:-1], encode_line(end)])[1].count == 3


def test_a_cut_at_any_byte_is_refused() -> None:
    for length in range(len(STREAM)):
        assert is_refused(STREAM[:length]), STREAM[:length]


def test_a_missing_beginning_of_any_length_is_refused() -> None:
    for start in range(1, len(STREAM) + 1):
        assert is_refused(STREAM[start:]), STREAM[start:]


@pytest.mark.parametrize("position", range(len(LINES)))
def test_a_dropped_line_is_refused(position: int) -> None:
    assert is_refused(b"".join(LINES[:position] + LINES[position + 1 :]))


@pytest.mark.parametrize("position", range(len(LINES)))
def test_a_doubled_line_is_refused(position: int) -> None:
    assert is_refused(b"".join(LINES[: position + 1] + LINES[position:]))


@pytest.mark.parametrize("one", range(len(LINES)))
@pytest.mark.parametrize("other", range(len(LINES)))
def test_two_swapped_lines_are_refused(one: int, other: int) -> None:
    lines = list(LINES)
    lines[one], lines[other] = lines[other], lines[one]
    assert is_refused(b"".join(lines)) or lines == LINES


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(st.lists(st.sampled_from(LINES), max_size=7))
def test_no_other_sequence_of_the_same_lines_is_accepted(lines: list[bytes]) -> None:
    assert is_refused(b"".join(lines)) or lines == LINES


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (b"\n", "after the end"),
        (LINES[1], "after the end"),
        (STREAM, "after the end"),
        (b"\x00", "after the end"),
    ],
)
def test_anything_after_the_end_is_refused(after: bytes, message: str) -> None:
    with pytest.raises(FileDamaged, match=message) as caught:
        verify(io.BytesIO(STREAM + after))
    assert caught.value.line == len(LINES) + 1
    assert caught.value.hint


def test_line_ends_changed_on_the_way_are_refused() -> None:
    assert is_refused(STREAM.replace(b"\n", b"\r\n"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1"),
        (LINES[:1], "no end line"),
        (LINES[:-1], "no end line"),
        ([*LINES[:2], *LINES[3:]], "counts 3 records, the file holds 2"),
        ([LINES[0], LINES[2], LINES[1], LINES[3], LINES[4]], "hash"),
        ([*LINES[:-1], LINES[-1].rstrip(b"\n")], "no end line"),
        ([*LINES[:-1], b'{"kind":"end"}\n'], "counts None"),
        ([*LINES[:-1], b'{"kind":"end"\n'], "line 5"),
    ],
)
def test_the_message_says_what_is_wrong(lines: Sequence[bytes], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        verify(lines)


def begin_line(**changes: Any) -> bytes:
    data = {**json.loads(LINES[0]), **changes}
    return encode_line({key: value for key, value in data.items() if value is not ...})


@pytest.mark.parametrize("version", [VERSION + 1, 2**31, 10**30])
def test_a_newer_version_is_named_and_says_to_upgrade(version: int) -> None:
    with pytest.raises(FormatTooNew, match=str(version)) as caught:
        verify([begin_line(version=version), *LINES[1:]])
    assert caught.value.version == version
    assert "upgrade" in caught.value.hint


def test_a_newer_version_is_recognised_whatever_else_it_changed() -> None:
    with pytest.raises(FormatTooNew):
        decode_begin(b'{"kind":"begin","format":"nightingale-memory","version":2,"model":{"name":"x"}}\n')


@pytest.mark.parametrize(
    "changes",
    [
        {"version": ...},
        {"version": 0},
        {"version": -1},
        {"version": "1"},
        {"version": 1.0},
        {"version": True},
        {"version": None},
        {"format": "other-memory"},
        {"format": ...},
        {"kind": "memory"},
        {"kind": ...},
        {"created_at": "today"},
        {"model": 3},
        {"model": None},
        {"dimension": "8"},
        {"dimension": None},
        {"filters": 5},
        {"filters": ["user_id"]},
        {"filters": None},
        {"epoch": 1},
        {"revisions": [17]},
        {"revisions": {"u-42": "17"}},
        {"after": 3},
        {"after": {}},
        {"after": {"revisions": {"u-42": None}}},
    ],
)
def test_a_begin_line_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="line 1") as caught:
        decode_begin(begin_line(**changes))
    assert not isinstance(caught.value, FormatTooNew)


def test_fields_that_a_begin_line_lacks_or_has_in_addition_do_no_harm() -> None:
    line = b'{"kind":"begin","format":"nightingale-memory","version":1,"comment":"by hand"}\n'
    assert decode_begin(line) == Begin(created_at=0, model="", dimension=0)


@pytest.mark.parametrize("line", [LINES[0], b'{"kind":"begin"}', b' { "kind" : "begin", "format": "x" } \n'])
def test_a_begin_line_is_recognised_by_its_kind(line: bytes) -> None:
    assert is_begin(line)


@pytest.mark.parametrize("line", [b"", b"\n", b"[]", b'"begin"', b'{"kind":"memory"}', b"\x1f\x8b", LINES[0][:-5]])
def test_any_other_line_is_not(line: bytes) -> None:
    assert not is_begin(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null",
        b"[1]",
        b'"x"',
        b"{} {}",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b'{"a": "\n"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:12]),
)
def test_what_is_no_json_object_is_refused_with_its_line_number(line: bytes) -> None:
    with pytest.raises(FormatError, match="line 7") as caught:
        decode_line(line, 7)
    assert caught.value.line == 7


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_line_never_holds_what_is_no_json(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_line({"a": value})
