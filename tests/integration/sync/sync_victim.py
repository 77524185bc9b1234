"""A device that is killed at work. One process stays and forks a victim for each order, so that dying is cheap."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.opening import EdgeSettings, open_storage
from edge.provider import EdgeMemory, SyncSettings
from edge.vectors.engine import EdgeEngineFactory
from memory.connect import SystemClock
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import EngineSettings
from memory.postgres.centre import dial_centre
from tests.integration.edge.victim import TEXTS, Diary, take_orders
from tests.replicas import nothing, storage_of

USER = "u"
NEVER = 86_400.0


def open_device(
    path: Path, url: str, step: Callable[[str], None] = nothing, *, dial: Callable[[], Any] | None = None
) -> EdgeMemory:
    """A device that syncs only when told to."""
    embedder, clock = HashingEmbedder(dimension=16), SystemClock()
    quiet = EdgeSettings(drain_interval=NEVER, tidy_interval=NEVER)
    storage = open_storage(path, embedder, clock, lambda _: EdgeEngineFactory(), quiet, step=step)
    settings = EngineSettings(flush_interval=NEVER, retry_interval=NEVER)
    return EdgeMemory(
        storage,
        embedder,
        clock,
        settings,
        dial=dial or (lambda: dial_centre(url, None, pool_size=2, timeout=5)),
        sync=SyncSettings(background=False),
    )


def work(order: dict[str, Any]) -> None:
    """Write and sync at random until death, or the end."""
    chance, left, only = random.Random(order["seed"]), order["steps"], order.get("only")

    def step(name: str) -> None:
        nonlocal left
        if only is None or name == only:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    diary, known = Diary(Path(order["diary"])), list(order["known"])
    device = open_device(Path(order["path"]), order["url"], step)
    if only == "reconciled":
        device.add_memory("before", user_id=USER)
        device.reconcile(USER)
    for _ in range(20):
        call(device, chance, known, diary)
    device.close()


def call(device: EdgeMemory, chance: random.Random, known: list[str], diary: Diary) -> None:
    """One random call, noted before and after."""
    kind = chance.choice(["add", "add", "edit", "delete", "sync", "sync", "drain"])
    if kind == "sync":
        device.sync_now(USER)
    elif kind == "drain":
        storage_of(device).drain()
    elif kind == "add":
        text = f"{chance.choice(TEXTS)} {chance.randrange(10**9)}"
        known.append(device.add_memory(text, user_id=USER).memory_id)
        diary.note(done=known[-1], text=text)
    elif known:
        memory_id = known.pop(chance.randrange(len(known)))
        diary.note(begun=memory_id)
        if kind == "delete":
            device.delete_memory(memory_id, user_id=USER)
            diary.note(done=memory_id, text=None)
        else:
            text = f"{chance.choice(TEXTS)} {chance.randrange(10**9)}"
            device.update_memory(memory_id, user_id=USER, content=text)
            known.append(memory_id)
            diary.note(done=memory_id, text=text)


if __name__ == "__main__":
    take_orders(work)
