"""The decisions of an edge, as functions of values: what becomes of a row when something is received or answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from memory.core.clock import MAX_SKEW_MS, Stamp, Tick, next_tick
from memory.core.merge import merge
from memory.core.record import Record, encode_record
from memory.core.rowhash import row_hash
from memory.core.state import Register, State
from memory.core.sync import GONE, OK, REJECTED, Entry, Head, Verdict, Welcome, access_line

OVERWRITTEN, DELETED = "overwritten", "deleted"
Rows = Mapping[str, "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """A memory at an edge, live or deleted, and what the edge knows of the centre's version."""

    state: State
    seq: int = 0
    """Local sequence number of its last local change."""
    dirty: bool = False
    """Its registers have to be sent."""
    base: tuple[str, int] | None = None
    """Epoch and revision received last."""
    shadow: State | None = None
    """The registers received last."""
    acked: Mapping[str, int] = field(default_factory=dict)
    """Access slots that the centre has."""

    @property
    def live(self) -> bool:
        return self.state.deleted is None

    @property
    def registers(self) -> State:
        return self.state.without_accesses()

    @property
    def edited(self) -> bool:
        """Something here is not in the version received last."""
        return self.registers != self.shadow

    @property
    def seen(self) -> str | None:
        """The content's stamp in the version received last."""
        content = None if self.shadow is None else self.shadow.scalars.get("content")
        return None if content is None else str(content.stamp)


# -- sending


def record_line(memory_id: str, user_id: str, row: Row) -> dict[str, Any]:
    """A row as it is pushed."""
    record = encode_record(Record(memory_id=memory_id, user_id=user_id, state=row.state))
    return {**record, "sync": {"seq": row.seq, "base": row.base, "seen": row.seen}}


def accesses_line(memory_id: str, user_id: str, row: Row) -> dict[str, Any] | None:
    """The access counts of a row that the centre has, if it has not all of them."""
    unsent = any(count > row.acked.get(writer, 0) for writer, count in row.state.accesses.items())
    if row.dirty or not row.live or row.base is None or not unsent:
        return None
    return {
        **access_line(memory_id, user_id, row.state.accesses, row.state.last_access),
        "sync": {"seq": row.seq},
    }


def answered(row: Row, sent: Row, verdict: Verdict, epoch: str, *, whole: bool) -> tuple[Row | None, str | None]:
    """What becomes of a row when the centre has answered what was sent of it; why it goes to the log of conflicts."""
    unchanged = row.seq == sent.seq
    if verdict.code == GONE:
        return None, GONE if row.live and row.edited else None
    if verdict.code == REJECTED:
        return replace(row, dirty=row.dirty and not unchanged), REJECTED
    if verdict.code != OK:
        return replace(row, dirty=True), None
    if row.live:
        row = replace(row, acked=_larger(row.acked, sent.state.accesses))
    if not whole:
        return row, None
    if verdict.equal:
        row = replace(row, shadow=sent.registers, base=(epoch, verdict.rev))
    return replace(row, dirty=row.dirty and not unchanged), None


# -- receiving


def receive(row: Row | None, incoming: State, epoch: str, rev: int) -> tuple[Row, str | None]:
    """Join a record received; the second value says why what was here goes to the log of conflicts."""
    shadow = incoming.without_accesses()
    if row is None:
        return Row(incoming, base=(epoch, rev), shadow=shadow, acked=incoming.accesses), None
    merged = merge(row.state, incoming)
    acked = {} if merged.deleted is not None else _larger(row.acked, incoming.accesses)
    dirty = merged.without_accesses() != shadow
    return replace(row, state=merged, dirty=dirty, base=(epoch, rev), shadow=shadow, acked=acked), _lost(row, incoming)


def _lost(row: Row, incoming: State) -> str | None:
    if not row.live:
        return None
    if incoming.deleted is not None:
        return DELETED if row.edited else None
    ours, theirs = row.state.scalars["content"], incoming.scalars["content"]
    return (
        OVERWRITTEN
        if str(ours.stamp) != row.seen and theirs.stamp > ours.stamp and theirs.value != ours.value
        else None
    )


def receive_accesses(row: Row, slots: Mapping[str, int], last_access: int | None) -> Row:
    """Join access counts received."""
    if not row.live:
        return row
    joined = merge(row.state, State(accesses=slots, last_access=last_access))
    return replace(row, state=joined, acked=_larger(row.acked, slots))


