"""Devices for tests of sync: real replicas before a plain centre, with clocks and networks that tests set."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from edge.directory import folder_name
from edge.opening import EdgeSettings, open_storage
from edge.provider import EdgeMemory, SyncSettings
from edge.replica import DATABASE_FILE
from edge.sqlite import outbox, syncing
from edge.sqlite.rows import SELECT_STATE, read_state
from edge.sync.report import SyncReport, SyncStatus
from edge.vectors.port import IndexFactory
from memory.core.centre import SyncCentre
from memory.core.clock import parse_stamp
from memory.core.model import NewMemory
from memory.core.provider import MemoryProvider
from memory.core.state import State, as_memory
from memory.core.sync import PULL, read_page, write_page
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import EngineSettings
from memory.engine.storage import Touch
from memory.testing.base import everything
from tests.plain_index import PlainFactory
from tests.replicas import nothing
from tests.sync.faults import FaultyCarrier
from tests.sync.oracle import difference, live
from tests.sync.plain_centre import PlainCentre

USER = "u"
START = 1_800_000_000_000
NEVER = 86_400.0
MakeIndex = Callable[[str], IndexFactory]
OpenDevice = Callable[..., EdgeMemory]
"""Opens a device of a name, with the centre of a URL and settings of ``memory.connect``."""


def texts(store: MemoryProvider, user_id: str) -> set[str]:
    """All texts of a user."""
    return {item.content for item in everything(store, user_id)}


class World:
    """The true time, a centre, the network before it, and the devices of one test."""

    def __init__(self, folder: Path) -> None:
        self.now = START
        self.folder = folder
        self.centre = PlainCentre(lambda: self.now, random.Random(1))
        self.network = FaultyCarrier(self.centre, random.Random(2))
        self._devices: list[Device] = []

    def device(self, name: str, **options: Any) -> Device:
        """A device with a directory of this name; ``options`` as of ``Device``."""
        made = Device(self, self.folder / name, **options)
        self._devices.append(made)
        return made

    def pair(self) -> tuple[Device, Device]:
        """Devices ``a`` and ``b``."""
        return self.device("a"), self.device("b")

    def later(self, ms: int = 1_000) -> None:
        """Let time pass."""
        self.now += ms

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for device in self._devices:
            device.memory.close()


class Device:
    """An ``EdgeMemory`` that a test looks into. Its clock is the true time plus ``ahead``."""

    def __init__(
        self,
        world: World,
        path: Path,
        *,
        dial: Callable[[], SyncCentre] | None = None,
        index: MakeIndex | None = None,
        step: Callable[[str], None] = nothing,
        background: bool = False,
        interval: float = NEVER,
    ) -> None:
        kept = PlainFactory()
        self.world, self.path, self.ahead = world, path, 0
        self.dial: Callable[[], SyncCentre] = dial or (lambda: world.network)
        self.index: MakeIndex = index or (lambda _replica: kept)
        self.step = step
        self._sync = SyncSettings(background=background, interval=interval)
        self.memory = self._open()

    def now(self) -> int:
        return self.world.now + self.ahead

    def _open(self) -> EdgeMemory:
        embedder = HashingEmbedder(dimension=16)
        quiet = EdgeSettings(synchronous="normal", drain_interval=NEVER, tidy_interval=NEVER)
        storage = open_storage(self.path, embedder, self, self.index, quiet, step=self._told)
        settings = EngineSettings(flush_interval=NEVER, retry_interval=NEVER)
        return EdgeMemory(storage, embedder, self, settings, dial=self._dialled, sync=self._sync)

    def _told(self, name: str) -> None:
        self.step(name)

    def _dialled(self) -> SyncCentre:
        return self.dial()

    # -- the verbs, for the one user that most tests are about

    def add(self, content: str, **values: Any) -> str:
        return self.memory.add_memory(content, user_id=USER, **values).memory_id

    def edit(self, memory_id: str, content: str) -> None:
        self.memory.update_memory(memory_id, user_id=USER, content=content)

    def update(self, memory_id: str, **changes: Any) -> None:
        self.memory.update_memory(memory_id, user_id=USER, **changes)

    def delete(self, memory_id: str) -> None:
        self.memory.delete_memory(memory_id, user_id=USER)

    def touch(self, memory_id: str, count: int = 1) -> None:
        touched = Touch(user_id=USER, memory_id=memory_id, count=count, last_access_at=self.now())
        self.memory._storage.touch([touched])

    def sync(self, *, page_lines: int | None = None, verify: bool = False) -> SyncReport:
        if page_lines is not None:
            report = self.memory._service.sync(USER, page_lines=page_lines, verify=verify)
            assert report is not None
            return report
        return self.memory.sync_now(USER, verify=verify)[0]

    def status(self) -> SyncStatus:
        return self.memory.sync_status(USER)[0]

    # -- looking

    def text(self, memory_id: str) -> str:
        return self.memory.get_memory(memory_id, user_id=USER).content

    def texts(self) -> list[str]:
        return sorted(memory.content for memory in everything(self.memory, USER))

    def states(self) -> dict[str, State]:
        """What the file holds of each memory, live and deleted."""
        with self.memory._edge.users.lease(USER) as replica:
            if replica is None:
                return {}
            with replica.database.read() as connection:
                found = {row[0]: read_state(row).state for row in connection.execute(SELECT_STATE)}
                dead = connection.execute("SELECT memory_id, stamp FROM memory_tombstones").fetchall()
        return found | {memory_id: State(deleted=parse_stamp(stamp)) for memory_id, stamp in dead}

    def position(self) -> syncing.SyncState:
        """What the replica knows of the centre."""
        with self.memory._edge.users.lease(USER) as replica:
            assert replica is not None
            with replica.database.read() as connection:
                return syncing.read_sync(connection)

    def shadows(self) -> tuple[int, int]:
        """Digest and number of the shadows, counted from scratch."""
        with self.memory._edge.users.lease(USER) as replica:
            assert replica is not None
            with replica.database.read() as connection:
                return syncing.count_shadows(connection)

    def accesses_acked(self) -> int:
        """Accesses that the centre has, as the replica sees it."""
        with self.memory._edge.users.lease(USER) as replica:
            assert replica is not None
            with replica.database.read() as connection:
                return outbox.sum_acked(connection)

    def conflicts(self) -> list[tuple[str, str | None]]:
        """(reason, text) of the log, oldest first."""
        return [(entry.reason, entry.content) for entry in self.memory.conflicts(USER)]

    # -- life

    def sql(self, statement: str, *params: Any, user_id: str = USER) -> list[tuple[Any, ...]]:
        """Run a statement on a user's file behind the replica's back; the device should be closed."""
        with closing(sqlite3.connect(self.file(user_id), isolation_level=None)) as connection:
            return connection.execute(statement, params).fetchall()

    def sql_while_closed(self, statement: str, *params: Any) -> None:
        """Close, run a statement on the user's file, and open again."""
        self.close()
        self.sql(statement, *params)
        self.open()

    def file(self, user_id: str = USER) -> Path:
        return self.path / "users" / folder_name(user_id) / DATABASE_FILE

    def close(self) -> None:
        self.memory.close()

    def open(self) -> None:
        self.memory = self._open()

    def reopen(self) -> None:
        self.close()
        self.open()

    def backup(self) -> Path:
        """A copy of the directory, made while it is closed."""
        target = self.path.with_name(f"{self.path.name}-backup")
        self.close()
        shutil.copytree(self.path, target)
        self.open()
        return target

    def restore(self, backup: Path) -> None:
        self.close()
        shutil.rmtree(self.path)
        shutil.copytree(backup, self.path)
        self.open()


