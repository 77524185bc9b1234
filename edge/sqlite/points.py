"""Memories as points of the vector index: what should be there, and what is to be done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge.sqlite.database import Db
from edge.sqlite.rows import vector_from
from edge.vectors.port import Point
from memory.core.ports import Vector

_PAGE: Final = 1_000
_VECTOR: Final = """memory_vectors v ON v.number = m.number
    AND length(v.embedding) = 4 * (SELECT dimension FROM replica)"""
"""Of another length it cannot be used: as if it were not there, until the doctor comes."""
_POINT: Final = """
    m.version, v.embedding, m.status, m.memory_type, m.created_at, m.importance, m.source_session, m.tags
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What to bring to the index next: points to write, ids to remove, and how to note that it is done."""

    points: list[Point]
    removals: list[str]
    tickets: list[tuple[str, int]]
    upto: int | None
    """The highest number among the new memories."""

    def __bool__(self) -> bool:
        return bool(self.tickets) or self.upto is not None


def next_work(connection: Db, limit: int) -> Work:
    """The next batch, changes before new memories. A memory without a vector has no point."""
    changed = connection.execute(
        f"SELECT q.ticket, q.memory_id, {_POINT} FROM (SELECT * FROM index_todo WHERE vector LIMIT ?) q"
        f" LEFT JOIN memories m USING (memory_id) LEFT JOIN {_VECTOR}",
        (limit,),
    ).fetchall()
    fresh = connection.execute(
        f"SELECT m.number, m.memory_id, {_POINT} FROM memories m LEFT JOIN {_VECTOR}"
        " WHERE m.number > (SELECT points_upto FROM replica) ORDER BY m.number LIMIT ?",
        (limit - len(changed),),
    ).fetchall()
    return Work(
        points=[_point(row[1:]) for row in (*changed, *fresh) if row[3] is not None],
        removals=[row[1] for row in changed if row[3] is None],
        tickets=[(row[1], row[0]) for row in changed],
        upto=fresh[-1][0] if fresh else None,
    )


def work_done(connection: Db, work: Work) -> None:
    """Note a batch as done, except changes of memories that have changed again since it was read."""
    connection.executemany("UPDATE index_todo SET vector = 0 WHERE memory_id = ? AND ticket = ?", work.tickets)
    connection.executemany(
        "DELETE FROM index_todo WHERE memory_id = ? AND NOT words AND NOT vector", [item[:1] for item in work.tickets]
    )
    if work.upto is not None:
        connection.execute("UPDATE replica SET points_upto = max(points_upto, ?)", (work.upto,))


def _point(row: tuple[Any, ...]) -> Point:
    memory_id, version, embedding, status, memory_type, created_at, importance, source_session, tags = row
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


def waiting_points(connection: Db) -> dict[str, int | None]:
    """Memories whose points are not, or no longer, right in the index: number by id, None of deleted ones."""
    return dict(
        connection.execute(
            "SELECT t.memory_id, m.number FROM index_todo t LEFT JOIN memories m USING (memory_id) WHERE t.vector"
            " UNION ALL SELECT memory_id, number FROM memories WHERE number > (SELECT points_upto FROM replica)"
        ).fetchall()
    )


def right_entries(connection: Db) -> dict[str, str]:
    """What ``VectorIndex.entries`` should say when nothing waits."""
    return dict(connection.execute(f"SELECT m.memory_id, m.version FROM memories m JOIN {_VECTOR}"))


def right_vectors(connection: Db) -> Iterator[dict[str, Vector]]:
    """All vectors by memory id, page by page, scaled to length 1 as the index does."""
    rows: Any = connection.execute(f"SELECT m.memory_id, v.embedding FROM memories m JOIN {_VECTOR}")
    while page := rows.fetchmany(_PAGE):
        yield {memory_id: _scaled(vector_from(embedding)) for memory_id, embedding in page}


def _scaled(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return np.asarray(vector / length, np.float32) if length else vector
