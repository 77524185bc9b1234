"""Push: what the centre does not have yet goes there page by page, and what becomes of each line is noted here."""

from __future__ import annotations

from typing import Final

from edge.sqlite import comparing, outbox, syncing
from edge.sqlite.conflicts import log_conflict
from edge.sqlite.database import Db
from edge.sqlite.restamping import restamp
from edge.sync import plan
from edge.sync.talk import Talk
from memory.core import sync as wire
from memory.core.errors import ClockAhead, FormatError
from memory.core.record import decode_record
from memory.core.sync import Mark, Page, Received, Verdict

SMALL_PAGES: Final = 3
"""After so many pages that were not full, what is still being written here waits for the next sync."""
MOST_RESTAMPS: Final = 3


class Pushing:
    """The push of one session."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def run(self) -> bool:
        """Push until nothing waits; returns whether there was anything."""
        pages = small = restamps = 0
        with self._talk.replica.database.read() as connection:
            total = sum(outbox.pending(connection))
        while small < SMALL_PAGES:
            with self._talk.replica.database.read() as connection:
                batch = outbox.next_batch(connection, model=self._talk.model.name, limit=self._talk.page_lines)
            if not batch:
                break
            try:
                self._push(batch)
            except ClockAhead as error:
                restamps += 1
                if restamps == MOST_RESTAMPS:
                    raise
                self._restamp(error.now)
                continue
            pages += 1
            small += len(batch.lines) < self._talk.page_lines
            self._talk.progress("push", min(self._talk.report.pushed, total), total)
        return pages > 0

    def _push(self, batch: outbox.Batch) -> None:
        page = Page(
            stream=wire.PUSH,
            device=self._talk.device,
            user_id=self._talk.replica.user_id,
            epoch=self._talk.epoch,
            model=self._talk.model.name,
            dimension=self._talk.model.dimension,
            now=self._talk.clock.now(),
        )
        self._talk.ask()
        answer = wire.read_page(self._talk.centre.push(list(wire.write_page(page, batch.lines))), wire.ANSWER)
        self.carry_out(batch, self._talk.require_ours(answer))

    def carry_out(self, batch: outbox.Batch, answer: Received) -> None:
        """Note what became of a page that was pushed, in one transaction."""
        verdicts = wire.verdicts(answer)
        if batch.lines and {verdict.memory_id for verdict in verdicts} != {*batch.records, *batch.accesses}:
            raise FormatError("the answer does not say of each memory what became of it")
        with self._talk.replica.database.write() as connection:
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
        self._talk.replica.step("push acknowledged")

    def _carry_out_one(self, connection: Db, batch: outbox.Batch, verdict: Verdict, epoch: str) -> None:
        memory_id, line = verdict.memory_id, batch.records.get(verdict.memory_id)
        if verdict.code == wire.OK:
            self._talk.report.pushed += 1
            outbox.acknowledge_accesses(connection, memory_id, batch.accesses.get(memory_id, {}))
            if line is not None:
                state, seq = decode_record(line).state, line["sync"]["seq"]
                outbox.acknowledge(
                    connection, memory_id, state, seq=seq, epoch=epoch, rev=verdict.rev, equal=verdict.equal
                )
        elif verdict.code == wire.UNKNOWN:
            outbox.send_again(connection, memory_id)
        elif verdict.code == wire.GONE:
            self._talk.report.removed += 1
            self._talk.report.conflicts += comparing.remove_purged(
                connection, self._talk.replica.author, memory_id, plan.GONE, now=self._talk.clock.now()
            )
        elif verdict.code == wire.REJECTED:
            self._talk.report.rejected += 1
            if line is None:
                return
            log_conflict(
                connection, memory_id, plan.REJECTED, line, now=self._talk.clock.now(), problem=verdict.problem
            )
            outbox.stop_sending(connection, memory_id, seq=line["sync"]["seq"])
        else:
            raise FormatError(f"a verdict {verdict.code!r:.40} that this version does not know")

    def _restamp(self, now: int) -> None:
        with self._talk.replica.database.write() as connection:
            self._talk.report.restamped += restamp(connection, self._talk.replica.author, now=now)
