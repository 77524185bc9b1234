"""Which embedding model the database's vectors are of, and the way from one model to another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from memory.core.errors import ModelMismatch, Refused
from memory.core.ports import Embedder, Vector
from memory.core.text import document_terms
from memory.engine.embedding import checked, known_dimension, other_model
from memory.engine.storage import Pending
from memory.postgres.database import Database, Db
from memory.postgres.writing import write_terms, write_vector

logger = logging.getLogger(__name__)
_BATCH: Final = 64

_CURRENT = """SELECT e.model_id, e.name, e.dimension FROM sync_meta s JOIN embedding_models e USING (model_id)"""
# Memories without a vector of a model, from a position on.
_MISSING = """SELECT m.user_id, m.memory_id::text, m.content FROM memories m
    WHERE NOT EXISTS (SELECT FROM memory_vectors v WHERE v.user_id = m.user_id
        AND v.memory_id = m.memory_id AND v.model_id = %(model)s) {after}
    ORDER BY m.user_id, m.memory_id LIMIT %(limit)s"""
_DUE = """SELECT m.user_id, m.memory_id::text, m.content FROM memories m
    WHERE m.embedding_due AND (SELECT model_id FROM sync_meta) = %(model)s {after}
    ORDER BY m.user_id, m.memory_id LIMIT %(limit)s"""
# A condition of its own rather than "no position or after it": that would not use the index in a generic plan.
_AFTER = "AND (m.user_id, m.memory_id) > (%(user)s, %(id)s::uuid)"


def _waiting(
    connection: Db, statement: str, limit: int, *, after: tuple[str, str] | None, model_id: int
) -> list[Pending]:
    params = {"model": model_id, "limit": limit, "user": after and after[0], "id": after and after[1]}
    rows = connection.execute(statement.format(after=_AFTER if after else ""), params).fetchall()
    return [Pending(*row) for row in rows]


def adopt_model(database: Database, embedder: Embedder) -> tuple[int, int]:
    """Check at open that the embedder is the one whose vectors are here; an empty database takes any.

    Returns the id of the model and its dimension.

    Raises:
        ModelMismatch: memories of another model are here; says both names and the command to run.
        EmbeddingError: the dimension is not known and the service does not answer.
    """
    with database.connection() as connection:
        current = connection.execute(_CURRENT).fetchone()
    dimension = known_dimension(embedder, None if current is None else (current[1], current[2]))
    if current is not None and (embedder.name, dimension) == (current[1], current[2]):
        return int(current[0]), dimension
    with database.transaction() as connection:
        connection.execute("SELECT FROM sync_meta FOR UPDATE")
        current = connection.execute(_CURRENT).fetchone()
        if current is not None and (embedder.name, dimension) != (current[1], current[2]):
            _refuse_if_used(connection, embedder, dimension, current)
        model_id = _register(connection, embedder.name, dimension)
        connection.execute("UPDATE sync_meta SET model_id = %s", [model_id])
    return model_id, dimension


def _refuse_if_used(connection: Db, embedder: Embedder, dimension: int, current: Sequence[object]) -> None:
    # Whoever is adding finishes first, and then sees which model it is.
    connection.execute("LOCK TABLE memories IN SHARE ROW EXCLUSIVE MODE")
    if connection.execute("SELECT FROM memories LIMIT 1").fetchone() is None:
        return
    raise other_model("database", (str(current[1]), int(str(current[2]))), (embedder.name, dimension))


def _register(connection: Db, name: str, dimension: int) -> int:
    connection.execute(
        "INSERT INTO embedding_models (name, dimension) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        [name, dimension],
    )
    row = connection.execute(
        "SELECT model_id FROM embedding_models WHERE name = %s AND dimension = %s", [name, dimension]
    ).fetchone()
    return int(row[0]) if row else 0


def pending(database: Database, limit: int, *, after: tuple[str, str] | None, model_id: int) -> list[Pending]:
    """See ``Storage.pending``; nothing while another model is the current one."""
    with database.connection() as connection:
        return _waiting(connection, _DUE, limit, after=after, model_id=model_id)


def require_current(connection: Db, model_id: int) -> None:
    """Refuse to go on with a model that the database has left.

    Raises:
        ModelMismatch: the model was changed while this program ran.
    """
    row = connection.execute("SELECT model_id FROM sync_meta").fetchone()
    if row is None or row[0] != model_id:
        raise ModelMismatch(
            "the database's embedding model was changed while this program ran",
            hint="start it again with the new model",
        )


def put_vectors(connection: Db, vectors: Sequence[tuple[Pending, Vector]], *, model_id: int) -> int:
    """See ``Storage.put_vectors``; inside the caller's transaction.

    The memory's row is locked while its vector is stored, so that an edit of its content either comes first,
    and the vector is dropped, or comes after, and removes it.
    """
    # The table before its rows, as a change of model takes them.
    connection.execute("LOCK TABLE memories IN ROW EXCLUSIVE MODE")
    known = connection.execute("SELECT FROM embedding_models WHERE model_id = %s FOR KEY SHARE", [model_id]).fetchone()
    if known is None:
        return 0  # another program has changed the model; it embeds what waits
    stored = 0
    for item, vector in sorted(vectors, key=lambda pair: (pair[0].user_id, pair[0].memory_id)):
        key = {"user": item.user_id, "id": UUID(item.memory_id), "content": item.content, "model": model_id}
        row = connection.execute(
            "SELECT status, memory_type, created_at, length FROM memories"
            " WHERE user_id = %(user)s AND memory_id = %(id)s AND content = %(content)s FOR UPDATE",
            key,
        ).fetchone()
        if row is None:
            continue
        if row[3] == 0:  # raw SQL has changed the content, and could not tell its words
            write_terms(connection, item.user_id, item.memory_id, document_terms(item.content))
        write_vector(connection, item.user_id, item.memory_id, vector, model_id=model_id, repeated=row[:3])
        connection.execute(
            "UPDATE memories SET embedding_due = false WHERE user_id = %(user)s AND memory_id = %(id)s"
            " AND (SELECT model_id FROM sync_meta) = %(model)s",
            key,
        )
        stored += 1
    return stored


def reembed(database: Database, embedder: Embedder, *, progress: Callable[[int, int], None] = lambda *_: None) -> int:
    """Embed every memory with ``embedder`` and make it the database's model. Returns how many were embedded.

    Until the last moment the old model stays the current one and recall goes on. An interrupted run resumes
    where it was; memories added meanwhile are taken too.

    Raises:
        EmbeddingError: the model fails; what was embedded is kept, and the old model stays.
    """
    dimension = embedder.dimension
    with database.transaction() as connection:
        model_id = _register(connection, embedder.name, dimension)
        total = (connection.execute("SELECT count(*) FROM memories").fetchone() or (0,))[0]
    done = 0
    while True:
        done = _embed_missing(database, embedder, model_id, done, lambda n: progress(n, total))
        if _switch(database, model_id):
            return done
        _refuse_if_overtaken(database, model_id)


def _refuse_if_overtaken(database: Database, model_id: int) -> None:
    with database.connection() as connection:
        known = connection.execute("SELECT FROM embedding_models WHERE model_id = %s", [model_id]).fetchone()
    if known is None:
        raise Refused("another change of the embedding model has finished meanwhile", hint="open with that model")


def _embed_missing(
    database: Database, embedder: Embedder, model_id: int, done: int, step: Callable[[int], None]
) -> int:
    position: tuple[str, str] | None = None
    while True:
        with database.connection() as connection:
            batch = _waiting(connection, _MISSING, _BATCH, after=position, model_id=model_id)
        if not batch:
            return done
        position = (batch[-1].user_id, batch[-1].memory_id)
        vectors = checked(embedder.embed_documents([item.content for item in batch]), (len(batch), embedder.dimension))
        with database.transaction() as connection:
            done += put_vectors(connection, list(zip(batch, vectors, strict=True)), model_id=model_id)
        step(done)


def _switch(database: Database, model_id: int) -> bool:
    """Make the model current if every memory has its vector; False if some were added since."""
    with database.transaction() as connection:
        connection.execute("SELECT FROM sync_meta FOR UPDATE")
        # Writers finish their transactions before this lock is granted, and wait for the commit after it.
        connection.execute("LOCK TABLE memories IN SHARE ROW EXCLUSIVE MODE")
        if _waiting(connection, _MISSING, 1, after=None, model_id=model_id):
            return False
        connection.execute("UPDATE sync_meta SET model_id = %s", [model_id])
        connection.execute("UPDATE memories SET embedding_due = false WHERE embedding_due")
        connection.execute("DELETE FROM memory_vectors WHERE model_id <> %s", [model_id])
        connection.execute("DELETE FROM embedding_models WHERE model_id <> %s", [model_id])
    return True
