"""The rules that the rows of the central database keep, and how a broken one is mended.

Each rule is a query for the rows that break it. Mending changes only what is derived from memories, or the
bookkeeping that readers of changes rely on, never a memory's own fields. The one exception is a memory that
is alive and deleted at once: deletion wins, as in every merge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from memory.core.clock import parse_stamp
from memory.postgres.database import Db
from memory.postgres.writing import bury, draw

Mend = Callable[[Db, Sequence[str], int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A rule about the rows of users."""

    name: str
    meaning: str
    """What a row that breaks it means."""
    remedy: str
    """What mending does; without ``mend``, what else to do."""
    offenders: str
    """A query for the rows that break the rule: ``user_id``, and ``memory_id`` if ``by_memory``. It may use
    ``%(ahead)s``, the time in ms from which on a stamp lies in the future."""
    by_memory: bool = True
    mend: Mend | None = None
    """Called as ``mend(connection, users, now)`` in a transaction that holds those users' locks, and those
    of the memories concerned; returns the number of rows changed."""
    informational: bool = False


_REVISIONS: Final = """
    SELECT user_id, memory_id, rev FROM memories
    UNION ALL SELECT user_id, memory_id, rev FROM memory_access
    UNION ALL SELECT user_id, memory_id, rev FROM memory_tombstones
"""
# A malformed stamp counts as none: it is reported by whoever reads it, and must not end the examination.
_TOMBSTONE_MS: Final = "substring(stamp FROM '^[0-9]{1,15}')::int8"
_LARGEST: Final = f"""
    SELECT user_id, max(rev) AS rev, max(ms) AS ms FROM (
        SELECT user_id, rev, updated_at AS ms FROM memories
        UNION ALL SELECT user_id, rev, 0 FROM memory_access
        UNION ALL SELECT user_id, rev, {_TOMBSTONE_MS} FROM memory_tombstones
    ) seen GROUP BY user_id
"""
_SHARED: Final = f"""
    SELECT user_id, rev FROM ({_REVISIONS}) r GROUP BY user_id, rev HAVING count(DISTINCT memory_id) > 1
"""
_OF_CURRENT_MODEL: Final = """EXISTS (
    SELECT FROM memory_vectors v JOIN sync_meta s ON s.model_id = v.model_id
    WHERE v.user_id = m.user_id AND v.memory_id = m.memory_id)
"""
_UNMARKED: Final = f"NOT m.embedding_due AND NOT {_OF_CURRENT_MODEL}"
_MARKED: Final = f"m.embedding_due AND {_OF_CURRENT_MODEL}"
_DIFFERING: Final = """m.user_id = v.user_id AND m.memory_id = v.memory_id
    AND (v.status, v.memory_type, v.created_at) IS DISTINCT FROM (m.status, m.memory_type, m.created_at)
"""
_UNUSABLE: Final = """
    SELECT v.user_id, v.memory_id, v.model_id FROM memory_vectors v
    JOIN embedding_models e ON e.model_id = v.model_id CROSS JOIN sync_meta s
    WHERE s.model_id IS NOT NULL AND (v.model_id <> s.model_id
        OR v.dimension <> e.dimension OR vector_dims(v.embedding) <> e.dimension)
"""


def _run(connection: Db, statement: str, users: Sequence[str]) -> int:
    return connection.execute(statement, {"users": list(users)}).rowcount


def _raise_heads(connection: Db, users: Sequence[str], _now: int) -> int:
    """Bring ``sync_user`` up to the largest revision and past the largest stamp of its users."""
    return _run(
        connection,
        "INSERT INTO sync_user AS s (user_id, epoch, rev, hlc_ms, hlc_counter)"
        f" SELECT user_id, (SELECT epoch FROM sync_meta), rev, coalesce(ms, 0) + 1, 0 FROM ({_LARGEST}) l"
        " WHERE user_id = ANY(%(users)s)"
        " ON CONFLICT (user_id) DO UPDATE SET rev = greatest(s.rev, excluded.rev),"
        " hlc_ms = greatest(s.hlc_ms, excluded.hlc_ms),"
        " hlc_counter = CASE WHEN excluded.hlc_ms > s.hlc_ms THEN 0 ELSE s.hlc_counter END",
        users,
    )


