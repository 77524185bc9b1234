"""Writing at the centre: insert, change, delete, touch. Every write holds its user's row in ``sync_user``.

That row lock, taken first and kept to the commit, makes revision order commit order, so that a reader who
has seen revision n has seen all below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from pgvector import Vector as PgVector
from psycopg.types.json import Jsonb

from memory.core.clock import MAX_COUNTER, Stamp
from memory.core.errors import Conflict, NotFound
from memory.core.ports import Vector
from memory.core.record import encode_stamps
from memory.core.state import SCALARS, Changes, State, created_state
from memory.core.text import DocumentTerms
from memory.engine.storage import Draft, NewText, Stored, Touch, id_is_taken
from memory.policies.admission import check_result
from memory.postgres.database import Db
from memory.postgres.rows import SELECT_STATE, FullRow, copy_rows, read_state
from memory.postgres.terms import lexemes

# (now, 0) if the wall clock has moved on, else the counter plus one: `next_tick` in SQL, held equal by a test.
_DRAW: Final = f"""
INSERT INTO sync_user AS s (user_id, epoch, rev, hlc_ms, hlc_counter)
VALUES (%(user)s, (SELECT epoch FROM sync_meta), %(count)s, %(now)s, 0)
ON CONFLICT (user_id) DO UPDATE SET
    rev = s.rev + %(count)s,
    hlc_ms = CASE WHEN %(now)s > s.hlc_ms THEN %(now)s
        WHEN s.hlc_counter < {MAX_COUNTER} THEN s.hlc_ms ELSE s.hlc_ms + 1 END,
    hlc_counter = CASE WHEN %(now)s <= s.hlc_ms AND s.hlc_counter < {MAX_COUNTER} THEN s.hlc_counter + 1 ELSE 0 END
RETURNING s.rev, s.hlc_ms, s.hlc_counter, s.epoch
"""

_INSERT_ONE: Final = f"""
WITH drawn AS ({_DRAW}), fit AS (
    SELECT %(due)s OR model_id IS DISTINCT FROM %(model)s AS due FROM sync_meta
), memory AS (
    INSERT INTO memories (user_id, memory_id, content, memory_type, importance, status, source_session,
        created_at, updated_at, metadata, stamps, extra, length, embedding_due, rev, terms)
    SELECT %(user)s, %(id)s, %(content)s, %(memory_type)s, %(importance)s, %(status)s, %(source_session)s,
        %(created_at)s, hlc_ms, %(metadata)s,
        jsonb_build_object('*', hlc_ms || '.' || hlc_counter || '.' || epoch),
        '{{}}', %(length)s, due, rev, array_to_tsvector(%(lexemes)s)
    FROM drawn, fit
), tags AS (
    INSERT INTO memory_tags (user_id, memory_id, tag) SELECT %(user)s, %(id)s, unnest(%(tags)s::text[])
), vector AS (
    INSERT INTO memory_vectors
        (user_id, memory_id, model_id, status, memory_type, created_at, dimension, embedding)
    SELECT %(user)s, %(id)s, %(model)s, %(status)s, %(memory_type)s, %(created_at)s, %(dimension)s, %(vector)b
    FROM fit WHERE NOT due
)
SELECT rev, hlc_ms, hlc_counter, epoch FROM drawn
"""


REPEATED: Final = ("status", "memory_type", "created_at")
"""Fields of a memory that its vector rows repeat, because recall filters by them."""


class Drawn(NamedTuple):
    """Revisions up to ``rev`` and a stamp, ours until the transaction ends."""

    rev: int
    stamp: Stamp


def draw(connection: Db, user_id: str, *, now: int, count: int) -> Drawn:
    """Lock the user's row, take ``count`` revisions and one stamp. Inside a transaction only."""
    row = connection.execute(_DRAW, {"user": user_id, "now": now, "count": count}).fetchone()
    return _drawn(row)


def _drawn(row: Any) -> Drawn:
    rev, ms, counter, epoch = row
    return Drawn(rev, Stamp(ms, counter, epoch))


