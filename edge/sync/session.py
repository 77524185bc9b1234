"""One session: hello, reconcile if needed, push, pull, compare digests.

Each page is one request, and one transaction here that brings its cursor, mark and index queue along; so a session that
is cut short anywhere is continued by the next one. Nothing is locked while the centre is being asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from edge.replica import Replica
from edge.sqlite import comparing, outbox, syncing
from edge.sqlite.conflicts import log_conflict
from edge.sqlite.database import Db
from edge.sqlite.receiving import Receiving
from edge.sqlite.restamping import restamp
from edge.sync import plan
from edge.sync.reconciling import Reconciling
from edge.sync.records import Accesses, Model, read_line
from edge.sync.report import SyncReport
from memory.core import sync as wire
from memory.core.centre import SyncCentre
from memory.core.errors import ClockAhead, EpochChanged, FormatError, SyncIncomplete
from memory.core.ports import Clock
from memory.core.record import decode_record
from memory.core.sync import Head, Mark, Page, PullRequest, Received, Verdict, Welcome

Progress = Callable[[str, int, int], None]
ATTEMPTS: Final = 3
"""How often a session begins anew when the centre's history, or the clock, turns out to be another."""
SMALL_PAGES: Final = 3
"""After so many pages that were not full, what is still being written here waits for the next sync."""
OFFSET_WORTH_NOTING_MS: Final = 1_000
VERIFY_AFTER_MS: Final = 24 * 3_600_000


class Difference(Enum):
    """What replica and centre differ in, at the head."""

    NONE = "none"
    UNKNOWN = "unknown"
    """The centre has gone on meanwhile."""
    MEMORIES = "memories"
    ACCESSES = "accesses"


def no_progress(_phase: str, _done: int, _total: int) -> None:
    """Nobody watches."""


