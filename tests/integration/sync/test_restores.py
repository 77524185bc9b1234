"""Histories that go back: a centre or a replica put back from a backup, and a copy of a device."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from memory.core.sync import MARKS_SENT
from tests.integration.sync.devices import USER, Altered, World, assert_same, settle
from tests.sync.plain_user import MARKS_KEPT


@pytest.fixture(params=[True, False], ids=["known", "silent"])
def known(request: pytest.FixtureRequest) -> bool:
    """Whether the centre notices that it was restored, or the marks must tell."""
    return bool(request.param)


# -- the centre goes back


def test_a_centre_moved_to_a_new_cluster_with_nothing_lost_costs_one_message(world: World) -> None:
    a = world.device("a")
    for number in range(20):
        a.add(f"memory {number}")
    a.sync()
    world.centre.restore(world.centre.backup(), known=True)
    world.network.round_trips = 0
    report = a.sync()
    assert (world.network.round_trips, report.reconciled, report.equal) == (1, False, True)
    assert a.position().epoch == world.centre.user(USER).epoch
    assert_same(world, a)


def test_a_restored_centre_sends_and_receives_only_what_differs(world: World, *, known: bool) -> None:
    a = world.device("a")
    kept = [a.add(f"memory {number}") for number in range(50)]
    a.sync()
    backup = world.centre.backup()
    a.edit(kept[0], "edited after the backup")
    new = a.add("added after the backup")
    a.delete(kept[1])
    a.touch(kept[2], 3)
    a.sync()
    world.centre.restore(backup, known=known)
    world.network.records_read = world.network.records_sent = 0
    report = a.sync()
    assert report.reconciled
    assert world.network.records_sent == 4
    assert world.network.records_read <= 2  # the versions that lost what was edited
    state = world.centre.state(USER)
    assert state[kept[0]].value("content") == "edited after the backup"
    assert state[kept[1]].deleted is not None
    assert new in state
    assert state[kept[2]].accesses
    assert_same(world, a)


def test_after_a_restore_no_write_that_a_device_holds_is_lost_and_no_deletion_is_undone(
    world: World, *, known: bool
) -> None:
    a, b = world.pair()
    made = [a.add(f"memory {number}") for number in range(10)]
    settle(world, a, b)
    backup = world.centre.backup()
    a.edit(made[0], "by a")
    a.sync()
    b.sync()
    b.delete(made[1])
    b.add("by b")
    b.sync()
    a.sync()
    a.edit(made[2], "by a, not sent")
    b.delete(made[3])
    world.centre.restore(backup, known=known)
    settle(world, b, a)
    assert a.text(made[0]) == b.text(made[0]) == "by a"
    assert b.text(made[2]) == "by a, not sent"
    assert "by b" in a.texts()
    for memory_id in (made[1], made[3]):
        assert world.centre.state(USER)[memory_id].deleted is not None
    assert len(a.texts()) == 9


def test_a_silent_restore_is_noticed_also_when_the_head_has_grown_past_the_cursor(world: World) -> None:
    a, b = world.pair()
    made = a.add("before")
    settle(world, a, b)
    backup = world.centre.backup()
    lost = a.add("sent, and lost there")
    a.edit(made, "edited, and lost there")
    a.sync()
    world.centre.restore(backup, known=False)
    for number in range(10):
        b.add(f"of b {number}")
    b.sync()
    assert world.centre.user(USER).rev > a.position().cursor
    report = a.sync()
    assert report.reconciled
    assert world.centre.state(USER)[lost].value("content") == "sent, and lost there"
    assert world.centre.state(USER)[made].value("content") == "edited, and lost there"
    settle(world, b, a)


def test_a_device_that_only_receives_notices_a_silent_restore_too(world: World) -> None:
    a, reader = world.pair()
    a.add("before")
    settle(world, a, reader)
    backup = world.centre.backup()
    lost = a.add("received by the reader")
    a.sync()
    reader.sync()
    world.centre.restore(backup, known=False)
    for number in range(5):
        world.centre.add(USER, f"grown {number}")
    a.close()  # it never comes back
    report = reader.sync()
    assert report.reconciled
    assert world.centre.state(USER)[lost].value("content") == "received by the reader"
    assert_same(world, reader)


def test_what_the_centre_added_after_the_backup_comes_back_from_whoever_received_it(
    world: World, *, known: bool
) -> None:
    a = world.device("a")
    a.add("before")
    a.sync()
    backup = world.centre.backup()
    made = world.centre.add(USER, "written at the centre")
    a.sync()
    world.centre.restore(backup, known=known)
    a.sync()
    assert world.centre.state(USER)[made].value("content") == "written at the centre"
    assert_same(world, a)


def test_a_centre_restored_twice_still_ends_equal(world: World, *, known: bool) -> None:
    a, b = world.pair()
    made = a.add("before")
    settle(world, a, b)
    first = world.centre.backup()
    a.edit(made, "one")
    a.sync()
    second = world.centre.backup()
    b.sync()
    b.edit(made, "two")
    b.sync()
    world.centre.restore(second, known=known)
    a.sync()
    world.centre.restore(first, known=known)
    settle(world, a, b)
    assert a.text(made) == "two"


def test_a_restored_centre_without_any_memory_gets_everything_back(world: World, *, known: bool) -> None:
    a = world.device("a")
    empty = world.centre.backup()
    for number in range(30):
        a.add(f"memory {number}")
    a.sync()
    world.centre.restore(empty, known=known)
    a.sync()
    assert len(world.centre.user(USER).live()) == 30
    assert_same(world, a)


def test_a_comparison_cut_short_is_begun_anew(world: World, *, known: bool) -> None:
    a = world.device("a")
    made = [a.add(f"memory {number}") for number in range(10)]
    a.sync()
    backup = world.centre.backup()
    a.edit(made[0], "edited")
    a.sync()
    world.centre.restore(backup, known=known)
    for name in ("manifest", "fetch", "push"):
        real = getattr(world.centre, name)
        setattr(world.centre, name, _unreachable)
        with pytest.raises(ConnectionError):
            a.sync()
        setattr(world.centre, name, real)
    a.sync()
    assert world.centre.state(USER)[made[0]].value("content") == "edited"
    assert_same(world, a)


def _unreachable(*_args: object) -> Sequence[bytes]:
    raise ConnectionError


def test_a_restore_between_two_requests_of_a_session_begins_it_anew(world: World) -> None:
    a = world.device("a")
    made = a.add("before")
    a.sync()
    backup = world.centre.backup()
    a.edit(made, "after the backup")
    a.sync()
    a.add("the push that meets the restore")
    way, left = Altered(world.network), [backup]

    def restore_once(_lines: list[bytes]) -> None:
        if left:
            world.centre.restore(left.pop(), known=True)

    way.pushing = restore_once
    a.dial = lambda: way
    a.reopen()
    assert a.sync().reconciled
    assert world.centre.state(USER)[made].value("content") == "after the backup"
    assert_same(world, a)


def test_a_device_whose_marks_are_all_forgotten_compares_everything_and_nothing_is_lost(world: World) -> None:
    a = world.device("a")
    a.add("first")
    a.sync()
    backup = a.backup()
    for number in range(MARKS_KEPT + MARKS_SENT):
        a.add(f"memory {number}")
        a.sync()
    epoch = world.centre.user(USER).epoch
    a.restore(backup)
    report = a.sync()
    assert report.reconciled
    assert world.centre.user(USER).epoch == epoch
    assert_same(world, a)


# -- a replica goes back, or is two


def test_a_copy_of_a_device_and_its_original_lose_no_write_and_count_exactly(world: World) -> None:
    a = world.device("a")
    shared = a.add("shared")
    a.sync()
    a.edit(shared, "unsent when it was copied")
    a.touch(shared, 2)
    a.close()
    shutil.copytree(a.path, world.folder / "b")
    a.open()
    b = world.device("b")
    for device in (a, b):
        device.add(f"by {device.path.name}")
        device.touch(shared, 3)
    settle(world, a, b)
    settle(world, b, a)
    assert a.texts() == b.texts() == ["by a", "by b", "unsent when it was copied"]
    assert a.memory.get_memory(shared, user_id=USER).access_count == 8


def test_a_copy_that_syncs_first_does_not_keep_the_original_from_being_heard(world: World) -> None:
    a = world.device("a")
    made = a.add("shared")
    a.sync()
    a.close()
    shutil.copytree(a.path, world.folder / "b")
    a.open()
    b = world.device("b")
    for round_ in range(3):
        b.edit(made, f"by b {round_}")
        b.sync()
        world.later()
        a.add(f"by a {round_}")
        a.sync()
        world.later()
    settle(world, a, b)
    assert a.texts() == ["by a 0", "by a 1", "by a 2", "by b 2"]


def test_writes_after_a_replica_was_put_back_behind_its_last_push_reach_the_centre(world: World) -> None:
    a, b = world.pair()
    made = a.add("first")
    a.sync()
    backup = a.backup()
    a.edit(made, "second, sent")
    sent = a.add("sent after the backup")
    a.touch(made, 4)
    a.sync()
    world.later()
    a.restore(backup)
    later = a.add("written after the restore")
    a.edit(made, "third, after the restore")
    a.touch(made, 1)
    settle(world, a, b)
    assert b.text(made) == "third, after the restore"
    assert {sent, later} <= set(b.states())
    assert b.memory.get_memory(made, user_id=USER).access_count == 5


def test_a_deletion_that_a_backup_has_forgotten_is_not_undone_by_it(world: World) -> None:
    a, b = world.pair()
    made = a.add("to be deleted")
    settle(world, a, b)
    backup = a.backup()
    a.delete(made)
    a.sync()
    a.restore(backup)
    a.edit(made, "edited in the backup")
    settle(world, a, b)
    assert a.texts() == b.texts() == []
    assert a.conflicts() == [("deleted", "edited in the backup")]
