"""Hello at the centre: who it is, and whether what it has seen still stands here.

The idle case, a known device and nothing to do, is one look. What is to be written is written under the user's row
lock, after which it looks again, so that one set of rules judges both. Of that, only what the answer depends on is
waited for: a transaction that somebody left open must not keep devices from what has been committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psycopg.errors import LockNotAvailable

from memory.core.errors import DeviceRevoked, StoreTimeout
from memory.core.sync import Head, Hello, Welcome, require_protocol
from memory.postgres import epoch
from memory.postgres.database import Database, Db
from memory.postgres.devices import head_of
from memory.postgres.digest import PATIENCE_MS, settle

MARKS_KEPT: Final = 50
SEEN_EVERY_MS: Final = 10 * 60 * 1000
WATCH_MS: Final = 60 * 60 * 1000
"""How long changes are told of after a hello of one who listens."""

_LOOK: Final = f"""
SELECT u.epoch, u.rev, u.digest, u.live_count, u.access_total, u.hashed_rev, u.watched_until,
    d.schema, d.model, d.last_seen_at, d.revoked_at, coalesce(d.pruned_rev, 0),
    ARRAY(SELECT k.mark FROM sync_mark k
        WHERE k.user_id = u.user_id AND k.device_id = %(device)s AND k.mark = ANY(%(marks)s)),
    (SELECT count(*) FROM sync_mark k WHERE k.user_id = u.user_id AND k.device_id = %(device)s),
    (SELECT jsonb_object_agg(l.epoch, l.bound_rev) FROM sync_lineage l WHERE l.user_id = u.user_id),
    e.name, e.dimension, coalesce(s.origin = {epoch.ORIGIN}, false)
FROM sync_user u
CROSS JOIN sync_meta s
LEFT JOIN embedding_models e ON e.model_id = s.model_id
LEFT JOIN sync_device d ON d.user_id = u.user_id AND d.device_id = %(device)s
WHERE u.user_id = %(user)s
"""
_REGISTER: Final = """
INSERT INTO sync_device AS d (user_id, device_id, schema, model, registered_at, last_seen_at)
VALUES (%(user)s, %(device)s, %(schema)s, %(model)s, %(now)s, %(now)s)
ON CONFLICT (user_id, device_id) DO UPDATE
    SET schema = excluded.schema, model = excluded.model, last_seen_at = greatest(d.last_seen_at, excluded.last_seen_at)
"""
_PRUNE: Final = """
WITH gone AS (
    DELETE FROM sync_mark WHERE user_id = %(user)s AND device_id = %(device)s AND number <= (
        SELECT number FROM sync_mark WHERE user_id = %(user)s AND device_id = %(device)s
        ORDER BY number DESC OFFSET %(kept)s LIMIT 1)
    RETURNING rev
)
UPDATE sync_device SET pruned_rev = greatest(pruned_rev, (SELECT max(rev) FROM gone))
WHERE user_id = %(user)s AND device_id = %(device)s AND EXISTS (SELECT FROM gone)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look finds of a user and a device."""

    epoch: str
    head: Head
    hashed_rev: int
    watched_until: int
    registered: tuple[str, str] | None
    """Schema and model of the device as noted; None: it is not known."""
    last_seen_at: int
    revoked: bool
    pruned_rev: int
    kept: frozenset[str]
    """Marks of the hello that are known here."""
    marks: int
    lineage: Mapping[str, int]
    model: tuple[str, int] | None
    at_home: bool
    """The database is where its epochs were drawn."""


def greet(database: Database, hello: Hello, *, now: int) -> Welcome:
    """Answer a hello.

    Raises:
        DeviceRevoked, ProtocolMismatch.
    """
    require_protocol(hello.protocol)
    with database.connection() as connection:
        seen = _look(connection, hello)
    if seen is None or not seen.at_home:
        epoch.adopt_epoch(database)
        seen = None
    if seen is None or not _is_idle(seen, hello, now):
        seen = _work(database, hello, now, seen)
    lineage, reconcile = trusted(seen, hello)
    return Welcome(
        epoch=seen.epoch,
        lineage=lineage,
        head=seen.head,
        reconcile=reconcile,
        now=now,
        model=seen.model and seen.model[0],
        dimension=seen.model and seen.model[1],
    )


def _look(connection: Db, hello: Hello) -> Seen | None:
    names = [mark.name for mark in hello.marks]
    params = {"user": hello.user_id, "device": hello.device, "marks": names}
    row = connection.execute(_LOOK, params).fetchone()
    if row is None:
        return None
    return Seen(
        epoch=row[0],
        head=head_of(*row[1:6]),
        hashed_rev=row[5],
        watched_until=row[6],
        registered=None if row[7] is None else (row[7], row[8]),
        last_seen_at=row[9] or 0,
        revoked=row[10] is not None,
        pruned_rev=row[11],
        kept=frozenset(row[12]),
        marks=row[13],
        lineage=row[14] or {},
        model=None if row[15] is None else (row[15], row[16]),
        at_home=row[17],
    )


def _is_idle(seen: Seen, hello: Hello, now: int) -> bool:
    if seen.revoked:
        raise DeviceRevoked
    settled = seen.hashed_rev == seen.head.rev
    return settled and not _must_write(seen, hello) and not _upkeep_is_due(seen, hello, now)


def _must_write(seen: Seen, hello: Hello) -> bool:
    return seen.registered is None or is_rewound(seen, hello)


def _upkeep_is_due(seen: Seen, hello: Hello, now: int) -> bool:
    return (
        seen.registered != (hello.schema, hello.model)
        or seen.last_seen_at < now - SEEN_EVERY_MS
        or seen.marks > MARKS_KEPT
        or _watch_is_due(seen, hello, now)
    )


def _watch_is_due(seen: Seen, hello: Hello, now: int) -> bool:
    return hello.listens and seen.watched_until < now + WATCH_MS // 2


def _work(database: Database, hello: Hello, now: int, seen: Seen | None) -> Seen:
    must = seen is None or _must_write(seen, hello)
    if seen is None or must or _upkeep_is_due(seen, hello, now):
        _write(database, hello, now, must=must)
    settle(database, hello.user_id)
    with database.connection() as connection:
        seen = _look(connection, hello)
    if seen is None or seen.revoked:
        raise DeviceRevoked  # since a moment ago
    return seen


def _write(database: Database, hello: Hello, now: int, *, must: bool) -> None:
    """Write what is due; upkeep alone is left to the next hello if somebody keeps the user's row."""
    try:
        with database.transaction() as connection:
            if not must:
                connection.execute(f"SET LOCAL lock_timeout = {PATIENCE_MS}")
            _prepare(connection, hello, now)
    except StoreTimeout as error:
        if must or not isinstance(error.__cause__, LockNotAvailable):
            raise


