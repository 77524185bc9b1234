"""What travels and what does not: no echo, no record for a recall, nothing when nothing has happened."""

from __future__ import annotations

from typing import Any

import pytest

from edge import replica
from memory.core.framing import decode_line
from memory.core.sync import Hello, PullRequest
from tests.integration.sync.devices import USER, World, altered, assert_same, fill

# -- no echo, no idle work


def test_what_a_device_has_pushed_is_not_sent_back_to_it(world: World) -> None:
    a = world.device("a")
    made = fill(a, 30)
    a.sync(page_lines=10)
    a.edit(made[0], "edited")
    a.touch(made[1], 4)
    a.delete(made[2])
    a.sync()
    assert world.network.records_read == 0
    assert_same(world, a)


def test_the_push_of_another_device_in_between_is_received(world: World) -> None:
    a, b = world.pair()
    fill(a, 3)
    a.sync()
    fill(b, 3)
    b.sync()
    fill(a, 3)
    a.sync()
    b.sync()
    assert_same(world, a, b)


def test_an_idle_sync_is_one_call_that_reads_and_sends_nothing(world: World) -> None:
    a, b = world.pair()
    fill(a, 30)
    a.sync()
    b.sync()
    b.touch(next(iter(b.states())))
    b.sync()
    a.sync()
    rev = world.centre.user(USER).rev
    for device in (a, b):
        world.network.records_read = world.network.records_sent = world.network.round_trips = 0
        report = device.sync()
        assert (world.network.records_read, world.network.records_sent, world.network.round_trips) == (0, 0, 1)
        assert (report.round_trips, report.equal, report.reconciled) == (1, True, False)
    assert world.centre.user(USER).rev == rev


def test_recalls_at_the_centre_come_as_counts_and_not_as_records(world: World) -> None:
    a = world.device("a")
    made = [world.centre.add(USER, f"memory {number} " + "long " * 200) for number in range(10)]
    a.sync()
    way = altered(world, a)
    read: list[int] = []

    def measured(lines: list[bytes]) -> list[bytes]:
        read.append(sum(map(len, lines)))
        return lines

    way.pulled = measured
    for count in range(1_000):
        world.centre.touch(USER, made[count % 10])
    report = a.sync()
    assert report.pulled == 10
    assert sum(read) < 4_000
    assert a.memory.get_memory(made[0], user_id=USER).access_count == 100
    assert_same(world, a)


def test_recalls_on_a_device_go_as_counts_and_not_as_records(world: World) -> None:
    a = world.device("a")
    made = fill(a, 5)
    a.sync()
    sent: list[int] = []
    altered(world, a).pushing = lambda lines: sent.append(sum(map(len, lines)))
    for memory_id in made:
        a.touch(memory_id, 7)
    assert (a.status().pending, a.status().pending_accesses) == (0, 5)
    a.sync()
    assert len(sent) == 1
    assert sent[0] < 3_000
    assert world.centre.user(USER).head().accesses == 35
    assert_same(world, a)


def test_a_vector_travels_only_with_a_text_that_the_centre_does_not_have(world: World) -> None:
    a = world.device("a")
    sent: list[bool] = []

    def noted(lines: list[bytes]) -> None:
        sent.extend(decode_line(line, 1)["vector"] is not None for line in lines[1:-1])

    altered(world, a).pushing = noted
    made = a.add("new")
    a.sync()
    a.update(made, add_tags=["t"])
    a.sync()
    a.edit(made, "another text")
    a.sync()
    assert sent == [True, False, True]


def test_a_page_of_pushed_records_ends_after_the_line_that_goes_over_its_size(world: World) -> None:
    a = world.device("a")
    for number in range(6):
        a.add(f"{number} " + "x" * 900_000)
    pages: list[int] = []
    altered(world, a).pushing = lambda lines: pages.append(len(lines) - 2)
    a.sync()
    assert pages == [5, 1]
    assert_same(world, a)


def test_a_memory_added_and_deleted_before_the_first_sync_leaves_a_tombstone_only(world: World) -> None:
    a, b = world.pair()
    made = a.add("secret")
    a.delete(made)
    a.sync()
    b.sync()
    assert world.centre.state(USER)[made].deleted is not None
    assert a.texts() == b.texts() == []
    assert_same(world, a, b)


def test_a_queue_survives_closing_and_opening(world: World) -> None:
    a = world.device("a")
    made = fill(a, 4)
    a.sync()
    a.edit(made[0], "edited")
    a.delete(made[1])
    a.touch(made[2], 2)
    a.add("new")
    before = (a.status().pending, a.status().pending_accesses)
    assert before == (3, 1)
    a.reopen()
    assert (a.status().pending, a.status().pending_accesses) == before
    a.sync()
    assert_same(world, a)


def test_the_greeting_names_the_device_its_cursor_and_its_last_marks(world: World) -> None:
    a = world.device("a")
    greetings: list[Hello] = []
    real = world.centre.hello

    def noted(hello: Hello) -> Any:
        greetings.append(hello)
        return real(hello)

    world.centre.hello = noted  # type: ignore[method-assign]
    for number in range(12):
        a.add(f"memory {number}")
        a.sync()
    first, last = greetings[0], greetings[-1]
    assert (first.epoch, first.cursor, first.marks) == (None, 0, ())
    assert last.device == first.device != ""
    assert last.cursor == 11
    assert len(last.marks) == 10
    assert [mark.rev for mark in last.marks] == list(range(2, 12))


def test_the_pull_asks_from_the_cursor_on(world: World) -> None:
    a = world.device("a")
    asked: list[PullRequest] = []
    real = world.centre.pull

    def noted(request: PullRequest) -> Any:
        asked.append(request)
        return real(request)

    world.centre.pull = noted  # type: ignore[method-assign]
    for number in range(5):
        world.centre.add(USER, f"memory {number}")
    a.sync(page_lines=2)
    assert [(request.after, request.limit) for request in asked] == [(0, 2), (2, 2), (4, 2)]


def test_a_memory_that_comes_without_a_vector_gets_one_also_when_nothing_waited_before(world: World) -> None:
    a = world.device("a")
    a.add("its own")
    a.sync()
    assert a.memory.embed_pending() == 0
    world.centre.add(USER, "from elsewhere")
    a.sync()
    a.memory.embed_pending()
    [hit] = a.memory.recall("from elsewhere", user_id=USER, top_k=1)
    assert hit.memory.content == "from elsewhere"
    assert a.memory.stats(user_id=USER).pending_embeddings == 0


@pytest.mark.parametrize(("at_once", "most"), [(40, 40), (50_000, 100)])
def test_a_long_pull_stops_for_the_indexes_when_too_much_would_have_to_be_read_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch, at_once: int, most: int
) -> None:
    monkeypatch.setattr(replica, "RECEIVED_AT_ONCE", at_once)
    for number in range(100):
        world.centre.add(USER, f"memory {number}")
    a = world.device("a")
    a.sync(page_lines=10)
    waiting = a.memory.stats(user_id=USER).details["index_backlog_words"]
    assert (waiting <= most, waiting == 100) == (True, at_once > 100)
    with a.memory._edge.users.lease(USER) as opened:
        assert opened is not None
        assert not opened.is_receiving  # from here on it is the maintenance's business again
