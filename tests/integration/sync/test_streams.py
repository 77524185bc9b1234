"""Streams that arrive cut, altered or from elsewhere: nothing of them is taken, and the cursor stays where it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from edge.sync.pulling import Pulling
from edge.sync.records import Model
from edge.sync.report import SyncCondition, SyncReport
from edge.sync.talk import Talk
from memory.core.errors import Error, FormatError, ProtocolMismatch, SyncError
from memory.core.framing import decode_line, encode_line
from memory.core.sync import ANSWER, MANIFEST, PROTOCOL, RECORDS
from tests.integration.sync.devices import USER, Altered, Device, World, assert_same, reframed
from tests.integration.sync.harm import (
    altered,
    begun_elsewhere,
    continued,
    cut_at,
    doubled,
    headless,
    joined,
    noise,
    shuffled,
    silence,
    thinned,
)

RECORDS_IN_PAGE = 20
Change = Callable[[list[bytes]], Sequence[bytes]]


@pytest.fixture
def way(world: World) -> Altered:
    return Altered(world.network)


@pytest.fixture
def device(world: World, way: Altered) -> Device:
    """A device that has synced once, while twenty records wait for it."""
    device = world.device("a", dial=lambda: way)
    device.add("its own")
    world.centre.add(USER, "received")
    device.sync()
    for number in range(RECORDS_IN_PAGE):
        world.centre.add(USER, f"memory {number}")
    return device


def refused(world: World, device: Device, kind: type[Error] = FormatError) -> None:
    """A sync fails, and changes nothing; the next one, unharmed, brings everything."""
    before = (device.states(), device.position().cursor, device.position().epoch, device.shadows())
    with pytest.raises(kind):
        device.sync()
    assert (device.states(), device.position().cursor, device.position().epoch, device.shadows()) == before


def mended(world: World, device: Device, way: Altered) -> None:
    """Without the fault all is as it should be."""
    way.pulled = way.answered = list
    device.sync()
    assert device.status().condition is SyncCondition.DONE
    assert device.status().problem is None
    assert_same(world, device)


def test_a_page_cut_at_any_byte_moves_nothing(world: World, device: Device, way: Altered) -> None:
    whole: list[bytes] = []

    def keep(lines: list[bytes]) -> list[bytes]:
        whole[:] = lines
        return lines[:-1]

    way.pulled = keep
    refused(world, device)
    assert len(whole) == RECORDS_IN_PAGE + 2
    stream = b"".join(whole)
    before, states, head = device.position(), device.states(), world.centre.user(USER).head()
    with device.memory._edge.users.writing(USER) as replica:
        talk = Talk(
            replica=replica,
            centre=way,
            model=Model("hashing-v1-16", 16),
            clock=device,
            report=SyncReport(user_id=USER),
            device=before.device,
            epoch=before.epoch or "",
        )
        for cut in range(len(stream)):
            way.pulled = cut_at(stream, cut)
            with pytest.raises(FormatError):
                Pulling(talk).run(head)
            assert talk.state().cursor == before.cursor
    assert device.states() == states
    mended(world, device, way)


HARMS = [shuffled, doubled, thinned, altered, begun_elsewhere, continued, joined, headless, noise, silence]


@pytest.mark.parametrize("harm", HARMS)
def test_a_page_that_is_not_what_was_sent_is_refused_whole(
    world: World, device: Device, way: Altered, harm: Change
) -> None:
    way.pulled = harm
    refused(world, device)
    assert device.status().condition is SyncCondition.DAMAGED
    assert device.status().problem
    mended(world, device, way)


def test_a_bit_flipped_anywhere_before_the_end_is_noticed(world: World, device: Device, way: Altered) -> None:
    chance = random.Random(27)

    def flip(lines: list[bytes]) -> list[bytes]:
        stream = bytearray(b"".join(lines[:-1]))
        stream[chance.randrange(len(stream))] ^= 1 << chance.randrange(8)
        return [*bytes(stream).splitlines(keepends=True), lines[-1]]

    way.pulled = flip
    before = (device.states(), device.position().cursor)
    for _ in range(300):
        with pytest.raises(Error):
            device.sync()
        assert device.position().cursor == before[1]
    assert device.states() == before[0]
    mended(world, device, way)


def test_a_page_of_another_user_is_refused(world: World, device: Device, way: Altered) -> None:
    world.centre.add("v", "of v")
    way.pulled = lambda lines: reframed(lines, user_id="v")
    refused(world, device)
    assert device.status().condition is SyncCondition.DAMAGED
    mended(world, device, way)


def test_a_page_of_another_epoch_is_refused(world: World, device: Device, way: Altered) -> None:
    way.pulled = lambda lines: reframed(lines, epoch="0123456789abcdef")
    refused(world, device)
    assert device.status().condition is SyncCondition.DAMAGED
    mended(world, device, way)


def test_a_page_that_continues_a_later_cursor_is_refused(world: World, device: Device, way: Altered) -> None:
    later = device.position().cursor + 1
    way.pulled = lambda lines: reframed(lines, lambda inner: inner[1:], after=later)
    refused(world, device)
    assert device.status().condition is SyncCondition.DAMAGED
    mended(world, device, way)


def test_a_page_that_continues_an_earlier_cursor_is_taken_and_moves_the_cursor_only_forward(
    world: World, device: Device, way: Altered
) -> None:
    pages: list[list[bytes]] = []

    def keep(lines: list[bytes]) -> list[bytes]:
        pages.append(lines)
        return lines

    way.pulled = keep
    device.sync(page_lines=10)
    cursor, states = device.position().cursor, device.states()
    world.centre.add(USER, "one more")
    answers = [pages[0]]
    way.pulled = lambda lines: answers.pop() if answers else lines
    device.sync()
    assert device.position().cursor == cursor + 1
    assert states.items() <= device.states().items()
    mended(world, device, way)


def test_a_stream_of_another_kind_is_refused(world: World, device: Device, way: Altered) -> None:
    way.pulled = lambda lines: reframed_as(lines, RECORDS)
    refused(world, device)
    mended(world, device, way)


def reframed_as(lines: list[bytes], stream: str) -> list[bytes]:
    first = decode_line(lines[0], 1)
    first["sync"]["stream"] = stream
    changed = encode_line(first)
    end = decode_line(lines[-1], 1)
    del end["begin"]
    return [changed, *lines[1:-1], encode_line(end)]


def one_line(change: dict[str, Any]) -> Change:
    """A page of which one line says something else; valid as a stream."""

    def of(lines: list[bytes]) -> list[bytes]:
        return reframed(
            lines, lambda inner: [*inner[:5], encode_line({**decode_line(inner[5], 1), **change}), *inner[6:]]
        )

    return of


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "poem"},
        {"user_id": "v"},
        {"memory_id": "no uuid"},
        {"importance": 11},
        {"status": "of a later version"},
        {"stamps": {}},
        {"content": ""},
    ],
    ids=str,
)
def test_a_line_that_cannot_be_kept_stops_the_page_and_says_to_upgrade(
    world: World, device: Device, way: Altered, change: dict[str, Any]
) -> None:
    way.pulled = one_line(change)
    refused(world, device, SyncError)
    assert device.status().condition is SyncCondition.VERSIONS
    assert "upgrade" in (device.status().hint or "")
    made = device.add("work goes on")
    mended(world, device, way)
    assert made in world.centre.state(USER)


def test_a_field_of_a_later_version_is_kept_and_survives_an_edit_here(world: World, device: Device) -> None:
    made = world.centre.add(USER, "with a mood", mood="calm")
    device.sync()
    device.edit(made, "edited here")
    device.sync()
    found = world.centre.state(USER)[made]
    assert (found.value("content"), found.value("mood")) == ("edited here", "calm")
    assert_same(world, device)


# -- answers to a push


@pytest.mark.parametrize("harm", [shuffled, doubled, thinned, headless, noise, silence])
def test_an_answer_that_is_damaged_acknowledges_nothing(
    world: World, device: Device, way: Altered, harm: Change
) -> None:
    device.sync()
    made = [device.add(f"new {number}") for number in range(5)]
    way.answered = harm
    cursor = device.position().cursor
    with pytest.raises(FormatError):
        device.sync()
    assert device.status().pending == 5
    assert device.position().cursor == cursor
    assert device.status().condition is SyncCondition.DAMAGED
    assert {*made} <= set(world.centre.state(USER))
    mended(world, device, way)


def test_an_answer_cut_at_any_line_acknowledges_nothing(world: World, device: Device, way: Altered) -> None:
    device.sync()
    for number in range(5):
        device.add(f"new {number}")
    for cut in range(7):
        way.answered = lambda lines, cut=cut: lines[:cut]  # type: ignore[misc]
        with pytest.raises(FormatError):
            device.sync()
        assert device.status().pending == 5
    mended(world, device, way)


@pytest.mark.parametrize("elsewhere", [{"user_id": "another"}, {"epoch": "another"}], ids=str)
def test_an_answer_from_elsewhere_acknowledges_nothing(
    world: World, device: Device, way: Altered, elsewhere: dict[str, Any]
) -> None:
    device.sync()
    device.add("new")
    way.answered = lambda lines: reframed(lines, stream=ANSWER, **elsewhere)
    with pytest.raises(FormatError):
        device.sync()
    assert device.status().pending == 1
    mended(world, device, way)


def test_an_edit_that_an_answer_leaves_out_is_sent_again(world: World, device: Device, way: Altered) -> None:
    edited = device.add("to be edited")
    device.sync()
    rows = world.centre.user(USER).rows
    before = rows[edited]
    device.edit(edited, "edited")
    device.add("new")
    way.answered = not_taken(lambda: rows.update({edited: before}), 0)
    with pytest.raises(FormatError):
        device.sync()
    assert device.status().pending == 2
    device.sync()
    assert rows[edited].state.value("content") == "edited"
    mended(world, device, way)


def test_a_new_memory_that_an_answer_leaves_out_is_sent_again(world: World, device: Device, way: Altered) -> None:
    device.sync()
    made = [device.add("new"), device.add("left out")]
    way.answered = not_taken(lambda: world.centre.purge(USER, made[1]), 1)
    with pytest.raises(FormatError):
        device.sync()
    assert device.status().pending == 2
    device.sync()
    assert {*made} <= set(world.centre.state(USER))
    mended(world, device, way)


def not_taken(undo: Callable[[], None], number: int) -> Change:
    """Once, the centre has neither stored a line nor does it say what became of it."""
    left = [undo]

    def pass_over(lines: list[bytes]) -> Sequence[bytes]:
        if not left:
            return lines
        left.pop()()
        return reframed(lines, lambda inner: inner[:number] + inner[number + 1 :], stream=ANSWER)

    return pass_over


def test_a_verdict_that_this_version_does_not_know_stops_the_sync(world: World, device: Device, way: Altered) -> None:
    device.sync()
    device.add("new")
    way.answered = lambda lines: reframed(
        lines, lambda inner: [encode_line({**decode_line(inner[0], 1), "code": "perhaps"})], stream=ANSWER
    )
    with pytest.raises(FormatError):
        device.sync()
    assert device.status().pending == 1
    mended(world, device, way)


# -- comparing everything


class Harmed:
    """A centre whose manifests and records are harmed once each."""

    def __init__(self, way: Altered, harm: Change) -> None:
        self._way, self._left = way, {MANIFEST: harm, RECORDS: harm}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._way, name)

    def _harmed(self, stream: str, lines: Sequence[bytes]) -> Sequence[bytes]:
        harm = self._left.pop(stream, list)
        return harm(list(lines))

    def manifest(self, request: Any) -> Sequence[bytes]:
        return self._harmed(MANIFEST, list(self._way.manifest(request)))

    def fetch(self, request: Any) -> Sequence[bytes]:
        return self._harmed(RECORDS, list(self._way.fetch(request)))


@pytest.mark.parametrize("harm", [shuffled, thinned, headless, noise])
def test_a_comparison_whose_streams_are_damaged_is_begun_anew(
    world: World, device: Device, way: Altered, harm: Change
) -> None:
    device.sync()
    harmed = Harmed(way, harm)
    device.dial = lambda: harmed
    device.reopen()
    device.sql_while_closed("UPDATE memories SET content = 'damaged', shadow_hash = 1 WHERE content LIKE 'memory 1%'")
    for _ in range(2):
        with pytest.raises(FormatError):
            device.memory.reconcile(USER)
    report = device.sync()
    assert report.reconciled
    assert_same(world, device)


# -- versions


def test_a_centre_of_another_protocol_is_left_alone_and_named(world: World, device: Device, way: Altered) -> None:
    real = world.centre.hello
    world.centre.hello = lambda hello: replace(real(hello), protocol=PROTOCOL + 1)  # type: ignore[method-assign]
    refused(world, device, ProtocolMismatch)
    assert device.status().condition is SyncCondition.VERSIONS
    assert "upgrade" in (device.status().hint or "")
    world.centre.hello = real  # type: ignore[method-assign]
    mended(world, device, way)
