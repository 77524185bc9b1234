"""What has not reached the indexes yet.

Two indexes follow the memories: words (FTS5, in the same file) and vectors (Qdrant, beside it). A single add
touches neither, and queues nothing: new memories are those with a number above what an index has come up to.
Other changes are queued in the transaction that makes them. Until an index has caught up, searches read what it
lacks one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edge.sqlite.database import Db


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many memories wait for each index."""

    words: int
    vectors: int


def queue_point(connection: Db, memory_id: str) -> None:
    """Queue a change of a live memory's vector, or of what filters ask for."""
    connection.execute(
        "INSERT INTO index_todo AS t (memory_id, ticket, words, vector) VALUES (?, random(), 0, 1)"
        " ON CONFLICT (memory_id) DO UPDATE SET ticket = excluded.ticket, vector = 1",
        (memory_id,),
    )


def queue_points(connection: Db, memory_ids: Iterable[str]) -> None:
    """Queue points that turned out to be missing, stale or foreign, whether their memories live or not."""
    for memory_id in memory_ids:
        queue_point(connection, memory_id)


def queue_text(connection: Db, memory_id: str, number: int) -> None:
    """Queue changed content. New memories whose words were not indexed yet need no more than before."""
    connection.execute(
        "INSERT INTO index_todo AS t (memory_id, ticket, words, vector)"
        " SELECT ?, random(), ? <= words_upto, 1 FROM replica WHERE true"
        " ON CONFLICT (memory_id) DO UPDATE SET ticket = excluded.ticket, words = excluded.words, vector = 1",
        (memory_id, number),
    )


def queue_removal(connection: Db, memory_id: str) -> None:
    """Queue what a deletion leaves to do: its words are out already, its point is not."""
    connection.execute(
        "INSERT OR REPLACE INTO index_todo (memory_id, ticket, words, vector) VALUES (?, random(), 0, 1)", (memory_id,)
    )


def begin_points_anew(connection: Db) -> None:
    """The index of vectors is empty: everything is new to it."""
    connection.execute("UPDATE replica SET points_upto = 0")


def unindex_words(connection: Db, memory_id: str, number: int) -> None:
    """Take a memory's words out of the index, if they are in; before its ``terms`` change or go."""
    connection.execute(
        "INSERT INTO memory_terms (memory_terms, rowid, terms)"
        " SELECT 'delete', m.number, m.terms FROM memories m, replica r WHERE m.number = ? AND m.number <= r.words_upto"
        " AND NOT EXISTS (SELECT 1 FROM index_todo t WHERE t.memory_id = ? AND t.words)",
        (number, memory_id),
    )
    connection.execute("UPDATE replica SET words_removed = 1")


def index_words(connection: Db, limit: int) -> int:
    """Put words into the index, of at most ``limit`` memories; returns how many. Inside a transaction."""
    changed = connection.execute(
        "SELECT m.number, m.terms, t.memory_id FROM index_todo t JOIN memories m USING (memory_id)"
        " WHERE t.words LIMIT ?",
        (limit,),
    ).fetchall()
    fresh = connection.execute(
        "SELECT number, terms FROM memories WHERE number > (SELECT words_upto FROM replica) ORDER BY number LIMIT ?",
        (limit - len(changed),),
    ).fetchall()
    rows = [*(row[:2] for row in changed), *fresh]
    connection.executemany("INSERT INTO memory_terms (rowid, terms) VALUES (?, ?)", rows)
    connection.executemany("UPDATE index_todo SET words = 0 WHERE memory_id = ?", [row[2:] for row in changed])
    connection.executemany("DELETE FROM index_todo WHERE memory_id = ? AND NOT vector", [row[2:] for row in changed])
    if fresh:
        connection.execute("UPDATE replica SET words_upto = ?", (fresh[-1][0],))
    return len(rows)


def backlog(connection: Db) -> Backlog:
    """Counts of what waits."""
    words, vectors = connection.execute(
        "SELECT (SELECT count(*) FROM index_todo WHERE words)"
        " + (SELECT count(*) FROM memories WHERE number > r.words_upto),"
        " (SELECT count(*) FROM index_todo WHERE vector)"
        " + (SELECT count(*) FROM memories m WHERE number > r.points_upto"
        "   AND NOT EXISTS (SELECT 1 FROM index_todo t WHERE t.memory_id = m.memory_id AND t.vector)) FROM replica r"
    ).fetchone()
    return Backlog(words, vectors)


def remove_traces_of_words(connection: Db) -> None:
    """Rewrite the index of words, so that no word of a deleted memory stays in the file."""
    connection.execute("INSERT INTO memory_terms (memory_terms) VALUES ('optimize')")
    connection.execute("UPDATE replica SET words_removed = 0")


def has_traces_of_words(connection: Db) -> bool:
    """Whether ``remove_traces_of_words`` has something to do."""
    return bool(connection.execute("SELECT words_removed FROM replica").fetchone()[0])