def _prepare(connection: Db, hello: Hello, now: int) -> None:
    """All that a hello may have to write, the user's row locked."""
    user = {"user": hello.user_id, "device": hello.device}
    connection.execute(
        "INSERT INTO sync_user (user_id, epoch, rev, hlc_ms, hlc_counter) SELECT %s, epoch, 0, 0, 0 FROM sync_meta"
        " ON CONFLICT (user_id) DO NOTHING",
        [hello.user_id],
    )
    connection.execute("SELECT FROM sync_user WHERE user_id = %s FOR UPDATE", [hello.user_id])
    connection.execute(_REGISTER, {**user, "schema": hello.schema, "model": hello.model, "now": now})
    # Before judging: what is no longer known cannot be told from what was pruned only if both are decided at once.
    connection.execute(_PRUNE, {**user, "kept": MARKS_KEPT})
    seen = _look(connection, hello)
    if seen is None or seen.revoked:
        raise DeviceRevoked
    if is_rewound(seen, hello):
        epoch.rewound(connection, hello.user_id, common_rev(seen, hello))
    if _watch_is_due(seen, hello, now):
        connection.execute(
            "UPDATE sync_user SET watched_until = %s WHERE user_id = %s", [now + WATCH_MS, hello.user_id]
        )


def common_rev(seen: Seen, hello: Hello) -> int:
    """The revision of the last mark that both sides know, or 0."""
    return max((mark.rev for mark in hello.marks if mark.name in seen.kept), default=0)


def _is_unknown(seen: Seen, hello: Hello) -> bool:
    return bool(hello.marks) and hello.marks[-1].name not in seen.kept


def _cannot_be_judged(seen: Seen, hello: Hello) -> bool:
    """Its last mark is so old that it may have been pruned, and nothing else speaks against it."""
    return _is_unknown(seen, hello) and hello.marks[-1].rev <= seen.pruned_rev and hello.cursor <= seen.head.rev


def is_rewound(seen: Seen, hello: Hello) -> bool:
    """Whether the replica has seen, in this very epoch, what is not here: the database was put back unnoticed."""
    if hello.epoch != seen.epoch or _cannot_be_judged(seen, hello):
        return False
    return _is_unknown(seen, hello) or hello.cursor > seen.head.rev


def trusted(seen: Seen, hello: Hello) -> tuple[Mapping[str, int], bool]:
    """The lineage as this replica may believe it, and whether it has to compare everything."""
    unknown = _is_unknown(seen, hello)
    if not unknown or _cannot_be_judged(seen, hello):
        return dict(seen.lineage), unknown
    common = common_rev(seen, hello)
    bounds = {**seen.lineage, seen.epoch: seen.head.rev}
    return {**{name: min(bound, common) for name, bound in bounds.items()}, str(hello.epoch): common}, True
