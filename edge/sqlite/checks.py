"""The rules that a user's file keeps, and how a broken one is mended.

Mending changes only what is derived from memories, never a memory's own fields. The one exception is a memory that
is alive and deleted at once: deletion wins, as in every merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from edge.sqlite import syncing, todo
from edge.sqlite.database import Db
from edge.sqlite.rows import joined_terms, vector_from
from edge.sqlite.writing import bury
from memory.core.clock import MAX_SKEW_MS, parse_stamp
from memory.core.text import document_terms

_PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a doctor looks for."""

    name: str
    meaning: str
    remedy: str
    informational: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Rule):
    """A rule about one user's file."""

    count: Callable[[Db, int], int]
    """Breaches, in a read transaction; the second argument is true time in ms UTC."""
    mend: Callable[[Db], None] | None = None
    """In a write transaction."""


# Words


def _wrong_terms(connection: Db) -> Iterable[tuple[int, str]]:
    """Number and content of memories whose ``terms`` are not those of their content."""
    rows = connection.execute("SELECT number, content, terms, length FROM memories")
    while page := rows.fetchmany(_PAGE):
        for number, content, terms, length in page:
            right = document_terms(content)
            if set(terms.split()) != right.terms or length != right.length:
                yield number, content


def _wrongly_indexed(connection: Db) -> int:
    """Memories that the index of words holds under other terms than their own, or holds although they wait or died."""
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.held USING fts5vocab(main, memory_terms, instance)")
    held: dict[int, int] = {}
    for term, number in connection.execute("SELECT term, doc FROM temp.held"):
        held[number] = held.get(number, 0) ^ hash(term)
    right: dict[int, int] = {}
    rows = connection.execute(
        "SELECT number, terms FROM memories m WHERE number <= (SELECT words_upto FROM replica)"
        " AND NOT EXISTS (SELECT 1 FROM index_todo t WHERE t.memory_id = m.memory_id AND t.words)"
    )
    for number, terms in rows:
        digest = 0
        for term in terms.split():
            digest ^= hash(term)
        if terms:
            right[number] = digest
    return sum(held.get(number) != digest for number, digest in right.items()) + sum(n not in right for n in held)


def _mend_words(connection: Db) -> None:
    for number, content in list(_wrong_terms(connection)):
        right = document_terms(content)
        connection.execute(
            "UPDATE memories SET terms = ?, length = ? WHERE number = ?",
            (joined_terms(right.terms), right.length, number),
        )
    connection.execute("INSERT INTO memory_terms (memory_terms) VALUES ('rebuild')")
    connection.execute("UPDATE index_todo SET words = 0")
    connection.execute("DELETE FROM index_todo WHERE NOT vector")
    connection.execute("UPDATE replica SET words_upto = numbers")


# Tags


_WRONG_TAGS: Final = """
    SELECT memory_id, tag FROM memory_tags EXCEPT SELECT m.memory_id, t.value FROM memories m, json_each(m.tags) t
"""
_MISSING_TAGS: Final = """
    SELECT m.memory_id, t.value FROM memories m, json_each(m.tags) t EXCEPT SELECT memory_id, tag FROM memory_tags
"""


def _mend_tags(connection: Db) -> None:
    connection.execute("DELETE FROM memory_tags")
    connection.execute(
        "INSERT INTO memory_tags (user_id, memory_id, tag)"
        " SELECT m.user_id, m.memory_id, t.value FROM memories m, json_each(m.tags) t"
    )


# Vectors


def _unusable(connection: Db) -> list[int]:
    """Numbers of vectors of another length than the model's, or not finite."""
    size = 4 * connection.execute("SELECT dimension FROM replica").fetchone()[0]
    bad = []
    for number, embedding in connection.execute("SELECT number, embedding FROM memory_vectors"):
        if len(embedding) != size or not np.isfinite(vector_from(embedding)).all():
            bad.append(number)
    return bad


def _mend_vectors(connection: Db) -> None:
    connection.executemany(
        "DELETE FROM memory_vectors WHERE number = ?", [(number,) for number in _unusable(connection)]
    )
    wrong = connection.execute(f"SELECT memory_id FROM memories WHERE {_WRONG_MARK}").fetchall()
    connection.execute(f"UPDATE memories SET embedding_due = NOT embedding_due WHERE {_WRONG_MARK}")
    todo.queue_points(connection, [row[0] for row in wrong])


_WRONG_MARK: Final = "embedding_due = (number IN (SELECT number FROM memory_vectors))"


# Life, revisions and clock


_ALIVE_AND_DELETED: Final = (
    "SELECT t.memory_id, t.stamp, t.user_id FROM memory_tombstones t JOIN memories USING (memory_id)"
)


def _bury_again(connection: Db) -> None:
    for memory_id, stamp, user_id in connection.execute(_ALIVE_AND_DELETED).fetchall():
        rev = connection.execute("UPDATE replica SET rev = rev + 1 RETURNING rev").fetchone()[0]
        bury(connection, user_id, memory_id, parse_stamp(stamp), rev=rev)


