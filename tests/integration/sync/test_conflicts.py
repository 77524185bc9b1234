"""Edits of the same memory in two places: what both sides hold in the end, and what the log keeps of the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory.core.clock import parse_stamp
from memory.core.errors import NotFound
from memory.core.framing import decode_line, encode_line
from memory.core.model import Status
from memory.core.state import Register, State
from tests.integration.sync.devices import USER, Altered, Device, World, assert_same, reframed


@pytest.fixture
def pair(world: World) -> tuple[Device, Device]:
    return world.pair()


def share(world: World, a: Device, b: Device, content: str = "shared", **values: Any) -> str:
    """A memory that both devices and the centre have."""
    made = a.add(content, **values)
    a.sync()
    b.sync()
    world.later()
    return made


def settle(world: World, *devices: Device) -> None:
    """Sync until everybody has seen everything, and check that all are the same."""
    for _ in range(2):
        for device in devices:
            device.sync()
    assert_same(world, *devices)


def test_the_same_content_added_on_two_devices_is_two_memories_and_one_may_supersede_the_other_everywhere(
    world: World, pair: tuple[Device, Device]
) -> None:
    a, b = pair
    first, second = a.add("twice"), b.add("twice")
    settle(world, a, b)
    assert a.texts() == b.texts() == ["twice", "twice"]
    world.centre.edit(USER, second, status="superseded")
    settle(world, a, b)
    for device in pair:
        assert device.memory.get_memory(second, user_id=USER).status is Status.SUPERSEDED
        assert device.memory.get_memory(first, user_id=USER).status is Status.ACTIVE


def test_an_edit_of_the_text_and_one_of_the_tags_both_survive(world: World, pair: tuple[Device, Device]) -> None:
    a, b = pair
    made = share(world, a, b)
    a.edit(made, "text of a")
    b.update(made, add_tags=["of-b"])
    settle(world, a, b)
    found = world.centre.state(USER)[made]
    assert (found.value("content"), found.present_tags()) == ("text of a", ("of-b",))
    assert a.conflicts() == b.conflicts() == []


@pytest.mark.parametrize("a_first", [True, False])
def test_of_two_texts_the_later_is_shown_everywhere_and_the_log_holds_the_other(
    world: World, pair: tuple[Device, Device], *, a_first: bool
) -> None:
    a, b = pair
    made = share(world, a, b)
    a.edit(made, "earlier, of a")
    world.later()
    b.edit(made, "later, of b")
    settle(world, *((a, b) if a_first else (b, a)))
    assert a.text(made) == b.text(made) == world.centre.state(USER)[made].value("content") == "later, of b"
    assert world.centre.conflicts(USER) == ([(made, "earlier, of a")])
    assert a.conflicts() == ([] if a_first else [("overwritten", "earlier, of a")])
    assert b.conflicts() == []


def test_an_edit_made_after_having_seen_the_other_is_no_conflict(world: World, pair: tuple[Device, Device]) -> None:
    a, b = pair
    made = share(world, a, b)
    a.edit(made, "first")
    a.sync()
    b.sync()
    b.edit(made, "second")
    settle(world, b, a)
    assert a.conflicts() == b.conflicts() == world.centre.conflicts(USER) == []
    assert a.text(made) == "second"


def test_a_deletion_wins_over_a_later_edit_whose_text_is_set_aside(world: World, pair: tuple[Device, Device]) -> None:
    a, b = pair
    made = share(world, a, b)
    a.delete(made)
    world.later()
    b.edit(made, "edited after it was deleted")
    settle(world, a, b)
    assert a.texts() == b.texts() == []
    assert b.conflicts() == [("deleted", "edited after it was deleted")]


def test_a_text_that_reaches_the_centre_before_the_deletion_is_deleted_with_it(
    world: World, pair: tuple[Device, Device]
) -> None:
    a, b = pair
    made = share(world, a, b)
    a.delete(made)
    world.later()
    b.edit(made, "edited after it was deleted")
    settle(world, b, a)
    assert a.texts() == b.texts() == []
    assert b.conflicts() == []


def test_a_tag_added_here_and_another_removed_there_are_both_done(world: World, pair: tuple[Device, Device]) -> None:
    a, b = pair
    made = share(world, a, b, tags=["y", "z"])
    a.update(made, add_tags=["x"])
    b.update(made, remove_tags=["y"])
    settle(world, a, b)
    assert world.centre.state(USER)[made].present_tags() == ("x", "z")


def test_forged_stamps_that_are_equal_leave_the_same_value_on_all_replicas(
    world: World, pair: tuple[Device, Device]
) -> None:
    a, b = pair
    made = share(world, a, b)
    for device in pair:
        device.edit(made, f"forged {device.path.name}")
    forged = parse_stamp(f"{world.now}.7.forger")
    for device in pair:
        forge(device, made, str(forged))
    settle(world, a, b)
    settle(world, b, a)
    assert a.text(made) == b.text(made)
    assert world.centre.state(USER)[made].scalars["content"].stamp == forged


def forge(device: Device, memory_id: str, stamp: str) -> None:
    """Give the text of a memory a stamp of somebody else's making."""
    device.close()
    device.sql("UPDATE memories SET stamps = json_set(stamps, '$.content', ?) WHERE memory_id = ?", stamp, memory_id)
    device.open()


