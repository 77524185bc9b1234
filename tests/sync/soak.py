"""Minutes of life: two users, three devices and the centre write at random; Postgres restarts, the network breaks.

python -m tests.sync.soak --minutes 10 [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import memory
from edge.opening import EdgeSettings, open_storage
from edge.provider import EdgeMemory, SyncSettings
from edge.vectors.engine import EdgeEngineFactory
from memory.connect import SystemClock
from memory.core.errors import Error, NotFound
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import EngineSettings, StorageProvider
from memory.postgres.centre import PostgresCentre, dial_centre
from memory.postgres.embedded import EmbeddedServer
from memory.testing.base import everything
from tests.sync.proxy import TcpProxy

USERS = ("u", "用户")
TEXTS = ("tea at five", "咖啡三点", "project nightingale", "deadline on friday", "喜欢无糖的茶", "周五开会")
KINDS = ("add", "add", "edit", "edit", "tag", "delete", "recall", "recall")
PAUSE_S = 0.05
QUIET_ROUNDS = 5


class Soak:
    """One world, until it is closed."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.minutes = minutes
        self.counts: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()
        self.reasons: list[str] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.server = EmbeddedServer(folder / "postgres", settings={"fsync": "off"})
        url = self.server.start()
        self.embedder = HashingEmbedder(dimension=256)
        self.centre = memory.connect(url, embedder=self.embedder, auto_migrate=True)
        self.proxy = TcpProxy.before_postgres(self.server.socket_directory)
        self.devices = [self._device(folder / f"device-{number}") for number in range(3)]

    def _device(self, path: Path) -> EdgeMemory:
        storage = open_storage(path, self.embedder, SystemClock(), lambda _: EdgeEngineFactory(), EdgeSettings())
        settings, often = EngineSettings(), SyncSettings(interval=5.0)
        return EdgeMemory(storage, self.embedder, SystemClock(), settings, dial=self._dial, sync=often)

    def _dial(self) -> PostgresCentre:
        return dial_centre(self.proxy.url("memory"), None, pool_size=4, timeout=5)

    def run(self) -> None:
        """All of it: life with its accidents, then rest."""
        writers: list[tuple[str, StorageProvider]] = [("centre", self.centre)]
        writers += [(f"device {number}", device) for number, device in enumerate(self.devices)]
        threads = [threading.Thread(target=self._live, args=one) for one in writers]
        for thread in threads:
            thread.start()
        self._disturb()
        self._over.set()
        for thread in threads:
            thread.join()
        self._rest()

    def _note(self, counter: Counter[str], what: str) -> None:
        with self._lock:
            counter[what] += 1

    def _live(self, name: str, store: StorageProvider) -> None:
        chance = random.Random(name)
        while not self._over.wait(chance.random() * PAUSE_S * 2):
            kind, user = chance.choice(KINDS), chance.choice(USERS)
            try:
                _act(store, kind, user, chance)
            except NotFound:
                self._note(self.counts, "was deleted meanwhile")
            except Error as error:
                self._note(self.problems, f"{name.split(maxsplit=1)[0]}: {type(error).__name__}")
            else:
                self._note(self.counts, f"{name.split(maxsplit=1)[0]} {kind}")

    def _disturb(self) -> None:
        chance, began, restarted = random.Random(7), time.monotonic(), False
        while (passed := time.monotonic() - began) < self.minutes * 60:
            time.sleep(min(self.minutes, chance.random() * 8))
            if not restarted and passed > self.minutes * 30:
                restarted = True
                self.server.stop()
                time.sleep(1)
                self.server.start()
                self.counts["restarts"] += 1
            self.proxy.refuse()
            self.proxy.cut()
            time.sleep(chance.random())
            self.proxy.refuse(False)
            self.counts["cuts"] += 1
            for device in self.devices:
                self._try("sync_now", device.sync_now)

    def _try(self, name: str, verb: Callable[[], Any]) -> bool:
        try:
            verb()
        except Error as error:
            self._note(self.problems, f"{name}: {type(error).__name__}")
            return False
        self._note(self.counts, name)
        return True

    def _rest(self) -> None:
        """Nobody writes any more: all syncs done, all equal."""
        self.centre.flush()
        for _ in range(QUIET_ROUNDS):
            for device in self.devices:
                device.flush()
                for user in USERS:
                    self._try("last syncs", lambda device=device, user=user: device.sync_now(user))  # type: ignore[misc]
        for user in USERS:
            wanted = _seen(self.centre, user)
            for number, device in enumerate(self.devices):
                self._judge(f"device {number}, {user}", device, user, wanted)
            self.counts[f"memories of {user}"] = len(wanted)

    def _judge(self, name: str, device: EdgeMemory, user: str, wanted: dict[str, Any]) -> None:
        status = device.sync_status(user)[0]
        if (status.pending, status.pending_accesses, status.equal) != (0, 0, True):
            self.reasons.append(f"{name}: not at rest: {status}")
        found = _seen(device, user)
        if different := [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]:
            self.reasons.append(
                f"{name}: {len(different)} differ: {wanted.get(different[0])} {found.get(different[0])}"
            )

    def close(self) -> None:
        for device in self.devices:
            device.close()
        self.centre.close()
        self.proxy.close()
        self.server.stop()


def _act(store: StorageProvider, kind: str, user: str, chance: random.Random) -> None:
    text = f"{chance.choice(TEXTS)} {chance.randrange(1_000)}"
    if kind == "add":
        store.add_memory(text, user_id=user, tags=[chance.choice("abc")])
        return
    found = store.recall(text, user_id=user, top_k=5)
    if kind == "recall" or not found:
        return
    memory_id = chance.choice(list(found)).memory.memory_id
    if kind == "edit":
        store.update_memory(memory_id, user_id=user, content=text)
    elif kind == "tag":
        store.update_memory(memory_id, user_id=user, add_tags=[chance.choice("abcdef")])
    else:
        store.delete_memory(memory_id, user_id=user)


def _seen(store: StorageProvider, user: str) -> dict[str, Any]:
    return {
        one.memory_id: (one.content, one.status, one.tags, one.metadata, one.access_count)
        for one in everything(store, user)
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="memory-soak-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # the account that runs the server must get through
        soak = Soak(Path(folder), arguments.minutes)
        try:
            soak.run()
        finally:
            soak.close()
    told = {
        "minutes": arguments.minutes,
        "counts": dict(sorted(soak.counts.items())),
        "failures": dict(sorted(soak.problems.items())),
        "differences": soak.reasons,
    }
    text = json.dumps(told, ensure_ascii=False, indent=2)
    sys.stdout.write(text + "\n")
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")
    return int(bool(soak.reasons))


if __name__ == "__main__":
    sys.exit(main())
