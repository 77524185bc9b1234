"""A consistent view of one user's file for export: a read transaction, read row by row."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from edge.sqlite.database import Db
from edge.sqlite.filters import ONE_OF, Where, listed
from memory.core.record import KIND, tombstone_record
from memory.core.state import SCALARS
from memory.engine.storage import Scope

RECORD_COLUMNS: Final = """
    m.memory_id, m.user_id, m.content, m.memory_type, m.importance, m.status, m.source_session, m.created_at,
    m.updated_at, m.metadata, m.stamps, m.extra, m.rev,
    m.tags,
    (SELECT json_group_object(a.writer, a.count) FROM memory_access a WHERE a.memory_id = m.memory_id AND a.count),
    (SELECT nullif(max(a.last_access_at), 0) FROM memory_access a WHERE a.memory_id = m.memory_id),
    v.embedding
"""
_FROM: Final = "FROM memories m LEFT JOIN memory_vectors v USING (number)"


def live_records(connection: Db, scope: Scope, *, after: int | None, model: str) -> Iterator[Mapping[str, Any]]:
    """Records of the live memories in ``scope``, by id; with ``after`` only of what changed above that revision.

    A test holds them equal to ``core.record.encode_record``.
    """
    where = Where()
    if after is not None:
        where.add(
            "(m.rev > ? OR EXISTS (SELECT 1 FROM memory_access x WHERE x.memory_id = m.memory_id AND x.rev > ?))",
            after,
            after,
        )
    if scope.created_from is not None:
        where.add("m.created_at >= ?", scope.created_from)
    if scope.created_to is not None:
        where.add("m.created_at < ?", scope.created_to)
    if scope.statuses:
        where.add(f"m.status IN {ONE_OF}", listed(scope.statuses))
    if scope.tags:
        where.add(f"m.memory_id IN (SELECT memory_id FROM memory_tags WHERE tag IN {ONE_OF})", listed(scope.tags))
    for row in connection.execute(f"SELECT {RECORD_COLUMNS} {_FROM} WHERE {where} ORDER BY m.memory_id", where.params):
        yield record_of(row, model)


def tombstone_records(connection: Db, *, after: int | None) -> Iterator[Mapping[str, Any]]:
    """Records of the deleted memories, by id."""
    rows = connection.execute(
        "SELECT memory_id, user_id, stamp, rev FROM memory_tombstones WHERE rev > ? ORDER BY memory_id", (after or 0,)
    )
    for memory_id, user_id, stamp, rev in rows:
        yield {**tombstone_record(memory_id, user_id, stamp), "rev": rev}


def record_of(row: Sequence[Any], model: str) -> dict[str, Any]:
    """The record of a row of ``RECORD_COLUMNS``."""
    counts = json.loads(row[14])
    vector = row[16]
    return {
        "kind": KIND,
        "memory_id": row[0],
        "user_id": row[1],
        **dict(zip(SCALARS, row[2:8], strict=True)),
        **json.loads(row[11]),
        "updated_at": row[8],
        "last_access_at": row[15],
        "access_count": sum(counts.values()),
        "tags": json.loads(row[13]),
        "metadata": json.loads(row[9]),
        "embedding_version": None if vector is None else model,
        "vector": None if vector is None else base64.b64encode(vector).decode("ascii"),
        "accesses": counts,
        "stamps": json.loads(row[10]),
        "rev": row[12],
    }
