"""Rows of the central tables: read into states, and written by COPY."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg.types.json import Jsonb

from memory.core.ports import Vector
from memory.core.record import decode_stamps, encode_stamps
from memory.core.state import SCALARS, State
from memory.core.text import DocumentTerms
from memory.engine.storage import Stored
from memory.postgres.database import Db
from memory.postgres.terms import lexemes, tsvector_binary

SELECT_STATE: Final = """
SELECT m.memory_id::text, m.user_id, m.content, m.memory_type, m.importance, m.status, m.source_session,
    m.created_at, m.metadata, m.stamps, m.extra, m.rev,
    ARRAY(SELECT t.tag FROM memory_tags t WHERE t.user_id = m.user_id AND t.memory_id = m.memory_id),
    (SELECT array_agg(a.writer ORDER BY a.writer) FROM memory_access a
        WHERE a.user_id = m.user_id AND a.memory_id = m.memory_id),
    (SELECT array_agg(a.count ORDER BY a.writer) FROM memory_access a
        WHERE a.user_id = m.user_id AND a.memory_id = m.memory_id),
    (SELECT nullif(max(a.last_access_at), 0) FROM memory_access a
        WHERE a.user_id = m.user_id AND a.memory_id = m.memory_id),
    m.embedding_due
FROM memories m
"""


@dataclass(frozen=True, slots=True)
class FullRow:
    """A live memory with everything that its row and its index entries hold."""

    user_id: str
    memory_id: str
    state: State
    terms: DocumentTerms
    vector: Vector | None
    rev: int


def read_state(row: Sequence[Any]) -> Stored:
    """A row of ``SELECT_STATE``."""
    scalars = {**dict(zip(SCALARS, row[2:8], strict=True)), **row[10]}
    state = decode_stamps(row[9], scalars, row[12], row[8])
    accesses = {w: n for w, n in zip(row[13] or (), row[14] or (), strict=True) if n}
    state = State(
        scalars=state.scalars,
        tags=state.tags,
        metadata=state.metadata,
        last_access=row[15],
        accesses=accesses,
    )
    return Stored(memory_id=row[0], user_id=row[1], state=state, version=str(row[11]))


def copy_rows(connection: Db, rows: Sequence[FullRow], *, model_id: int) -> None:
    """Insert memories with all that belongs to them; their ids must be new."""
    _copy(
        connection,
        "memories (user_id, memory_id, content, memory_type, importance, status, source_session, created_at,"
        " updated_at, metadata, stamps, extra, length, embedding_due, rev, terms)",
        "text uuid text text float8 text text int8 int8 jsonb jsonb jsonb int4 bool int8",
        (_memory_values(row) for row in rows),
    )
    _copy(
        connection,
        "memory_tags (user_id, memory_id, tag)",
        "text uuid text",
        ((row.user_id, UUID(row.memory_id), tag) for row in rows for tag in row.state.present_tags()),
    )
    _copy(
        connection,
        "memory_access (user_id, memory_id, writer, count, last_access_at, rev)",
        "text uuid text int8 int8 int8",
        (values for row in rows for values in access_values(row.user_id, row.memory_id, row.state, row.rev)),
    )
    _copy(
        connection,
        "memory_vectors (user_id, memory_id, model_id, status, memory_type, created_at, dimension, embedding)",
        "text uuid int4 text text int8 int2",
        (_vector_values(row, row.vector, model_id) for row in rows if row.vector is not None),
    )


def access_values(user_id: str, memory_id: str, state: State, rev: int) -> list[tuple[Any, ...]]:
    """Rows of ``memory_access`` for a state."""
    return [(user_id, UUID(memory_id), *slot, rev) for slot in state.access_slots()]


def _memory_values(row: FullRow) -> tuple[Any, ...]:
    state = row.state
    return (
        row.user_id,
        UUID(row.memory_id),
        *(state.value(name) for name in SCALARS),
        state.updated_at(),
        Jsonb(state.present_metadata()),
        Jsonb(encode_stamps(state)),
        Jsonb(state.extra()),
        row.terms.length,
        row.vector is None,
        row.rev,
        tsvector_binary(lexemes(row.user_id, row.terms.terms)),
    )


def _vector_values(row: FullRow, vector: Vector, model_id: int) -> tuple[Any, ...]:
    state = row.state
    return (
        row.user_id,
        UUID(row.memory_id),
        model_id,
        state.value("status"),
        state.value("memory_type"),
        state.value("created_at"),
        len(vector),
        vector_binary(vector),
    )


def vector_binary(vector: Vector) -> bytes:
    """The binary form of pgvector's type: dimension and zero as int16, then big-endian float32."""
    return struct.pack("!HH", len(vector), 0) + vector.astype(">f4").tobytes()


def _copy(connection: Db, target: str, types: str, values: Iterable[tuple[Any, ...]]) -> None:
    """COPY in binary. A last column beyond ``types`` is given as bytes already in its type's binary form."""
    known = types.split()
    first = next(iterator := iter(values), None)
    if first is None:
        return
    with connection.cursor().copy(f"COPY {target} FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(known + ["bytea"] * (len(first) - len(known)))
        copy.write_row(first)
        for row in iterator:
            copy.write_row(row)
