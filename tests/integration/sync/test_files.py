"""Sync by file: a request goes to the centre, an answer comes back, and nothing else is needed to end equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge.sync import files
from edge.sync.report import SyncReport
from memory.core.errors import FileDamaged, FormatError, NotFound
from memory.core.framing import decode_line
from tests.integration.sync.devices import USER, Device, World, assert_same


@pytest.fixture
def device(world: World) -> Device:
    """A device that never reaches the centre itself."""

    def never() -> None:
        raise AssertionError("no network is used")

    return world.device("a", dial=never)


def request(world: World, device: Device, name: str = "request") -> Path:
    target = world.folder / f"{name}.jsonl"
    device.memory.write_changes(USER, target)
    return target


def answer(world: World, source: Path, name: str = "answer") -> Path:
    target = world.folder / f"{name}.jsonl"
    files.answer_request(world.centre, source, target, clock=Centre(world))
    return target


class Centre:
    """The clock of whoever answers."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> int:
        return self._world.now


def exchange(world: World, device: Device) -> SyncReport:
    """A request there, its answer back."""
    return device.memory.read_answer(USER, answer(world, request(world, device)))


def test_request_and_answer_bring_both_sides_together(world: World, device: Device) -> None:
    theirs = [world.centre.add(USER, f"theirs {number}") for number in range(5)]
    ours = [device.add(f"ours {number}", tags=["t"]) for number in range(5)]
    report = exchange(world, device)
    assert (report.pushed, report.equal) == (5, True)
    assert set(device.states()) == set(world.centre.state(USER)) == {*theirs, *ours}
    assert_same(world, device)


def test_edits_deletions_and_recalls_travel_in_files_both_ways(world: World, device: Device) -> None:
    made = [device.add(f"memory {number}") for number in range(6)]
    exchange(world, device)
    device.edit(made[0], "edited here")
    device.delete(made[1])
    device.touch(made[2], 3)
    world.centre.edit(USER, made[3], content="edited there")
    world.centre.delete(USER, made[4])
    world.centre.touch(USER, made[2])
    exchange(world, device)
    assert device.text(made[3]) == "edited there"
    assert world.centre.state(USER)[made[0]].value("content") == "edited here"
    assert device.memory.get_memory(made[2], user_id=USER).access_count == 4
    assert len(device.texts()) == 4
    assert_same(world, device)


def test_a_request_counts_what_it_carries_and_the_centre_what_it_was_given(world: World, device: Device) -> None:
    for number in range(3):
        device.add(f"memory {number}")
    source = world.folder / "request.jsonl"
    written = device.memory.write_changes(USER, source)
    assert (written.changes, written.bytes) == (3, source.stat().st_size)
    assert files.answer_request(world.centre, source, world.folder / "answer.jsonl", clock=Centre(world)) == 3


def test_more_changes_than_fit_a_page_travel_in_one_file(world: World, device: Device) -> None:
    for number in range(1_200):
        world.centre.add(USER, f"theirs {number}")
    for number in range(1_100):
        device.add(f"ours {number}")
    exchange(world, device)
    assert len(device.states()) == 2_300
    assert_same(world, device)


def test_a_request_that_is_answered_twice_changes_nothing_the_second_time(world: World, device: Device) -> None:
    made = device.add("sent")
    device.touch(made, 2)
    source = request(world, device)
    first = answer(world, source, "first")
    rev, state = world.centre.user(USER).rev, world.centre.state(USER)
    second = answer(world, source, "second")
    assert (world.centre.user(USER).rev, world.centre.state(USER)) == (rev, state)
    device.memory.read_answer(USER, first)
    device.memory.read_answer(USER, second)
    assert_same(world, device)


def test_an_answer_that_is_read_twice_changes_nothing_the_second_time(world: World, device: Device) -> None:
    device.add("ours")
    world.centre.add(USER, "theirs")
    came = answer(world, request(world, device))
    device.memory.read_answer(USER, came)
    states, position = device.states(), device.position()
    report = device.memory.read_answer(USER, came)
    assert report.changed == 0
    assert device.states() == states
    assert (device.position().cursor, device.position().digest) == (position.cursor, position.digest)
    assert_same(world, device)