_LAST_REV: Final = """(SELECT coalesce(max(rev), 0) FROM (SELECT rev FROM memories
    UNION ALL SELECT rev FROM memory_tombstones UNION ALL SELECT rev FROM memory_access))"""
_LAST_NUMBER: Final = """(SELECT coalesce(max(number), 0) FROM (SELECT number FROM memories
    UNION ALL SELECT number FROM memory_tombstones))"""
_LAST_TIME: Final = "(SELECT coalesce(max(updated_at), 0) FROM memories)"
_BEHIND: Final = f"""
    SELECT (rev < {_LAST_REV}) + (numbers < {_LAST_NUMBER}) + (hlc_ms < {_LAST_TIME})
        + (words_upto > numbers) + (points_upto > numbers)
    FROM replica
"""


def _raise_counters(connection: Db) -> None:
    connection.execute(
        f"UPDATE replica SET rev = max(rev, {_LAST_REV}), numbers = max(numbers, {_LAST_NUMBER}),"
        f" hlc_ms = CASE WHEN hlc_ms < {_LAST_TIME} THEN {_LAST_TIME} + 1 ELSE hlc_ms END"
    )
    connection.execute(
        "UPDATE replica SET words_upto = min(words_upto, numbers), points_upto = min(points_upto, numbers)"
    )


# The centre


def _wrong_totals(connection: Db) -> int:
    noted = connection.execute("SELECT digest, live FROM sync_state").fetchone()
    return sum(was != right for was, right in zip(noted, syncing.count_shadows(connection), strict=True))


def _one(connection: Db, statement: str, *params: object) -> int:
    return int(connection.execute(statement, params).fetchone()[0] or 0)


def _broken_pages(connection: Db) -> int:
    rows = connection.execute("PRAGMA integrity_check(100)").fetchall()
    return 0 if rows == [("ok",)] else len(rows)


CHECKS: Final = (
    Check(
        name="file",
        meaning="faults inside the database file",
        remedy="put a backup of the folder back, or remove it and import an export or sync",
        count=lambda connection, _now: _broken_pages(connection),
    ),
    Check(
        name="alive_and_deleted",
        meaning="memories that are alive and deleted at once",
        remedy="delete them: deletion wins",
        count=lambda connection, _now: _one(connection, f"SELECT count(*) FROM ({_ALIVE_AND_DELETED})"),
        mend=_bury_again,
    ),
    Check(
        name="counters",
        meaning="counters below what has been given out, so that changes would be overlooked",
        remedy="raise them",
        count=lambda connection, _now: _one(connection, _BEHIND),
        mend=_raise_counters,
    ),
    Check(
        name="tags",
        meaning="entries of the table of tags that differ from the memories' tags, so that filters err",
        remedy="make the table anew",
        count=lambda connection, _now: (
            _one(connection, f"SELECT count(*) FROM ({_WRONG_TAGS})")
            + _one(connection, f"SELECT count(*) FROM ({_MISSING_TAGS})")
        ),
        mend=_mend_tags,
    ),
    Check(
        name="terms",
        meaning="memories with other words than those of their content, so that recall misses them",
        remedy="extract their words again, and make the index of words anew",
        count=lambda connection, _now: sum(1 for _ in _wrong_terms(connection)),
        mend=_mend_words,
    ),
    Check(
        name="words",
        meaning="memories that the index of words holds otherwise than the file says",
        remedy="make the index of words anew",
        count=lambda connection, _now: _wrongly_indexed(connection),
        mend=_mend_words,
    ),
    Check(
        name="vectors",
        meaning="vectors that cannot be used, or memories marked wrongly as waiting for one",
        remedy="mark them as waiting; whatever has the replica open embeds them",
        count=lambda connection, _now: (
            len(_unusable(connection)) + _one(connection, f"SELECT count(*) FROM memories WHERE {_WRONG_MARK}")
        ),
        mend=_mend_vectors,
    ),
    Check(
        name="shadows",
        meaning="totals of what the centre is known to have that differ from the memories' own notes of it",
        remedy="count them anew; otherwise the next sync compares everything",
        count=lambda connection, _now: _wrong_totals(connection),
        mend=syncing.recount,
    ),
    Check(
        name="clock_ahead",
        meaning="users with stamps more than five minutes ahead of this device's clock",
        remedy="set the clock; a stamp ahead of time wins against edits until time has caught up",
        count=lambda connection, now: _one(connection, "SELECT hlc_ms > ? FROM replica", now + MAX_SKEW_MS),
        informational=True,
    ),
    Check(
        name="embedding_pending",
        meaning="memories that wait for their vector and are found by their words until then",
        remedy="nothing: whatever has the replica open embeds them",
        count=lambda connection, _now: _one(connection, "SELECT count(*) FROM memories WHERE embedding_due"),
        informational=True,
    ),
)
