"""Programs that are killed at work. One process stays and forks a victim for each order, so that dying is cheap.

An order is a line of JSON: where the replica is, a seed, and after how many durable steps to die (0: never; then it
closes). The victim notes each call before it makes it and when it has returned; the answer is how it ended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memory.engine.provider import StorageProvider
from tests.replicas import open_replica, settle, storage_of

USERS = ("u", "用户")
CALLS = 40
TEXTS = ("tea at five", "咖啡三点", "キックオフ", "project nightingale", "deadline on friday", "喜欢无糖的茶")


class Diary:
    """What was begun and what has returned, for the judge; it survives the death of the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, **entry: Any) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")


def work(order: dict[str, Any]) -> None:
    """Do random things to the memories that the order knows of, until death or the end."""
    chance = random.Random(order["seed"])
    left = order["steps"]
    only = order.get("only")

    def step(name: str) -> None:
        nonlocal left
        if only is None or name == only:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    diary = Diary(Path(order["diary"]))
    store = open_replica(Path(order["path"]), step=step, track_access=False)
    known: list[tuple[str, str]] = [(user, memory_id) for user, memory_id in order["known"]]
    for _ in range(CALLS):
        call(store, chance, known, diary)
    if chance.random() < 0.5:
        storage_of(store).tidy()
    store.close()


def call(store: StorageProvider, chance: random.Random, known: list[tuple[str, str]], diary: Diary) -> None:
    """One random call."""
    kind = chance.choice(["add", "add", "add", "update", "update", "archive", "delete", "settle"])
    if kind == "settle" or (kind != "add" and not known):
        settle(store)
        return
    text = f"{chance.choice(TEXTS)} {chance.randrange(1_000)}"
    if kind == "add":
        user, memory_id = chance.choice(USERS), str(uuid.UUID(int=chance.getrandbits(128), version=4))
    else:
        user, memory_id = chance.choice(known)
    diary.note(begun=kind, user=user, id=memory_id, text=text)
    if kind == "add":
        store.add_memory(text, user_id=user, memory_id=memory_id, tags=["kept"])
        known.append((user, memory_id))
    elif kind == "update":
        store.update_memory(memory_id, user_id=user, content=text)
    elif kind == "archive":
        store.archive_memory(memory_id, user_id=user)
    else:
        known.remove((user, memory_id))
        store.delete_memory(memory_id, user_id=user)
    diary.note(done=memory_id)


def take_orders(work: Callable[[dict[str, Any]], None]) -> None:
    """Fork a victim for each order on stdin; answer how it ended."""
    for line in sys.stdin:
        victim = os.fork()
        if victim == 0:
            work(json.loads(line))
            os._exit(0)
        _, status = os.waitpid(victim, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    take_orders(work)
