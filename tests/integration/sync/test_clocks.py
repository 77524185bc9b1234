"""Clocks that are wrong: no stamp out of the future gets to the centre, and no edit loses to one it has seen."""

from __future__ import annotations

import pytest

from edge.sync.report import SyncCondition
from memory.core.clock import MAX_SKEW_MS, Stamp
from memory.core.errors import ClockAhead
from memory.core.state import State
from tests.integration.sync.devices import USER, Altered, Device, World, assert_same
from tests.sync.oracle import too_late

DAY = 86_400_000
YEAR = 365 * DAY


def content_stamp(states: dict[str, State], memory_id: str) -> Stamp:
    return states[memory_id].scalars["content"].stamp


def ahead(world: World, ms: int) -> Device:
    """A device whose clock runs ahead, and that has not greeted the centre since."""
    device = world.device("ahead")
    device.ahead = ms
    return device


def test_stamps_of_a_clock_ten_days_ahead_are_given_anew_in_their_order(world: World) -> None:
    device = ahead(world, 10 * DAY)
    made = []
    for number in range(10):
        made.append(device.add(f"memory {number}"))
        world.later(DAY // 100)
    deleted = device.add("deleted again")
    device.delete(deleted)
    before = device.states()
    order = sorted(made, key=lambda memory_id: content_stamp(before, memory_id))
    report = device.sync()
    assert report.restamped == 11
    assert report.pushed == 11
    after = world.centre.state(USER)
    assert too_late(after, world.now) == []
    assert sorted(made, key=lambda memory_id: content_stamp(after, memory_id)) == order
    assert len({content_stamp(after, memory_id) for memory_id in made}) == 10
    assert after[deleted].deleted is not None
    assert_same(world, device)


def test_a_page_with_one_stamp_out_of_the_future_is_refused_whole(world: World) -> None:
    device = world.device("a")
    kept = device.add("in time")
    pages: list[list[bytes]] = []
    way = Altered(world.network)
    way.pushing = pages.append
    device.dial = lambda: way
    device.reopen()
    device.ahead = MAX_SKEW_MS + 60_000
    late = device.add("out of the future")
    device.sync()
    assert len(pages) == 2
    with pytest.raises(ClockAhead):
        list(world.centre.push(pages[0]))
    found = world.centre.state(USER)
    assert {kept, late} <= set(found)
    assert content_stamp(found, kept) < content_stamp(found, late)
    assert too_late(found, world.now) == []


def test_registers_written_together_keep_one_stamp_and_earlier_ones_stay_earlier(world: World) -> None:
    device = ahead(world, 10 * DAY)
    made = device.add("first", tags=["t"], metadata={"k": 1})
    world.later()
    device.update(made, content="second", add_tags=["u"])
    before = device.states()[made]
    device.sync()
    after = world.centre.state(USER)[made]
    renewed = dict(zip(before.stamps(), after.stamps(), strict=True))
    assert len(set(renewed.values())) == len(renewed) == 2
    assert sorted(renewed) == sorted(renewed, key=lambda stamp: renewed[stamp])
    assert after.value("content") == "second"


def test_a_stamp_within_the_patience_of_the_centre_is_left_alone(world: World) -> None:
    device = ahead(world, MAX_SKEW_MS - 60_000)
    made = device.add("a little ahead")
    before = device.states()
    report = device.sync()
    assert report.restamped == 0
    assert content_stamp(world.centre.state(USER), made) == content_stamp(before, made)


def test_an_edit_by_another_after_a_restamped_one_wins(world: World) -> None:
    device, other = ahead(world, 10 * DAY), world.device("other")
    made = device.add("out of the future")
    device.sync()
    other.sync()
    world.later()
    other.edit(made, "later, by a right clock")
    other.sync()
    device.sync()
    assert device.text(made) == "later, by a right clock"
    assert_same(world, device, other)


def test_an_edit_by_the_device_itself_after_a_restamped_one_wins(world: World) -> None:
    device = ahead(world, 10 * DAY)
    made = device.add("out of the future")
    device.sync()
    world.later()
    device.edit(made, "edited again")
    device.sync()
    assert world.centre.state(USER)[made].value("content") == "edited again"
    assert too_late(world.centre.state(USER), world.now) == []
    assert_same(world, device)


def test_a_last_access_out_of_the_future_becomes_the_time_of_the_centre(world: World) -> None:
    device = world.device("a")
    made = device.add("recalled")
    device.sync()
    device.ahead = 10 * DAY
    device.touch(made, 3)
    device.sync()
    found = world.centre.state(USER)[made]
    assert sum(found.accesses.values()) == 3
    assert found.last_access is not None
    assert found.last_access <= world.now
    assert_same(world, device)


def test_what_was_not_accepted_is_restamped_and_what_was_is_kept(world: World) -> None:
    device = world.device("a")
    made = device.add("accepted", tags=["t"])
    device.sync()
    accepted = device.states()[made]
    device.ahead = 10 * DAY
    device.update(made, add_tags=["u"])
    device.sync()
    after = world.centre.state(USER)[made]
    assert after.scalars == accepted.scalars
    assert after.tags["t"] == accepted.tags["t"]
    assert after.tags["u"].stamp.ms <= world.now + MAX_SKEW_MS + 1
    assert_same(world, device)


def test_a_clock_that_cannot_be_agreed_on_is_named_and_nothing_is_lost(world: World) -> None:
    device = world.device("a")
    device.add("never in time")
    way = Altered(world.network)

    def never(_lines: list[bytes]) -> None:
        raise ClockAhead(now=world.now)

    way.pushing = never
    device.dial = lambda: way
    device.reopen()
    with pytest.raises(ClockAhead):
        device.sync()
    assert device.status().condition is SyncCondition.CLOCK
    assert device.status().pending == 1
    way.pushing = lambda _lines: None
    device.sync()
    assert_same(world, device)


def test_an_edit_of_a_device_thirty_years_behind_wins_over_what_it_has_pulled(world: World) -> None:
    device = world.device("behind")
    device.ahead = -30 * YEAR
    made = world.centre.add(USER, "of today")
    device.sync()
    device.edit(made, "by the device")
    assert content_stamp(device.states(), made) > content_stamp(world.centre.state(USER), made)
    device.sync()
    assert world.centre.state(USER)[made].value("content") == "by the device"
    assert_same(world, device)


def test_a_device_thirty_years_behind_that_has_never_synced_loses_nothing(world: World) -> None:
    device = world.device("behind")
    device.ahead = -30 * YEAR
    made = device.add("long ago, it thinks")
    device.sync()
    assert world.centre.state(USER)[made].value("content") == "long ago, it thinks"
    assert_same(world, device)


@pytest.mark.parametrize("back", [1, 3_600_000, YEAR])
def test_the_later_of_two_edits_has_the_larger_stamp_though_the_clock_was_set_back_over_a_restart(
    world: World, back: int
) -> None:
    device = world.device("a")
    made = device.add("first")
    device.edit(made, "second")
    first = content_stamp(device.states(), made)
    device.close()
    device.ahead = -back
    device.open()
    device.edit(made, "third")
    assert content_stamp(device.states(), made) > first
    device.sync()
    assert world.centre.state(USER)[made].value("content") == "third"


def test_what_was_received_raises_the_clock_also_over_a_restart(world: World) -> None:
    device = world.device("a")
    made = world.centre.add(USER, "of the centre")
    received = content_stamp(world.centre.state(USER), made)
    device.sync()
    device.ahead = -YEAR
    device.reopen()
    other = device.add("written later")
    assert content_stamp(device.states(), other) > received


# -- the offset


@pytest.mark.parametrize("ms", [10 * DAY, -30 * DAY, 5_000])
def test_the_offset_to_the_centre_is_learnt_stored_and_used(world: World, ms: int) -> None:
    device = world.device("a")
    device.add("first")
    device.ahead = ms
    device.sync()
    assert device.status().clock_offset == -ms
    for _ in range(2):
        world.later()
        made = device.add("with the centre's time")
        assert content_stamp(device.states(), made).ms == world.now
        device.reopen()
    assert device.status().clock_offset == -ms
    device.sync()
    assert_same(world, device)


def test_an_offset_of_less_than_a_second_is_the_way_of_the_answer(world: World) -> None:
    device = world.device("a")
    device.ahead = 900
    device.sync()
    assert device.status().clock_offset == 0


def test_a_clock_that_was_put_right_has_no_offset_any_more(world: World) -> None:
    device = world.device("a")
    device.ahead = DAY
    device.sync()
    device.ahead = 0
    device.sync()
    assert device.status().clock_offset == 0
    made = device.add("right again")
    device.sync()
    assert content_stamp(world.centre.state(USER), made).ms <= world.now + 1
    assert_same(world, device)
