"""Which embedding model a file's vectors are of, memories that wait for one, and the way to another model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from edge.sqlite.database import Db
from edge.sqlite.rows import vector_bytes
from memory.core.ports import Vector
from memory.engine.storage import Pending

_AFTER: Final = "AND m.memory_id > ?"


def adopt(connection: Db, model: str, dimension: int) -> bool:
    """Make a model the file's, in a transaction; returns whether it was another one before.

    Vectors that were staged for it become the vectors; memories without one are marked as waiting. Of the old
    model's vectors none is kept: they could only be compared by mistake.
    """
    row = connection.execute("SELECT model, dimension FROM replica").fetchone()
    if row == (model, dimension):
        return False
    connection.execute("DELETE FROM memory_vectors")
    connection.execute(
        "INSERT INTO memory_vectors SELECT number, embedding FROM staged_vectors WHERE model = ?", (model,)
    )
    connection.execute("DELETE FROM staged_vectors")
    connection.execute("UPDATE memories SET embedding_due = number NOT IN (SELECT number FROM memory_vectors)")
    connection.execute("UPDATE replica SET model = ?, dimension = ?, points_upto = 0", (model, dimension))
    return True


def pending(connection: Db, user_id: str, limit: int, *, after: str | None) -> list[Pending]:
    """Memories that wait for a vector, by id, from a position on."""
    rows = connection.execute(
        f"SELECT m.memory_id, m.content FROM memories m WHERE m.embedding_due {_AFTER if after else ''}"
        " ORDER BY m.memory_id LIMIT ?",
        (*([after] if after else []), limit),
    )
    return [Pending(user_id, memory_id, content) for memory_id, content in rows]


def unstaged(connection: Db, user_id: str, model: tuple[str, int], limit: int, *, after: str | None) -> list[Pending]:
    """Memories without a staged vector of a model (name and dimension), by id, from a position on."""
    rows = connection.execute(
        "SELECT m.memory_id, m.content FROM memories m WHERE NOT EXISTS"
        " (SELECT 1 FROM staged_vectors s WHERE s.number = m.number AND s.model = ? AND length(s.embedding) = ?)"
        f" {_AFTER if after else ''} ORDER BY m.memory_id LIMIT ?",
        (model[0], 4 * model[1], *([after] if after else []), limit),
    )
    return [Pending(user_id, memory_id, content) for memory_id, content in rows]


def stage(connection: Db, model: str, vectors: Sequence[tuple[Pending, Vector]]) -> int:
    """Keep vectors of a model that the replica is about to change to; returns how many."""
    connection.executemany(
        "INSERT OR REPLACE INTO staged_vectors SELECT number, ?, ? FROM memories WHERE memory_id = ? AND content = ?",
        [(model, vector_bytes(vector), item.memory_id, item.content) for item, vector in vectors],
    )
    return len(vectors)
