"""Writing on a device: insert, change, delete, touch, late vectors. Each function works inside a transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from edge.sqlite import todo
from edge.sqlite.database import Db
from edge.sqlite.filters import ONE_OF, listed
from edge.sqlite.rows import (
    SELECT_STATE,
    Author,
    insert_row,
    joined_terms,
    read_state,
    remove_tags,
    update_row,
    vector_bytes,
)
from memory.core.clock import MAX_COUNTER, Stamp
from memory.core.errors import Conflict, NotFound
from memory.core.ports import Vector
from memory.core.state import Changes, State, created_state
from memory.engine.storage import Draft, NewText, Pending, Stored, Touch, id_is_taken
from memory.policies.admission import check_result


class Drawn(NamedTuple):
    """Revisions and numbers up to these, and a stamp, ours until the transaction ends."""

    rev: int
    number: int
    stamp: Stamp


class Held(NamedTuple):
    """A live memory and its place."""

    stored: Stored
    number: int
    due: bool


# `next_tick` in SQL, held equal by a test: one statement instead of two.
_DRAW: Final = f"""
UPDATE replica SET rev = max(rev, :floor) + :revs, numbers = numbers + :numbers,
    hlc_ms = CASE WHEN :now > hlc_ms THEN :now WHEN hlc_counter < {MAX_COUNTER} THEN hlc_ms ELSE hlc_ms + 1 END,
    hlc_counter = CASE WHEN :now <= hlc_ms AND hlc_counter < {MAX_COUNTER} THEN hlc_counter + 1 ELSE 0 END
RETURNING rev, numbers, hlc_ms, hlc_counter
"""


def draw(connection: Db, author: Author, *, now: int, revs: int = 1, numbers: int = 0) -> Drawn:
    """Take revisions, numbers for new memories, and one stamp."""
    row = connection.execute(_DRAW, {"now": now, "revs": revs, "numbers": numbers, "floor": author.floor}).fetchone()
    rev, number, ms, counter = row
    return Drawn(rev, number, Stamp(ms, counter, author.writer))


def insert(connection: Db, author: Author, drafts: Sequence[Draft], *, now: int, fresh_ids: bool) -> list[Stored]:
    """Insert a batch, all or none. The indexes see by the numbers that they are new."""
    if not fresh_ids:
        _refuse_used(connection, drafts)
    count = len(drafts)
    drawn = draw(connection, author, now=now, revs=count, numbers=count)
    out = []
    for back, draft in zip(range(count - 1, -1, -1), drafts, strict=True):
        state = created_state(drawn.stamp, draft.changes)
        rev = drawn.rev - back
        insert_row(
            connection,
            author,
            draft.memory_id,
            state,
            number=drawn.number - back,
            rev=rev,
            terms=draft.terms,
            vector=draft.vector,
        )
        out.append(Stored(memory_id=draft.memory_id, user_id=author.user_id, state=state, version=str(rev)))
    return out


def _refuse_used(connection: Db, drafts: Sequence[Draft]) -> None:
    ids = [draft.memory_id for draft in drafts]
    twice = [memory_id for memory_id, times in Counter(ids).items() if times > 1]
    used = connection.execute(
        f"SELECT memory_id FROM memories WHERE memory_id IN {ONE_OF}"
        f" UNION ALL SELECT memory_id FROM memory_tombstones WHERE memory_id IN {ONE_OF}",
        (listed(ids), listed(ids)),
    ).fetchall()
    for taken in sorted([*twice, *(row[0] for row in used)]):
        raise id_is_taken(taken)


def held(connection: Db, memory_id: str) -> Held | None:
    """Read a live memory."""
    row = connection.execute(f"{SELECT_STATE} WHERE m.memory_id = ?", (memory_id,)).fetchone()
    return None if row is None else Held(read_state(row), row[15], bool(row[16]))


def change(
    connection: Db,
    author: Author,
    memory_id: str,
    changes: Changes,
    *,
    text: NewText | None,
    expected_version: str | None,
    now: int,
) -> Stored:
    """Apply an edit. An edit without effect takes no revision."""
    before = held(connection, memory_id)
    if before is None:
        raise NotFound(memory_id=memory_id)
    if expected_version is not None and expected_version != before.stored.version:
        raise Conflict(memory_id=memory_id)
    state = before.stored.state
    probe = state.written(Stamp(0, 0, ""), changes)
    if probe == state:
        return before.stored
    check_result(state, probe)
    drawn = draw(connection, author, now=now)
    after = state.written(drawn.stamp, changes)
    overwrite(connection, author, memory_id, before, after, rev=drawn.rev, text=text)
    return Stored(memory_id=memory_id, user_id=author.user_id, state=after, version=str(drawn.rev))


def overwrite(
    connection: Db, author: Author, memory_id: str, before: Held, after: State, *, rev: int, text: NewText | None
) -> None:
    """Write another state of a live memory. ``text`` goes with its content, if that is another."""
    state = before.stored.state
    update_row(connection, author, memory_id, before.number, state, after, rev=rev)
    if after.value("content") != state.value("content"):
        if text is None:
            raise ValueError("changed content comes with its terms")
        write_text(connection, memory_id, before.number, text)
    else:
        todo.queue_point(connection, memory_id)


def write_text(connection: Db, memory_id: str, number: int, text: NewText) -> None:
    """Replace what is derived from content: terms and vector."""
    todo.unindex_words(connection, memory_id, number)
    connection.execute(
        "UPDATE memories SET length = ?, terms = ?, embedding_due = ? WHERE number = ?",
        (text.terms.length, joined_terms(text.terms.terms), text.vector is None, number),
    )
    for table in ("memory_vectors", "staged_vectors"):
        connection.execute(f"DELETE FROM {table} WHERE number = ?", (number,))
    if text.vector is not None:
        connection.execute("INSERT INTO memory_vectors VALUES (?, ?)", (number, vector_bytes(text.vector)))
    todo.queue_text(connection, memory_id, number)


def write_vector(connection: Db, memory_id: str, number: int, vector: Vector) -> None:
    """Store the vector of a memory that waits for it."""
    connection.execute("INSERT OR REPLACE INTO memory_vectors VALUES (?, ?)", (number, vector_bytes(vector)))
    connection.execute("UPDATE memories SET embedding_due = 0 WHERE number = ?", (number,))
    todo.queue_point(connection, memory_id)


def delete(connection: Db, author: Author, memory_id: str, *, now: int) -> None:
    """Replace a live memory by its tombstone."""
    if connection.execute("SELECT 1 FROM memories WHERE memory_id = ?", (memory_id,)).fetchone() is None:
        raise NotFound(memory_id=memory_id)
    drawn = draw(connection, author, now=now)
    bury(connection, author.user_id, memory_id, drawn.stamp, rev=drawn.rev)


def bury(connection: Db, user_id: str, memory_id: str, stamp: Stamp, *, rev: int) -> None:
    """Leave only a tombstone, whether the memory is alive, dead, or was never here; the centre is to hear of it.

    What else is kept of the memory goes, too: texts that lost to other edits of it.
    """
    number, shadow_hash = remove(connection, memory_id) or (None, None)
    connection.execute(
        "INSERT INTO memory_tombstones (user_id, memory_id, stamp, rev, number, dirty, shadow_hash)"
        " VALUES (?, ?, ?, ?, ?, 1, ?)"
        " ON CONFLICT (memory_id) DO UPDATE SET stamp = excluded.stamp, rev = excluded.rev, dirty = 1",
        (user_id, memory_id, str(stamp), rev, number, shadow_hash),
    )


def remove(connection: Db, memory_id: str) -> tuple[int, int | None] | None:
    """Take a live memory out, without a trace; returns the place it had, and its shadow's hash."""
    alive = connection.execute(
        "SELECT number, tags, shadow_hash FROM memories WHERE memory_id = ?", (memory_id,)
    ).fetchone()
    if alive is None:
        return None
    number, tags, shadow_hash = alive
    todo.unindex_words(connection, memory_id, number)
    remove_tags(connection, memory_id, json.loads(tags))
    connection.execute("DELETE FROM memories WHERE number = ?", (number,))
    connection.execute("DELETE FROM conflicts WHERE memory_id = ? AND reason = 'overwritten'", (memory_id,))
    todo.queue_removal(connection, memory_id)
    return number, shadow_hash


