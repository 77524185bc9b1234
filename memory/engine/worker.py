"""A background thread with an owner: started, woken and stopped by whoever made it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class PeriodicWorker:
    """Runs ``job`` every ``interval`` seconds and whenever woken, starting with the first wake-up.

    A job that raises is logged and tried again next time; it never ends the thread. The thread is a daemon:
    an owner that forgets ``stop`` delays no exit, and loses only what its job would have done.
    """

    def __init__(self, name: str, interval: float, job: Callable[[], None]) -> None:
        self._name, self._interval, self._job = name, interval, job
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def wake(self, *, at_once: bool = True) -> None:
        """Make sure the thread runs; with ``at_once`` do not wait for the interval."""
        with self._lock:
            if self._stopping:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
        if at_once:
            self._wake.set()

    def stop(self) -> None:
        """End the thread after the job that is under way. Idempotent."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._interval)
            self._wake.clear()
            if not self._stopping:
                self._attempt()

    def _attempt(self) -> None:
        try:
            self._job()
        except Exception:
            logger.warning("%s failed; it is tried again in %g s", self._name, self._interval, exc_info=True)