def _bury_again(connection: Db, users: Sequence[str], now: int) -> int:
    """Delete the live row; the tombstone gets a new revision, so that readers hear of it again."""
    found = connection.execute(
        "SELECT t.user_id, t.memory_id::text, t.stamp FROM memory_tombstones t JOIN memories m"
        " ON m.user_id = t.user_id AND m.memory_id = t.memory_id WHERE t.user_id = ANY(%s) ORDER BY 1, 2",
        [list(users)],
    ).fetchall()
    for user_id, memory_id, stamp in found:
        rev = draw(connection, user_id, now=now, count=1).rev
        bury(connection, user_id, memory_id, parse_stamp(stamp), rev=rev)
    return len(found)


def _renumber(connection: Db, users: Sequence[str], now: int) -> int:
    """Give every holder of a shared revision one of its own: readers then see each of them once more."""
    holders = connection.execute(
        f"SELECT DISTINCT r.user_id, r.memory_id, r.rev FROM ({_REVISIONS}) r JOIN ({_SHARED}) shared"
        " ON shared.user_id = r.user_id AND shared.rev = r.rev WHERE r.user_id = ANY(%s) ORDER BY 1, 3, 2",
        [list(users)],
    ).fetchall()
    for user_id, memory_id, rev in holders:
        fresh = draw(connection, user_id, now=now, count=1).rev
        for table in ("memories", "memory_access", "memory_tombstones"):
            connection.execute(
                f"UPDATE {table} SET rev = %s WHERE user_id = %s AND memory_id = %s AND rev = %s",
                [fresh, user_id, memory_id, rev],
            )
    return len(holders)


def _drop_unusable(connection: Db, users: Sequence[str], now: int) -> int:
    """Delete, and mark at once what is now without a vector."""
    dropped = _run(
        connection,
        f"DELETE FROM memory_vectors d USING ({_UNUSABLE}) o WHERE d.user_id = o.user_id"
        " AND d.memory_id = o.memory_id AND d.model_id = o.model_id AND d.user_id = ANY(%(users)s)",
        users,
    )
    _mark(connection, users, now)
    return dropped


def _mark(connection: Db, users: Sequence[str], _now: int) -> int:
    return _run(
        connection,
        f"UPDATE memories m SET embedding_due = true WHERE m.user_id = ANY(%(users)s) AND {_UNMARKED}",
        users,
    )


def _unmark(connection: Db, users: Sequence[str], _now: int) -> int:
    return _run(
        connection,
        f"UPDATE memories m SET embedding_due = false WHERE m.user_id = ANY(%(users)s) AND {_MARKED}",
        users,
    )


def _copy_columns(connection: Db, users: Sequence[str], _now: int) -> int:
    return _run(
        connection,
        "UPDATE memory_vectors v"
        " SET status = m.status, memory_type = m.memory_type, created_at = m.created_at"
        f" FROM memories m WHERE v.user_id = ANY(%(users)s) AND {_DIFFERING}",
        users,
    )


# No hash is of a memory that is neither alive nor deleted since: whoever removes tombstones by hand leaves such.
_DIGESTS: Final = """
    SELECT s.user_id FROM sync_user s CROSS JOIN LATERAL (
        SELECT coalesce(bit_xor(h.row_hash), 0) AS digest, count(*) AS live,
            count(*) FILTER (WHERE NOT EXISTS (
                SELECT FROM memories m WHERE m.user_id = h.user_id AND m.memory_id = h.memory_id
                UNION ALL SELECT FROM memory_tombstones t
                WHERE t.user_id = h.user_id AND t.memory_id = h.memory_id AND t.rev > s.hashed_rev)) AS strange
        FROM memory_hashes h WHERE h.user_id = s.user_id) found
    WHERE s.hashed_rev > 0 AND (found.strange > 0 OR s.digest <> found.digest OR s.live_count <> found.live)
"""