def test_a_forged_stamp_at_the_centre_does_not_split_a_replica_that_has_not_edited(world: World) -> None:
    a = world.device("a")
    made = world.centre.add(USER, "one value")
    a.sync()
    user = world.centre.user(USER)
    state = user.rows[made].state
    held = state.scalars["content"]
    user.put(made, replace(state, scalars={**state.scalars, "content": Register(held.stamp, "another value")}))
    a.sync()
    assert a.text(made) == "another value"
    assert_same(world, a)


def test_accesses_are_counted_once_however_often_they_are_sent(world: World, pair: tuple[Device, Device]) -> None:
    a, b = pair
    made = share(world, a, b)
    twice = Altered(world.centre)

    def push_before(lines: list[bytes]) -> None:
        list(world.centre.push(lines))

    twice.pushing = push_before
    a.dial = b.dial = lambda: twice
    a.reopen()
    b.reopen()
    a.touch(made, 5)
    b.touch(made, 3)
    for _ in range(2):
        world.centre.touch(USER, made)
    settle(world, a, b)
    for device in pair:
        assert device.memory.get_memory(made, user_id=USER).access_count == 10
    assert world.centre.user(USER).head().accesses == 10


def test_six_hundred_deletions_meet_a_device_that_has_edited_fifty_of_them(
    world: World, pair: tuple[Device, Device]
) -> None:
    a, b = pair
    made = [world.centre.add(USER, f"memory {number}") for number in range(700)]
    a.sync()
    b.sync()
    world.later()
    for memory_id in made[:600]:
        a.delete(memory_id)
    a.sync()
    world.later()
    for memory_id in made[550:650]:
        b.edit(memory_id, f"edited offline {memory_id}")
    settle(world, b, a)
    assert len(b.texts()) == 100
    assert b.conflicts() == [("deleted", f"edited offline {memory_id}") for memory_id in made[550:600]]
    assert a.conflicts() == []
    assert {text for _, text in b.conflicts()}.isdisjoint(a.texts())


# -- the log, as a person works with it


@pytest.fixture
def overwritten(world: World, pair: tuple[Device, Device]) -> str:
    """A memory of which ``a`` has lost its text."""
    a, b = pair
    made = share(world, a, b)
    a.edit(made, "earlier, of a")
    world.later()
    b.edit(made, "later, of b")
    b.sync()
    a.sync()
    world.later()
    return made


def test_an_entry_says_whose_text_it_is_and_why_it_lost(
    world: World, pair: tuple[Device, Device], overwritten: str
) -> None:
    (entry,) = pair[0].memory.conflicts(USER)
    assert (entry.memory_id, entry.reason, entry.content) == (overwritten, "overwritten", "earlier, of a")
    assert entry.record["memory_type"] == "fact"
    assert "vector" not in entry.record
    assert entry.problem is None
    assert pair[0].status().conflicts == 1


def test_restoring_an_overwritten_text_is_an_edit_that_reaches_everybody(
    world: World, pair: tuple[Device, Device], overwritten: str
) -> None:
    a, b = pair
    (entry,) = a.memory.conflicts(USER)
    memory = a.memory.restore_conflict(USER, entry.number)
    assert memory.memory_id == overwritten
    settle(world, a, b)
    assert b.text(overwritten) == "earlier, of a"
    assert a.conflicts() == b.conflicts() == []


