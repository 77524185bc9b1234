"""Small questions that a search asks the file: ids, numbers, cosines, and what ranking needs to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from edge.sqlite.database import Db
from edge.sqlite.filters import ONE_OF, listed
from memory.core.ports import Vector

_ROWS_AT_A_TIME: Final = 2_000


class Facts(NamedTuple):
    """Of a memory: what ranking needs besides its relevance; times in ms UTC."""

    number: int
    memory_id: str
    importance: float
    created_at: int
    last_access_at: int | None


def numbers_of(connection: Db, memory_ids: Iterable[str]) -> dict[str, int]:
    """Numbers of live memories by id; others are left out."""
    return dict(
        connection.execute(
            f"SELECT memory_id, number FROM memories WHERE memory_id IN {ONE_OF}", (listed(memory_ids),)
        ).fetchall()
    )


def ids_of(connection: Db, numbers: Iterable[int]) -> dict[int, str]:
    """Ids of live memories by number; others are left out."""
    return dict(
        connection.execute(
            f"SELECT number, memory_id FROM memories WHERE number IN {ONE_OF}", (listed(numbers),)
        ).fetchall()
    )


def facts_of(connection: Db, numbers: Iterable[int]) -> list[Facts]:
    """Facts of live memories, in any order; others are left out."""
    rows = connection.execute(
        "SELECT m.number, m.memory_id, m.importance, m.created_at, (SELECT nullif(max(a.last_access_at), 0)"
        f" FROM memory_access a WHERE a.memory_id = m.memory_id) FROM memories m WHERE m.number IN {ONE_OF}",
        (listed(numbers),),
    )
    return [Facts(*row) for row in rows]


def cosines(connection: Db, vector: Vector, numbers: Sequence[int]) -> dict[int, float]:
    """Cosines by number of those memories that have a vector, computed from the file in float64."""
    found: dict[int, float] = {}
    if not numbers:
        return found
    question = vector.astype(np.float64)
    rows: Any = connection.execute(
        f"SELECT number, embedding FROM memory_vectors WHERE number IN {ONE_OF} AND length(embedding) = ?",
        (listed(numbers), 4 * question.size),
    )
    while batch := rows.fetchmany(_ROWS_AT_A_TIME):
        matrix = np.frombuffer(b"".join(row[1] for row in batch), dtype="<f4").reshape(len(batch), -1)
        products = matrix.astype(np.float64) @ question
        found.update(zip((row[0] for row in batch), products.tolist(), strict=True))
    return found