def test_an_older_answer_after_a_newer_one_changes_nothing(world: World, device: Device) -> None:
    made = device.add("first")
    old = answer(world, request(world, device), "old")
    device.memory.read_answer(USER, old)
    world.centre.edit(USER, made, content="second")
    exchange(world, device)
    states, before = device.states(), device.position()
    device.memory.read_answer(USER, old)
    assert device.states() == states
    assert (device.position().cursor, device.position().digest) == (before.cursor, before.digest)
    assert device.status().pending == 0
    exchange(world, device)
    assert_same(world, device)


def test_an_answer_that_continues_one_not_read_yet_is_refused_whole(world: World, device: Device) -> None:
    device.add("ours")
    for number in range(3):
        world.centre.add(USER, f"theirs {number}")
    first = answer(world, request(world, device), "first")
    backup = device.backup()
    device.memory.read_answer(USER, first)
    world.centre.add(USER, "one more")
    second = answer(world, request(world, device, "again"), "second")
    device.restore(backup)
    before = (device.states(), device.position().cursor)
    with pytest.raises(FormatError):
        device.memory.read_answer(USER, second)
    assert (device.states(), device.position().cursor) == before
    device.memory.read_answer(USER, first)
    device.memory.read_answer(USER, second)
    assert_same(world, device)


def test_what_is_edited_while_the_files_travel_goes_with_the_next_request(world: World, device: Device) -> None:
    made = device.add("first")
    exchange(world, device)
    device.edit(made, "second")
    source = request(world, device)
    device.edit(made, "third")
    new = device.add("new meanwhile")
    device.memory.read_answer(USER, answer(world, source))
    assert world.centre.state(USER)[made].value("content") == "second"
    assert device.text(made) == "third"
    assert device.status().pending == 2
    exchange(world, device)
    assert world.centre.state(USER)[made].value("content") == "third"
    assert new in world.centre.state(USER)
    assert_same(world, device)


def test_an_edit_that_lost_while_the_files_travelled_is_in_the_log(world: World, device: Device) -> None:
    made = device.add("first")
    exchange(world, device)
    device.edit(made, "edited here")
    world.later()
    world.centre.edit(USER, made, content="edited there, later")
    exchange(world, device)
    assert device.text(made) == "edited there, later"
    assert device.conflicts() == [("overwritten", "edited here")]
    assert_same(world, device)


