"""A lock that lets many searches or one change through."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many may hold it shared, or one exclusively. Not reentrant.

    A change that waits goes before searches that come later. Searches that never pause would otherwise keep it waiting,
    as they do with the locks inside the engine: ten thousand points took minutes beside eight searching threads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alone = threading.Lock()
        self._sharing = 0
        self._wanting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold it together with others."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanting == 0)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold it alone."""
        with self._changed:
            self._wanting += 1
        try:
            with self._alone:
                with self._changed:
                    self._changed.wait_for(lambda: self._sharing == 0)
                yield
        finally:
            with self._changed:
                self._wanting -= 1
                self._changed.notify_all()
