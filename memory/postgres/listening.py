"""Hear of changes at the centre: LISTEN on a connection of its own, in a thread of its own."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from memory.core.errors import StoreError
from memory.postgres.database import Database, Db, translated

logger = logging.getLogger(__name__)
CHANNEL: Final = "memory_changes"
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0


def listen(database: Database, changed: Callable[[str], None]) -> Callable[[], None]:
    """Call ``changed`` with the name of each user whose memories change, and with "" after a gap.

    Returns what ends it, and waits for a call in progress. The first connection is tried here, so that nothing is
    missed from now on; if it fails, or one is lost, the thread goes on trying.
    """
    listener = _Listener(database, changed)
    listener.start()
    return listener.end


class _Listener(threading.Thread):
    """The thread. A socket wakes it up from waiting, for it may be told to end at any time."""

    def __init__(self, database: Database, changed: Callable[[str], None]) -> None:
        super().__init__(name="memory-listener", daemon=True)
        self._changed = changed
        self._ended = threading.Event()
        with database.connection() as connection:
            self._conninfo = _conninfo_of(connection)
        self._wake, self._woken = socket.socketpair()
        self._connection = self._connect()

    def end(self) -> None:
        """End it. Idempotent; may be called by ``changed`` itself."""
        self._ended.set()
        try:
            self._wake.send(b"\0")
        except OSError:
            return  # it has ended already
        if threading.current_thread() is not self:
            self.join()

    def run(self) -> None:
        """Hear, and connect again, until told to end."""
        pause = FIRST_PAUSE
        while not self._ended.is_set():
            if self._connection is not None:
                pause = FIRST_PAUSE
                self._hear(self._connection)
            if self._ended.wait(pause):
                break
            pause = min(LONGEST_PAUSE, pause * 2)
            self._connection = self._connect()
            if self._connection is not None:
                self._tell("")
        if self._connection is not None:
            self._connection.close()
        self._wake.close()
        self._woken.close()

    def _connect(self) -> Db | None:
        try:
            with translated():
                connection = psycopg.connect(self._conninfo, autocommit=True)
                connection.execute(f"LISTEN {CHANNEL}")
        except StoreError as error:
            logger.debug("changes at the centre cannot be heard of for now: %s", error)
            return None
        return connection

    def _hear(self, connection: Db) -> None:
        """Hear until the connection is lost or the end is told."""
        with selectors.DefaultSelector() as selector:
            try:
                selector.register(connection.fileno(), selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                while not self._ended.is_set():
                    for notice in connection.notifies(timeout=0):
                        self._tell(notice.payload)
                    selector.select()
            except psycopg.Error as error:
                logger.debug("changes at the centre are not heard of any more: %s", type(error).__name__)
        connection.close()
        self._connection = None

    def _tell(self, name: str) -> None:
        if self._ended.is_set():
            return
        try:
            self._changed(name)
        except Exception:
            # A background loop: the next change must still be told.
            logger.exception("what listens for changes at the centre failed")


def _conninfo_of(connection: Db) -> str:
    """How to make another connection like this one, that notices a dead network like it."""
    info = connection.info
    parameters = info.get_parameters() | {"application_name": "nightingale-memory-listener"}
    if info.password:
        parameters["password"] = info.password
    return make_conninfo("", **parameters)
