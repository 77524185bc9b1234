"""One session: hello, reconcile if needed, push, pull, compare digests.

Each page is one request, and one transaction here that brings its cursor, mark and index queue along; so a session that
is cut short anywhere is continued by the next one. Nothing is locked while the centre is being asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from enum import Enum
from typing import Final

from edge.replica import Replica
from edge.sqlite import comparing, outbox, syncing
from edge.sync import plan
from edge.sync.pulling import Pulling
from edge.sync.pushing import Pushing
from edge.sync.reconciling import Reconciling
from edge.sync.records import Model
from edge.sync.report import SyncReport
from edge.sync.talk import Progress, Talk, no_progress
from memory.core import sync as wire
from memory.core.centre import SyncCentre
from memory.core.errors import EpochChanged, SyncIncomplete
from memory.core.ports import Clock
from memory.core.sync import Head, Received, Welcome

ATTEMPTS: Final = 3
"""How often a session begins anew when the centre's history turns out to be another."""
OFFSET_WORTH_NOTING_MS: Final = 1_000
VERIFY_AFTER_MS: Final = 24 * 3_600_000


class Difference(Enum):
    """What replica and centre differ in, at the head."""

    NONE = "none"
    UNKNOWN = "unknown"
    """The centre has gone on meanwhile."""
    MEMORIES = "memories"
    ACCESSES = "accesses"


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
        ending: threading.Event | None = None,
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
            ending: Set by whoever wants the session to end after the page under way.
        """
        self._schema, self._listens, self._verify = schema, listens, verify
        self.report = SyncReport(user_id=replica.user_id)
        self._talk = Talk(
            replica=replica,
            centre=centre,
            model=model,
            clock=clock,
            report=self.report,
            progress=progress,
            page_lines=page_lines,
            ending=ending or threading.Event(),
        )
        self._push, self._pull = Pushing(self._talk), Pulling(self._talk)

    @property
    def is_greeted(self) -> bool:
        """Whether the centre has answered."""
        return self._talk.epoch != ""

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
        pushed = self._push.run()
        if pushed or begun or welcome.head.rev != self._talk.state().cursor:
            head = self._pull.run(welcome.head)
        else:
            head = welcome.head
        if self.report.pushed_back and self._push.run():
            head = self._pull.run(head)
        self._compare(head, welcome)
        self._finish()

    def run_recorded(self, welcome: Welcome, pages: Sequence[Received]) -> SyncReport:
        """Take in what a file has recorded of a session, in place of asking the centre."""
        self._talk.epoch, self._talk.device, self.report.rev = welcome.epoch, self._name(), welcome.head.rev
        if any(received.page.stream == wire.MANIFEST for received in pages):
            self._reconcile(welcome)
        elif self._talk.state().epoch is None:
            self._adopt(welcome)
        for received in pages:
            self._talk.require_ours(received)
            if received.page.stream == wire.ANSWER:
                self._push.carry_out(self._unchanged_since(received), received)
            elif received.page.stream == wire.PULL:
                self._pull.take(received)
        last = next((page.page.head for page in reversed(pages) if page.page.head is not None), welcome.head)
        difference = self._difference(last)
        self.report.equal = None if difference is Difference.UNKNOWN else difference is Difference.NONE
        if self.report.equal is False:
            with self._talk.replica.database.write() as connection:
                syncing.set_sync(connection, suspicious=True)
        self._finish()
        return self.report

    def _name(self) -> str:
        with self._talk.replica.database.write() as connection:
            return syncing.name_device(connection)

    def _unchanged_since(self, answer: Received) -> outbox.Batch:
        """What a request held, as far as it is still so: what was edited since is sent with the next one."""
        with self._talk.replica.database.read() as connection:
            batch = outbox.next_batch(
                connection, model=self._talk.model.name, limit=outbox.UNLIMITED, max_bytes=outbox.UNLIMITED
            )
        seqs = {verdict.memory_id: verdict.seq for verdict in wire.verdicts(answer)}
        return batch.only(seqs)

    # -- hello

    def _greet(self) -> Welcome:
        with self._talk.replica.database.write() as connection:
            hello = syncing.greeting(
                connection,
                self._talk.replica.user_id,
                model=(self._talk.model.name, self._talk.model.dimension),
                schema=self._schema,
                listens=self._listens,
            )
            noted = syncing.read_sync(connection).clock_offset
        self._talk.device = hello.device
        self._talk.ask()
        welcome = self._talk.centre.hello(hello)
        wire.require_protocol(welcome.protocol)
        self._note_offset(welcome.now - self._talk.clock.now(), noted)
        self.report.rev = welcome.head.rev
        self._talk.epoch = welcome.epoch
        return welcome

    def _note_offset(self, offset: int, noted: int) -> None:
        """Learn how this device's clock stands to the centre's. Less than a second is the way of the answer."""
        wanted = offset if abs(offset) > OFFSET_WORTH_NOTING_MS else 0
        if abs(wanted - noted) > OFFSET_WORTH_NOTING_MS or (wanted == 0) != (noted == 0):
            with self._talk.replica.database.write() as connection:
                syncing.set_sync(connection, clock_offset=wanted)
            self._talk.replica.clock_offset = wanted

    def _begin(self, welcome: Welcome) -> bool:
        """Make the histories fit; returns whether everything was compared."""
        state = self._talk.state()
        decision = plan.opening(state.position(), welcome)
        if decision is plan.Opening.RECONCILE:
            self._reconcile(welcome)
            return True
        if state.epoch != welcome.epoch:
            self._adopt(welcome)
        return False

    def _adopt(self, welcome: Welcome) -> None:
        with self._talk.replica.database.write() as connection:
            syncing.set_sync(connection, epoch=welcome.epoch)

    def _reconcile(self, welcome: Welcome, *, everything: bool = False) -> None:
        self.report.reconciled = True
        Reconciling(self._talk, welcome, everything=everything).run()

    # -- head

    def _compare(self, head: Head, welcome: Welcome) -> None:
        """Compare digests at the head; if they differ, everything, once."""
        if self._verify or self._due_for_verification():
            self._verify_rows()
        difference = self._difference(head)
        if difference in (Difference.MEMORIES, Difference.ACCESSES):
            self._reconcile(welcome, everything=difference is Difference.ACCESSES)
            self._push.run()
            difference = self._difference(self._pull.run(head))
        if difference in (Difference.MEMORIES, Difference.ACCESSES):
            raise SyncIncomplete(user_id=self._talk.replica.user_id)
        self.report.equal = None if difference is Difference.UNKNOWN else True

    def _due_for_verification(self) -> bool:
        verified = self._talk.state().verified_at
        return verified is not None and not 0 <= self._talk.clock.now() - verified < VERIFY_AFTER_MS

    def _verify_rows(self) -> None:
        with self._talk.replica.database.write() as connection:
            comparing.verify_shadows(connection)
            syncing.recount(connection)
            syncing.set_sync(connection, verified_at=self._talk.clock.now())

    def _difference(self, head: Head) -> Difference:
        with self._talk.replica.database.read() as connection:
            state = syncing.read_sync(connection)
            if head.digest is None or head.rev != state.cursor:
                return Difference.UNKNOWN
            if (state.digest, state.live) != (head.digest, head.live):
                return Difference.MEMORIES
            if outbox.deletion_waits(connection) or outbox.sum_acked(connection) == head.accesses:
                return Difference.NONE
            return Difference.ACCESSES

    def _finish(self) -> None:
        now = self._talk.clock.now()
        with self._talk.replica.database.write() as connection:
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
