"""Pull: what has changed at the centre comes page by page, each one transaction with its cursor and mark."""

from __future__ import annotations

from edge.sqlite import outbox, syncing
from edge.sqlite.receiving import Receiving
from edge.sync.records import Accesses, read_line
from edge.sync.talk import Talk
from memory.core import sync as wire
from memory.core.errors import FormatError
from memory.core.sync import Head, Mark, PullRequest, Received


class Pulling:
    """The pull of one session."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def run(self, first: Head) -> Head:
        """Receive everything up to the head; returns what the head was."""
        self._talk.replica.is_receiving = True
        try:
            return self._all(first)
        finally:
            self._talk.replica.is_receiving = False

    def _all(self, first: Head) -> Head:
        done = 0
        while True:
            state = self._talk.state()
            request = PullRequest(
                device=self._talk.device,
                user_id=self._talk.replica.user_id,
                epoch=self._talk.epoch,
                after=state.cursor,
                limit=self._talk.page_lines,
            )
            self._talk.ask()
            received = self._talk.require_ours(wire.read_page(self._talk.centre.pull(request), wire.PULL))
            self.take(received)
            self._talk.replica.drain_if_far_behind()
            done += len(received.lines)
            self._talk.progress("pull", done, max(done, first.live))
            page = received.page
            if not page.more:
                self._talk.report.rev = page.to
                return page.head or first

    def take(self, received: Received) -> None:
        """Write down one page of a pull, in one transaction with the cursor. Repeated, it changes nothing.

        Raises:
            SyncError: a line cannot be kept here; nothing of the page is. FormatError: it continues later pages.
        """
        page = received.page
        ready = [
            read_line(line, self._talk.replica.user_id, self._talk.model, now=max(page.now, self._talk.clock.now()))
            for line in received.lines
        ]
        with self._talk.replica.database.write() as connection:
            state = syncing.read_sync(connection)
            if page.after > state.cursor:
                raise FormatError(
                    f"the page continues revision {page.after}, and this replica is at {state.cursor}",
                    hint="what comes in between has not been received: take that first",
                )
            numbers = connection.execute("SELECT numbers FROM replica").fetchone()[0]
            taken = Receiving(connection, self._talk.replica.author, epoch=page.epoch, now=self._talk.clock.now())
            for item in ready:
                if isinstance(item, Accesses):
                    taken.accesses(item.memory_id, item.state)
                else:
                    taken.record(item.item, item.rev)
            tally = taken.finish()
            outbox.skip_received(connection, upto_before=numbers)
            syncing.set_sync(connection, cursor=max(state.cursor, page.to), centre_rev=page.to)
            if page.mark is not None:
                syncing.add_mark(connection, Mark(page.mark, page.to))
        self._talk.replica.step("page received")
        self._talk.count(len(ready), tally)
