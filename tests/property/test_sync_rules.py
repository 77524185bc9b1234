"""Each rule of the sync protocol, on the path it is there for: with it nothing is lost, without it something is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory.core.errors import ClockAhead, SyncIncomplete
from tests.sync.machine import Violation
from tests.sync.model import USER
from tests.sync.scenarios import SCENARIOS, Scenario, World

PATHS = [pytest.param(rule, path, id=f"{rule}: {path.__name__}") for rule, path in SCENARIOS]


@pytest.mark.parametrize(("rule", "scenario"), PATHS)
def test_with_the_rule_nothing_is_lost(rule: str, scenario: Scenario) -> None:
    scenario()


@pytest.mark.parametrize(("rule", "scenario"), PATHS)
def test_without_the_rule_something_is(rule: str, scenario: Scenario) -> None:
    with pytest.raises((Violation, AssertionError, KeyError, SyncIncomplete)):
        scenario(rule)


def test_a_clock_that_was_decades_ahead_ends_in_new_stamps_in_the_old_order() -> None:
    world = World()
    world.a.set_clock(10**12)
    first, second = world.create(world.a, "first"), world.create(world.a, "second")
    world.edit(world.a, first, content="third")
    world.sync(world.a)
    stamps = {state.value("content"): state.scalars["content"].stamp for state in world.centre.states().values()}
    assert stamps["second"] < stamps["third"]
    assert world.centre.states()[first].scalars["importance"].stamp < stamps["second"]
    assert second in world.centre.states()
    world.heal()


def test_without_new_stamps_such_an_edge_never_gets_rid_of_its_writes() -> None:
    world = World("restamp")
    world.a.set_clock(10**12)
    world.create(world.a)
    with pytest.raises(ClockAhead) as caught:
        world.sync(world.a)
    assert caught.value.now == world.now


def test_of_two_texts_written_at_the_same_time_the_earlier_is_in_a_log_of_conflicts() -> None:
    world = World()
    memory_id = world.shared()
    world.edit(world.a, memory_id, content="coffee")
    world.now += 1
    world.edit(world.b, memory_id, content="cocoa")
    world.sync(world.b, world.a, world.b)
    assert world.contents(memory_id) == ["cocoa"] * 3
    assert world.plain.conflicts(USER) == [(memory_id, "coffee")]
    assert [(reason, state.value("content")) for _, reason, state in world.a.disk.conflicts] == [
        ("overwritten", "coffee")
    ]


def test_a_text_written_after_the_other_was_seen_is_no_conflict() -> None:
    world = World()
    memory_id = world.shared()
    world.edit(world.a, memory_id, content="coffee")
    world.sync(world.a, world.b)
    world.edit(world.b, memory_id, content="cocoa")
    world.sync(world.b, world.a)
    assert world.contents(memory_id) == ["cocoa"] * 3
    assert world.plain.conflicts(USER) == []
    assert not world.a.disk.conflicts


def test_what_was_edited_here_and_deleted_there_is_set_aside() -> None:
    world = World()
    memory_id = world.shared()
    world.edit(world.b, memory_id, content="coffee")
    world.oracle.wrote(world.a.delete(memory_id))
    world.sync(world.a, world.b)
    assert world.b.set_aside() == {memory_id}
    world.heal()
    assert world.centre.states()[memory_id].deleted is not None


def test_a_record_that_breaks_a_rule_is_set_aside_and_holds_nothing_up() -> None:
    world = World()
    bad, good = world.create(world.a), world.create(world.a)
    world.a.edit(bad, {"importance": 7.0})
    world.sync(world.a, page=1)
    world.sync(world.a, page=50)
    assert world.a.set_aside() == {bad}
    assert set(world.centre.states()) == {good}
    assert world.a.disk.rows[good].dirty is world.a.disk.rows[bad].dirty is False
    world.a.edit(bad, {"importance": 0.7})
    world.sync(world.a)
    assert set(world.centre.states()) == {good, bad}


def test_edits_of_a_purged_memory_are_set_aside() -> None:
    world = World()
    memory_id = world.shared()
    world.edit(world.a, memory_id, content="coffee")
    world.plain.purge(USER, memory_id)
    world.sync(world.a, world.b)
    assert world.a.set_aside() == {memory_id}
    assert world.b.set_aside() == set()
    assert not world.centre.states()


def test_counts_of_a_purged_memory_end_with_it() -> None:
    world = World()
    memory_id = world.shared()
    world.access(world.a, memory_id)
    world.plain.purge(USER, memory_id)
    world.sync(world.a)
    assert not world.a.states()
    assert not world.a.set_aside()
    assert not world.centre.states()


def test_after_a_rewind_that_lost_nothing_but_a_mark_there_is_one_new_epoch_and_no_more() -> None:
    world = World()
    world.shared()
    backup = world.centre.backup()
    memory_id = world.create(world.a)
    world.sync(world.a)
    world.plain.purge(USER, memory_id)
    world.sync(world.a)
    world.restore(backup, known=False)
    world.sync(world.a, world.b)
    epoch = world.centre.position().epoch
    world.sync(world.a, world.b, world.a, world.b)
    assert world.centre.position().epoch == epoch


def test_a_centre_put_back_to_an_earlier_epoch_learns_its_own_counts_from_replicas() -> None:
    world = World()
    memory_id = world.shared()
    backup = world.centre.backup()
    for _ in range(3):
        world.access(world.centre, memory_id)
    world.restore(world.centre.backup(), known=True)
    world.sync(world.a, world.b)
    world.restore(backup, known=False)
    world.sync(world.a)
    world.access(world.centre, memory_id)
    world.heal()
    assert sum(world.centre.states()[memory_id].accesses.values()) == 4


def test_an_echo_is_not_sent_back_and_an_idle_sync_is_one_call() -> None:
    world = World()
    world.shared()
    world.edit(world.a, world.create(world.a), content="coffee")
    before = world.carrier.round_trips, world.carrier.records_read
    world.sync(world.a)
    assert (world.carrier.round_trips - before[0], world.carrier.records_read - before[1]) == (2, 0)
    world.sync(world.a)
    assert (world.carrier.round_trips - before[0], world.carrier.records_read - before[1]) == (3, 0)


def test_recalls_at_the_centre_bring_access_lines_and_no_record() -> None:
    world = World()
    memory_id = world.shared()
    for _ in range(1_000):
        world.access(world.centre, memory_id)
    world.sync(world.a)
    assert world.carrier.records_read == 2  # the record at the other replica's first sync, and one line now
    assert world.a.disk.rows[memory_id].base == world.b.disk.rows[memory_id].base
    world.heal()


def test_equal_stamps_with_other_values_end_equal_everywhere() -> None:
    world = World()
    memory_id = world.shared()
    world.edit(world.a, memory_id, importance=0.9)
    state = world.a.disk.rows[memory_id].state
    forged = replace(state, scalars={**state.scalars, "importance": state.scalars["importance"]._replace(value=0.1)})
    row = replace(world.b.disk.rows[memory_id], state=forged, dirty=True, seq=9)
    world.b.disk = replace(world.b.disk, rows={**world.b.disk.rows, memory_id: row}, seq=9)
    world.sync(world.a, world.b, world.a, world.b)
    assert len({states[memory_id].value("importance") for states in world._replicas()}) == 1
