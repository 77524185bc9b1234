"""Killed at any step: after opening again nothing acknowledged is lost, and file, words and index agree."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory.testing.base import everything
from tests.integration.edge.victim import USERS
from tests.replicas import findings, open_replica

KILLS = 200
STEPS = (
    "folder built",
    "folder in place",
    "marked as in use",
    "written",
    "committed",
    "points removed",
    "points written",
    "points flushed",
    "log cut",
    "mark removed",
)
Held = dict[tuple[str, str], tuple[str, str]]
"""(user, id) → (content, status)."""


class Killer:
    """Sends victims to work, and keeps what they have said they did."""

    def __init__(self, folder: Path) -> None:
        self.path, self._diary = folder / "replica", folder / "diary"
        self.held: Held = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.edge.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, *, seed: int, steps: int, only: str | None = None) -> int:
        """Let a victim work; returns how it ended. ``held`` is then what it has said, checked against the replica."""
        self._diary.unlink(missing_ok=True)
        order = {"path": str(self.path), "diary": str(self._diary), "seed": seed, "steps": steps, "only": only}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**order, "known": sorted(self.held)}) + "\n")
        self._process.stdin.flush()
        ended = int(self._process.stdout.readline())
        self._judge(self._read_diary())
        return ended

    def _read_diary(self) -> list[dict[str, Any]]:
        if not self._diary.exists():
            return []
        return [json.loads(line) for line in self._diary.read_text(encoding="utf-8").splitlines()]

    def _judge(self, entries: list[dict[str, Any]]) -> None:
        unanswered = entries[-1] if entries and "begun" in entries[-1] else None
        for entry in entries:
            if "begun" in entry and entry is not unanswered:
                apply(self.held, entry)
        with open_replica(self.path, track_access=False) as store:
            found = {
                (user, memory.memory_id): (memory.content, memory.status.value)
                for user in USERS
                for memory in everything(store, user)
            }
            if unanswered is not None:
                with_it = dict(self.held)
                apply(with_it, unanswered)
                assert found in (self.held, with_it)
                self.held = found
            assert found == self.held
            for (user, memory_id), (content, status) in list(found.items())[:3]:
                recalled = store.recall(content, user_id=user, filters={"statuses": [status]}, top_k=1_000)
                assert memory_id in [hit.memory.memory_id for hit in recalled]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(30) == 0


def apply(held: Held, entry: dict[str, Any]) -> None:
    """Do to the oracle what a call does."""
    key = (entry["user"], entry["id"])
    if entry["begun"] == "add":
        held[key] = (entry["text"], "active")
    elif entry["begun"] == "update":
        held[key] = (entry["text"], held[key][1])
    elif entry["begun"] == "archive":
        held[key] = (held[key][0], "archived")
    else:
        del held[key]


@pytest.fixture
def killer(tmp_path: Path) -> Iterator[Killer]:
    one = Killer(tmp_path)
    yield one
    one.close()


@pytest.mark.timeout(600)
def test_two_hundred_random_kills_lose_nothing(killer: Killer) -> None:
    chance = random.Random(20_26)
    killed = 0
    while killed < KILLS:
        steps = chance.randrange(1, 160)
        killed += killer.send(seed=chance.getrandbits(32), steps=steps) == -signal.SIGKILL
        if killed % 10 == 0:
            assert findings(killer.path) == {}
    assert findings(killer.path) == {}
    assert len(killer.held) > 50


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_durable_step_loses_nothing(killer: Killer, step: str) -> None:
    if not step.startswith("folder"):
        assert killer.send(seed=1, steps=0) == 0
    ended = [killer.send(seed=2 + nth, steps=nth, only=step) for nth in (1, 2)]
    assert -signal.SIGKILL in ended, f"no victim came to the step {step!r}"
    assert findings(killer.path) == {}
