"""Sync in the background: soon after writes on either side, patient when it fails, gone when it is closed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.sync import loop as loop_module
from edge.sync.report import SyncCondition
from memory.core.centre import SyncCentre
from memory.core.errors import StoreUnavailable
from memory.core.sync import Hello, Welcome, user_name
from tests.integration.sync.devices import USER, Device, World, assert_same, wait_until
from tests.sync.plain_centre import PlainCentre

THREAD = "memory sync"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    before = loops()
    with World(tmp_path) as made:
        yield made
    assert loops() <= before  # whoever is closed leaves no thread


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are waited out for a moment only."""
    monkeypatch.setattr(loop_module, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(loop_module, "LONGEST_PAUSE_SECONDS", 0.05)


def loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == THREAD}


def quiet(world: World, device: Device) -> Callable[[], bool]:
    """Whether a device has nothing left to send or to receive."""

    def holds() -> bool:
        if not device.memory._edge.users.exists(USER):
            return False
        status = device.status()
        done = status.condition is SyncCondition.DONE and status.cursor == world.centre.user(USER).rev
        return done and (status.pending, status.pending_accesses) == (0, 0)

    return holds


class Gate:
    """A centre that can be out of reach, or hold a device up in its greeting."""

    def __init__(self, centre: PlainCentre) -> None:
        self._centre = centre
        self.reachable = True
        self.greetings = 0
        self.failed = 0
        self.held: dict[str, threading.Event] = {}
        """By user: greetings wait for it."""
        self.waiting = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._centre, name)

    def hello(self, hello: Hello) -> Welcome:
        self.greetings += 1
        if not self.reachable:
            self.failed += 1
            raise StoreUnavailable("out of reach")
        if hello.user_id in self.held:
            self.waiting.set()
            assert self.held[hello.user_id].wait(20)
        return self._centre.hello(hello)


def test_a_write_on_one_device_shows_on_another_without_anybody_asking(world: World) -> None:
    a, b = world.device("a", background=True), world.device("b", background=True)
    b.memory.sync_now(USER)
    first = a.add("written on a")
    wait_until(lambda: first in b.states())
    b.edit(first, "edited on b")
    wait_until(lambda: a.text(first) == "edited on b")
    a.touch(first, 2)
    wait_until(lambda: b.memory.get_memory(first, user_id=USER).access_count == 2)
    a.delete(first)
    wait_until(lambda: b.texts() == [])
    wait_until(lambda: quiet(world, a)() and quiet(world, b)())
    assert_same(world, a, b)


def test_a_write_at_the_centre_shows_on_a_device_that_listens(world: World) -> None:
    a = world.device("a", background=True)
    a.add("its own")
    wait_until(quiet(world, a))
    made = world.centre.add(USER, "written at the centre")
    wait_until(lambda: made in a.states())


def test_without_the_background_nothing_is_sent_until_somebody_asks(world: World) -> None:
    a = world.device("a")
    a.add("its own")
    assert a.memory._loop._thread is None
    assert world.network.round_trips == 0
    a.sync()
    assert_same(world, a)


def test_a_device_that_misses_what_the_centre_tells_looks_at_intervals(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.centre, "listen", lambda _changed: None)
    a = world.device("a", background=True, interval=0.05)
    a.add("its own")
    wait_until(quiet(world, a))
    made = world.centre.add(USER, "nobody tells of it")
    wait_until(lambda: made in a.states())


@pytest.mark.usefixtures("hasty")
def test_a_centre_out_of_reach_is_tried_again_and_found_when_it_is_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(world.centre)
    gate.reachable = False
    a = world.device("a", background=True, dial=lambda: gate)
    with caplog.at_level(logging.INFO, "edge.sync.loop"):
        a.add("written while it is away")
        wait_until(lambda: gate.failed >= 3)
    assert a.status().condition is SyncCondition.UNREACHED
    assert a.status().problem == "out of reach"
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1  # once, not each time
    gate.reachable = True
    wait_until(quiet(world, a))
    assert a.status().problem is None
    assert_same(world, a)


def test_each_failure_is_waited_out_longer_up_to_a_limit_and_a_success_forgets_them(world: World) -> None:
    a = world.device("a")
    loop = a.memory._loop
    pauses = []
    for _ in range(30):
        began = time.monotonic()
        loop._put_off(USER, StoreUnavailable("away"))
        pauses.append(loop._due[USER] - began)
    for nth, pause in enumerate(pauses):
        wanted = min(loop_module.FIRST_PAUSE_SECONDS * 2**nth, loop_module.LONGEST_PAUSE_SECONDS)
        assert wanted * 0.79 < pause < wanted * 1.21
    assert len({round(pause, 3) for pause in pauses[-10:]}) > 5  # a thousand devices do not come back at once
    a.add("its own")
    loop._sync(USER)
    assert USER not in loop._failures


def test_writes_do_not_shorten_the_wait_after_a_failure_but_the_centre_does(world: World) -> None:
    a = world.device("a")
    loop = a.memory._loop
    loop._put_off(USER, StoreUnavailable("away"))
    due, now = loop._due[USER], time.monotonic()
    known = {user_name(USER): USER}
    loop.wrote(USER)
    loop._hasten(known, now)
    assert loop._due[USER] == due
    loop.told(user_name(USER))
    loop._hasten(known, now)
    assert loop._due[USER] == now