def test_restoring_a_text_whose_memory_was_deleted_makes_a_new_memory(
    world: World, pair: tuple[Device, Device]
) -> None:
    a, b = pair
    made = share(world, a, b, tags=["t"], metadata={"k": 1}, importance=0.9)
    a.delete(made)
    a.sync()
    b.edit(made, "kept")
    b.sync()
    (entry,) = b.memory.conflicts(USER)
    memory = b.memory.restore_conflict(USER, entry.number)
    assert memory.memory_id != made
    assert (memory.content, memory.tags, memory.metadata, memory.importance) == ("kept", ("t",), {"k": 1}, 0.9)
    settle(world, b, a)
    assert a.texts() == ["kept"]
    assert b.conflicts() == []


def test_a_dismissed_entry_is_gone_and_changes_nothing_else(
    world: World, pair: tuple[Device, Device], overwritten: str
) -> None:
    a, _ = pair
    (entry,) = a.memory.conflicts(USER)
    before = a.states()
    a.memory.dismiss_conflict(USER, entry.number)
    assert a.conflicts() == []
    assert a.states() == before
    with pytest.raises(NotFound):
        a.memory.dismiss_conflict(USER, entry.number)
    with pytest.raises(NotFound):
        a.memory.restore_conflict(USER, entry.number)


def test_the_log_of_a_user_who_is_not_here_is_empty(world: World, pair: tuple[Device, Device]) -> None:
    assert pair[0].memory.conflicts("nobody") == []
    with pytest.raises(NotFound):
        pair[0].memory.restore_conflict("nobody", 1)


@pytest.mark.parametrize("deleted_by", ["itself", "another"])
def test_an_overwritten_text_goes_when_its_memory_is_deleted(
    world: World, pair: tuple[Device, Device], overwritten: str, deleted_by: str
) -> None:
    a, b = pair
    (a if deleted_by == "itself" else b).delete(overwritten)
    settle(world, b, a)
    assert a.conflicts() == b.conflicts() == world.centre.conflicts(USER) == []


def test_what_was_set_aside_of_a_deleted_memory_stays_over_further_syncs(
    world: World, pair: tuple[Device, Device]
) -> None:
    a, b = pair
    made = share(world, a, b)
    a.delete(made)
    a.sync()
    b.edit(made, "kept")
    for _ in range(3):
        b.sync()
        b.reopen()
    assert b.conflicts() == [("deleted", "kept")]


def test_a_record_that_the_centre_rejects_is_set_aside_with_its_reason_and_sent_again_when_edited(
    world: World, pair: tuple[Device, Device]
) -> None:
    a, b = pair
    made = share(world, a, b)
    a.edit(made, "to be broken")
    a.close()
    a.sql("UPDATE memories SET importance = 7.5 WHERE memory_id = ?", made)
    a.open()
    report = a.sync()
    assert (report.rejected, report.pushed) == (1, 0)
    (entry,) = a.memory.conflicts(USER)
    assert (entry.reason, entry.content) == ("rejected", "to be broken")
    assert entry.problem is not None
    assert "importance" in entry.problem
    assert a.status().pending == 0
    a.update(made, importance=0.25)
    settle(world, a, b)
    assert b.text(made) == "to be broken"


def test_a_page_in_which_a_record_was_forged_for_another_user_is_rejected_line_by_line(
    world: World, pair: tuple[Device, Device]
) -> None:
    a, _ = pair
    mixed = Altered(world.centre)
    a.dial = lambda: mixed
    a.reopen()
    made = [a.add(f"memory {number}") for number in range(3)]

    def forged(lines: list[bytes]) -> list[bytes]:
        return [*lines[:1], encode_line({**decode_line(lines[1], 1), "user_id": "v"}), *lines[2:]]

    answers: list[bytes] = []
    mixed.pushing = lambda lines: answers.extend(world.centre.push(reframed(lines, forged, stream="push")))
    mixed.answered = lambda _lines: answers
    assert a.sync().rejected == 1
    assert len(a.conflicts()) == 1
    assert set(world.centre.state("v")) == set()
    assert isinstance(world.centre.state(USER)[made[0]], State)
