"""Comparing everything with the centre: after it was restored, and when digests differ.

The centre lists ids and hashes by id, a range at a time. What differs is fetched and merged; what the centre does not
have is pushed, pushed again, or removed (``plan.missing``). Only when all ranges are done does the replica go on in the
centre's history: cut short, it begins anew, and what was done already is done again without effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from edge.sqlite import comparing, syncing
from edge.sqlite.comparing import Held
from edge.sqlite.database import Db
from edge.sqlite.receiving import Receiving
from edge.sync import plan
from edge.sync.records import Received, read_line
from edge.sync.talk import Talk
from memory.core import sync as wire
from memory.core.errors import FormatError
from memory.core.sync import Entry, FetchRequest, ManifestRequest, Welcome

FETCHED_AT_ONCE: Final = 500


class Reconciling:
    """One comparison."""

    def __init__(self, talk: Talk, welcome: Welcome, *, everything: bool = False) -> None:
        """``everything``: fetch also what has the same hash, since access counts are not in it."""
        self._talk, self._welcome, self._everything = talk, welcome, everything

    def run(self) -> None:
        """Compare all ranges; see the module."""
        cursor = self._begin()
        above, done = "", 0
        while True:
            page, listed = self._manifest(above)
            upto = listed[-1].memory_id if page.more else None
            self._compare(above, upto, listed, cursor)
            done += len(listed)
            self._talk.progress("compare", done, max(done, self._welcome.head.live))
            if upto is None:
                break
            above = upto
        with self._talk.replica.database.write() as connection:
            if syncing.read_sync(connection).epoch != self._welcome.epoch:
                syncing.forget_marks(connection)  # revisions of two histories do not compare
            syncing.set_sync(connection, epoch=self._welcome.epoch, cursor=cursor, suspicious=False)
            syncing.recount(connection)
        self._talk.replica.step("reconciled")

    def _begin(self) -> int:
        """Mark the comparison as begun, so that it is repeated if it is cut short; returns the cursor after it."""
        with self._talk.replica.database.write() as connection:
            here = syncing.read_sync(connection)
            if here.epoch != self._welcome.epoch:
                comparing.offer_accesses_again(connection)
            syncing.set_sync(connection, suspicious=True)
        return plan.cursor_after_comparison(here.position(), self._welcome)

    def _manifest(self, above: str) -> tuple[wire.Page, list[Entry]]:
        self._talk.ask()
        request = ManifestRequest(
            device=self._talk.device, user_id=self._talk.replica.user_id, epoch=self._welcome.epoch, above=above
        )
        received = wire.read_page(self._talk.centre.manifest(request), wire.MANIFEST)
        listed = wire.entries(received)
        ids = [entry.memory_id for entry in listed]
        if ids != sorted(ids) or (ids and ids[0] <= above) or (received.page.more and not ids):
            raise FormatError("the centre lists memories out of order")
        return received.page, listed

    def _compare(self, above: str, upto: str | None, listed: Sequence[Entry], cursor: int) -> None:
        with self._talk.replica.database.read() as connection:
            held = comparing.held_between(connection, above, upto)
        different = set(comparing.differing(held, listed))
        # What the centre has changed after the cursor comes with the pull that follows.
        wanted = [
            entry.memory_id
            for entry in listed
            if entry.rev <= cursor and (entry.memory_id in different or (self._everything and not entry.deleted))
        ]
        for start in range(0, len(wanted), FETCHED_AT_ONCE):
            self._fetch(wanted[start : start + FETCHED_AT_ONCE])
        same = [entry for entry in listed if entry.memory_id not in different]
        known = {entry.memory_id for entry in listed}
        with self._talk.replica.database.write() as connection:
            comparing.rebase(connection, self._welcome.epoch, [entry for entry in same if not entry.deleted])
            comparing.centre_deleted(connection, [entry.memory_id for entry in same if entry.deleted])
            for item in held.values():
                if item.memory_id not in known:
                    self._missing(connection, item)

    def _missing(self, connection: Db, item: Held) -> None:
        if item.live and plan.missing(item.base, self._welcome) is plan.Missing.REMOVE:
            self._talk.report.removed += 1
            self._talk.report.conflicts += comparing.remove_purged(
                connection, self._talk.replica.author, item.memory_id, plan.GONE, now=self._talk.clock.now()
            )
        else:
            comparing.offer_again(connection, item)

    def _fetch(self, memory_ids: Sequence[str]) -> None:
        self._talk.ask()
        request = FetchRequest(
            device=self._talk.device,
            user_id=self._talk.replica.user_id,
            epoch=self._welcome.epoch,
            memory_ids=tuple(memory_ids),
        )
        received = wire.read_page(self._talk.centre.fetch(request), wire.RECORDS)
        self.take(received.lines, now=received.page.now)

    def take(self, lines: Sequence[Mapping[str, object]], *, now: int) -> None:
        """Write down records that differ."""
        now = max(now, self._talk.clock.now())
        ready = [read_line(line, self._talk.replica.user_id, self._talk.model, now=now) for line in lines]
        with self._talk.replica.database.write() as connection:
            taken = Receiving(
                connection,
                self._talk.replica.author,
                epoch=self._welcome.epoch,
                now=self._talk.clock.now(),
                comparing=True,
            )
            for item in ready:
                if isinstance(item, Received):
                    taken.record(item.item, item.rev)
            tally = taken.finish()
        self._talk.count(len(ready), tally)
