"""Row hashes and the digest of a user, computed late: no write pays for them, whoever compares does.

``sync_user.hashed_rev`` says up to which revision they are right. Hashes are made in Python, by ``core.rowhash``, so
that centre and replica cannot disagree on how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from psycopg.errors import LockNotAvailable

from memory.core.errors import StoreTimeout
from memory.core.rowhash import stored_row_hash
from memory.core.state import SCALARS
from memory.postgres.database import Database, Db, Row

CHUNK: Final = 5_000
"""Revisions in one transaction: writers of the user wait for no more than that."""
PATIENCE_MS: Final = 200
"""How long to wait for a writer; then the digest stays unknown for now."""

_LIVE: Final = """
SELECT m.memory_id::text, m.stamps,
    ARRAY(SELECT t.tag FROM memory_tags t WHERE t.user_id = m.user_id AND t.memory_id = m.memory_id),
    ARRAY(SELECT jsonb_object_keys(m.metadata)), ARRAY(SELECT jsonb_object_keys(m.extra)),
    encode(sha256(convert_to(m.content, 'UTF8')), 'hex'),
    (SELECT h.row_hash FROM memory_hashes h WHERE h.user_id = m.user_id AND h.memory_id = m.memory_id)
FROM memories m WHERE m.user_id = %(user)s AND m.rev > %(low)s AND m.rev <= %(high)s
"""
# A tombstone of something live again is none; and what never had a hash is not counted.
_DEAD: Final = """
DELETE FROM memory_hashes h USING memory_tombstones t
WHERE t.user_id = %(user)s AND t.rev > %(low)s AND t.rev <= %(high)s AND h.user_id = %(user)s
    AND h.memory_id = t.memory_id
RETURNING h.row_hash
"""
_STORE: Final = """
INSERT INTO memory_hashes (user_id, memory_id, row_hash)
SELECT %(user)s, t.id, t.hash FROM unnest(%(ids)s::text[]::uuid[], %(hashes)s::int8[]) AS t(id, hash)
ON CONFLICT (user_id, memory_id) DO UPDATE SET row_hash = excluded.row_hash
"""


def settle(database: Database, user_id: str) -> None:
    """Bring a user's hashes, digest and totals up to the head; writers that go on meanwhile may be faster."""
    with database.connection() as connection:
        row = connection.execute(
            "SELECT rev FROM sync_user WHERE user_id = %s AND hashed_rev < rev", [user_id]
        ).fetchone()
    if row is None:
        return
    try:
        settled = False
        while not settled:
            with database.transaction() as connection:
                connection.execute(f"SET LOCAL lock_timeout = {PATIENCE_MS}")
                settled = _settle_some(connection, user_id, goal=row[0])
    except StoreTimeout as error:
        if not isinstance(error.__cause__, LockNotAvailable):
            raise
        # Someone keeps a transaction open. What is committed can be read without a digest.


def _settle_some(connection: Db, user_id: str, *, goal: int) -> bool:
    """One chunk; whether the goal is reached."""
    row = connection.execute(
        "SELECT rev, hashed_rev, digest, live_count FROM sync_user WHERE user_id = %s FOR UPDATE", [user_id]
    ).fetchone()
    if row is None or row[1] >= row[0]:
        return True
    rev, low, digest, live = row
    high = min(rev, low + CHUNK)
    params = {"user": user_id, "low": low, "high": high}
    # The dead first: nobody is both, but if a purge by hand was undone, being there counts.
    gone = connection.execute(_DEAD, params).fetchall()
    work = _Work(digest, live)
    for (old,) in gone:
        work.forget(old)
    for found in connection.execute(_LIVE, params).fetchall():
        work.take(found)
    if work.ids:
        connection.execute(_STORE, {"user": user_id, "ids": work.ids, "hashes": work.hashes})
    _advance(connection, user_id, work, high=high, at_head=high == rev)
    return bool(high >= goal)


@dataclass(slots=True)
class _Work:
    """A chunk's hashes, and what they make of the digest."""

    digest: int
    live: int
    ids: list[str] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)

    def forget(self, old: int) -> None:
        self.digest ^= old
        self.live -= 1

    def take(self, row: Row) -> None:
        memory_id, old, made = row[0], row[6], live_hash(row)
        self.digest ^= made if old is None else made ^ old
        self.live += old is None
        if made != old:
            self.ids.append(memory_id)
            self.hashes.append(made)


def live_hash(row: Sequence[Any]) -> int:
    """The hash of a live memory: its id, stamps, tags, metadata keys, extra names, and SHA-256 of its content."""
    memory_id, stamps, tags, metadata, extra, sha256 = row[:6]
    return stored_row_hash(
        memory_id,
        stamps,
        scalars=(*SCALARS, *extra),
        tags=tags,
        metadata=metadata,
        content_sha256=sha256,
    )


def _advance(connection: Db, user_id: str, work: _Work, *, high: int, at_head: bool) -> None:
    # The sum reads all of the user's access counts, so it is made once, where it is going to be believed.
    total = "(SELECT coalesce(sum(count), 0) FROM memory_access WHERE user_id = %(user)s)"
    connection.execute(
        "UPDATE sync_user SET digest = %(digest)s, live_count = %(live)s, hashed_rev = %(high)s,"
        f" access_total = {total if at_head else 'access_total'} WHERE user_id = %(user)s",
        {"user": user_id, "digest": work.digest, "live": work.live, "high": high},
    )
