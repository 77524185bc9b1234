"""Removing a user from a device: nothing of them stays on its disk, wherever it is cut short, and others stay whole."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable

import pytest

from edge import users
from edge.directory import folder_name
from edge.vectors.engine import EdgeEngineFactory
from edge.vectors.port import IndexFactory, Place
from memory.core.centre import SyncCentre
from memory.core.errors import NotFound, StoreBusy, StoreUnavailable, VectorIndexUnavailable
from tests.integration.sync.devices import USER, Device, World, assert_same
from tests.plain_index import PlainFactory
from tests.sync.ports import Crash

SECRET = "the heron nests behind the mill"
OTHER = "v"


def engine(_replica: str) -> IndexFactory:
    return EdgeEngineFactory()


@pytest.fixture
def device(world: World) -> Device:
    """Two users, their vectors in files; of the one something has not been sent."""
    device = world.device("a", index=engine)
    device.add(SECRET, tags=["heron"])
    device.memory.add_memory("of v", user_id=OTHER)
    device.memory.sync_now()
    device.memory._edge.drain()
    return device


def traces(device: Device) -> list[str]:
    """Files that still hold something of the user: by name, by text, by owner."""
    found = []
    for path in device.path.rglob("*"):
        held = b""
        with contextlib.suppress(FileNotFoundError):  # files of other users' indexes come and go
            held = path.read_bytes() if path.is_file() else b""
        if folder_name(USER) in str(path) or SECRET.encode() in held or held == USER.encode():
            found.append(str(path.relative_to(device.path)))
    return found


def other_is_whole(device: Device) -> None:
    assert [memory.content for memory in device.memory.list_memories(user_id=OTHER).items] == ["of v"]
    assert [hit.memory.content for hit in device.memory.recall("of v", user_id=OTHER)] == ["of v"]
    assert device.memory.sync_now(OTHER)[0].equal


def stop_at(step: str) -> Callable[[str], None]:
    """Ends the process, so to speak, when a step is done."""

    def told(name: str) -> None:
        if name == step:
            raise Crash

    return told


def test_a_removed_user_leaves_nothing_on_the_device_and_everything_at_the_centre(world: World, device: Device) -> None:
    assert traces(device)
    assert device.memory.forget_user(USER) == 0
    assert traces(device) == []
    assert device.memory.list_memories(user_id=USER).items == ()
    with pytest.raises(NotFound):
        device.status()
    assert len(world.centre.user(USER).live()) == 1
    other_is_whole(device)
    assert device.memory._edge.users.known() == [OTHER]


def test_what_was_not_sent_is_sent_before_the_user_is_removed(world: World, device: Device) -> None:
    made = device.add("written last")
    device.touch(made, 2)
    assert device.memory.forget_user(USER) == 0
    found = world.centre.state(USER)[made]
    assert (found.value("content"), sum(found.accesses.values())) == ("written last", 2)


def test_what_cannot_be_sent_any_more_is_counted(world: World, device: Device) -> None:
    device.add("never sent")
    device.edit(next(iter(device.states())), "edited, never sent")
    reachable = device.dial

    def unreachable() -> SyncCentre:
        raise StoreUnavailable("no network")

    device.dial = unreachable
    device.reopen()
    assert device.memory.forget_user(USER) == 2
    assert traces(device) == []
    device.dial = reachable
    other_is_whole(device)


@pytest.mark.parametrize("step", ["wipe begun", "wiped"])
def test_a_removal_cut_short_at_a_step_is_finished_when_the_directory_is_opened_next(
    world: World, device: Device, step: str
) -> None:
    device.step = stop_at(step)
    with pytest.raises(Crash):
        device.memory.forget_user(USER)
    device.step = lambda _name: None
    assert device.memory.list_memories(user_id=USER).items == ()  # gone from the first step on
    device.reopen()
    assert traces(device) == []
    assert device.memory._edge.users.known() == [OTHER]
    other_is_whole(device)


def test_a_removal_cut_short_after_any_file_is_finished_when_the_directory_is_opened_next(
    world: World, device: Device
) -> None:
    device.step = stop_at("wipe begun")
    with pytest.raises(Crash):
        device.memory.forget_user(USER)
    device.step = lambda _name: None
    device.close()
    (begun,) = (device.path / "users").glob(".wiped-*")
    kept = shutil.copytree(begun, world.folder / "kept")
    names = sorted((path.name for path in kept.iterdir()), key=lambda name: name == "user.txt")
    assert len(names) >= 3
    for removed in range(len(names) + 1):
        shutil.rmtree(begun, ignore_errors=True)
        shutil.copytree(kept, begun)
        for name in names[:removed]:
            path = begun / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        device.open()
        assert traces(device) == []
        assert not begun.exists()
        device.close()
    device.open()
    other_is_whole(device)


def test_a_user_may_come_back_after_having_been_removed(world: World, device: Device) -> None:
    device.memory.forget_user(USER)
    assert device.memory.sync_now(USER)[0].changed == 1
    assert device.texts() == [SECRET]
    device.add("written after coming back")
    device.sync()
    assert_same(world, device)


def test_a_user_who_comes_back_after_a_removal_was_cut_short_is_not_removed_again(world: World, device: Device) -> None:
    device.step = stop_at("wipe begun")
    with pytest.raises(Crash):
        device.memory.forget_user(USER)
    device.step = lambda _name: None
    made = device.add("a new beginning")
    device.reopen()
    assert device.text(made) == "a new beginning"
    device.sync()
    assert_same(world, device)


def test_removing_a_user_who_is_not_here_says_so(device: Device) -> None:
    device.memory.forget_user(USER)
    with pytest.raises(NotFound):
        device.memory.forget_user(USER)
    with pytest.raises(NotFound):
        device.memory.forget_user("nobody")


def test_a_removal_waits_for_the_call_that_is_under_way(device: Device) -> None:
    gone = threading.Event()

    def forget() -> None:
        device.memory.forget_user(USER)
        gone.set()

    thread = threading.Thread(target=forget)
    with device.memory._edge.users.lease(USER) as replica:
        assert replica is not None
        thread.start()
        while USER not in device.memory._edge.users._leaving:
            assert thread.is_alive()
        assert not gone.wait(0.1)
        with replica.database.read() as connection:
            assert connection.execute("SELECT count(*) FROM memories").fetchone() == (1,)
    assert gone.wait(20)
    thread.join()
    assert traces(device) == []


def test_a_removal_gives_up_when_a_call_does_not_end_and_removes_nothing(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "WIPE_TIMEOUT_SECONDS", 0.05)
    with device.memory._edge.users.lease(USER), pytest.raises(StoreBusy):
        device.memory.forget_user(USER)
    assert device.texts() == [SECRET]
    assert device.memory.forget_user(USER) == 0


def test_a_call_that_comes_while_a_user_is_removed_finds_nothing(device: Device) -> None:
    found: list[int] = []
    looking = threading.Event()

    def look(name: str) -> None:
        if name == "wipe begun":
            thread.start()
            assert looking.wait(20)

    def read() -> None:
        looking.set()
        found.append(len(device.memory.list_memories(user_id=USER).items))

    thread = threading.Thread(target=read)
    device.step = look
    device.memory.forget_user(USER)
    thread.join()
    assert found == [0]


# -- a Qdrant server


class Server(PlainFactory):
    """An index that is somewhere else, and may not answer."""

    answers = True

    def __init__(self) -> None:
        super().__init__()
        self.discarded: list[str] = []

    def discard(self, place: Place) -> None:
        if not self.answers:
            raise VectorIndexUnavailable("no answer")
        self.discarded.append(place.user_id)


def test_vectors_on_a_server_that_does_not_answer_are_removed_when_the_directory_is_opened_next(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    device = world.device("a", index=lambda _replica: server)
    device.add(SECRET)
    device.memory.add_memory("of v", user_id=OTHER)
    device.memory.sync_now()
    server.answers = False
    with caplog.at_level(logging.WARNING, "edge.wiping"):
        device.memory.forget_user(USER)
    assert "Qdrant server" in caplog.text
    (left,) = (device.path / "users").glob(".wiped-*")
    assert [path.name for path in left.iterdir()] == ["user.txt"]
    assert device.memory.list_memories(user_id=USER).items == ()
    device.reopen()  # it still does not answer, which keeps nobody from working
    other_is_whole(device)
    assert left.exists()
    server.answers = True
    device.reopen()
    assert server.discarded == [USER]
    assert traces(device) == []
    assert not left.exists()
    other_is_whole(device)
