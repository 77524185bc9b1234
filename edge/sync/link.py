"""The way to the centre: reached when it is first needed, and anew after it was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

from memory.core.centre import SyncCentre
from memory.core.errors import ConfigError, Error, SyncInterrupted

Dial = Callable[[], SyncCentre]


class Link:
    """Shared by all sessions of a replica; methods may be called from any thread."""

    def __init__(self, dial: Dial | None) -> None:
        """Nothing is connected yet; ``dial`` reaches the centre, None: there is none."""
        self._dial = dial
        self._centre: SyncCentre | None = None
        self._unreached: Error | None = None
        """Why it was not reached in this round."""
        self._dialling = threading.Lock()
        self._ending = threading.Event()

    @property
    def has_centre(self) -> bool:
        """Whether there is anything to sync with."""
        return self._dial is not None

    @property
    def is_up(self) -> bool:
        """Whether the centre has been reached, and not been lost since."""
        return self._centre is not None

    def require_dial(self) -> Dial:
        """How to reach the centre.

        Raises:
            ConfigError: none is configured.
        """
        if self._dial is None:
            raise ConfigError(
                "this replica has no centre", hint="open it with centre=postgresql://…, or set MEMORY_CENTRE_URL"
            )
        return self._dial

    def begin_round(self) -> None:
        """From here on a centre that was not reached is tried once more, not once for each user."""
        self._unreached = None

    def centre(self) -> SyncCentre:
        """The centre, reached, unless it was not in this round.

        Raises:
            ConfigError: none is configured. SyncInterrupted: the link is closed. StoreUnavailable, SchemaMismatch, …:
            what reaching it raises.
        """
        dial = self.require_dial()
        with self._dialling:
            if self._centre is None:
                if self._unreached is not None:
                    raise self._unreached
                try:
                    self._centre = dial()
                except Error as error:
                    self._unreached = error
                    raise
                if self._ending.is_set():  # whoever closed this did not wait for it
                    self._let_go()
                    raise SyncInterrupted
            return self._centre

    def lost(self, centre: SyncCentre) -> None:
        """It does not answer: who asks next dials again, and learns at once if that fails, and why.

        The connections of a centre that is gone would be waited for instead, without a reason in the end.
        """
        with self._dialling:
            if self._centre is centre:
                self._let_go()

    def close(self) -> None:
        """Let go of the centre, without waiting for a dial that is under way: it sees to itself. Idempotent."""
        self._ending.set()
        if self._dialling.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._dialling.release()

    def _let_go(self) -> None:
        if self._centre is not None:
            self._centre.close()
            self._centre = None