def _larger(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {writer: max(a.get(writer, 0), b.get(writer, 0)) for writer in {*a, *b}}


# -- comparing


class Opening(Enum):
    """How a session begins."""

    GO_ON = "go on"
    ADOPT = "adopt the epoch"
    RECONCILE = "reconcile"


def opening(epoch: str | None, cursor: int, welcome: Welcome, *, equal: bool) -> Opening:
    """``equal``: the centre's head is what is known here of it."""
    if epoch is None:
        return Opening.GO_ON
    if welcome.reconcile:
        return Opening.RECONCILE
    if epoch == welcome.epoch:
        return Opening.GO_ON
    nothing_lost = cursor == welcome.lineage.get(epoch, 0) == welcome.head.rev
    return Opening.ADOPT if nothing_lost and equal else Opening.RECONCILE


def bound(epoch: str, welcome: Welcome) -> int:
    """The revision up to which the centre has, or has had, what it gave out in an epoch."""
    return welcome.lineage.get(epoch, welcome.head.rev if epoch == welcome.epoch else 0)


def missing(row: Row, welcome: Welcome, *, gone: bool = True) -> tuple[Row | None, str | None]:
    """What becomes of a row that the centre does not have."""
    if gone and row.live and row.base is not None and row.base[1] <= bound(row.base[0], welcome):
        return None, GONE if row.edited else None
    return replace(row, dirty=True, base=None, shadow=None), None


def compared(memory_id: str, row: Row, entry: Entry, epoch: str) -> Row | None:
    """The row if the centre has just this, or just what was received last; None: its record has to be fetched."""
    base = (epoch, entry.rev)
    if entry.hash == row_hash(memory_id, row.state):
        return replace(row, dirty=False, base=base, shadow=row.registers)
    if row.shadow is not None and entry.hash == row_hash(memory_id, row.shadow):
        return replace(row, dirty=True, base=base)
    return None


def head_of(rows: Rows, rev: int) -> Head:
    """What the centre must be like at a revision, as far as is known here."""
    shadows = {memory_id: row.shadow for memory_id, row in rows.items()}
    live = {memory_id: shadow for memory_id, shadow in shadows.items() if shadow is not None and shadow.deleted is None}
    digest = 0
    for memory_id, shadow in live.items():
        digest ^= row_hash(memory_id, shadow)
    return Head(rev=rev, digest=digest, live=len(live), accesses=sum(sum(row.acked.values()) for row in rows.values()))


# -- a clock that ran ahead


def restamped(rows: Rows, now: int, writer: str, seq: int, *, start: int = MAX_SKEW_MS) -> tuple[dict[str, Row], Tick]:
    """Give every stamp that no centre can have accepted a new one: one new for each old, in their order.

    The new ones are above all that a centre can have accepted: what they overwrote may be there, though not here.
    Returns the rows, those changed with sequence numbers above ``seq``, and the clock.
    """
    limit = now + MAX_SKEW_MS
    held = {stamp for row in rows.values() for stamp in _stamps(row)}
    tick = max((stamp.tick for stamp in held if stamp.ms <= limit), default=Tick())
    tick = max(tick, Tick(now + start))
    new: dict[Stamp, Stamp] = {}
    for stamp in sorted(stamp for stamp in held if stamp.ms > limit):
        tick = next_tick(tick, now)
        new[stamp] = Stamp(*tick, writer)
    out = dict(rows)
    for memory_id, row in rows.items():
        late = (row.state.last_access or 0) > limit
        if late or any(stamp in new for stamp in row.state.stamps()):
            seq += 1
            state = replace(_with_stamps(row.state, new), last_access=now if late else row.state.last_access)
            out[memory_id] = replace(
                row, state=state, seq=seq, dirty=row.dirty or row.registers != state.without_accesses()
            )
    return out, tick


def _stamps(row: Row) -> Iterable[Stamp]:
    yield from row.state.stamps()
    if row.shadow is not None:
        yield from row.shadow.stamps()


def _with_stamps(state: State, new: Mapping[Stamp, Stamp]) -> State:
    def changed(registers: Mapping[str, Register]) -> dict[str, Register]:
        return {name: Register(new.get(r.stamp, r.stamp), r.value) for name, r in registers.items()}

    return replace(
        state,
        scalars=changed(state.scalars),
        tags=changed(state.tags),
        metadata=changed(state.metadata),
        deleted=None if state.deleted is None else new.get(state.deleted, state.deleted),
    )