# -- files that are not as they should be


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def endless(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def altered(data: bytes) -> bytes:
    return data.replace(b"memory 1", b"memory 7", 1)


def shuffled(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([lines[0], lines[2], lines[1], *lines[3:]])


def doubled(data: bytes) -> bytes:
    return data + data


@pytest.mark.parametrize("harm", [cut, endless, altered, shuffled, doubled])
def test_a_damaged_request_is_refused_whole(world: World, device: Device, harm: Callable[[bytes], bytes]) -> None:
    for number in range(3):
        device.add(f"memory {number}")
    source = request(world, device)
    whole = source.read_bytes()
    source.write_bytes(harm(whole))
    with pytest.raises(FileDamaged):
        answer(world, source)
    assert world.centre.state(USER) == {}
    assert not (world.folder / "answer.jsonl").exists()
    source.write_bytes(whole)
    device.memory.read_answer(USER, answer(world, source))
    assert_same(world, device)


@pytest.mark.parametrize("harm", [cut, endless, altered, shuffled, doubled])
def test_a_damaged_answer_is_refused_whole(world: World, device: Device, harm: Callable[[bytes], bytes]) -> None:
    device.add("ours")
    for number in range(3):
        world.centre.add(USER, f"memory {number}")
    came = answer(world, request(world, device))
    whole = came.read_bytes()
    came.write_bytes(harm(whole))
    before = (device.states(), device.position())
    with pytest.raises(FileDamaged):
        device.memory.read_answer(USER, came)
    assert (device.states(), device.position()) == before
    came.write_bytes(whole)
    device.memory.read_answer(USER, came)
    assert_same(world, device)


def test_a_request_is_no_answer_and_an_answer_no_request(world: World, device: Device) -> None:
    device.add("ours")
    source = request(world, device)
    came = answer(world, source)
    with pytest.raises(FormatError):
        device.memory.read_answer(USER, source)
    with pytest.raises(FormatError):
        answer(world, came, "twice")
    assert device.status().pending == 1


def test_an_answer_for_another_user_is_refused(world: World, device: Device) -> None:
    device.add("ours")
    device.memory.add_memory("of v", user_id="v")
    came = answer(world, request(world, device))
    with pytest.raises(FormatError):
        device.memory.read_answer("v", came)
    assert device.memory.sync_status("v")[0].pending == 1
    assert [memory.content for memory in device.memory.list_memories(user_id="v").items] == ["of v"]


def test_an_answer_for_another_device_is_refused(world: World, device: Device) -> None:
    device.add("ours")
    other = world.device("b")
    other.add("of b")
    came = answer(world, request(world, device))
    request(world, other, "of-b")
    before = (other.states(), other.position())
    with pytest.raises(FormatError):
        other.memory.read_answer(USER, came)
    assert (other.states(), other.position()) == before


def test_an_answer_for_a_user_who_is_not_here_is_refused(world: World, device: Device) -> None:
    device.add("ours")
    came = answer(world, request(world, device))
    device.memory._service.wipe(USER)
    with pytest.raises(NotFound):
        device.memory.read_answer(USER, came)
    assert not device.memory._edge.users.exists(USER)


# -- a centre that was restored


@pytest.mark.parametrize("known", [True, False], ids=["known", "silent"])
def test_after_a_restore_of_the_centre_the_answer_compares_everything(
    world: World, device: Device, *, known: bool
) -> None:
    made = [device.add(f"memory {number}") for number in range(5)]
    exchange(world, device)
    backup = world.centre.backup()
    device.edit(made[0], "lost in the restore")
    new = device.add("lost, too")
    device.delete(made[1])
    exchange(world, device)
    world.centre.restore(backup, known=known)
    theirs = world.centre.add(USER, "added after the restore")
    came = answer(world, request(world, device))
    kinds = [decode_line(line, 1).get("kind") for line in came.read_bytes().splitlines(keepends=True)]
    assert "entry" in kinds
    assert device.memory.read_answer(USER, came).reconciled
    exchange(world, device)
    exchange(world, device)
    state = world.centre.state(USER)
    assert state[made[0]].value("content") == "lost in the restore"
    assert state[made[1]].deleted is not None
    assert {new, theirs} <= set(state)
    assert_same(world, device)


def test_a_device_that_turns_out_to_differ_is_mended_by_the_next_exchange(world: World, device: Device) -> None:
    made = [device.add(f"memory {number}") for number in range(4)]
    exchange(world, device)
    device.sql_while_closed("DELETE FROM memories WHERE memory_id = ?", made[1])
    device.sql_while_closed("UPDATE sync_state SET digest = digest + 1, live = live - 1")
    assert exchange(world, device).equal is False
    assert exchange(world, device).equal
    assert device.text(made[1]) == "memory 1"
    assert_same(world, device)


@pytest.mark.parametrize("compares", [False, True])
def test_an_answer_of_a_history_that_has_ended_is_refused(world: World, device: Device, *, compares: bool) -> None:
    made = [device.add(f"memory {number}") for number in range(4)]
    exchange(world, device)
    if compares:
        backup = world.centre.backup()
        device.add("lost in the first restore")
        exchange(world, device)
        world.centre.restore(backup, known=True)
    old = answer(world, request(world, device), "old")
    device.memory.read_answer(USER, old)
    exchange(world, device)
    world.centre.restore(world.centre.backup(), known=True)
    exchange(world, device)
    device.edit(made[0], "edited since")
    new = device.add("added since")
    world.centre.edit(USER, made[1], content="edited there since")
    exchange(world, device)
    device.delete(made[2])
    before = (device.states(), device.position())
    with pytest.raises(FormatError, match="history that has ended"):
        device.memory.read_answer(USER, old)
    assert (device.states(), device.position()) == before
    assert new in device.states()
    assert device.text(made[0]) == "edited since"
    for _ in range(2):
        exchange(world, device)
    assert device.text(made[1]) == "edited there since"
    assert world.centre.state(USER)[made[2]].deleted is not None
    assert new in world.centre.state(USER)
    assert_same(world, device)


def test_a_first_request_of_an_empty_device_brings_everything(world: World, device: Device) -> None:
    for number in range(5):
        world.centre.add(USER, f"theirs {number}")
    device.delete(device.add("made to have a replica"))
    exchange(world, device)
    assert len(device.texts()) == 5
    assert_same(world, device)


def test_files_and_sessions_may_take_turns(world: World) -> None:
    device = world.device("a")
    made = device.add("by session")
    device.sync()
    device.edit(made, "by file")
    device.memory.read_answer(USER, answer(world, request(world, device)))
    device.touch(made)
    world.centre.add(USER, "theirs")
    device.sync()
    assert_same(world, device)