def touch(connection: Db, author: Author, touches: Sequence[Touch]) -> None:
    """Add to access counts; touches of memories that are gone are dropped."""
    ids = listed([item.memory_id for item in touches])
    rows = connection.execute(f"SELECT memory_id FROM memories WHERE memory_id IN {ONE_OF}", (ids,)).fetchall()
    alive = {row[0] for row in rows}
    kept = [item for item in touches if item.memory_id in alive]
    if not kept:
        return
    head = connection.execute(
        "UPDATE replica SET rev = max(rev, ?) + ? RETURNING rev", (author.floor, len(kept))
    ).fetchone()[0]
    connection.executemany(
        "INSERT INTO memory_access AS a (user_id, memory_id, writer, count, last_access_at, rev)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (memory_id, writer) DO UPDATE SET count = a.count + excluded.count,"
        " last_access_at = max(a.last_access_at, excluded.last_access_at), rev = excluded.rev",
        [
            (author.user_id, item.memory_id, author.writer, item.count, item.last_access_at, rev)
            for rev, item in enumerate(kept, start=head - len(kept) + 1)
        ],
    )


def put_vectors(connection: Db, vectors: Sequence[tuple[Pending, Vector]]) -> int:
    """Store late vectors, except of content that has changed meanwhile; returns how many."""
    stored = 0
    for item, vector in vectors:
        row = connection.execute(
            "SELECT number FROM memories WHERE memory_id = ? AND content = ?", (item.memory_id, item.content)
        ).fetchone()
        if row is not None:
            write_vector(connection, item.memory_id, row[0], vector)
            stored += 1
    return stored
