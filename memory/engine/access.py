"""Write-behind access counts: recall notes what it returned, a background thread writes it down."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from memory.core.errors import StoreError, StoreReadOnly
from memory.engine.storage import Touch
from memory.engine.worker import PeriodicWorker

logger = logging.getLogger(__name__)
MAX_BUFFERED = 10_000
"""Distinct memories waiting before a flush is forced."""
MAX_HELD = 500_000
"""Distinct memories held at most; while the store is down for long, further ones are not counted."""


class AccessBuffer:
    """Coalesces accesses per memory. What a failed flush could not write stays for the next one."""

    def __init__(self, write: Callable[[Sequence[Touch]], None], *, interval: float) -> None:
        self._write = write
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}
        self._noting = True
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._worker = PeriodicWorker("memory access counts", interval, self.flush)

    def note(self, user_id: str, memory_ids: Iterable[str], now: int) -> None:
        """Count one access of each memory at ``now`` (ms UTC)."""
        if not self._noting:
            return
        with self._lock:
            for memory_id in memory_ids:
                key = (user_id, memory_id)
                if key in self._counts or len(self._counts) < MAX_HELD:
                    count, last = self._counts.get(key, (0, 0))
                    self._counts[key] = (count + 1, max(last, now))
            full = len(self._counts) >= MAX_BUFFERED
        self._worker.wake(at_once=full)

    def flush(self) -> None:
        """Write what is waiting; returns when it, and any flush under way, is done."""
        with self._flushing:
            with self._lock:
                taken, self._counts = self._counts, {}
            if not taken:
                return
            try:
                self._write(
                    [Touch(user_id=u, memory_id=m, count=n, last_access_at=t) for (u, m), (n, t) in taken.items()]
                )
            except StoreReadOnly:
                # A replica or a frozen database: it answers questions, and cannot note who asked.
                logger.warning("the database is read-only: accesses are not counted")
                self._noting = False
            except StoreError as error:
                # Meant for us, and not for whoever hears of the error.
                unwritten: Sequence[Touch] | None = error.fields.pop("unwritten", None)
                if unwritten is not None:
                    keys = {(item.user_id, item.memory_id) for item in unwritten}
                    taken = {key: count for key, count in taken.items() if key in keys}
                self._restore(taken)
                raise
            except BaseException:
                self._restore(taken)
                raise

    def stop(self) -> None:
        """Stop the thread, then flush a last time."""
        self._worker.stop()
        self.flush()

    def _restore(self, taken: dict[tuple[str, str], tuple[int, int]]) -> None:
        with self._lock:
            for key, (count, last) in taken.items():
                held_count, held_last = self._counts.get(key, (0, 0))
                self._counts[key] = (held_count + count, max(held_last, last))
