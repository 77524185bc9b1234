"""A short digest of a memory's state, to see whether two places hold the same without comparing all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

from memory.core.state import Register, State


def row_hash(memory_id: str, state: State) -> str:
    """The first 8 bytes of a SHA-256, as 16 hex digits, of a live memory.

    Hashed are ASCII lines: the id; one line ``register=stamp`` for each register, sorted bytewise; the SHA-256 of
    the content. No value but the content enters: a value never changes without its stamp. Access counts do not
    enter, so that recall changes no digest.

    Tags and metadata keys are registers named ``tags.`` and ``metadata.`` plus the key as a JSON string.
    """
    content = hashlib.sha256(str(state.value("content")).encode()).hexdigest()
    lines = [memory_id, *sorted(_lines(state)), content]
    return hashlib.sha256("\n".join(lines).encode("ascii")).hexdigest()[:16]


def _lines(state: State) -> Iterator[str]:
    for name, register in state.scalars.items():
        # Names of fields that this version does not know may be any text.
        yield f"{name if name.isascii() else json.dumps(name)}={register.stamp}"
    yield from _keyed("tags", state.tags)
    yield from _keyed("metadata", state.metadata)


def _keyed(kind: str, registers: Mapping[str, Register]) -> Iterator[str]:
    for key, register in registers.items():
        yield f"{kind}.{json.dumps(key)}={register.stamp}"