class Session:
    """Brings one user's replica and the centre together, once."""

    def __init__(
        self,
        replica: Replica,
        centre: SyncCentre,
        model: Model,
        clock: Clock,
        *,
        schema: str,
        page_lines: int = wire.MAX_PAGE_LINES,
        listens: bool = False,
        verify: bool = False,
        progress: Progress = no_progress,
    ) -> None:
        """Prepare.

        Args:
            replica: Lent to this session for its whole time.
            centre: See there.
            model: The replica's.
            clock: This device's.
            schema: Revision of the replica's file.
            page_lines: Most lines in a page.
            listens: The centre is to tell of changes.
            verify: Compute the hashes of all rows again, and compare everything if one is wrong.
            progress: Called with a phase, what is done of it, and its total.
        """
        self._replica, self._centre, self._model, self._clock = replica, centre, model, clock
        self._schema, self._limit, self._listens, self._verify = schema, page_lines, listens, verify
        self._progress = progress
        self.report = SyncReport(user_id=replica.user_id)
        self._device = ""
        self._epoch = ""

    def run(self) -> SyncReport:
        """Sync; returns what was done.

        Raises:
            StoreUnavailable, SyncError, FormatError, SchemaMismatch: what was committed up to then stays, the next
            session goes on from there.
        """
        began = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._once()
                break
            except EpochChanged:  # it was restored between two requests
                if attempt == ATTEMPTS:
                    raise
        self.report.seconds = time.monotonic() - began
        return self.report

    def _once(self) -> None:
        welcome = self._greet()
        begun = self._begin(welcome)
        pushed = self._push_all()
        if pushed or begun or welcome.head.rev != self._state().cursor:
            head = self._pull_all(welcome.head)
        else:
            head = welcome.head
        self._compare(head, welcome)
        self._finish()

    def _state(self) -> syncing.SyncState:
        with self._replica.database.read() as connection:
            return syncing.read_sync(connection)

    def run_recorded(self, welcome: Welcome, pages: Sequence[Received]) -> SyncReport:
        """Take in what a file has recorded of a session, in place of asking the centre."""
        self._epoch, self._device, self.report.rev = welcome.epoch, self._name(), welcome.head.rev
        self._begin(welcome)
        for received in pages:
            self._require_ours(received)
            if received.page.stream == wire.ANSWER:
                self.carry_out(self._unchanged_since(received), received)
            else:
                self.take(received)
        last = next((page.page.head for page in reversed(pages) if page.page.head is not None), welcome.head)
        difference = self._difference(last)
        self.report.equal = None if difference is Difference.UNKNOWN else difference is Difference.NONE
        if self.report.equal is False:
            with self._replica.database.write() as connection:
                syncing.set_sync(connection, suspicious=True)
        self._finish()
        return self.report

    def _name(self) -> str:
        with self._replica.database.write() as connection:
            return syncing.name_device(connection)

    def _unchanged_since(self, answer: Received) -> outbox.Batch:
        """What a request held, as far as it is still so: what was edited since is sent with the next one."""
        with self._replica.database.read() as connection:
            batch = outbox.next_batch(
                connection, model=self._model.name, limit=outbox.UNLIMITED, max_bytes=outbox.UNLIMITED
            )
        seqs = {verdict.memory_id: verdict.seq for verdict in wire.verdicts(answer)}
        return batch.only(seqs)

    # -- hello

    def _greet(self) -> Welcome:
        with self._replica.database.write() as connection:
            hello = syncing.greeting(
                connection,
                self._replica.user_id,
                model=(self._model.name, self._model.dimension),
                schema=self._schema,
                listens=self._listens,
            )
            noted = syncing.read_sync(connection).clock_offset
        self._device = hello.device
        self.report.round_trips += 1
        welcome = self._centre.hello(hello)
        wire.require_protocol(welcome.protocol)
        self._note_offset(welcome.now - self._clock.now(), noted)
        self.report.rev = welcome.head.rev
        self._epoch = welcome.epoch
        return welcome

    def _note_offset(self, offset: int, noted: int) -> None:
        """Learn how this device's clock stands to the centre's. Less than a second is the way of the answer."""
        wanted = offset if abs(offset) > OFFSET_WORTH_NOTING_MS else 0
        if abs(wanted - noted) > OFFSET_WORTH_NOTING_MS or (wanted == 0) != (noted == 0):
            with self._replica.database.write() as connection:
                syncing.set_sync(connection, clock_offset=wanted)
            self._replica.clock_offset = wanted

    def _begin(self, welcome: Welcome) -> bool:
        """Make the histories fit; returns whether everything was compared."""
        state = self._state()
        decision = plan.opening(state.position(), welcome)
        if decision is plan.Opening.RECONCILE:
            self._reconcile(welcome)
            return True
        if state.epoch != welcome.epoch:
            with self._replica.database.write() as connection:
                syncing.set_sync(connection, epoch=welcome.epoch)
        return False

    def _reconcile(self, welcome: Welcome, *, everything: bool = False) -> None:
        self.report.reconciled = True
        Reconciling(
            self._replica,
            self._centre,
            self._model,
            self._clock,
            welcome,
            device=self._device,
            report=self.report,
            progress=self._progress,
            everything=everything,
        ).run()

    # -- push

    def _push_all(self) -> bool:
        pages = small = restamps = 0
        with self._replica.database.read() as connection:
            total = sum(outbox.pending(connection))
        while small < SMALL_PAGES:
            with self._replica.database.read() as connection:
                batch = outbox.next_batch(connection, model=self._model.name, limit=self._limit)
            if not batch:
                break
            try:
                self._push(batch)
            except ClockAhead as error:
                restamps += 1
                if restamps == ATTEMPTS:
                    raise
                self._restamp(error.now)
                continue
            pages += 1
            small += len(batch.lines) < self._limit
            self._progress("push", min(self.report.pushed, total), total)
        return pages > 0

    def _push(self, batch: outbox.Batch) -> None:
        page = Page(
            stream=wire.PUSH,
            device=self._device,
            user_id=self._replica.user_id,
            epoch=self._epoch,
            model=self._model.name,
            dimension=self._model.dimension,
            now=self._clock.now(),
        )
        self.report.round_trips += 1
        answer = wire.read_page(self._centre.push(list(wire.write_page(page, batch.lines))), wire.ANSWER)
        self._require_ours(answer)
        self.carry_out(batch, answer)

    def carry_out(self, batch: outbox.Batch, answer: Received) -> None:
        """Note what became of a page that was pushed, in one transaction."""
        verdicts = wire.verdicts(answer)
        with self._replica.database.write() as connection:
            outbox.advance(connection, batch)
            for verdict in verdicts:
                self._carry_out_one(connection, batch, verdict, answer.page.epoch)
            complete = len(verdicts) == len(batch.lines) and all(v.code == wire.OK and v.equal for v in verdicts)
            cursor = syncing.read_sync(connection).cursor
            if plan.may_skip_echo(cursor=cursor, before=answer.page.after, all_equal=complete):
                syncing.set_sync(connection, cursor=answer.page.to)
            syncing.set_sync(connection, centre_rev=answer.page.to)
            if answer.page.mark is not None:
                syncing.add_mark(connection, Mark(answer.page.mark, answer.page.to))
        self._replica.step("push acknowledged")

    def _carry_out_one(self, connection: Db, batch: outbox.Batch, verdict: Verdict, epoch: str) -> None:
        memory_id, line = verdict.memory_id, batch.records.get(verdict.memory_id)
        if verdict.code == wire.OK:
            self.report.pushed += 1
            outbox.acknowledge_accesses(connection, memory_id, batch.accesses.get(memory_id, {}))
            if line is not None:
                state, seq = decode_record(line).state, line["sync"]["seq"]
                outbox.acknowledge(
                    connection, memory_id, state, seq=seq, epoch=epoch, rev=verdict.rev, equal=verdict.equal
                )
        elif verdict.code == wire.UNKNOWN:
            outbox.send_again(connection, memory_id)
        elif verdict.code == wire.GONE:
            self.report.removed += 1
            self.report.conflicts += comparing.remove_purged(
                connection, self._replica.author, memory_id, plan.GONE, now=self._clock.now()
            )
        elif verdict.code == wire.REJECTED:
            self.report.rejected += 1
            if line is None:
                return
            log_conflict(connection, memory_id, plan.REJECTED, line, now=self._clock.now(), problem=verdict.problem)
            outbox.stop_sending(connection, memory_id, seq=line["sync"]["seq"])
        else:
            raise FormatError(f"a verdict {verdict.code!r:.40} that this version does not know")

    def _restamp(self, now: int) -> None:
        with self._replica.database.write() as connection:
            self.report.restamped += restamp(connection, self._replica.author, now=now)

    # -- pull

    def _pull_all(self, first: Head) -> Head:
        """Receive everything up to the head; returns what the head was."""
        done = 0
        while True:
            state = self._state()
            request = PullRequest(
                device=self._device,
                user_id=self._replica.user_id,
                epoch=self._epoch,
                after=state.cursor,
                limit=self._limit,
            )
            self.report.round_trips += 1
            received = wire.read_page(self._centre.pull(request), wire.PULL)
            self._require_ours(received)
            self.take(received)
            done += len(received.lines)
            self._progress("pull", done, max(done, first.live))
            page = received.page
            if not page.more:
                self.report.rev = page.to
                return page.head or first

    def take(self, received: Received) -> None:
        """Write down one page of a pull, in one transaction with the cursor. Repeated, it changes nothing.

        Raises:
            SyncError: a line cannot be kept here; nothing of the page is. FormatError: it continues later pages.
        """
        page = received.page
        ready = [
            read_line(line, self._replica.user_id, self._model, now=max(page.now, self._clock.now()))
            for line in received.lines
        ]
        with self._replica.database.write() as connection:
            state = syncing.read_sync(connection)
            if page.after > state.cursor:
                raise FormatError(
                    f"the page continues revision {page.after}, and this replica is at {state.cursor}",
                    hint="what comes in between has not been received: take that first",
                )
            numbers = connection.execute("SELECT numbers FROM replica").fetchone()[0]
            taken = Receiving(connection, self._replica.author, epoch=page.epoch, now=self._clock.now())
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
        self._replica.step("page received")
        self.report.pulled += len(ready)
        self.report.changed += tally.changed
        self.report.conflicts += tally.lost
        self.report.deferred += tally.deferred
        self._replica.wrote(len(ready))

    def _require_ours(self, received: Received) -> None:
        page = received.page
        if (page.user_id, page.epoch) != (self._replica.user_id, self._epoch):
            raise FormatError("the answer is for another user, or of another history than the one asked for")

    # -- head

    def _compare(self, head: Head, welcome: Welcome) -> None:
        """Compare digests at the head; if they differ, everything, once."""
        if self._verify or self._due_for_verification():
            self._verify_rows()
        difference = self._difference(head)
        if difference in (Difference.MEMORIES, Difference.ACCESSES):
            self._reconcile(welcome, everything=difference is Difference.ACCESSES)
            self._push_all()
            difference = self._difference(self._pull_all(head))
        if difference in (Difference.MEMORIES, Difference.ACCESSES):
            raise SyncIncomplete(user_id=self._replica.user_id)
        self.report.equal = None if difference is Difference.UNKNOWN else True

    def _due_for_verification(self) -> bool:
        verified = self._state().verified_at
        return verified is not None and not 0 <= self._clock.now() - verified < VERIFY_AFTER_MS

    def _verify_rows(self) -> None:
        with self._replica.database.write() as connection:
            comparing.verify_shadows(connection)
            syncing.set_sync(connection, verified_at=self._clock.now())

    def _difference(self, head: Head) -> Difference:
        with self._replica.database.read() as connection:
            state = syncing.read_sync(connection)
            if head.digest is None or head.rev != state.cursor:
                return Difference.UNKNOWN
            if (state.digest, state.live) != (head.digest, head.live):
                return Difference.MEMORIES
            if outbox.deletion_waits(connection) or outbox.sum_acked(connection) == head.accesses:
                return Difference.NONE
            return Difference.ACCESSES

    def _finish(self) -> None:
        now = self._clock.now()
        with self._replica.database.write() as connection:
            syncing.set_sync(
                connection,
                state="in sync",
                problem=None,
                hint=None,
                synced_at=now,
                tried_at=now,
                equal=self.report.equal,
                verified_at=syncing.read_sync(connection).verified_at or now,
            )