def assert_same(world: World, *devices: Device) -> None:
    """Every device is as the centre is: memories as seen, counts, digests; nothing waits to be sent."""
    centre, head = world.centre.state(USER), world.centre.user(USER).head()
    for device in devices:
        assert difference(live(device.states()), live(centre)) == ""
        assert seen(device) == {
            memory_id: _as_seen(as_memory(memory_id, USER, state, version=""))
            for memory_id, state in live(centre).items()
        }
        here = device.position()
        assert (here.digest, here.live, here.cursor) == (head.digest, head.live, head.rev)
        assert device.shadows() == (head.digest, head.live)
        assert device.accesses_acked() == head.accesses
        status = device.status()
        assert (status.pending, status.pending_accesses, status.equal) == (0, 0, True)


def seen(device: Device) -> dict[str, tuple[Any, ...]]:
    """What a caller sees of each memory."""
    return {memory.memory_id: _as_seen(memory) for memory in everything(device.memory, USER)}


def _as_seen(memory: Any) -> tuple[Any, ...]:
    return (memory.content, memory.status, memory.tags, memory.metadata, memory.access_count, memory.importance)


class Altered:
    """A centre whose answers a test changes on their way: ``pulled``, ``answered``, ``welcomed`` stand in between."""

    def __init__(self, centre: SyncCentre) -> None:
        self._centre = centre
        self.pulled: Callable[[list[bytes]], Sequence[bytes]] = list
        self.answered: Callable[[list[bytes]], Sequence[bytes]] = list
        self.pushing: Callable[[list[bytes]], None] = nothing_said
        self.pulls: list[int] = []
        """Lines of each answer to a pull, begin and end not counted."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._centre, name)

    def push(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        self.pushing(list(lines))
        return self.answered(list(self._centre.push(lines)))

    def pull(self, request: Any) -> Sequence[bytes]:
        lines = list(self._centre.pull(request))
        self.pulls.append(len(lines) - 2)
        return self.pulled(lines)


def nothing_said(_lines: list[bytes]) -> None:
    """Let a push pass."""


def reframed(
    lines: Sequence[bytes],
    change: Callable[[list[bytes]], Sequence[bytes]] = list,
    *,
    stream: str = PULL,
    **fields: Any,
) -> list[bytes]:
    """A page with other lines or other fields that is valid again."""
    page = read_page(lines, stream).page
    return list(write_page(replace(page, **fields), change(list(lines[1:-1]))))


def wait_until(holds: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait for something that another thread brings about."""
    pause, waited = threading.Event(), 0.0
    while not holds():
        assert waited < seconds, "it does not come about"
        pause.wait(0.01)
        waited += 0.01


def settle(world: World, *devices: Device) -> None:
    """Sync until nothing moves, and compare."""
    for _ in range(3):  # what a pull finds to be above the centre's version goes there with the next sync
        for device in devices:
            device.sync()
    assert_same(world, *devices)


def fill(device: Device, count: int) -> list[str]:
    """Memories of which the centre does not know."""
    made = device.memory.add_many([NewMemory(content=f"memory {n}") for n in range(count)], user_id=USER)
    return [memory.memory_id for memory in made]


def altered(world: World, device: Device) -> Altered:
    """The device's way to the centre, to be broken by the test."""
    way = Altered(world.network)
    device.dial = lambda: way
    device.reopen()
    return way
