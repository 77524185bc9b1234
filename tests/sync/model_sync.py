"""Sessions of the model: greet, reconcile if need be, push and pull until both sides are equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from memory.core.clock import MAX_SKEW_MS
from memory.core.errors import ClockAhead, EpochChanged, SyncIncomplete
from memory.core.framing import encode_line
from memory.core.record import KIND, decode_record
from memory.core.sync import (
    ANSWER,
    MANIFEST,
    MARKS_SENT,
    PULL,
    PUSH,
    RECORDS,
    Entry,
    FetchRequest,
    Head,
    Hello,
    ManifestRequest,
    Mark,
    Page,
    PullRequest,
    Received,
    Welcome,
    entries,
    read_page,
    verdicts,
    write_page,
)
from tests.sync import model_rules as rules
from tests.sync.model import USER, Disk, LocalEdge
from tests.sync.model_rules import Opening, Row

ROUNDS: Final = 200
"""More than any session needs; a session that does not end is a fault."""
Sent = Mapping[str, tuple[Row, dict[str, Any]]]
"""By memory: the row as it was read, and the line that was made of it."""


class ModelEdge(LocalEdge):
    """A replica as ``ports.Edge`` has it."""

    def sync(self, page: int) -> None:
        for _ in range(ROUNDS):
            try:
                self._session(page)
            except EpochChanged:
                continue
            return self.drain()
        raise SyncIncomplete

    def _session(self, limit: int) -> None:
        welcome = self._greet()
        disk = self.disk
        equal = not self._differs(welcome.head, self._known_head())
        begin = rules.opening(disk.epoch, disk.cursor, welcome, equal=equal)
        if begin is Opening.RECONCILE:
            self._reconcile(welcome, limit)
        elif disk.epoch != welcome.epoch:
            self._commit(replace(self.disk, epoch=welcome.epoch))
        for _ in range(3):
            if not self._differs(self._converge(welcome.head, limit), self._known_head()):
                return
            self._reconcile(welcome, limit, everything=True)
        raise SyncIncomplete

    def _known_head(self) -> Head:
        return rules.head_of(self.disk.rows, self.disk.cursor)

    def _greet(self) -> Welcome:
        disk = self.disk
        hello = Hello(
            device=disk.device,
            user_id=USER,
            epoch=disk.epoch,
            cursor=disk.cursor,
            marks=disk.marks[-MARKS_SENT:],
            model="",
            dimension=0,
            schema="",
        )
        welcome = self._carrier.hello(hello)
        self._commit(replace(self.disk, offset=welcome.now - self._now() - self._ahead))
        self._centre_rev = welcome.head.rev
        return welcome

    def _differs(self, head: Head | None, known: Head) -> bool:
        """Whether the centre is not as this edge thinks, in a head that belongs to its cursor."""
        if head is None or head.digest is None or head.rev != known.rev or "digest" in self._without:
            return False
        return head != known

    def _converge(self, head: Head | None, limit: int) -> Head | None:
        """Push and pull until neither has anything left; returns the centre's head if it was told since."""
        for _ in range(ROUNDS):
            while self._push(limit):
                head = None
            if self.disk.cursor >= self._centre_rev:
                return head
            while True:
                page = self._pull(limit)
                if not page.more:
                    break
            head = page.head
        raise SyncIncomplete

    # -- push

    def _push(self, limit: int) -> bool:
        """One page; False if there is nothing to send."""
        sent = self._next_page(limit)
        if not sent:
            return False
        try:
            answer = read_page(self._carrier.push(self._frame([line for _, line in sent.values()])), ANSWER)
        except ClockAhead as error:
            if "restamp" in self._without:
                raise
            self._restamp(error.now)
            return True
        self._commit(self._acknowledged(sent, answer))
        self._centre_rev = answer.page.to
        return True

    def _next_page(self, limit: int) -> dict[str, tuple[Row, dict[str, Any]]]:
        rows = self.disk.rows
        dirty = sorted((row.seq, memory_id) for memory_id, row in rows.items() if row.dirty)[:limit]
        sent = {i: (rows[i], rules.record_line(i, USER, rows[i])) for _, i in dirty}
        for memory_id, row in rows.items():
            line = rules.accesses_line(memory_id, USER, row)
            if line is not None and len(sent) < limit:
                sent[memory_id] = (row, line)
        return sent

    def _frame(self, lines: Iterable[Mapping[str, Any]]) -> list[bytes]:
        page = Page(
            stream=PUSH,
            device=self.disk.device,
            user_id=USER,
            epoch=self.disk.epoch or "",
            mark=f"{self._rng.getrandbits(64):016x}",
        )
        return list(write_page(page, map(encode_line, lines)))

    def _acknowledged(self, sent: Mapping[str, tuple[Row, dict[str, Any]]], answer: Received) -> Disk:
        disk, page = self.disk, answer.page
        rows, todo, conflicts = dict(disk.rows), set(disk.todo), list(disk.conflicts)
        given = verdicts(answer)
        for verdict in given:
            before, line = sent[verdict.memory_id]
            row = rows[verdict.memory_id]
            if "seq" in self._without:
                before = replace(before, seq=row.seq)
            after, reason = rules.answered(row, before, verdict, page.epoch, whole=line["kind"] == KIND)
            if reason is not None:
                conflicts.append((verdict.memory_id, reason, row.state))
            if after is None:
                del rows[verdict.memory_id]
                todo.add(verdict.memory_id)
            else:
                rows[verdict.memory_id] = after
        skip = disk.cursor == page.after and all(verdict.equal for verdict in given)
        return replace(
            disk,
            rows=rows,
            todo=frozenset(todo),
            conflicts=tuple(conflicts),
            marks=(*disk.marks, Mark(str(page.mark), page.to)),
            cursor=page.to if skip else disk.cursor,
        )

    def _restamp(self, now: int) -> None:
        disk = self.disk
        start = 0 if "ahead" in self._without else MAX_SKEW_MS
        rows, tick = rules.restamped(disk.rows, now, self._writer, disk.seq, start=start)
        seq = max((row.seq for row in rows.values()), default=disk.seq)
        offset = now - self._now() - self._ahead
        todo = disk.todo | {memory_id for memory_id, row in rows.items() if row is not disk.rows[memory_id]}
        self._commit(replace(disk, rows=rows, tick=tick, seq=max(seq, disk.seq), offset=offset, todo=todo))

    # -- pull

    def _pull(self, limit: int) -> Page:
        disk = self.disk
        request = PullRequest(
            device=disk.device,
            user_id=USER,
            epoch=disk.epoch or "",
            after=disk.cursor,
            limit=limit,
        )
        received = read_page(self._carrier.pull(request), PULL)
        self.cp()
        page = received.page
        disk = self._taken(self.disk, received)
        marks = disk.marks if page.mark is None else (*disk.marks, Mark(page.mark, page.to))
        self._commit(replace(disk, cursor=max(disk.cursor, page.to), marks=marks))
        return page

    def _taken(self, disk: Disk, received: Received) -> Disk:
        """The disk with the lines of a page joined to its rows."""
        rows, todo, conflicts, tick = dict(disk.rows), set(disk.todo), list(disk.conflicts), disk.tick
        for line in received.lines:
            memory_id = line["memory_id"]
            before = rows.get(memory_id)
            if line["kind"] != KIND:
                if before is not None:
                    rows[memory_id] = rules.receive_accesses(before, line["accesses"], line["last_access_at"])
                continue
            record = decode_record(line)
            after, reason = rules.receive(before, record.state, received.page.epoch, record.rev or 0)
            if "push-back" in self._without:
                after = replace(after, dirty=False)
            if reason is not None and before is not None:
                conflicts.append((memory_id, reason, before.state))
            rows[memory_id] = after
            todo.add(memory_id)
            tick = max(tick, *(stamp.tick for stamp in after.state.stamps()))
        return replace(disk, rows=rows, todo=frozenset(todo), conflicts=tuple(conflicts), tick=tick)

    # -- reconcile

    def _reconcile(self, welcome: Welcome, limit: int, *, everything: bool = False) -> None:
        """Compare all ids and hashes; in one commit at the end."""
        found, rev = self._manifest(welcome.epoch, limit)
        cursor = self.disk.cursor
        if self.disk.epoch is not None and self.disk.epoch != welcome.epoch:
            cursor = min(cursor, rules.bound(self.disk.epoch, welcome))
        if "cursor" in self._without:
            cursor = rev
        disk, wanted = self._compared(found, welcome, cursor)
        if everything and not wanted and "slots" not in self._without:
            wanted = [entry.memory_id for entry in found.values() if not entry.deleted]
        for start in range(0, len(wanted), limit):
            ids = tuple(wanted[start : start + limit])
            request = FetchRequest(device=disk.device, user_id=USER, epoch=welcome.epoch, memory_ids=ids)
            disk = self._taken(disk, read_page(self._carrier.fetch(request), RECORDS))
            self.cp()
        if disk.epoch != welcome.epoch and "forget" not in self._without:
            disk = replace(disk, marks=())  # revisions of different epochs do not compare
        self._commit(replace(disk, epoch=welcome.epoch, cursor=cursor))
        self._centre_rev = max(self._centre_rev, rev)

    def _manifest(self, epoch: str, limit: int) -> tuple[dict[str, Entry], int]:
        found: dict[str, Entry] = {}
        rev = 0
        while True:
            request = ManifestRequest(
                device=self.disk.device, user_id=USER, epoch=epoch, above=max(found, default=""), limit=limit
            )
            received = read_page(self._carrier.manifest(request), MANIFEST)
            self.cp()
            found |= {entry.memory_id: entry for entry in entries(received)}
            rev = rev or received.page.to
            if not received.page.more:
                return found, rev

    def _compared(self, found: Mapping[str, Entry], welcome: Welcome, cursor: int) -> tuple[Disk, list[str]]:
        """The disk after all that can be decided from hashes, and the ids whose records have to be fetched.

        What the centre has above the cursor comes with the next pull anyway.
        """
        disk = self.disk
        rows, todo, conflicts = dict(disk.rows), set(disk.todo), list(disk.conflicts)
        wanted = [i for i, entry in found.items() if i not in rows and not entry.deleted and entry.rev <= cursor]
        for memory_id, row in disk.rows.items():
            entry = found.get(memory_id)
            after: Row | None = row
            if entry is None:
                after, reason = rules.missing(row, welcome, gone="gone" not in self._without)
                if reason is not None:
                    conflicts.append((memory_id, reason, row.state))
            elif entry.rev <= cursor and (after := rules.compared(memory_id, row, entry, welcome.epoch)) is None:
                wanted.append(memory_id)
                after = row
            if after is None:
                del rows[memory_id]
                todo.add(memory_id)
            else:
                rows[memory_id] = after if "offer" in self._without else replace(after, acked={})
        return replace(disk, rows=rows, todo=frozenset(todo), conflicts=tuple(conflicts)), wanted