def insert_one(connection: Db, user_id: str, draft: Draft, *, now: int, model_id: int, dimension: int) -> Stored:
    """Insert one memory with a fresh id in a single statement: one round trip, one commit."""
    due = draft.vector is None
    params = {
        **draft.changes.scalars,
        "user": user_id,
        "id": UUID(draft.memory_id),
        "now": now,
        "count": 1,
        "metadata": Jsonb(draft.changes.metadata),
        "length": draft.terms.length,
        "due": due,
        "lexemes": lexemes(user_id, draft.terms.terms),
        "tags": list(draft.changes.add_tags),
        "model": model_id,
        "dimension": dimension,
        "vector": PgVector([0.0]) if draft.vector is None else PgVector(draft.vector),
    }
    drawn = _drawn(connection.execute(_INSERT_ONE, params).fetchone())
    state = created_state(drawn.stamp, draft.changes)
    return Stored(memory_id=draft.memory_id, user_id=user_id, state=state, version=str(drawn.rev))


def insert_many(
    connection: Db, user_id: str, drafts: Sequence[Draft], *, now: int, model_id: int, fresh_ids: bool
) -> list[Stored]:
    """Insert a batch by COPY, inside the caller's transaction."""
    drawn = draw(connection, user_id, now=now, count=len(drafts))
    if not fresh_ids:
        _refuse_used(connection, user_id, drafts)
    current = is_current_model(connection, model_id)
    first = drawn.rev - len(drafts) + 1
    rows = [
        FullRow(
            user_id=user_id,
            memory_id=draft.memory_id,
            state=created_state(drawn.stamp, draft.changes),
            terms=draft.terms,
            vector=draft.vector if current else None,
            rev=first + i,
        )
        for i, draft in enumerate(drafts)
    ]
    copy_rows(connection, rows, model_id=model_id)
    return [Stored(memory_id=row.memory_id, user_id=user_id, state=row.state, version=str(row.rev)) for row in rows]


def is_current_model(connection: Db, model_id: int) -> bool:
    """Whether vectors of the model may be written; stays true until the caller's transaction ends.

    A change of model (``models.reembed``) waits for writers of ``memories``, hence the lock before the look.
    """
    connection.execute("LOCK TABLE memories IN ROW EXCLUSIVE MODE")
    row = connection.execute("SELECT model_id FROM sync_meta").fetchone()
    return row is not None and row[0] == model_id


def _refuse_used(connection: Db, user_id: str, drafts: Sequence[Draft]) -> None:
    ids = [UUID(draft.memory_id) for draft in drafts]
    twice = [memory_id for memory_id, times in Counter(ids).items() if times > 1]
    used = connection.execute(
        "SELECT memory_id FROM memories WHERE user_id = %(user)s AND memory_id = ANY(%(ids)s)"
        " UNION ALL SELECT memory_id FROM memory_tombstones WHERE user_id = %(user)s AND memory_id = ANY(%(ids)s)",
        {"user": user_id, "ids": ids},
    ).fetchall()
    for taken in sorted([*twice, *(row[0] for row in used)]):
        raise id_is_taken(str(taken))


def locked(connection: Db, user_id: str, memory_id: str) -> Stored:
    """Lock the user's row without taking anything from it, and read a live memory.

    Raises:
        NotFound: no such memory of this user.
    """
    connection.execute("SELECT FROM sync_user WHERE user_id = %s FOR UPDATE", [user_id])
    row = connection.execute(
        f"{SELECT_STATE} WHERE m.user_id = %s AND m.memory_id = %s", [user_id, UUID(memory_id)]
    ).fetchone()
    if row is None:
        raise NotFound(memory_id=memory_id)
    return read_state(row)


