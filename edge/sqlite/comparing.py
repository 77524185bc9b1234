"""Comparing everything with the centre, by id and hash, a range of ids at a time. Inside a transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from edge.sqlite.conflicts import log_conflict
from edge.sqlite.database import Db
from edge.sqlite.rows import Author
from edge.sqlite.snapshot import RECORD_COLUMNS, record_of
from edge.sqlite.syncing import shadow_changed
from edge.sqlite.writing import bury, draw
from memory.core.rowhash import content_sha256, stored_row_hash
from memory.core.state import SCALARS
from memory.core.sync import Entry

_LAST: Final = "\U0010ffff"
"""Above every id."""


@dataclass(frozen=True, slots=True)
class Held:
    """A memory in the range: what is known of the centre's version."""

    memory_id: str
    live: bool
    base: tuple[str, int] | None
    shadow_hash: int | None


def held_between(connection: Db, above: str, upto: str | None) -> dict[str, Held]:
    """All memories, live and deleted, with ids above the one and up to the other; None: to the end."""
    span = (above, _LAST if upto is None else upto)
    live = connection.execute(
        "SELECT memory_id, base_epoch, base_rev, shadow_hash FROM memories WHERE memory_id > ? AND memory_id <= ?", span
    )
    found = {
        row[0]: Held(row[0], live=True, base=None if row[2] is None else (row[1], row[2]), shadow_hash=row[3])
        for row in live
    }
    dead = connection.execute(
        "SELECT memory_id, shadow_hash FROM memory_tombstones WHERE memory_id > ? AND memory_id <= ?", span
    )
    return found | {row[0]: Held(row[0], live=False, base=None, shadow_hash=row[1]) for row in dead}


def differing(held: Mapping[str, Held], listed: Iterable[Entry]) -> list[str]:
    """Ids that the centre lists and that are not known here as they are there."""
    return [entry.memory_id for entry in listed if not _same(held.get(entry.memory_id), entry)]


def _same(here: Held | None, entry: Entry) -> bool:
    if here is None:
        return False
    if entry.deleted:
        return not here.live
    return here.live and entry.hash is not None and here.shadow_hash == entry.hash


def rebase(connection: Db, epoch: str, entries: Iterable[Entry]) -> None:
    """Memories that are the same here and there are, in this history, of these revisions."""
    connection.executemany(
        "UPDATE memories SET base_epoch = ?, base_rev = ? WHERE memory_id = ? AND base_epoch IS NOT ?",
        [(epoch, entry.rev, entry.memory_id, epoch) for entry in entries],
    )


def centre_deleted(connection: Db, memory_ids: Iterable[str]) -> None:
    """Tombstones that the centre has, too: nothing is left to tell."""
    for memory_id in memory_ids:
        row = connection.execute(
            "SELECT shadow_hash FROM memory_tombstones WHERE memory_id = ?", (memory_id,)
        ).fetchone()
        if row is not None:
            shadow_changed(connection, row[0], None)
            connection.execute("UPDATE memory_tombstones SET shadow_hash = NULL WHERE memory_id = ?", (memory_id,))


def offer_again(connection: Db, item: Held) -> None:
    """The centre has lost a memory: to it, it is a new one, or a deletion that it has not heard of."""
    shadow_changed(connection, item.shadow_hash, None)
    if item.live:
        connection.execute(
            "UPDATE memories SET dirty = 1, base_epoch = NULL, base_rev = NULL, shadow = NULL, shadow_hash = NULL"
            " WHERE memory_id = ?",
            (item.memory_id,),
        )
        connection.execute("UPDATE memory_access SET acked = 0 WHERE memory_id = ?", (item.memory_id,))
    else:
        connection.execute(
            "UPDATE memory_tombstones SET dirty = 1, shadow_hash = NULL WHERE memory_id = ?", (item.memory_id,)
        )


def offer_accesses_again(connection: Db) -> None:
    """A restored centre may have lost access counts; those it has change nothing there."""
    connection.execute("UPDATE memory_access SET acked = 0 WHERE acked > 0")


def remove_purged(connection: Db, author: Author, memory_id: str, reason: str, *, now: int) -> bool:
    """Remove what the centre has purged; what had been changed here and not been sent is logged first.

    Returns whether something was logged. A tombstone stays that is not sent.
    """
    row = connection.execute(
        f"SELECT {RECORD_COLUMNS}, m.shadow, m.base_rev, m.shadow_hash FROM memories m"
        " LEFT JOIN memory_vectors v USING (number) WHERE m.memory_id = ?",
        (memory_id,),
    ).fetchone()
    if row is None:
        return False
    edited = row[17] is not None or row[18] is None
    if edited:
        log_conflict(connection, memory_id, reason, record_of(row, ""), now=now)
    drawn = draw(connection, author, now=now)
    bury(connection, author.user_id, memory_id, drawn.stamp, rev=drawn.rev)
    shadow_changed(connection, row[19], None)
    connection.execute("UPDATE memory_tombstones SET dirty = 0, shadow_hash = NULL WHERE memory_id = ?", (memory_id,))
    return edited


def verify_shadows(connection: Db) -> int:
    """Compute the hashes of unedited memories again from their rows; returns how many are not what was noted.

    A row that was damaged on disk then has no hash: it is missing in the digest, once that is counted again, and the
    centre's version replaces it.
    """
    columns = "memory_id, stamps, extra, tags, metadata, content, shadow_hash"
    rows = connection.execute(f"SELECT {columns} FROM memories WHERE shadow_hash IS NOT NULL AND shadow IS NULL")
    wrong = [(row[0],) for row in rows if _computed(row) != row[6]]
    connection.executemany("UPDATE memories SET shadow_hash = NULL WHERE memory_id = ?", wrong)
    return len(wrong)


def _computed(row: tuple[Any, ...]) -> int | None:
    memory_id, stamps, extra, tags, metadata, content, _ = row
    try:
        return stored_row_hash(
            memory_id,
            json.loads(stamps),
            scalars=(*SCALARS, *json.loads(extra)),
            tags=json.loads(tags),
            metadata=json.loads(metadata),
            content_sha256=content_sha256(content),
        )
    except (ValueError, TypeError, KeyError, AttributeError):  # a damaged row can hold anything
        return None
