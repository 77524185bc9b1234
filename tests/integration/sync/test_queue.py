"""What waits to be sent: nothing twice, nothing lost, nothing that is not new; and what a first sync takes up again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from memory.core.errors import StoreDenied, StoreUnavailable
from memory.core.state import Changes
from tests.integration.sync.devices import USER, World, altered, assert_same, fill
from tests.sync.ports import Crash


def once(error: Exception) -> Callable[[list[bytes]], Sequence[bytes]]:
    """Lose one answer, and then no more."""
    left = [error]

    def lose(lines: list[bytes]) -> Sequence[bytes]:
        if left:
            raise left.pop()
        return lines

    return lose


def test_a_push_whose_answer_was_lost_is_repeated_without_effect(world: World) -> None:
    a = world.device("a")
    made = a.add("sent twice")
    a.sync()
    a.edit(made, "edited, and sent twice")
    a.touch(made, 3)
    altered(world, a).answered = once(StoreUnavailable("the answer is lost"))
    with pytest.raises(StoreUnavailable):
        a.sync()
    rev, state = world.centre.user(USER).rev, world.centre.state(USER)
    assert state[made].value("content") == "edited, and sent twice"
    assert a.status().pending == 1
    a.sync()
    assert (world.centre.user(USER).rev, world.centre.state(USER)) == (rev, state)
    assert_same(world, a)


def test_an_edit_made_before_the_answer_to_a_push_goes_with_the_next_page(world: World) -> None:
    a = world.device("a")
    made = a.add("first")
    a.sync()
    a.edit(made, "second")
    a.touch(made, 3)

    def meanwhile() -> None:
        a.edit(made, "third")
        a.touch(made)

    world.network.after_push = meanwhile
    report = a.sync()
    assert report.pushed == 2
    assert world.centre.user(USER).head().accesses == 4
    assert world.centre.state(USER)[made].value("content") == "third"
    assert_same(world, a)


@pytest.mark.parametrize("what", ["new", "deleted", "recalled"])
def test_whatever_changes_before_the_answer_to_a_push_is_sent(world: World, what: str) -> None:
    a = world.device("a")
    made = fill(a, 3)
    a.touch(made[1])
    changes: dict[str, Callable[[], object]] = {
        "new": lambda: a.add("new meanwhile"),
        "deleted": lambda: a.delete(made[1]),
        "recalled": lambda: a.touch(made[1], 2),
    }
    world.network.after_push = changes[what]  # type: ignore[assignment]  # what it returns does not matter
    a.sync()
    assert_same(world, a)


def test_a_recall_made_before_the_answer_to_a_push_of_recalls_is_sent(world: World) -> None:
    a = world.device("a")
    made = a.add("recalled")
    a.sync()
    a.touch(made, 3)
    world.network.after_push = lambda: a.touch(made, 2)
    a.sync()
    assert world.centre.user(USER).head().accesses == 5
    assert_same(world, a)


def test_an_old_push_that_arrives_late_changes_nothing(world: World) -> None:
    a = world.device("a")
    edited, deleted, counted = fill(a, 3)
    way = altered(world, a)
    pages: list[list[bytes]] = []
    way.pushing = pages.append
    a.touch(counted, 2)
    a.sync()
    world.later()
    a.edit(edited, "newer")
    a.delete(deleted)
    a.touch(counted, 2)
    a.sync()
    rev, state = world.centre.user(USER).rev, world.centre.state(USER)
    for page in (*pages, *reversed(pages)):
        list(world.centre.push(page))
    assert (world.centre.user(USER).rev, world.centre.state(USER)) == (rev, state)
    a.sync()
    assert_same(world, a)


def test_of_five_hundred_records_the_one_that_breaks_a_rule_is_set_aside_and_the_rest_is_stored(world: World) -> None:
    a = world.device("a")
    made = fill(a, 500)
    a.close()
    a.sql("UPDATE memories SET importance = -3 WHERE memory_id = ?", made[250])
    a.open()
    report = a.sync()
    assert (report.pushed, report.rejected) == (499, 1)
    assert set(world.centre.state(USER)) == {*made} - {made[250]}
    assert a.conflicts() == [("rejected", "memory 250")]
    assert a.status().pending == 0
    world.network.records_sent = 0
    a.sync()
    assert world.network.records_sent == 0


@pytest.mark.parametrize("error", [StoreDenied("401"), StoreUnavailable("503"), OSError("unheard of")])
def test_an_error_in_the_middle_of_page_three_of_ten_keeps_the_first_two_and_quarantines_nothing(
    world: World, error: Exception
) -> None:
    a = world.device("a")
    fill(a, 100)
    way, seen = altered(world, a), [0]

    def third_fails(_lines: list[bytes]) -> None:
        seen[0] += 1
        if seen[0] == 3:
            raise error

    way.pushing = third_fails
    with pytest.raises(type(error)):
        a.sync(page_lines=10)
    assert len(world.centre.state(USER)) == 20
    assert a.status().pending == 80
    assert a.conflicts() == []
    world.network.records_sent = 0
    a.sync(page_lines=10)
    assert world.network.records_sent == 80
    assert_same(world, a)


def test_ten_thousands_of_edits_on_a_hundred_memories_push_a_hundred_records(world: World) -> None:
    a = world.device("a")
    made = fill(a, 100)
    a.sync()
    for count in range(20_000):
        a.memory._storage.change(
            USER, made[count % 100], Changes(scalars={"importance": count / 20_000}), text=None, expected_version=None
        )
    assert a.status().pending == 100
    world.network.records_sent = 0
    a.sync()
    assert world.network.records_sent == 100
    assert_same(world, a)


# -- a first sync


class Killed:
    """Ends the process, so to speak, at the nth of a step."""

    def __init__(self, step: str, nth: int) -> None:
        self._step, self._left = step, nth

    def __call__(self, name: str) -> None:
        if name == self._step:
            self._left -= 1
            if self._left == 0:
                raise Crash


def test_a_first_sync_that_is_killed_between_pages_goes_on_from_its_cursor(world: World) -> None:
    for number in range(100):
        world.centre.add(USER, f"memory {number}")
    a = world.device("a", step=Killed("page received", 4))
    with pytest.raises(Crash):
        a.sync(page_lines=10)
    assert world.network.records_read == 40
    a.step = lambda _name: None
    a.reopen()
    assert len(a.states()) == 40
    a.sync(page_lines=10)
    assert world.network.records_read == 100
    assert_same(world, a)


def test_a_page_that_was_lost_on_its_way_is_the_only_one_read_again(world: World) -> None:
    for number in range(100):
        world.centre.add(USER, f"memory {number}")
    a = world.device("a")
    altered(world, a).pulled = _fail_at(5)
    with pytest.raises(StoreUnavailable):
        a.sync(page_lines=10)
    assert a.position().cursor == 40
    a.sync(page_lines=10)
    assert world.network.records_read == 110
    assert_same(world, a)


def _fail_at(nth: int) -> Callable[[list[bytes]], Sequence[bytes]]:
    seen = [0]

    def pass_on(lines: list[bytes]) -> Sequence[bytes]:
        seen[0] += 1
        if seen[0] == nth:
            raise StoreUnavailable("lost")
        return lines

    return pass_on


def test_a_first_sync_of_a_device_that_has_written_already_joins_both(world: World) -> None:
    theirs = [world.centre.add(USER, f"theirs {number}") for number in range(5)]
    a = world.device("a")
    ours = fill(a, 5)
    report = a.sync(page_lines=2)
    assert (report.pushed, report.changed, report.equal) == (5, 5, True)
    assert set(a.states()) == {*theirs, *ours}
    assert_same(world, a)
