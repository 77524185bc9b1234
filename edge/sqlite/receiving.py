"""What comes from the centre, written into a user's file: records, deletions, access counts. Inside a transaction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from edge.sqlite.conflicts import log_conflict
from edge.sqlite.database import Db
from edge.sqlite.merging import Known, Merging
from edge.sqlite.rows import Author, Base, encode_json
from edge.sqlite.syncing import shadow_changed
from edge.sync import plan
from memory.core.clock import parse_stamp
from memory.core.record import Record, encode_record, encode_stamps
from memory.core.rowhash import row_hash
from memory.core.state import State
from memory.core.text import DocumentTerms
from memory.engine.storage import Incoming

_NO_TERMS = DocumentTerms(frozenset(), 0)
_BLANK_STAMPS = '{"*":"0.0.0"}'


class _Shadow(NamedTuple):
    """What is known of the centre's version."""

    base_epoch: str | None
    base_rev: int | None
    shadow: str | None
    shadow_hash: int | None
    live: bool = False
    buried: State | None = None
    """The tombstone, if there is one."""


_NEVER = _Shadow(None, None, None, None)


@dataclass(slots=True)
class Tally:
    """What has become of the lines received."""

    changed: int = 0
    pushed_back: int = 0
    lost: int = 0
    deferred: int = 0
    """Memories that wait for a vector now."""


class Receiving:
    """One transaction's lines, all of one epoch."""

    def __init__(self, connection: Db, author: Author, *, epoch: str, now: int, comparing: bool = False) -> None:
        """Begin; ``comparing``: a version older than the one received last counts, too, for the centre was restored."""
        self._db, self._author, self._epoch, self._now = connection, author, epoch, now
        self._comparing = comparing
        self._merging = Merging(connection, author)
        self.tally = Tally()

    def record(self, item: Incoming, rev: int) -> None:
        """Take in a record, live or deleted, that the centre has at a revision."""
        shadow = self._shadow(item.memory_id)
        damaged = shadow.base_rev is not None and shadow.shadow_hash is None and shadow.shadow is None
        if damaged:
            blank(self._db, item.memory_id)
        known = self._merging.look(item.memory_id) if shadow.live else Known(None, shadow.buried)
        same_history = shadow.base_epoch == self._epoch
        if same_history and not self._comparing and shadow.base_rev is not None and shadow.base_rev > rev:
            return  # older than what is here: a file that comes late
        if damaged and known.state is not None:
            decision = plan.Reception(state=plan.with_accesses(item.state, known.state), push_back=False)
        else:
            decision = plan.receive(_local(known, shadow), item.state, same_history=same_history)
        if decision.lost is not None and known.live is not None:
            self._log(item.memory_id, decision.lost, known.live.stored.state)
        self._store(item, rev, known, shadow, decision)

    def _shadow(self, memory_id: str) -> _Shadow:
        """What is known of the centre's version; a row that is damaged can be asked that much."""
        row = self._db.execute(
            "SELECT base_epoch, base_rev, shadow, shadow_hash FROM memories WHERE memory_id = ?", (memory_id,)
        ).fetchone()
        if row is not None:
            return _Shadow(row[0], row[1], row[2], row[3], live=True)
        row = self._db.execute(
            "SELECT stamp, shadow_hash FROM memory_tombstones WHERE memory_id = ?", (memory_id,)
        ).fetchone()
        return _NEVER if row is None else _NEVER._replace(shadow_hash=row[1], buried=State(deleted=parse_stamp(row[0])))

    def _log(self, memory_id: str, reason: str, state: State) -> None:
        record = encode_record(Record(memory_id=memory_id, user_id=self._author.user_id, state=state))
        log_conflict(self._db, memory_id, reason, record, now=self._now)
        self.tally.lost += 1

    def _store(self, item: Incoming, rev: int, known: Known, shadow: _Shadow, decision: plan.Reception) -> None:
        incoming = item.state
        received = None if incoming.deleted is not None else row_hash(item.memory_id, incoming)
        fresh = known.state is None and received is not None
        base = Base(self._epoch, rev, received) if fresh and received is not None else None
        deferred = self._merging.store(item, known, decision.state, base)
        if decision.state.deleted is not None:
            self._db.execute(
                "UPDATE memory_tombstones SET dirty = ?, shadow_hash = ? WHERE memory_id = ?",
                (decision.push_back, received, item.memory_id),
            )
        elif not fresh:
            kept = encode_json(encode_stamps(incoming)) if decision.push_back else None
            self._db.execute(
                "UPDATE memories SET dirty = ?, base_epoch = ?, base_rev = ?, shadow = ?, shadow_hash = ?"
                " WHERE memory_id = ?",
                (decision.push_back, self._epoch, rev, kept, received, item.memory_id),
            )
        self._note_accesses(item.memory_id, incoming)
        shadow_changed(self._db, shadow.shadow_hash, received)
        self.tally.changed += decision.state != known.state
        self.tally.pushed_back += decision.push_back
        self.tally.deferred += deferred

    def _note_accesses(self, memory_id: str, state: State) -> None:
        """What has come from the centre need not be sent there."""
        if state.accesses:
            self._db.executemany(
                "UPDATE memory_access SET acked = max(acked, ?) WHERE memory_id = ? AND writer = ?",
                [(count, memory_id, writer) for writer, count in state.accesses.items()],
            )

    def accesses(self, memory_id: str, state: State) -> None:
        """Take in access counts of a memory that is here."""
        known = self._merging.look(memory_id)
        if known.live is None:
            return  # deleted here, or its record comes later and takes its counts along
        held = known.live.stored.state
        item = Incoming(memory_id=memory_id, user_id=self._author.user_id, state=held, terms=_NO_TERMS, vector=None)
        joined = plan.with_accesses(held, state)
        self._merging.store(item, known, joined)
        self._note_accesses(memory_id, state)
        self.tally.changed += joined != held

    def finish(self) -> Tally:
        """Write down the revisions and the clock; returns what has become of the lines."""
        self._merging.finish()
        return self.tally


def blank(connection: Db, memory_id: str) -> None:
    """Make a row readable that ``comparing.verify_shadows`` has found damaged, for the centre's version to replace it.

    What is kept are its place and its access counts.
    """
    connection.execute(
        "UPDATE memories SET content = '', memory_type = 'fact', importance = 0, status = 'active',"
        " source_session = NULL, created_at = 0, stamps = ?, metadata = '{}', extra = '{}',"
        " tags = (SELECT json_group_array(t.tag) FROM memory_tags t WHERE t.memory_id = memories.memory_id)"
        " WHERE memory_id = ?",
        (_BLANK_STAMPS, memory_id),
    )


def _local(known: Known, shadow: _Shadow) -> plan.Local:
    state = known.state
    received = shadow.base_rev is not None
    seen = None
    if state is not None and state.deleted is None and received:
        seen = state.scalars["content"].stamp
        if shadow.shadow is not None:
            seen = parse_stamp(json.loads(shadow.shadow)["*"])
    return plan.Local(state=state, received=received, edited=shadow.shadow is not None, seen=seen)
