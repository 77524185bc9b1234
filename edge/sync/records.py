"""Lines received from the centre, checked and made ready to be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memory.core.errors import FormatError, InvalidValue, SyncError
from memory.core.record import ACCESS_KIND, KIND, decode_counts, decode_record
from memory.core.state import State
from memory.core.text import document_terms
from memory.engine.importing import usable_vector
from memory.engine.storage import Incoming
from memory.policies.records import admit_record, is_settled


@dataclass(frozen=True, slots=True)
class Model:
    """The replica's embedding model: vectors of another one are never stored as its own."""

    name: str
    dimension: int


@dataclass(frozen=True, slots=True)
class Accesses:
    """Access counts of one memory."""

    memory_id: str
    state: State


@dataclass(frozen=True, slots=True)
class Received:
    """A record and the centre's revision of it."""

    item: Incoming
    rev: int


def read_line(line: Mapping[str, Any], user_id: str, model: Model, *, now: int) -> Received | Accesses:
    """Read one line of a pull.

    Args:
        line: As decoded.
        user_id: Whose replica it is.
        model: See there.
        now: The centre's time, ms UTC.

    Raises:
        SyncError: it cannot be kept here. The page is then not taken at all: what is not kept must not be passed over.
    """
    try:
        if line.get("user_id") != user_id:
            raise FormatError("the line is another user's")
        if line.get("kind") == ACCESS_KIND:
            return _accesses(line)
        if line.get("kind") != KIND:
            raise FormatError(f"kind {line.get('kind')!r:.40} is not known to this version")
        record = decode_record(line)
        admitted = record if is_settled(record) else admit_record(record, now=now)
    except (FormatError, InvalidValue) as error:
        raise SyncError(
            f"the centre sent what this replica cannot keep: memory {line.get('memory_id')!r:.60}: {error.message}",
            hint="upgrade nightingale-memory on this device; until then the replica works on locally",
        ) from error
    state = admitted.state
    live = state.deleted is None
    item = Incoming(
        memory_id=admitted.memory_id,
        user_id=user_id,
        state=state,
        terms=document_terms(state.value("content")) if live else None,
        vector=usable_vector(record, model.name, model.dimension) if live else None,
    )
    return Received(item, record.rev or 0)


def _accesses(line: Mapping[str, Any]) -> Accesses:
    memory_id, slots, last = line.get("memory_id"), line.get("accesses"), line.get("last_access_at")
    if not isinstance(memory_id, str) or not isinstance(slots, Mapping) or not isinstance(last, int | None):
        raise FormatError("access counts of the wrong form")
    return Accesses(memory_id, State(accesses=decode_counts(slots), last_access=last))