def change(
    connection: Db,
    user_id: str,
    memory_id: str,
    changes: Changes,
    *,
    text: NewText | None,
    expected_version: str | None,
    now: int,
    model_id: int,
) -> Stored:
    """Apply an edit, inside the caller's transaction. An edit without effect takes no revision."""
    held = locked(connection, user_id, memory_id)
    if expected_version is not None and expected_version != held.version:
        raise Conflict(memory_id=memory_id)
    probe = held.state.written(Stamp(0, 0, ""), changes)
    if probe == held.state:
        return held
    check_result(held.state, probe)
    drawn = draw(connection, user_id, now=now, count=1)
    state = held.state.written(drawn.stamp, changes)
    new_text = text if state.value("content") != held.state.value("content") else None
    write_state(connection, user_id, memory_id, state, rev=drawn.rev, before=held.state)
    if new_text is not None:
        write_text(connection, user_id, memory_id, new_text, state, model_id=model_id)
    return Stored(memory_id=memory_id, user_id=user_id, state=state, version=str(drawn.rev))


def write_state(connection: Db, user_id: str, memory_id: str, state: State, *, rev: int, before: State) -> None:
    """Overwrite a live memory's registers, its tags, and what its vector rows repeat of it."""
    key = {"user": user_id, "id": UUID(memory_id)}
    connection.execute(
        "UPDATE memories SET content = %(content)s, memory_type = %(memory_type)s, importance = %(importance)s,"
        " status = %(status)s, source_session = %(source_session)s, created_at = %(created_at)s,"
        " updated_at = %(updated_at)s, metadata = %(metadata)s, stamps = %(stamps)s, extra = %(extra)s,"
        " rev = %(rev)s WHERE user_id = %(user)s AND memory_id = %(id)s",
        {
            **key,
            **{name: state.value(name) for name in SCALARS},
            "updated_at": state.updated_at(),
            "metadata": Jsonb(state.present_metadata()),
            "stamps": Jsonb(encode_stamps(state)),
            "extra": Jsonb(state.extra()),
            "rev": rev,
        },
    )
    added = set(state.present_tags()) - set(before.present_tags())
    removed = set(before.present_tags()) - set(state.present_tags())
    if removed:
        connection.execute(
            "DELETE FROM memory_tags WHERE user_id = %(user)s AND memory_id = %(id)s AND tag = ANY(%(tags)s)",
            {**key, "tags": sorted(removed)},
        )
    if added:
        connection.execute(
            "INSERT INTO memory_tags (user_id, memory_id, tag) SELECT %(user)s, %(id)s, unnest(%(tags)s::text[])",
            {**key, "tags": sorted(added)},
        )
    if any(state.value(name) != before.value(name) for name in REPEATED):
        connection.execute(
            "UPDATE memory_vectors SET status = %(status)s, memory_type = %(memory_type)s,"
            " created_at = %(created_at)s WHERE user_id = %(user)s AND memory_id = %(id)s",
            {**key, **{name: state.value(name) for name in REPEATED}},
        )


def write_text(connection: Db, user_id: str, memory_id: str, text: NewText, state: State, *, model_id: int) -> None:
    """Replace what is derived from content: terms and vector. Vectors of the old content go, of all models."""
    key = {"user": user_id, "id": UUID(memory_id)}
    vector = text.vector if is_current_model(connection, model_id) else None
    connection.execute(
        "UPDATE memories SET length = %(length)s, terms = array_to_tsvector(%(lexemes)s), embedding_due = %(due)s"
        " WHERE user_id = %(user)s AND memory_id = %(id)s",
        {
            **key,
            "length": text.terms.length,
            "lexemes": lexemes(user_id, text.terms.terms),
            "due": vector is None,
        },
    )
    connection.execute("DELETE FROM memory_vectors WHERE user_id = %(user)s AND memory_id = %(id)s", key)
    if vector is not None:
        write_vector(
            connection,
            user_id,
            memory_id,
            vector,
            model_id=model_id,
            repeated=tuple(state.value(name) for name in REPEATED),
        )


def write_terms(connection: Db, user_id: str, memory_id: str, terms: DocumentTerms) -> None:
    """Store the words of a memory's content."""
    connection.execute(
        "UPDATE memories SET length = %s, terms = array_to_tsvector(%s) WHERE user_id = %s AND memory_id = %s",
        [terms.length, lexemes(user_id, terms.terms), user_id, UUID(memory_id)],
    )


