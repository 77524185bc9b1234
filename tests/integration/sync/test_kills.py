"""A device is killed while it writes and syncs: what was acknowledged reaches the centre and every other device."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from edge.provider import EdgeMemory
from memory.core.errors import StoreUnavailable
from memory.postgres import migrations
from memory.postgres.centre import PostgresCentre, dial_centre
from memory.postgres.embedded import EmbeddedServer
from memory.testing.base import everything
from tests.integration.sync.sync_victim import USER, open_device
from tests.replicas import findings

KILLS = 40


class Killer:
    """Sends victims to work, and judges what they have left."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self.url = folder, url
        self.path, self._diary = folder / "replica", folder / "diary"
        self.held: dict[str, str] = {}
        self.deleted: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.sync.sync_victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, *, seed: int, steps: int, only: str | None = None) -> int:
        """Let a victim work; returns how it ended."""
        self._diary.unlink(missing_ok=True)
        order = {"path": str(self.path), "diary": str(self._diary), "url": self.url, "known": sorted(self.held)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**order, "seed": seed, "steps": steps, "only": only}) + "\n")
        self._process.stdin.flush()
        ended = int(self._process.stdout.readline())
        self._judge()
        return ended

    def _entries(self) -> list[dict[str, Any]]:
        if not self._diary.exists():
            return []
        return [json.loads(line) for line in self._diary.read_text(encoding="utf-8").splitlines()]

    def _judge(self) -> None:
        open_call = None
        for entry in self._entries():
            open_call = entry.get("begun")
            if "done" in entry and entry["text"] is None:
                self.held.pop(entry["done"], None)
                self.deleted.add(entry["done"])
            elif "done" in entry:
                self.held[entry["done"]] = entry["text"]
        found = self._everywhere()
        for memory_id, text in self.held.items():
            assert memory_id == open_call or found.get(memory_id) == text
        assert not self.deleted & found.keys()
        self.held = found

    def _everywhere(self) -> dict[str, str]:
        """What device, centre and a device that is new hold, which is the same."""
        number = len(list(self._folder.iterdir()))
        second = self._folder / f"second-{number}"
        with open_device(self.path, self.url) as first:
            here = _synced(first)
        with open_device(second, self.url) as other:
            there = _synced(other)
        assert findings(self.path) == {}
        assert here == there == self._at_centre()
        return here

    def _at_centre(self) -> dict[str, str]:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(
                "SELECT memory_id::text, content FROM memories WHERE user_id = %s", [USER]
            ).fetchall()
        return dict(rows)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(30) == 0


def _texts(device: EdgeMemory) -> dict[str, str]:
    return {one.memory_id: one.content for one in everything(device, USER)}


def _synced(device: EdgeMemory) -> dict[str, str]:
    """Sync until nothing moves; digests are equal then."""
    device.sync_now(USER)
    device.sync_now(USER)
    status = device.sync_status(USER)[0]
    assert (status.pending, status.pending_accesses, status.equal) == (0, 0, True)
    return _texts(device)


class Stopping:
    """A centre whose server dies at once, after so many more pushes have been committed."""

    def __init__(self, centre: PostgresCentre, server: EmbeddedServer) -> None:
        self._centre, self._server = centre, server
        self.dying: str | None = None
        self.died = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._centre, name)

    def push(self, lines: Sequence[bytes]) -> Iterable[bytes]:
        if self.dying == "before":
            self._die()
        answer = list(self._centre.push(lines))
        if self.dying == "after":
            self._die()
            raise StoreUnavailable("the answer is lost with the server")
        return answer

    def _die(self) -> None:
        self.dying, self.died = None, self.died + 1
        pid = self._server.pid
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)  # what pg_ctl stop -m immediate does


@pytest.mark.timeout(120)
def test_a_server_that_dies_during_a_push_is_sent_it_again(reachable: Path, tmp_path: Path) -> None:
    centres: list[Stopping] = []
    server = EmbeddedServer(reachable / "postgres")
    migrations.upgrade(server.start())
    try:

        def dial() -> Stopping:
            centres.append(Stopping(dial_centre(server.url(), None, pool_size=2, timeout=5), server))
            return centres[-1]

        with open_device(tmp_path / "first", server.url(), dial=dial) as device:
            device.sync_now(USER)
            for when in ("before", "after"):
                device.add_memory(f"written {when} the end", user_id=USER)
                centres[-1].dying = when
                with pytest.raises(StoreUnavailable):
                    device.sync_now(USER)
                server.stop()
                server.start()
                _try_again(device)
                here = _synced(device)
        assert sum(centre.died for centre in centres) == 2
        with open_device(tmp_path / "second", server.url()) as other:
            assert _synced(other) == here
        assert sorted(here.values()) == ["written after the end", "written before the end"]
    finally:
        server.stop()


def _try_again(device: EdgeMemory) -> None:
    """Connections that broke while nobody used them are found out by use: the first sync may still fail."""
    with contextlib.suppress(StoreUnavailable):
        device.sync_now(USER)


@pytest.fixture
def killer(tmp_path: Path, database_url: str) -> Iterator[Killer]:
    one = Killer(tmp_path, database_url)
    yield one
    one.close()


@pytest.mark.timeout(300)
def test_random_kills_lose_nothing_anywhere(killer: Killer) -> None:
    chance, killed = random.Random(20_27), 0
    while killed < KILLS:
        killed += killer.send(seed=chance.getrandbits(32), steps=chance.randrange(1, 60)) == -signal.SIGKILL
    assert killer.held


@pytest.mark.parametrize("step", ["push acknowledged", "page received", "reconciled"])
def test_a_kill_at_each_step_of_sync_loses_nothing(killer: Killer, step: str) -> None:
    assert killer.send(seed=1, steps=0) == 0
    ended = [killer.send(seed=2 + nth, steps=nth, only=step) for nth in (1, 2)]
    assert -signal.SIGKILL in ended, f"no victim came to the step {step!r}"
