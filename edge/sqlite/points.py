"""Memories as points of the vector index: what should be there, and what is to be done."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from edge.sqlite.database import Db
from edge.sqlite.rows import vector_from
from edge.vectors.port import Point

_POINT: Final = """
    m.row_hash, v.embedding, m.status, m.memory_type, m.created_at, m.importance, m.source_session,
    (SELECT json_group_array(t.tag) FROM memory_tags t WHERE t.memory_id = m.memory_id)
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A batch of queued changes: points to write, ids to remove, and the tickets of both."""

    points: list[Point]
    removals: list[str]
    tickets: list[tuple[str, int]]


def next_work(connection: Db, limit: int) -> Work:
    """What to bring to the index next. A memory without a vector has no point."""
    rows = connection.execute(
        f"SELECT q.memory_id, q.ticket, {_POINT} FROM (SELECT * FROM index_todo WHERE vector LIMIT ?) q"
        " LEFT JOIN memories m USING (memory_id) LEFT JOIN memory_vectors v USING (number)",
        (limit,),
    ).fetchall()
    return Work(
        points=[_point(row[0], row[2:]) for row in rows if row[3] is not None],
        removals=[row[0] for row in rows if row[3] is None],
        tickets=[(row[0], row[1]) for row in rows],
    )


def _point(memory_id: str, row: tuple[Any, ...]) -> Point:
    version, embedding, status, memory_type, created_at, importance, source_session, tags = row
    return Point(
        memory_id=memory_id,
        version=version,
        vector=vector_from(embedding),
        status=status,
        memory_type=memory_type,
        created_at=created_at,
        importance=importance,
        source_session=source_session,
        tags=tuple(json.loads(tags)),
    )


def right_entries(connection: Db) -> dict[str, str]:
    """What ``VectorIndex.entries`` should say, as far as nothing is queued."""
    return dict(connection.execute("SELECT m.memory_id, m.row_hash FROM memories m JOIN memory_vectors USING (number)"))
