"""Rows of a user's file: read into states, and written from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from edge.sqlite.database import Db
from memory.core.ports import Vector
from memory.core.record import decode_stamps, encode_stamps
from memory.core.state import SCALARS, Register, State
from memory.core.text import DocumentTerms
from memory.engine.storage import Stored

SELECT_STATE: Final = """
SELECT m.memory_id, m.user_id, m.content, m.memory_type, m.importance, m.status, m.source_session, m.created_at,
    m.metadata, m.stamps, m.extra, m.rev, m.tags,
    (SELECT json_group_object(a.writer, a.count) FROM memory_access a WHERE a.memory_id = m.memory_id),
    (SELECT nullif(max(a.last_access_at), 0) FROM memory_access a WHERE a.memory_id = m.memory_id),
    m.number, m.embedding_due
FROM memories m
"""
_INSERT: Final = """
INSERT INTO memories (number, user_id, memory_id, content, memory_type, importance, status, source_session, created_at,
    updated_at, tags, metadata, stamps, extra, rev, version, length, embedding_due, terms, edited,
    base_epoch, base_rev, shadow_hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)
"""
_UPDATE: Final = """
UPDATE memories SET content = ?, memory_type = ?, importance = ?, status = ?, source_session = ?, created_at = ?,
    updated_at = ?, tags = ?, metadata = ?, stamps = ?, extra = ?, rev = ?, version = ?, edited = 1,
    dirty = 1, shadow = CASE WHEN base_rev IS NULL THEN NULL ELSE coalesce(shadow, stamps) END
WHERE number = ?
"""
_encoder: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
encode_json: Final = _encoder.encode
"""JSON as stored: compact, readable in any script."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes: the user, and the random name that this opening of the replica writes under.

    Revisions start above ``floor``, the time of the opening in microseconds: a file that was put back, or made again,
    goes on above all it has ever given out, so that no export that continues an earlier one can miss what it writes.
    """

    user_id: str
    writer: str
    floor: int = 0


class Base(NamedTuple):
    """What the centre has of a memory: the revision of an epoch, and the hash of its registers."""

    epoch: str
    rev: int
    row_hash: int


_NO_BASE: Final = (None, None, None)


def read_state(row: Sequence[Any]) -> Stored:
    """A row of ``SELECT_STATE``."""
    scalars = dict(zip(SCALARS, row[2:8], strict=True))
    if row[10] != "{}":
        scalars |= json.loads(row[10])
    state = decode_stamps(json.loads(row[9]), scalars, json.loads(row[12]), json.loads(row[8]))
    accesses = {writer: count for writer, count in json.loads(row[13]).items() if count}
    state = State(
        scalars=state.scalars,
        tags=state.tags,
        metadata=state.metadata,
        last_access=row[14],
        accesses=accesses,
    )
    return Stored(memory_id=row[0], user_id=row[1], state=state, version=str(row[11]))


def insert_row(
    connection: Db,
    author: Author,
    memory_id: str,
    state: State,
    *,
    number: int,
    rev: int,
    terms: DocumentTerms,
    vector: Vector | None,
    base: Base | None = None,
) -> None:
    """Write a new live memory with its tags, accesses and vector; ``base``: it was received from the centre."""
    values = _values(state, author, rev)
    derived = (terms.length, vector is None, joined_terms(terms.terms))
    connection.execute(_INSERT, (number, author.user_id, memory_id, *values, *derived, *(base or _NO_BASE)))
    add_tags(connection, author.user_id, memory_id, state.tags)
    if state.accesses or state.last_access:
        write_accesses(connection, author.user_id, memory_id, state, rev)
    if vector is not None:
        connection.execute("INSERT INTO memory_vectors VALUES (?, ?)", (number, vector_bytes(vector)))


def update_row(
    connection: Db, author: Author, memory_id: str, number: int, before: State, after: State, *, rev: int
) -> None:
    """Overwrite the registers of a live memory, and its tags; the centre's stamps stay as its shadow."""
    connection.execute(_UPDATE, (*_values(after, author, rev), number))
    had, has = set(before.present_tags()), set(after.present_tags())
    remove_tags(connection, memory_id, had - has)
    add_tags(connection, author.user_id, memory_id, {tag: after.tags[tag] for tag in has - had})


def add_tags(connection: Db, user_id: str, memory_id: str, tags: Mapping[str, Register]) -> None:
    """List a memory under the tags that are present."""
    for tag, register in tags.items():
        if register.value:
            connection.execute(
                "INSERT INTO memory_tags (user_id, memory_id, tag) VALUES (?, ?, ?)", (user_id, memory_id, tag)
            )


def remove_tags(connection: Db, memory_id: str, tags: Iterable[str]) -> None:
    """List a memory under some tags no longer."""
    for tag in tags:
        connection.execute("DELETE FROM memory_tags WHERE tag = ? AND memory_id = ?", (tag, memory_id))


def write_accesses(connection: Db, user_id: str, memory_id: str, state: State, rev: int) -> None:
    """Raise access slots to those of a state."""
    for writer, count, last in state.access_slots():
        connection.execute(
            "INSERT INTO memory_access AS a (user_id, memory_id, writer, count, last_access_at, rev)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (memory_id, writer) DO UPDATE SET"
            " count = max(a.count, excluded.count),"
            " last_access_at = max(a.last_access_at, excluded.last_access_at), rev = excluded.rev",
            (user_id, memory_id, writer, count, last, rev),
        )


def _values(state: State, author: Author, rev: int) -> tuple[Any, ...]:
    return (
        *(state.value(name) for name in SCALARS),
        state.updated_at(),
        encode_json(state.present_tags()),
        encode_json(state.present_metadata()),
        encode_json(encode_stamps(state)),
        encode_json(state.extra()) if len(state.scalars) > len(SCALARS) else "{}",
        rev,
        f"{rev}.{author.writer}",
    )


def joined_terms(terms: Iterable[str]) -> str:
    """Terms as the index of words takes them."""
    return " ".join(terms)


def vector_bytes(vector: Vector) -> bytes:
    """Little-endian float32."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def vector_from(stored: bytes) -> Vector:
    """What ``vector_bytes`` wrote; read-only."""
    return np.frombuffer(stored, dtype="<f4")
