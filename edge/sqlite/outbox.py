"""What the centre does not have yet: edited memories, new ones, deletions, access counts; and what it says to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge.sqlite.database import Db
from edge.sqlite.snapshot import RECORD_COLUMNS, record_of
from edge.sqlite.syncing import shadow_changed
from memory.core.framing import encode_line
from memory.core.record import KIND, encode_stamps, tombstone_record
from memory.core.rowhash import row_hash
from memory.core.state import State
from memory.core.sync import MAX_PAGE_BYTES, access_line

UNLIMITED: Final = 2**40
_FROM: Final = "FROM memories m LEFT JOIN memory_vectors v USING (number)"
_NEW: Final = "m.number > (SELECT pushed_upto FROM sync_state) AND m.base_rev IS NULL AND NOT m.dirty"
# A new memory takes its access counts along; of one that it has refused, the centre can count none.
_AT_CENTRE: Final = "(SELECT base_rev IS NOT NULL FROM memories m WHERE m.memory_id = a.memory_id)"
_PENDING: Final = f"""
SELECT (SELECT count(*) FROM memories WHERE dirty) + (SELECT count(*) FROM memories m WHERE {_NEW})
    + (SELECT count(*) FROM memory_tombstones WHERE dirty),
    (SELECT count(DISTINCT memory_id) FROM memory_access a WHERE count > acked AND {_AT_CENTRE})
"""


@dataclass(slots=True)
class Batch:
    """A page to push: its lines, and what it was made of, to carry out the answer."""

    lines: list[bytes] = field(default_factory=list)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of memories, live and deleted, as sent, by id."""
    accesses: dict[str, dict[str, int]] = field(default_factory=dict)
    """Slots as sent, by memory id."""
    upto: int | None = None
    """The highest number among the new memories."""

    def only(self, seqs: Mapping[str, int]) -> Batch:
        """Of a batch, what is of these sequence numbers."""
        records = {key: line for key, line in self.records.items() if seqs.get(key) == line["sync"]["seq"]}
        return Batch(records=records, accesses={key: self.accesses[key] for key in records if key in self.accesses})

    def add(self, memory_id: str, line: dict[str, Any]) -> int:
        """Add a line; returns its bytes."""
        self.lines.append(encode_line(line))
        if line["kind"] == KIND:
            self.records[memory_id] = line
        if line.get("accesses"):
            self.accesses[memory_id] = line["accesses"]
        return len(self.lines[-1])

    def __bool__(self) -> bool:
        return bool(self.lines)


def pending(connection: Db) -> tuple[int, int]:
    """How many memories wait to be sent, and of how many more only access counts."""
    changes, accesses = connection.execute(_PENDING).fetchone()
    return int(changes), int(accesses)


def next_batch(connection: Db, *, model: str, limit: int, max_bytes: int = MAX_PAGE_BYTES) -> Batch:
    """The next page: edited memories first, then new ones, deletions, and last what has only been recalled."""
    batch, size = Batch(), 0
    for number, memory_id, line in _lines(connection, model, limit):
        if memory_id in batch.records:
            continue
        size += batch.add(memory_id, line)
        batch.upto = number or batch.upto
        if len(batch.lines) >= limit or size >= max_bytes:
            break
    return batch


def _lines(connection: Db, model: str, limit: int) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    select = f"SELECT {RECORD_COLUMNS}, m.base_epoch, m.base_rev, m.shadow, m.number {_FROM}"
    for row in connection.execute(f"{select} WHERE m.dirty ORDER BY m.rev LIMIT ?", (limit,)):
        yield None, row[0], _memory_line(row, model)
    for row in connection.execute(f"{select} WHERE {_NEW} ORDER BY m.number LIMIT ?", (limit,)):
        yield row[20], row[0], _memory_line(row, model)
    for memory_id, user_id, stamp, rev in connection.execute(
        "SELECT memory_id, user_id, stamp, rev FROM memory_tombstones WHERE dirty ORDER BY rev LIMIT ?", (limit,)
    ):
        sync = {"seq": rev, "base": None, "seen": None}
        yield None, memory_id, {**tombstone_record(memory_id, user_id, stamp), "sync": sync}
    for memory_id, user_id, slots, last, rev in connection.execute(
        "SELECT memory_id, user_id, json_group_object(writer, count), nullif(max(last_access_at), 0), max(rev)"
        f" FROM memory_access a WHERE count > acked AND {_AT_CENTRE} GROUP BY memory_id LIMIT ?",
        (2 * limit,),
    ):
        yield None, memory_id, {**access_line(memory_id, user_id, json.loads(slots), last), "sync": {"seq": rev}}


