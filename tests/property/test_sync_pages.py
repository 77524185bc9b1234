"""Streams of sync: read as they were written, or, when anything happened to them, not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.core.errors import FileDamaged, FormatError, FormatTooNew, ProtocolMismatch
from memory.core.framing import encode_line
from memory.core.record import decode_record, encode_record
from memory.core.sync import (
    ANSWER,
    MANIFEST,
    PROTOCOL,
    PULL,
    PUSH,
    RECORDS,
    Entry,
    Head,
    Page,
    Received,
    Verdict,
    access_line,
    encode_entry,
    encode_verdict,
    entries,
    read_page,
    require_protocol,
    user_name,
    verdicts,
    write_page,
)
from tests.property.strategies import SLOW, USERS, exact, records, texts, writers

STREAMS = (PUSH, ANSWER, PULL, MANIFEST, RECORDS)
MANY = settings(deadline=None, suppress_health_check=SLOW)

revs = st.integers(0, 2**63 - 1)
hashes = st.integers(-(2**63), 2**63 - 1)
ids = st.uuids(version=4).map(str)
heads = st.builds(Head, rev=revs, digest=st.none() | hashes, live=revs, accesses=revs)
pages = st.builds(
    Page,
    stream=st.sampled_from(STREAMS),
    device=texts(),
    user_id=st.sampled_from(USERS),
    epoch=texts(),
    after=revs,
    to=revs,
    more=st.booleans(),
    mark=st.none() | texts(),
    head=st.none() | heads,
    model=texts(),
    dimension=st.integers(0, 4096),
    now=st.integers(0, 2**43),
)
verdict_values = st.builds(
    Verdict,
    memory_id=ids,
    seq=revs,
    code=st.sampled_from(["ok", "gone", "rejected", "unknown"]),
    rev=revs,
    equal=st.booleans(),
    problem=texts(),
)
entry_values = st.builds(Entry, memory_id=ids, hash=st.none() | hashes, rev=revs, deleted=st.booleans())

PAGE = Page(
    stream=PULL,
    device="5f3a",
    user_id="u-42",
    epoch="e0",
    after=3,
    to=17,
    mark="0123456789abcdef",
    head=Head(rev=17, digest=-5, live=2, accesses=4),
    model="hashing-v1-8",
    dimension=8,
    now=1_733_000_000_000,
)
LINES = list(
    write_page(
        PAGE,
        [
            encode_line({"kind": "memory", "memory_id": "m1", "content": "夜莺"}),
            encode_line(access_line("m2", "u-42", {"5f3a": 4}, 1_733_000_000_000)),
            encode_line({"kind": "memory", "memory_id": "m3", "content": 'a"\n'}),
        ],
    )
)
STREAM = b"".join(LINES)


def read(data: bytes) -> Received:
    return read_page(data.splitlines(keepends=True), PULL)


def is_refused(lines: Sequence[bytes]) -> bool:
    try:
        read_page(lines, PULL)
    except (FormatError, ProtocolMismatch):
        return True
    return False


@MANY
@given(pages, st.lists(records().map(encode_record), max_size=3))
def test_a_page_comes_back_as_it_was(page: Page, held: list[dict[str, Any]]) -> None:
    received = read_page(write_page(page, map(encode_line, held)), page.stream)
    assert received.page == page
    assert json.dumps(received.lines) == json.dumps(held)


@MANY
@given(st.lists(verdict_values, max_size=5))
def test_verdicts_come_back_as_they_were(given_verdicts: list[Verdict]) -> None:
    page = replace(PAGE, stream=ANSWER)
    assert verdicts(read_page(write_page(page, map(encode_verdict, given_verdicts)), ANSWER)) == given_verdicts


@MANY
@given(st.lists(entry_values, max_size=5))
def test_entries_come_back_as_they_were(given_entries: list[Entry]) -> None:
    page = replace(PAGE, stream=MANIFEST)
    assert entries(read_page(write_page(page, map(encode_entry, given_entries)), MANIFEST)) == given_entries


@MANY
@given(records(), revs, st.none() | st.tuples(texts(), revs), st.none() | texts())
def test_what_a_replica_says_of_a_record_does_not_change_the_record(
    record: Any, seq: int, base: tuple[str, int] | None, seen: str | None
) -> None:
    line = {**encode_record(record), "sync": {"seq": seq, "base": base, "seen": seen}}
    received = read_page(write_page(replace(PAGE, stream=PUSH), [encode_line(line)]), PUSH)
    assert exact(decode_record(received.lines[0]).state) == exact(record.state)
    assert received.lines[0]["sync"] == {"seq": seq, "base": None if base is None else list(base), "seen": seen}


@MANY
@given(ids, st.sampled_from(USERS), st.dictionaries(writers, revs, max_size=3), st.none() | revs)
def test_access_counts_come_back_as_they_were(
    memory_id: str, user_id: str, slots: dict[str, int], last: int | None
) -> None:
    line = access_line(memory_id, user_id, slots, last)
    assert read_page(write_page(PAGE, [encode_line(line)]), PULL).lines == (line,)
    assert line["accesses"] is not slots


def test_an_empty_page_is_a_page() -> None:
    assert read_page(write_page(PAGE, []), PULL) == Received(PAGE, ())


def test_a_cut_at_any_byte_is_refused() -> None:
    for length in range(len(STREAM)):
        assert is_refused(STREAM[:length].splitlines(keepends=True)), STREAM[:length]


def test_a_cut_at_any_line_is_damage() -> None:
    for count in range(1, len(LINES)):
        with pytest.raises(FileDamaged):
            read_page(LINES[:count], PULL)


@pytest.mark.parametrize("position", range(len(LINES)))
def test_a_dropped_line_is_refused(position: int) -> None:
    assert is_refused(LINES[:position] + LINES[position + 1 :])


@pytest.mark.parametrize("position", range(len(LINES)))
def test_a_doubled_line_is_refused(position: int) -> None:
    assert is_refused(LINES[: position + 1] + LINES[position:])


@MANY
@given(st.permutations(LINES))
def test_any_other_order_is_refused(lines: list[bytes]) -> None:
    assert is_refused(lines) or lines == LINES


@MANY
@given(st.lists(st.sampled_from(LINES), max_size=7))
def test_no_other_sequence_of_the_same_lines_is_accepted(lines: list[bytes]) -> None:
    assert is_refused(lines) or lines == LINES


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_anywhere_makes_a_reader_take_anything_else(bit: int) -> None:
    whole = read(STREAM)
    for offset in range(len(STREAM)):
        damaged = bytearray(STREAM)
        damaged[offset] ^= 1 << bit
        lines = bytes(damaged).splitlines(keepends=True)
        assert is_refused(lines) or read(bytes(damaged)) == whole, damaged[: offset + 1]


def test_two_streams_one_after_the_other_are_refused() -> None:
    assert is_refused(LINES + LINES)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("due", STREAMS)
def test_a_stream_is_read_only_as_what_it_is(stream: str, due: str) -> None:
    lines = list(write_page(replace(PAGE, stream=stream), []))
    if stream == due:
        assert read_page(lines, due).page.stream == stream
    else:
        with pytest.raises(FormatError, match=r"where .* is due"):
            read_page(lines, due)


def reframed(change: Callable[[dict[str, Any]], None]) -> list[bytes]:
    """A valid frame around a begin line that was changed before it was framed."""
    begin = json.loads(LINES[0])
    change(begin["sync"])
    first = encode_line(begin)
    end = json.loads(next(iter(reversed(list(write_page(PAGE, []))))))
    del end["begin"]  # the hash of the begin line is optional
    return [first, encode_line(end)]


@pytest.mark.parametrize(
    "changes",
    [
        {"stream": None},
        {"stream": 3},
        {"device": None},
        {"more": "yes"},
        {"mark": 5},
        {"head": []},
        {"head": {"rev": 1}},
        {"head": {"rev": 1, "digest": 1, "live": 1, "accesses": 1, "further": 1}},
    ],
    ids=str,
)
def test_a_begin_line_with_fields_of_other_types_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        read_page(reframed(lambda sync: sync.update(changes)), PULL)


def test_fields_of_a_later_version_do_no_harm() -> None:
    received = read_page(reframed(lambda sync: sync.update(colour="blue")), PULL)
    assert received.page == PAGE


@pytest.mark.parametrize("protocol", [PROTOCOL + 1, 99, 0, -1, None, "1", 1.0, True])
def test_another_protocol_is_refused_and_says_who_has_to_upgrade(protocol: Any) -> None:
    with pytest.raises(ProtocolMismatch) as caught:
        require_protocol(protocol)
    newer = type(protocol) is int and protocol > PROTOCOL
    assert ("here" if newer else "on the other side") in caught.value.hint
    with pytest.raises(ProtocolMismatch):
        read_page(reframed(lambda sync: sync.update(protocol=protocol)), PULL)


def test_a_file_of_another_format_version_says_so() -> None:
    begin = {**json.loads(LINES[0]), "version": 2}
    with pytest.raises(FormatTooNew):
        read_page([encode_line(begin), *LINES[1:]], PULL)


def test_an_export_is_no_stream_of_sync() -> None:
    begin = json.loads(LINES[0])
    del begin["sync"]
    end = {key: value for key, value in json.loads(LINES[-1]).items() if key != "begin"}
    with pytest.raises(ProtocolMismatch):
        read_page([encode_line(begin), *LINES[1:-1], encode_line(end)], PULL)


@pytest.mark.parametrize(
    ("reader", "line"),
    [
        (verdicts, {"kind": "entry", "memory_id": "m", "hash": 1, "rev": 1, "deleted": False}),
        (verdicts, {"kind": "verdict", "memory_id": "m"}),
        (verdicts, {}),
        (entries, {"kind": "verdict", "memory_id": "m", "seq": 1, "code": "ok"}),
        (entries, {"kind": "entry", "memory_id": "m"}),
        (entries, {"kind": None}),
    ],
)
def test_a_line_of_another_kind_is_refused(reader: Callable[[Received], Any], line: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        reader(Received(PAGE, (line,)))


def test_a_line_may_have_fields_of_a_later_version() -> None:
    line = {**json.loads(encode_entry(Entry(memory_id="m", hash=1, rev=2, deleted=True))), "colour": "blue"}
    assert entries(Received(PAGE, (line,))) == [Entry(memory_id="m", hash=1, rev=2, deleted=True)]


@given(texts())
def test_the_name_of_a_user_tells_nothing_and_fits_anywhere(user_id: str) -> None:
    name = user_name(user_id)
    assert len(name) == 32
    assert set(name) <= set("0123456789abcdef")
    assert name == user_name(user_id) != user_name(user_id + "x")