def test_a_user_whose_folder_cannot_be_read_keeps_nobody_else_from_syncing(world: World) -> None:
    a = world.device("a", background=True)
    (a.path / "users" / "strange").mkdir()
    a.add("its own")
    wait_until(quiet(world, a))
    assert_same(world, a)


@pytest.mark.usefixtures("hasty")
def test_what_nobody_expected_is_logged_and_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    gate, broken = Gate(world.centre), [ValueError("unheard of")]

    def push(lines: Any) -> Any:
        if broken:
            raise broken.pop()
        return world.centre.push(lines)

    gate.push = push  # type: ignore[attr-defined]
    a = world.device("a", background=True, dial=lambda: gate)
    with caplog.at_level(logging.ERROR, "edge.sync.loop"):
        a.add("its own")
        wait_until(quiet(world, a))
    assert "unexpectedly" in caplog.text


def test_a_revoked_device_is_wiped_in_the_background_and_the_loop_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    a = world.device("a", background=True)
    a.add("its own")
    a.memory.add_memory("of v", user_id="v")
    wait_until(quiet(world, a))
    wait_until(lambda: len(world.centre.user("v").live()) == 1)
    with caplog.at_level(logging.CRITICAL, "edge.sync.service"):
        world.centre.revoke(a.position().device)
        world.centre.add(USER, "one more")
        wait_until(lambda: not a.memory._edge.users.exists(USER))
    a.memory.add_memory("also of v", user_id="v")
    wait_until(lambda: len(world.centre.user("v").live()) == 2)
    assert not a.memory._edge.users.exists(USER)


# -- no centre at all


@pytest.mark.usefixtures("hasty")
def test_without_any_network_at_open_local_work_goes_on_and_is_sent_later(world: World) -> None:
    reached = threading.Event()

    def dial() -> SyncCentre:
        if not reached.is_set():
            raise StoreUnavailable("no network")
        return world.network

    a = world.device("a", background=True, dial=dial)
    made = a.add("written offline")
    a.edit(made, "edited offline")
    assert [hit.memory.content for hit in a.memory.recall("edited offline", user_id=USER)] == ["edited offline"]
    assert a.status().pending == 1
    wait_until(lambda: a.status().condition is SyncCondition.UNREACHED)
    reached.set()
    wait_until(quiet(world, a))
    a.memory.flush()
    wait_until(quiet(world, a))
    assert world.centre.state(USER)[made].value("content") == "edited offline"


def unreachable() -> SyncCentre:
    raise StoreUnavailable("no network")


def test_a_centre_that_the_loop_cannot_dial_is_named_by_the_status(world: World) -> None:
    a = world.device("a", background=True, dial=unreachable)
    a.add("written offline")
    wait_until(lambda: bool(a.memory._loop._failures))
    assert a.status().condition is SyncCondition.UNREACHED
    assert a.status().problem == "no network"


def test_a_centre_that_cannot_be_dialled_when_asked_to_is_named_by_the_status(world: World) -> None:
    a = world.device("a", dial=unreachable)
    a.add("written offline")
    with pytest.raises(StoreUnavailable):
        a.sync()
    assert a.status().condition is SyncCondition.UNREACHED


# -- the end


def test_closing_ends_the_thread_and_listens_no_more(world: World) -> None:
    a = world.device("a", background=True)
    a.add("its own")
    wait_until(quiet(world, a))
    wait_until(lambda: len(world.centre._listeners) == 1)
    thread = a.memory._loop._thread
    assert thread is not None
    a.close()
    assert not thread.is_alive()
    assert world.centre._listeners == []
    a.close()  # again, without effect
    a.open()
    wait_until(quiet(world, a))


def test_closing_waits_for_the_request_that_is_under_way_and_the_next_session_goes_on(world: World) -> None:
    gate = Gate(world.centre)
    a = world.device("a", background=True, dial=lambda: gate)
    gate.held[USER] = threading.Event()
    a.add("its own")
    assert gate.waiting.wait(20)
    closing = threading.Thread(target=a.close)
    closing.start()
    wait_until(lambda: a.memory._loop._stopping)
    closing.join(0.3)
    assert closing.is_alive()
    gate.held[USER].set()
    closing.join(20)
    assert not closing.is_alive()
    a.reopen()
    a.memory.sync_now(USER)
    assert len(world.centre.user(USER).live()) == 1


def test_closing_does_not_wait_for_what_is_put_off(world: World) -> None:
    gate = Gate(world.centre)
    gate.reachable = False
    a = world.device("a", background=True, dial=lambda: gate)
    a.add("its own")
    wait_until(lambda: gate.failed >= 1)
    began = time.monotonic()
    a.close()
    assert time.monotonic() - began < 10  # the next attempt is due in hours


def test_a_user_removed_while_others_are_synced_does_not_come_back(world: World) -> None:
    gate = Gate(world.centre)
    a = world.device("a", background=True, dial=lambda: gate)
    for user_id in (USER, "v"):
        a.memory.add_memory("text", user_id=user_id)
    wait_until(quiet(world, a))
    wait_until(lambda: len(world.centre.user("v").live()) == 1)
    gate.waiting.clear()
    gate.held[USER] = threading.Event()
    a.memory._loop.told("")
    assert gate.waiting.wait(20)
    a.memory.forget_user("v")
    before = gate.greetings
    gate.waiting.clear()
    gate.held.pop(USER).set()
    a.memory._loop.told("")
    wait_until(lambda: gate.greetings > before)
    a.memory._loop.stop()
    assert a.memory._edge.users.known() == [USER]
