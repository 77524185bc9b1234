"""Work between calls: indexes brought up to date, logs cut, traces of deleted memories removed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from edge.replica import Replica
from edge.users import Users
from memory.core.errors import StoreError
from memory.engine.worker import PeriodicWorker

logger = logging.getLogger(__name__)


class Maintenance:
    """Visits the open users, one after the other, on a thread of its own."""

    def __init__(self, users: Users, *, drain_interval: float, tidy_interval: float) -> None:
        """Intervals in seconds: between looks for queued changes, and between check-points."""
        self._users, self._tidy_interval = users, tidy_interval
        self._worker = PeriodicWorker("memory replica maintenance", drain_interval, self._round)
        self._tidied = time.monotonic()

    def start(self) -> None:
        """Begin to look after each interval."""
        self._worker.wake(at_once=False)

    def stop(self) -> None:
        """End after the visit under way. Idempotent."""
        self._worker.stop()

    def catch_up(self, replica: Replica) -> None:
        """Bring one user's indexes up to date, in this thread; what fails is tried again later."""
        self._attempt(Replica.drain, replica)

    def drain_all(self) -> None:
        """Bring the indexes of all open users up to date, in this thread."""
        self._visit(Replica.drain)

    def tidy_all(self) -> None:
        """Tidy all open users, in this thread."""
        self._visit(Replica.tidy)

    def _round(self) -> None:
        self._visit(lambda replica: replica.drain() if replica.is_behind and not replica.is_receiving else None)
        if time.monotonic() - self._tidied >= self._tidy_interval:
            self._tidied = time.monotonic()
            self.tidy_all()

    def _visit(self, work: Callable[[Replica], None]) -> None:
        for user_id in self._users.now_open():
            with self._users.lease_open(user_id) as replica:
                if replica is not None:
                    self._attempt(work, replica)

    @staticmethod
    def _attempt(work: Callable[[Replica], None], replica: Replica) -> None:
        """One user's trouble must not keep the others waiting."""
        try:
            work(replica)
        except StoreError as error:
            logger.warning("maintenance of a replica failed, and is tried again: %s", error)
        except Exception:
            logger.exception("maintenance of a replica failed, and is tried again")
