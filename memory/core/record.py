"""The wire record: one memory as one JSON object, for export, import and sync.

A record reads like a memory, with the stamps beside it::

    {"kind": "memory", "memory_id": "…", "user_id": "u-42", "content": "…", "memory_type": "fact",
     "importance": 0.7, "status": "active", "source_session": null, "created_at": 1733000000000,
     "updated_at": 1733000000000, "last_access_at": null, "access_count": 2, "tags": ["project"],
     "metadata": {}, "embedding_version": "…", "vector": "<base64 little-endian float32>",
     "stamps": {"*": "1733000000000.0.5f3a", "importance": "1733000009000.0.5f3a"},
     "accesses": {"5f3a": 2}, "rev": 17}

``stamps["*"]`` belongs to every register without a stamp of its own; a tag or metadata key that is listed
under ``stamps`` but absent above was removed. A deleted memory keeps its id, its user and
``stamps.deleted``. Keys that this version does not know are registers of a later one: kept, and passed on.

A record without ``stamps`` is a plain one, as the Hermes memory architecture (§6.1) exports it: a list of
numbers as vector, no framing. Its stamps are derived from its times, so importing it twice changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memory.core.clock import Stamp, is_writer, parse_stamp
from memory.core.errors import FormatError
from memory.core.ports import Vector
from memory.core.state import ABSENT, SCALARS, Register, State

KIND: Final = "memory"
ACCESS_KIND: Final = "access"
"""Kind of a line that carries only access counts of a memory: recalls never resend its record."""
PLAIN_WRITER: Final = "0"
"""Writer of stamps made up for plain records; sorts before every drawn writer."""
_DERIVED: Final = frozenset(
    {"kind", "memory_id", "user_id", "tags", "metadata", "updated_at", "last_access_at", "access_count"}
    | {"embedding_version", "vector", "stamps", "accesses", "rev", "vector_synced", "sync"}
    | {"*", "deleted"}
)
"""Keys of a record that are no registers; the last two mean something else among the stamps. ``sync`` is what a
replica says about a record that it pushes (``core.sync``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A decoded record. Values are as they were written; admission checks them."""

    memory_id: Any
    user_id: Any
    state: State
    vector: Vector | None = None
    """As in the file: float32, any length; not yet checked against the model."""
    model: str | None = None
    rev: int | None = None
    plain: bool = False


def encode_record(record: Record) -> dict[str, Any]:
    """The JSON object of a record."""
    state = record.state
    head = {"kind": KIND, "memory_id": record.memory_id, "user_id": record.user_id}
    tail: dict[str, Any] = {"stamps": encode_stamps(state)}
    if record.rev is not None:
        tail["rev"] = record.rev
    if state.deleted is not None:
        return {**head, "status": "deleted", **tail}
    scalars = {name: register.value for name, register in state.scalars.items()}
    body = {
        "updated_at": state.updated_at(),
        "last_access_at": state.last_access,
        "access_count": sum(state.accesses.values()),
        "tags": list(state.present_tags()),
        "metadata": state.present_metadata(),
        "embedding_version": record.model if record.vector is not None else None,
        "vector": None if record.vector is None else encode_vector(record.vector),
        "accesses": dict(state.accesses),
    }
    return {**head, **scalars, **body, **tail}


def tombstone_record(memory_id: str, user_id: str, stamp: str) -> dict[str, Any]:
    """The record of a deleted memory, from its stamp as it is stored."""
    head = {"kind": KIND, "memory_id": memory_id, "user_id": user_id, "status": "deleted"}
    return {**head, "stamps": {"deleted": stamp}}


def decode_record(data: Mapping[str, Any]) -> Record:
    """Read a record, framed or plain.

    Raises:
        FormatError: a part has the wrong shape; the message names it.
    """
    stamps = data.get("stamps")
    plain = stamps is None
    if plain:
        stamps = {"deleted" if data.get("status") == "deleted" else "*": str(_plain_stamp(data))}
    return Record(
        memory_id=data.get("memory_id"),
        user_id=data.get("user_id"),
        state=_decode_state(data, _mapping(stamps, "stamps"), plain=plain),
        vector=_decode_vector(data.get("vector")),
        model=_optional(data.get("embedding_version"), str, "embedding_version"),
        rev=_optional(data.get("rev"), int, "rev"),
        plain=plain,
    )


def encode_stamps(state: State) -> dict[str, Any]:
    """The stamps of a state, with the most telling one as default for the rest."""
    if state.deleted is not None:
        return {"deleted": str(state.deleted)}
    base = state.scalars["content"].stamp if "content" in state.scalars else max(state.stamps())
    out: dict[str, Any] = {"*": str(base)}
    out |= {name: str(r.stamp) for name, r in state.scalars.items() if r.stamp != base}
    tags = {tag: str(r.stamp) for tag, r in state.tags.items() if r.stamp != base or not r.value}
    keys = {k: str(r.stamp) for k, r in state.metadata.items() if r.stamp != base or r.value is ABSENT}
    return out | ({"tags": tags} if tags else {}) | ({"metadata": keys} if keys else {})


def decode_stamps(
    stamps: Mapping[str, Any], scalars: Mapping[str, Any], tags: list[str], metadata: Mapping[str, Any]
) -> State:
    """The registers of a live memory from its values and what ``encode_stamps`` wrote."""
    base = parse_stamp(stamps.get("*"))
    tag_stamps = _mapping(stamps.get("tags", {}), "stamps.tags")
    key_stamps = _mapping(stamps.get("metadata", {}), "stamps.metadata")
    present = frozenset(tags)

    def stamp(source: Mapping[str, Any], name: str) -> Stamp:
        return parse_stamp(source[name]) if name in source else base

    return State(
        scalars={name: Register(stamp(stamps, name), value) for name, value in scalars.items()},
        tags={tag: Register(stamp(tag_stamps, tag), value=True) for tag in present}
        | {tag: Register(parse_stamp(s), value=False) for tag, s in tag_stamps.items() if tag not in present},
        metadata={key: Register(stamp(key_stamps, key), value) for key, value in metadata.items()}
        | {key: Register(parse_stamp(s), ABSENT) for key, s in key_stamps.items() if key not in metadata},
    )


def encode_vector(vector: Vector) -> str:
    """Base64 of little-endian float32: half the size of a list of numbers, and exact."""
    return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode("ascii")


def _decode_vector(value: object) -> Vector | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4").astype(np.float32)
        if isinstance(value, list):
            with np.errstate(over="ignore"):
                return np.array([float(number) for number in value], dtype=np.float32)
    except (binascii.Error, ValueError, TypeError, OverflowError):
        pass
    raise FormatError("vector: neither base64 of float32 values nor a list of numbers")


def _decode_state(data: Mapping[str, Any], stamps: Mapping[str, Any], *, plain: bool) -> State:
    if "deleted" in stamps:
        return State(deleted=parse_stamp(stamps["deleted"]))
    missing = [name for name in SCALARS if name not in data and name != "source_session"]
    if plain:
        missing = [name for name in missing if name in ("content", "created_at")]
    if missing:
        raise FormatError(f"{missing[0]}: is missing")
    scalars = {name: value for name, value in data.items() if name not in _DERIVED}
    tags = data.get("tags") or []
    if plain and isinstance(tags, str):
        tags = _json_list(tags)  # the column of the plain table holds JSON text
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise FormatError("tags: must be a list of strings")
    state = decode_stamps(stamps, scalars, tags, _mapping(data.get("metadata") or {}, "metadata"))
    accesses = {PLAIN_WRITER: data.get("access_count") or 0} if plain else data.get("accesses", {})
    return State(
        scalars=state.scalars,
        tags=state.tags,
        metadata=state.metadata,
        last_access=_optional(data.get("last_access_at"), int, "last_access_at"),
        accesses=decode_counts(_mapping(accesses, "accesses")),
    )


def _plain_stamp(data: Mapping[str, Any]) -> Stamp:
    for name in ("updated_at", "created_at"):
        ms = data.get(name)
        if isinstance(ms, int | float) and not isinstance(ms, bool) and 0 <= ms < 1e15:
            # The stamp must be one and the same at every import, so seconds are scaled right here.
            return Stamp(round(ms * 1000 if ms < 1e11 else ms), 0, PLAIN_WRITER)
    return Stamp(0, 0, PLAIN_WRITER)


def _json_list(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def decode_counts(accesses: Mapping[str, Any]) -> dict[str, int]:
    """Access counts by writer, zeros left out.

    Raises:
        FormatError: one is not a count, or not of a writer.
    """
    for writer, count in accesses.items():
        if not is_writer(writer):
            raise FormatError(f"accesses: {writer!r:.40} is not a writer")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**53:
            raise FormatError(f"accesses: {writer!r:.40} counts {count!r:.40}")
    return {writer: count for writer, count in accesses.items() if count}


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FormatError(f"{name}: must be an object")
    return value


def _optional(value: Any, kind: type[Any], name: str) -> Any:
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise FormatError(f"{name}: must be {kind.__name__} or null")
    return value
