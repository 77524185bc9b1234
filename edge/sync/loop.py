"""Sync in the background: at intervals, soon after local writes, and when the centre tells of changes.

One thread with one owner. A failure is waited out longer each time, with jitter, so that a thousand devices do not come
back at once; what wakes the loop meanwhile does not shorten that, except the centre itself.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final

from edge.sync.link import Link
from edge.sync.service import SyncService
from edge.users import Users
from memory.core.errors import DeviceRevoked, Error, SyncInterrupted
from memory.core.sync import user_name

logger = logging.getLogger(__name__)
SETTLE_SECONDS: Final = 0.02
"""After a local write: others often follow at once, and go along."""
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 900.0
JITTER: Final = 0.2
STOP_WITHIN_SECONDS: Final = 5.0
"""Longer than any page takes; to reach a centre that is down may take longer, and touches nothing here."""


class SyncLoop:
    """Keeps all users of a replica in sync until it is stopped."""

    def __init__(
        self, service: SyncService, link: Link, users: Users, *, interval: float, seed: int | None = None
    ) -> None:
        """Nothing runs yet; ``interval`` in seconds."""
        self._service, self._link, self._users, self._interval = service, link, users, interval
        self._chance = random.Random(seed)  # noqa: S311  jitter, no secret
        self._changed = threading.Condition()
        self._wanted: set[str] = set()
        self._told: set[str] = set()
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._stopping = False
        self._stop_listening: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Idempotent."""
        with self._changed:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="memory sync", daemon=True)
                self._thread.start()

    def wrote(self, user_id: str) -> None:
        """A user's memories have changed here."""
        with self._changed:
            self._wanted.add(user_id)
            self._changed.notify()

    def meet(self, user_id: str) -> None:
        """A user is on this device: from now on the loop keeps them in sync."""
        if user_id not in self._due:
            self.wrote(user_id)

    def told(self, name: str) -> None:
        """The centre tells that a user's memories have changed there; '' is anybody's."""
        with self._changed:
            self._told.add(name)
            self._changed.notify()

    def stop(self) -> None:
        """End after the page that is under way; a centre that does not answer is not waited for. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(STOP_WITHIN_SECONDS)
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _run(self) -> None:
        while True:
            users = self._next_users()
            if users is None:
                return
            self._link.begin_round()
            for user_id in users:
                if self._stopping:
                    return
                self._sync(user_id)

    def _next_users(self) -> list[str] | None:
        """Wait until somebody is due; None at the end."""
        while True:
            known = {user_name(user_id): user_id for user_id in self._users.known(damaged=_pass_over)}
            with self._changed:
                if self._stopping:
                    return None
                now = time.monotonic()
                self._hasten(known, now)
                due = [user_id for user_id in known.values() if self._due.get(user_id, 0.0) <= now]
                if due:
                    return due
                wait = min((self._due[user_id] - now for user_id in known.values()), default=self._interval)
                self._changed.wait(max(wait, 0.0))

    def _hasten(self, known: dict[str, str], now: float) -> None:
        """Bring forward what has been written here, or of which the centre has told."""
        for user_id in self._wanted:
            if not self._failures.get(user_id):
                self._due[user_id] = min(self._due.get(user_id, now), now + SETTLE_SECONDS)
        told = known.values() if "" in self._told else [known[name] for name in self._told if name in known]
        for user_id in told:
            self._due[user_id] = now
        self._wanted.clear()
        self._told.clear()

    def _sync(self, user_id: str) -> None:
        try:
            self._listen()
            found = self._service.sync(user_id, create=False, listens=self._stop_listening is not None)
        except SyncInterrupted:
            return  # the loop is about to end
        except DeviceRevoked:
            self._forget(user_id)
        except Error as error:
            self._put_off(user_id, error)
        except Exception as error:
            logger.exception("sync failed unexpectedly, and is tried again")
            self._put_off(user_id, error)
        else:
            if found is None:
                self._forget(user_id)
                return
            self._failures.pop(user_id, None)
            self._due[user_id] = time.monotonic() + self._jittered(self._interval)

    def _listen(self) -> None:
        if self._stop_listening is None:
            try:
                self._stop_listening = self._link.centre().listen(self.told)
            except Error as error:  # the session that comes next meets the same, and notes it for the status
                logger.debug("the centre cannot be listened to yet: %s", error)

    def _forget(self, user_id: str) -> None:
        self._failures.pop(user_id, None)
        self._due.pop(user_id, None)

    def _put_off(self, user_id: str, error: Exception) -> None:
        times = self._failures.get(user_id, 0)
        self._failures[user_id] = times + 1
        pause = self._jittered(min(FIRST_PAUSE_SECONDS * 2 ** min(times, 20), LONGEST_PAUSE_SECONDS))
        self._due[user_id] = time.monotonic() + pause
        logger.log(logging.INFO if times else logging.WARNING, "sync: %s; next attempt in %.0f s", error, pause)

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 + JITTER * (2 * self._chance.random() - 1))


def _pass_over(error: Error) -> None:
    logger.debug("a user's folder cannot be read, and is passed over: %s", error)
