"""Damage on a device, what the centre has purged, and a device that was revoked."""

from __future__ import annotations

import logging

import pytest

from edge.sync.report import SyncCondition
from memory.core.errors import DeviceRevoked, NotFound, SyncIncomplete
from tests.integration.sync.devices import USER, Altered, World, altered, assert_same, reframed, settle

# -- damage


def test_a_damaged_text_is_found_by_verifying_and_only_that_row_is_repaired(world: World) -> None:
    a = world.device("a")
    made = [a.add(f"memory {number}") for number in range(30)]
    a.sync()
    a.sql_while_closed("UPDATE memories SET content = 'nemory 7' WHERE memory_id = ?", made[7])
    world.network.records_read = 0
    assert a.sync().equal  # nobody reads every row each time
    rev = world.centre.user(USER).rev
    report = a.sync(verify=True)
    assert (report.reconciled, report.equal, report.changed) == (True, True, 1)
    assert world.network.records_read == 1
    assert a.text(made[7]) == "memory 7"
    assert world.centre.user(USER).rev == rev
    assert_same(world, a)


@pytest.mark.parametrize(
    "damage",
    [
        "content = content || '!'",
        "stamps = json_set(stamps, '$.\"*\"', '1700000000000.0.ffff')",
        "stamps = 'no json'",
        "tags = '[\"forged\"]'",
        "metadata = '{'",
        "extra = 'no json'",
        "shadow_hash = shadow_hash + 1",
    ],
)
def test_whatever_is_damaged_in_a_row_that_its_hash_covers_is_repaired(world: World, damage: str) -> None:
    a = world.device("a")
    made = [a.add(f"memory {number}", tags=["t"]) for number in range(5)]
    a.sync()
    a.sql_while_closed(f"UPDATE memories SET {damage} WHERE memory_id = ?", made[2])
    before = world.centre.state(USER)
    report = a.sync(verify=True)
    assert report.equal
    assert world.centre.state(USER) == before
    assert_same(world, a)


def test_totals_that_no_memory_accounts_for_are_found_and_counted_anew_by_the_next_sync(world: World) -> None:
    a = world.device("a")
    a.add("kept")
    a.sync()
    a.sql_while_closed("UPDATE sync_state SET digest = digest + 1, live = live + 1")
    report = a.sync()
    assert (report.reconciled, report.changed, report.equal) == (True, 0, True)
    assert not a.sync().reconciled
    assert_same(world, a)


def test_a_hash_that_is_lost_is_found_by_verifying(world: World) -> None:
    a = world.device("a")
    a.add("kept")
    a.sync()
    a.sql_while_closed("UPDATE memories SET shadow_hash = NULL")
    [report] = a.memory.sync_now(USER, verify=True)
    assert (report.reconciled, report.equal) == (True, True)
    [report] = a.memory.sync_now(USER, verify=True)
    assert (report.reconciled, report.equal) == (False, True)


def test_a_hash_that_is_lost_takes_no_unsent_edit_with_it(world: World) -> None:
    a = world.device("a")
    made = a.add("first")
    a.sync()
    world.centre.tag(USER, made, add=["elsewhere"])
    a.sql_while_closed("UPDATE memories SET shadow_hash = NULL")
    way = altered(world, a)

    def edited(lines: list[bytes]) -> list[bytes]:
        way.pulled = list
        a.edit(made, "second, while the centre's version is on its way")
        return lines

    way.pulled = edited
    a.sync()
    settle(world, a)
    assert a.text(made) == "second, while the centre's version is on its way"
    assert world.centre.state(USER)[made].present_tags() == ("elsewhere",)


def test_a_bit_flipped_in_the_file_is_repaired(world: World) -> None:
    a = world.device("a")
    a.add("nothing to see here")
    made = a.add("the nightingale sings at night")
    a.sync()
    a.close()
    whole = a.file().read_bytes()
    at = whole.index(b"the nightingale sings")
    while at >= 0:  # in the row; words and terms are elsewhere in other forms
        whole = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        at = whole.find(b"the nightingale sings", at + 1)
    a.file().write_bytes(whole)
    a.open()
    assert a.text(made) == "uhe nightingale sings at night"
    assert a.sync(verify=True).equal
    assert a.text(made) == "the nightingale sings at night"
    assert_same(world, a)


def test_verifying_a_sound_replica_reads_nothing(world: World) -> None:
    a = world.device("a")
    for number in range(10):
        a.add(f"memory {number}")
    a.sync()
    world.network.round_trips = 0
    report = a.sync(verify=True)
    assert (report.reconciled, report.equal, world.network.round_trips) == (False, True, 1)


def test_a_day_after_the_last_one_a_sync_verifies_by_itself(world: World) -> None:
    a = world.device("a")
    made = a.add("as it was")
    a.sync()
    a.sql_while_closed("UPDATE memories SET content = 'as it was not'")
    world.later(86_400_000 - 1)
    a.sync()
    assert a.text(made) == "as it was not"
    world.later(2)
    a.sync()
    assert a.text(made) == "as it was"
    assert_same(world, a)


def test_a_row_that_is_missing_from_a_pull_is_fetched_in_the_same_session(world: World) -> None:
    a = world.device("a")
    way = Altered(world.network)
    a.dial = lambda: way
    a.reopen()
    for number in range(20):
        world.centre.add(USER, f"memory {number}")
    way.pulled = lambda lines: reframed(lines, lambda inner: [*inner[:7], *inner[8:]])
    report = a.sync()
    assert (report.reconciled, report.equal) == (True, True)
    assert report.pulled == 20  # nineteen and one
    assert_same(world, a)