def write_vector(
    connection: Db,
    user_id: str,
    memory_id: str,
    vector: Vector,
    *,
    model_id: int,
    repeated: tuple[str, str, int],
) -> None:
    """Store a memory's vector of one model; ``repeated`` are the memory's values of ``REPEATED``."""
    status, memory_type, created_at = repeated
    connection.execute(
        "INSERT INTO memory_vectors"
        " (user_id, memory_id, model_id, status, memory_type, created_at, dimension, embedding)"
        " VALUES (%(user)s, %(id)s, %(model)s, %(status)s, %(type)s, %(created_at)s, %(dimension)s, %(vector)b)"
        " ON CONFLICT (user_id, memory_id, model_id) DO UPDATE SET embedding = excluded.embedding",
        {
            "user": user_id,
            "id": UUID(memory_id),
            "model": model_id,
            "status": status,
            "type": memory_type,
            "created_at": created_at,
            "dimension": len(vector),
            "vector": PgVector(vector),
        },
    )


def bury(connection: Db, user_id: str, memory_id: str, stamp: Stamp, *, rev: int) -> None:
    """Replace whatever is there of a memory by a tombstone."""
    params = {"user": user_id, "id": UUID(memory_id), "stamp": str(stamp), "rev": rev}
    connection.execute("DELETE FROM memories WHERE user_id = %(user)s AND memory_id = %(id)s", params)
    connection.execute(
        "INSERT INTO memory_tombstones (user_id, memory_id, stamp, rev)"
        " VALUES (%(user)s, %(id)s, %(stamp)s, %(rev)s)"
        " ON CONFLICT (user_id, memory_id) DO UPDATE SET stamp = excluded.stamp, rev = excluded.rev",
        params,
    )


def delete(connection: Db, user_id: str, memory_id: str, *, now: int) -> None:
    """Delete a live memory, inside the caller's transaction."""
    locked(connection, user_id, memory_id)
    drawn = draw(connection, user_id, now=now, count=1)
    bury(connection, user_id, memory_id, drawn.stamp, rev=drawn.rev)


def touch(connection: Db, user_id: str, touches: Sequence[Touch]) -> None:
    """Add to the access counts of one user's memories that are still there, inside a transaction."""
    connection.execute("SELECT FROM sync_user WHERE user_id = %s FOR UPDATE", [user_id])
    live = connection.execute(
        "SELECT memory_id FROM memories WHERE user_id = %s AND memory_id = ANY(%s)",
        [user_id, [UUID(item.memory_id) for item in touches]],
    ).fetchall()
    alive = {str(row[0]) for row in live}
    # In ascending order, like everyone who locks several memories.
    kept = sorted((item for item in touches if item.memory_id in alive), key=lambda item: item.memory_id)
    if not kept:
        return
    connection.execute(
        "WITH head AS (UPDATE sync_user SET rev = rev + %(n)s WHERE user_id = %(user)s"
        "   RETURNING rev - %(n)s AS rev, epoch)"
        " INSERT INTO memory_access AS a (user_id, memory_id, writer, count, last_access_at, rev)"
        " SELECT %(user)s, t.id, head.epoch, t.count, t.last, head.rev + t.number"
        " FROM head, unnest(%(ids)s::uuid[], %(counts)s::int8[], %(lasts)s::int8[])"
        "   WITH ORDINALITY AS t(id, count, last, number)"
        " ON CONFLICT (user_id, memory_id, writer) DO UPDATE SET count = a.count + excluded.count,"
        "   last_access_at = greatest(a.last_access_at, excluded.last_access_at), rev = excluded.rev",
        {
            "user": user_id,
            "n": len(kept),
            "ids": [UUID(item.memory_id) for item in kept],
            "counts": [item.count for item in kept],
            "lasts": [item.last_access_at for item in kept],
        },
    )