def _memory_line(row: tuple[Any, ...], model: str) -> dict[str, Any]:
    record = record_of(row, model)
    seq = record.pop("rev")
    base_epoch, base_rev, shadow = row[17:20]
    seen = None
    if base_rev is not None:
        seen = (record["stamps"] if shadow is None else json.loads(shadow))["*"]  # always the content's stamp
        if seen == record["stamps"]["*"]:
            record["vector"] = record["embedding_version"] = None  # the centre has it, or makes it
    base = None if base_rev is None else [base_epoch, base_rev]
    return {**record, "sync": {"seq": seq, "base": base, "seen": seen}}


def advance(connection: Db, batch: Batch) -> None:
    """Note that the new memories of a batch have been answered, one way or another."""
    if batch.upto is not None:
        connection.execute("UPDATE sync_state SET pushed_upto = max(pushed_upto, ?)", (batch.upto,))


def skip_received(connection: Db, *, upto_before: int) -> None:
    """Keep received memories from being looked at as new ones, as long as no new one is among them."""
    if connection.execute("SELECT pushed_upto FROM sync_state").fetchone()[0] >= upto_before:
        connection.execute("UPDATE sync_state SET pushed_upto = (SELECT numbers FROM replica)")


def acknowledge(connection: Db, memory_id: str, state: State, *, seq: int, epoch: str, rev: int, equal: bool) -> None:
    """The centre has committed what was sent of a memory. What has been edited since stays to be sent.

    If the centre now has exactly that (``equal``), it counts as received.
    """
    if state.deleted is not None:
        _acknowledge_deletion(connection, memory_id, seq, equal=equal)
        return
    row = connection.execute(
        "SELECT number, rev, shadow_hash FROM memories WHERE memory_id = ?", (memory_id,)
    ).fetchone()
    received = row_hash(memory_id, state) if equal else None
    if row is None:
        if equal:
            _deleted_meanwhile(connection, memory_id, received)
        return
    number, rev_now, before = row
    if equal:
        shadow = None if rev_now == seq else json.dumps(encode_stamps(state))
        connection.execute(
            "UPDATE memories SET base_epoch = ?, base_rev = ?, shadow = ?, shadow_hash = ? WHERE number = ?",
            (epoch, rev, shadow, received, number),
        )
        shadow_changed(connection, before, received)
    connection.execute("UPDATE memories SET dirty = 0 WHERE number = ? AND rev = ? AND dirty", (number, seq))


def _acknowledge_deletion(connection: Db, memory_id: str, seq: int, *, equal: bool) -> None:
    row = connection.execute("SELECT shadow_hash FROM memory_tombstones WHERE memory_id = ?", (memory_id,)).fetchone()
    if row is not None and equal:
        shadow_changed(connection, row[0], None)
        connection.execute("UPDATE memory_tombstones SET shadow_hash = NULL WHERE memory_id = ?", (memory_id,))
    connection.execute("UPDATE memory_tombstones SET dirty = 0 WHERE memory_id = ? AND rev = ?", (memory_id, seq))


def _deleted_meanwhile(connection: Db, memory_id: str, received: int | None) -> None:
    row = connection.execute("SELECT shadow_hash FROM memory_tombstones WHERE memory_id = ?", (memory_id,)).fetchone()
    if row is not None:
        shadow_changed(connection, row[0], received)
        connection.execute("UPDATE memory_tombstones SET shadow_hash = ? WHERE memory_id = ?", (received, memory_id))


def acknowledge_accesses(connection: Db, memory_id: str, slots: dict[str, int]) -> None:
    """The centre has these access counts."""
    connection.executemany(
        "UPDATE memory_access SET acked = max(acked, ?) WHERE memory_id = ? AND writer = ?",
        [(count, memory_id, writer) for writer, count in slots.items()],
    )


def stop_sending(connection: Db, memory_id: str, *, seq: int) -> None:
    """The centre does not take this version of a memory; the next edit is sent again."""
    connection.execute("UPDATE memories SET dirty = 0 WHERE memory_id = ? AND rev = ?", (memory_id, seq))
    connection.execute("UPDATE memory_tombstones SET dirty = 0 WHERE memory_id = ? AND rev = ?", (memory_id, seq))


def send_again(connection: Db, memory_id: str) -> None:
    """The centre lacks a memory that it was thought to have."""
    connection.execute("UPDATE memories SET dirty = 1 WHERE memory_id = ?", (memory_id,))


def deletion_waits(connection: Db) -> bool:
    """Whether something is deleted here that the centre still counts accesses of."""
    row = connection.execute("SELECT 1 FROM memory_tombstones WHERE dirty AND shadow_hash IS NOT NULL LIMIT 1")
    return row.fetchone() is not None


def sum_acked(connection: Db) -> int:
    """Accesses that the centre has, as far as is known here."""
    row = connection.execute(f"SELECT coalesce(sum(acked), 0) FROM memory_access a WHERE acked > 0 AND {_AT_CENTRE}")
    return int(row.fetchone()[0])
