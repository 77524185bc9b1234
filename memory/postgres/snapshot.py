"""A consistent view for export: one repeatable-read transaction, read through server-side cursors."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

import numpy as np

from memory.core.record import KIND, tombstone_record
from memory.core.state import SCALARS
from memory.engine.storage import Scope, Snapshot
from memory.postgres.database import Database, Db
from memory.postgres.filters import Where

_ROWS_AT_A_TIME: Final = 500

RECORDS: Final = """
SELECT m.memory_id::text, m.user_id, m.content, m.memory_type, m.importance, m.status, m.source_session,
    m.created_at, m.updated_at, m.metadata, m.stamps, m.extra, m.rev,
    ARRAY(SELECT t.tag FROM memory_tags t WHERE t.user_id = m.user_id AND t.memory_id = m.memory_id ORDER BY t.tag),
    a.writers, a.counts, a.last, vector_send(v.embedding)
FROM memories m
LEFT JOIN memory_vectors v ON v.user_id = m.user_id AND v.memory_id = m.memory_id AND v.model_id = %(model)s
LEFT JOIN LATERAL (
    SELECT array_agg(a.writer ORDER BY a.writer) AS writers, array_agg(a.count ORDER BY a.writer) AS counts,
        nullif(max(a.last_access_at), 0) AS last
    FROM memory_access a WHERE a.user_id = m.user_id AND a.memory_id = m.memory_id
) a ON true
"""
_BASE: Final = """LEFT JOIN unnest(%(after_users)s::text[], %(after_revs)s::int8[]) AS b(user_id, rev)
    ON b.user_id = {alias}.user_id
"""


@contextmanager
def open_snapshot(database: Database, scope: Scope, *, model_id: int, model: str) -> Iterator[Snapshot]:
    """See ``Storage.snapshot``. Writers go on; what they commit meanwhile is not seen."""
    with database.connection() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            connection.execute("SET LOCAL enable_seqscan = on")
            snapshot = _snapshot(connection, scope, model_id=model_id, model=model)
            # Closed here and not whenever it is collected: its cursor must not outlive our hold on the connection.
            with closing(snapshot.records):
                yield snapshot
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")


def _snapshot(connection: Db, scope: Scope, *, model_id: int, model: str) -> Snapshot:
    (epoch,) = connection.execute("SELECT epoch FROM sync_meta").fetchone() or ("",)
    where = Where()
    where.add("rev > 0")
    if scope.user_id is not None:
        where.add("user_id = {}", scope.user_id)
    revisions = connection.execute(
        f"SELECT user_id, rev FROM sync_user WHERE {where} ORDER BY user_id", where.params
    ).fetchall()
    return Snapshot(epoch, dict(revisions), _records(connection, scope, model_id=model_id, model=model))


def _records(connection: Db, scope: Scope, *, model_id: int, model: str) -> Generator[Mapping[str, Any]]:
    base = (
        {}
        if scope.after is None
        else {
            "after_users": list(scope.after),
            "after_revs": list(scope.after.values()),
        }
    )
    where = _live_where(scope)
    joined = "" if scope.after is None else _BASE.format(alias="m")
    statement = f"{RECORDS} {joined} WHERE {where} ORDER BY m.user_id, m.memory_id"
    for row in _stream(connection, "memories", statement, {"model": model_id, **base, **where.params}):
        yield record_of(row, model)
    if not scope.complete:
        return
    where = Where()
    where.add("true" if scope.after is None else "t.rev > coalesce(b.rev, 0)")
    if scope.user_id is not None:
        where.add("t.user_id = {}", scope.user_id)
    joined = "" if scope.after is None else _BASE.format(alias="t")
    statement = (
        f"SELECT t.memory_id::text, t.user_id, t.stamp, t.rev FROM memory_tombstones t {joined}"
        f" WHERE {where} ORDER BY t.user_id, t.memory_id"
    )
    for memory_id, user_id, stamp, rev in _stream(connection, "tombstones", statement, {**base, **where.params}):
        yield {**tombstone_record(memory_id, user_id, stamp), "rev": rev}


def _live_where(scope: Scope) -> Where:
    where = Where()
    where.add("true")
    if scope.user_id is not None:
        where.add("m.user_id = {}", scope.user_id)
    if scope.after is not None:
        where.add(
            "(m.rev > coalesce(b.rev, 0) OR EXISTS (SELECT FROM memory_access x WHERE x.user_id = m.user_id"
            " AND x.memory_id = m.memory_id AND x.rev > coalesce(b.rev, 0)))"
        )
    if scope.created_from is not None:
        where.add("m.created_at >= {}", scope.created_from)
    if scope.created_to is not None:
        where.add("m.created_at < {}", scope.created_to)
    if scope.statuses:
        where.add("m.status = ANY({})", list(scope.statuses))
    if scope.tags:
        where.add(
            "EXISTS (SELECT FROM memory_tags t WHERE t.user_id = m.user_id AND t.memory_id = m.memory_id"
            " AND t.tag = ANY({}))",
            list(scope.tags),
        )
    return where


def _stream(connection: Db, name: str, statement: str, params: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    with connection.cursor(name, binary=True) as cursor:
        cursor.itersize = _ROWS_AT_A_TIME
        cursor.execute(statement, params)
        yield from cursor


def record_of(row: tuple[Any, ...], model: str) -> dict[str, Any]:
    """The record of a row, without the detour through ``State``: the stored stamps are the wire's already.

    A test holds it equal to ``core.record.encode_record``.
    """
    counts = {w: n for w, n in zip(row[14] or (), row[15] or (), strict=True) if n}
    vector = row[17]
    return {
        "kind": KIND,
        "memory_id": row[0],
        "user_id": row[1],
        **dict(zip(SCALARS, row[2:8], strict=True)),
        **row[11],
        "updated_at": row[8],
        "last_access_at": row[16],
        "access_count": sum(counts.values()),
        "tags": row[13],
        "metadata": row[9],
        "embedding_version": None if vector is None else model,
        "vector": None if vector is None else _base64(vector),
        "accesses": counts,
        "stamps": row[10],
        "rev": row[12],
    }


def _base64(sent: bytes) -> str:
    """From pgvector's binary form (see ``rows.vector_binary``) to the record's."""
    return base64.b64encode(np.frombuffer(sent, dtype=">f4", offset=4).astype("<f4").tobytes()).decode("ascii")