def test_an_access_count_that_is_missing_from_a_pull_is_fetched_in_the_same_session(world: World) -> None:
    a = world.device("a")
    way = Altered(world.network)
    a.dial = lambda: way
    a.reopen()
    made = [world.centre.add(USER, f"memory {number}") for number in range(3)]
    a.sync()
    for memory_id in made:
        world.centre.touch(USER, memory_id)
    way.pulled = lambda lines: reframed(lines, lambda inner: inner[1:])
    assert a.sync().reconciled
    assert_same(world, a)


def test_a_deletion_that_is_missing_from_a_pull_is_noticed_in_the_same_session(world: World) -> None:
    a = world.device("a")
    way = Altered(world.network)
    a.dial = lambda: way
    a.reopen()
    made = [world.centre.add(USER, f"memory {number}") for number in range(3)]
    a.sync()
    world.centre.delete(USER, made[1])
    way.pulled = lambda lines: reframed(lines, lambda inner: inner[1:])
    assert a.sync().reconciled
    assert len(a.texts()) == 2
    assert_same(world, a)


def test_a_row_lost_from_the_file_is_fetched_when_everything_is_compared(world: World) -> None:
    a = world.device("a")
    made = [a.add(f"memory {number}") for number in range(5)]
    a.sync()
    a.sql_while_closed("DELETE FROM memories WHERE memory_id = ?", made[3])
    report = a.memory.reconcile(USER)
    assert (report.reconciled, report.equal) == (True, True)
    assert a.text(made[3]) == "memory 3"
    assert_same(world, a)


def test_a_centre_that_stays_different_is_named_and_nothing_is_lost(world: World) -> None:
    a = world.device("a")
    a.add("its own")
    a.sync()
    made = world.centre.add(USER, "never listed")
    rows = world.centre.user(USER).rows
    way, row = Altered(world.network), rows[made]
    rows[made] = type(row)(state=row.state, rev=row.rev, hash=row.hash + 1)  # a hash that no replica can compute
    a.dial = lambda: way
    a.reopen()
    with pytest.raises(SyncIncomplete):
        a.sync()
    assert a.status().condition is SyncCondition.DIFFERENT
    assert len(a.texts()) == 2
    rows[made] = row
    a.sync()
    assert_same(world, a)


# -- gone, and revoked


def test_a_memory_that_the_centre_has_purged_is_removed_when_everything_is_compared(world: World) -> None:
    a = world.device("a")
    made, kept = a.add("to be purged"), a.add("kept")
    a.sync()
    world.centre.purge(USER, made)
    report = a.sync()
    assert (report.reconciled, report.removed, report.conflicts) == (True, 1, 0)
    assert [memory.memory_id for memory in a.memory.list_memories(user_id=USER).items] == [kept]
    assert_same(world, a)


def test_an_edit_of_a_purged_memory_is_set_aside(world: World) -> None:
    a = world.device("a")
    made = a.add("to be purged")
    a.sync()
    world.centre.purge(USER, made)
    a.edit(made, "edited meanwhile")
    report = a.sync()
    assert (report.removed, report.conflicts) == (1, 1)
    assert a.conflicts() == [("gone", "edited meanwhile")]
    assert made not in world.centre.state(USER)
    assert_same(world, a)
    (entry,) = a.memory.conflicts(USER)
    restored = a.memory.restore_conflict(USER, entry.number)
    assert restored.memory_id != made
    a.sync()
    assert world.centre.state(USER)[restored.memory_id].value("content") == "edited meanwhile"


def test_recalls_of_a_purged_memory_do_not_bring_it_back(world: World) -> None:
    a = world.device("a")
    made = a.add("to be purged")
    a.sync()
    world.centre.purge(USER, made)
    a.touch(made, 3)
    a.sync()
    assert made not in world.centre.state(USER)
    assert a.texts() == []
    assert_same(world, a)


def test_a_revoked_device_is_wiped_and_says_how_much_was_never_sent(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    a = world.device("a")
    a.add("sent")
    a.memory.add_memory("of v", user_id="v")
    a.sync()
    a.memory.sync_now("v")
    a.add("never sent")
    a.edit(next(iter(a.states())), "edited, never sent")
    folder = a.file().parent
    world.centre.revoke(a.position().device)
    with caplog.at_level(logging.CRITICAL, "edge.sync.service"), pytest.raises(DeviceRevoked) as caught:
        a.sync()
    assert caught.value.unsent == 2
    assert not folder.exists()
    assert a.memory.list_memories(user_id=USER).items == ()
    with pytest.raises(NotFound):
        a.status()
    assert [memory.content for memory in a.memory.list_memories(user_id="v").items] == ["of v"]
    assert len(world.centre.user(USER).live()) == 1


def test_a_revoked_device_that_syncs_all_its_users_loses_only_the_revoked_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    a = world.device("a")
    a.add("of u")
    a.memory.add_memory("of v", user_id="v")
    a.memory.sync_now()
    world.centre.revoke(a.position().device)
    a.memory.add_memory("also of v", user_id="v")
    with caplog.at_level(logging.CRITICAL, "edge.sync.service"), pytest.raises(DeviceRevoked):
        a.memory.sync_now()
    assert len(world.centre.user("v").live()) == 2
    assert a.memory.sync_now()[0].user_id == "v"


def test_a_device_revoked_in_the_middle_of_a_session_is_wiped(world: World, caplog: pytest.LogCaptureFixture) -> None:
    a = world.device("a")
    a.add("sent")
    a.sync()
    way = Altered(world.network)
    device = a.position().device
    way.pushing = lambda _lines: world.centre.revoke(device)
    a.dial = lambda: way
    a.reopen()
    a.add("never sent")
    with caplog.at_level(logging.CRITICAL, "edge.sync.service"), pytest.raises(DeviceRevoked) as caught:
        a.sync()
    assert caught.value.unsent == 1
    assert not a.file().exists()