def _hash_anew(connection: Db, users: Sequence[str], _now: int) -> int:
    """Forget all hashes of the users; they are computed again when a device asks."""
    _run(connection, "DELETE FROM memory_hashes WHERE user_id = ANY(%(users)s)", users)
    return _run(
        connection,
        "UPDATE sync_user SET digest = 0, live_count = 0, access_total = 0, hashed_rev = 0"
        " WHERE user_id = ANY(%(users)s)",
        users,
    )


# In the order of mending: a later one may build on what an earlier one has put right.
CHECKS: Final = (
    Check(
        name="revision_behind",
        meaning="users whose revision counter is missing or below a revision in use, so revisions repeat",
        remedy="raise the counter",
        offenders=f"SELECT l.user_id FROM ({_LARGEST}) l LEFT JOIN sync_user s ON s.user_id = l.user_id"
        " WHERE s.user_id IS NULL OR s.rev < l.rev",
        by_memory=False,
        mend=_raise_heads,
    ),
    Check(
        name="clock_behind",
        meaning="users whose clock is behind a stamp in use, so that the next edit loses against the last",
        remedy="raise the clock",
        offenders=f"SELECT l.user_id FROM ({_LARGEST}) l JOIN sync_user s ON s.user_id = l.user_id"
        " WHERE s.hlc_ms < l.ms",
        by_memory=False,
        mend=_raise_heads,
    ),
    Check(
        name="alive_and_deleted",
        meaning="memories that are there although they were deleted",
        remedy="delete them, for a deletion is final",
        offenders="SELECT m.user_id, m.memory_id FROM memories m JOIN memory_tombstones t"
        " ON t.user_id = m.user_id AND t.memory_id = m.memory_id",
        mend=_bury_again,
    ),
    Check(
        name="duplicate_revision",
        meaning="revisions that two memories of one user share, so that a reader of changes may miss one",
        remedy="give each a new revision",
        offenders=_SHARED,
        by_memory=False,
        mend=_renumber,
    ),
    Check(
        name="stamp_ahead",
        meaning="memories, deletions and clocks stamped more than five minutes ahead of now; they win against"
        " every edit until then",
        remedy="set the clocks of the machines that write; nothing is wrong with the data themselves",
        offenders="SELECT user_id FROM memories WHERE updated_at > %(ahead)s"
        f" UNION ALL SELECT user_id FROM memory_tombstones WHERE {_TOMBSTONE_MS} > %(ahead)s"
        " UNION ALL SELECT user_id FROM sync_user WHERE hlc_ms > %(ahead)s",
        by_memory=False,
    ),
    Check(
        name="vector_unusable",
        meaning="vectors of another model (an interrupted `memory db reembed` leaves such) or a wrong length",
        remedy="delete them (or run `memory db reembed` to its end instead)",
        offenders=_UNUSABLE,
        mend=_drop_unusable,
    ),
    Check(
        name="vector_differs",
        meaning="vectors whose status, type or time is not their memory's, so that filters go wrong",
        remedy="copy them from the memory",
        offenders=f"SELECT v.user_id, v.memory_id FROM memory_vectors v, memories m WHERE {_DIFFERING}",
        mend=_copy_columns,
    ),
    Check(
        name="vector_missing",
        meaning="memories without a vector that are not marked to get one, so that only words find them",
        remedy="mark them; whatever opens the store next embeds them",
        offenders=f"SELECT m.user_id, m.memory_id FROM memories m WHERE {_UNMARKED}",
        mend=_mark,
    ),
    Check(
        name="vector_waiting",
        meaning="memories marked to get a vector although they have one",
        remedy="take the mark away",
        offenders=f"SELECT m.user_id, m.memory_id FROM memories m WHERE {_MARKED}",
        mend=_unmark,
    ),
    Check(
        name="digest",
        meaning="users whose digest is not that of their memories, so that their devices never agree with it",
        remedy="compute the hashes of their memories again",
        offenders=_DIGESTS,
        by_memory=False,
        mend=_hash_anew,
    ),
    Check(
        name="embedding_pending",
        meaning="memories that wait for their vector and are found by their words until then",
        remedy="nothing: whatever has the store open embeds them, and so does `memory db reembed`",
        offenders="SELECT user_id, memory_id FROM memories WHERE embedding_due",
        informational=True,
    ),
)
