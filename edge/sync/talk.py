"""What all parts of a session share: the two sides, and what is told of what they do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from edge.replica import Replica
from edge.sqlite import syncing
from edge.sqlite.receiving import Tally
from edge.sync.records import Model
from edge.sync.report import SyncReport
from memory.core.centre import SyncCentre
from memory.core.errors import FormatError, SyncInterrupted
from memory.core.ports import Clock
from memory.core.sync import MAX_PAGE_LINES, Received

Progress = Callable[[str, int, int], None]


def no_progress(_phase: str, _done: int, _total: int) -> None:
    """Nobody watches."""


@dataclass(slots=True, kw_only=True)
class Talk:
    """One user's replica and the centre, in one session."""

    replica: Replica
    centre: SyncCentre
    model: Model
    clock: Clock
    report: SyncReport
    progress: Progress = no_progress
    page_lines: int = MAX_PAGE_LINES
    device: str = ""
    epoch: str = ""
    """The centre's; known after the greeting."""
    ending: threading.Event = field(default_factory=threading.Event)
    """Set when the provider is being closed: nothing more is asked then."""

    def ask(self) -> None:
        """Before each request: count it.

        Raises:
            SyncInterrupted: the provider is being closed.
        """
        if self.ending.is_set():
            raise SyncInterrupted
        self.report.round_trips += 1

    def state(self) -> syncing.SyncState:
        """Where the replica stands now."""
        with self.replica.database.read() as connection:
            return syncing.read_sync(connection)

    def require_ours(self, received: Received) -> Received:
        """The same, if it is the answer to what was asked.

        Raises:
            FormatError: it is for another user, or of another history.
        """
        if (received.page.user_id, received.page.epoch) != (self.replica.user_id, self.epoch):
            raise FormatError("the answer is for another user, or of another history than the one asked for")
        return received

    def count(self, lines: int, tally: Tally) -> None:
        """Note what has been received and written; searches read it one by one until the indexes have it."""
        self.report.pulled += lines
        self.report.changed += tally.changed
        self.report.conflicts += tally.lost
        self.report.pushed_back += tally.pushed_back
        self.report.deferred += tally.deferred
        self.replica.wrote(lines)
