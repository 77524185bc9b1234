"""The time of the database server, for those whose own clock may be wrong: devices that reach it directly."""

from __future__ import annotations

import threading
import time
from typing import Final

from memory.core.errors import StoreError
from memory.postgres.database import Database

ASK_EVERY_SECONDS: Final = 60.0


class ServerClock:
    """Asks the server now and then; in between this machine's steady clock counts on. Safe to use from several threads.

    A device that is ten days ahead must not decide what is too far in the future.
    """

    def __init__(self, database: Database) -> None:
        """Nothing is asked yet."""
        self._database = database
        self._lock = threading.Lock()
        self._known: tuple[float, float] | None = None
        """What the steady clock showed, in s, when the server's showed so many ms."""

    def now(self) -> int:
        """Milliseconds since 1970-01-01 UTC.

        Raises:
            StoreUnavailable: the server does not answer.
        """
        with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > ASK_EVERY_SECONDS:
                self._known = self._asked()
            steady, server = self._known
            return round(server + (time.monotonic() - steady) * 1000)

    def _asked(self) -> tuple[float, float]:
        with self._database.connection() as connection:
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8 * 1000").fetchone()
        if row is None:
            raise StoreError("the database does not tell the time")
        return time.monotonic(), row[0]
