"""What has not reached the indexes yet: queued with the change that makes it, taken off when it is done.

Two indexes follow the memories: words (FTS5, in the same file) and vectors (Qdrant, beside it). A single add
touches neither; until they have caught up, searches read the queued memories one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge.sqlite.database import Db


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much waits."""

    words: int
    vectors: int


def queue(connection: Db, memory_id: str, *, words: bool, vector: bool) -> None:
    """Queue a change of a live memory; inside its transaction.

    Args:
        connection: In a transaction.
        memory_id: The memory.
        words: Its terms are not in the index of words.
        vector: Its point in the index of vectors is not, or no longer, right.
    """
    connection.execute(
        "INSERT INTO index_todo AS t (memory_id, ticket, words, vector) VALUES (?, random(), ?, ?)"
        " ON CONFLICT (memory_id) DO UPDATE SET ticket = excluded.ticket,"
        " words = max(t.words, excluded.words), vector = max(t.vector, excluded.vector)",
        (memory_id, words, vector),
    )


def queue_removal(connection: Db, memory_id: str) -> None:
    """Queue what a deletion leaves to do: its words are out already, its point is not."""
    connection.execute(
        "INSERT OR REPLACE INTO index_todo (memory_id, ticket, words, vector) VALUES (?, random(), 0, 1)", (memory_id,)
    )


def queue_vectors(connection: Db, memory_ids: Iterable[str]) -> None:
    """Queue points that turned out to be missing, stale or foreign, whether their memories live or not."""
    connection.executemany(
        "INSERT INTO index_todo (memory_id, ticket, words, vector) VALUES (?, random(), 0, 1)"
        " ON CONFLICT (memory_id) DO UPDATE SET ticket = excluded.ticket, vector = 1",
        ((memory_id,) for memory_id in memory_ids),
    )


def unindex_words(connection: Db, memory_id: str, number: int) -> None:
    """Take a memory's words out of the index, if they are in; before its ``terms`` change or go."""
    connection.execute(
        "INSERT INTO memory_terms (memory_terms, rowid, terms) SELECT 'delete', number, terms FROM memories"
        " WHERE number = ? AND NOT EXISTS (SELECT 1 FROM index_todo t WHERE t.memory_id = ? AND t.words)",
        (number, memory_id),
    )


def index_words(connection: Db, limit: int) -> int:
    """Put queued words into the index; returns how many memories were done. One transaction of the caller's."""
    rows = connection.execute(
        "SELECT m.number, m.terms, t.memory_id FROM index_todo t JOIN memories m USING (memory_id)"
        " WHERE t.words ORDER BY m.number LIMIT ?",
        (limit,),
    ).fetchall()
    connection.executemany("INSERT INTO memory_terms (rowid, terms) VALUES (?, ?)", [row[:2] for row in rows])
    connection.executemany("UPDATE index_todo SET words = 0 WHERE memory_id = ?", [row[2:] for row in rows])
    connection.executemany("DELETE FROM index_todo WHERE memory_id = ? AND NOT vector", [row[2:] for row in rows])
    return len(rows)


def vectors_done(connection: Db, tickets: Sequence[tuple[str, int]]) -> None:
    """Take points off the queue, unless their memory has changed since its ticket was read."""
    connection.executemany("UPDATE index_todo SET vector = 0 WHERE memory_id = ? AND ticket = ?", tickets)
    connection.executemany(
        "DELETE FROM index_todo WHERE memory_id = ? AND NOT words AND NOT vector", [item[:1] for item in tickets]
    )


def backlog(connection: Db) -> Backlog:
    """Counts of what waits."""
    words, vectors = connection.execute("SELECT total(words), total(vector) FROM index_todo").fetchone()
    return Backlog(int(words), int(vectors))


def remove_traces_of_words(connection: Db) -> None:
    """Rewrite the index of words, so that no word of a deleted memory stays in the file."""
    connection.execute("INSERT INTO memory_terms (memory_terms) VALUES ('optimize')")
