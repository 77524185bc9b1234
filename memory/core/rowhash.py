"""The hash of one memory's registers, and the digest of many: how two databases find out that they are equal.

A row hash is the first 8 bytes of SHA-256, as a signed big-endian integer, over ASCII lines, each ended by a line
feed: the memory's id; then ``register=stamp`` for every register, sorted bytewise; then the SHA-256 of the content in
hexadecimal. Registers are ``content``, ``memory_type`` and so on; ``tags.NAME`` and ``metadata.NAME`` with the name as
a JSON string in ASCII; ``deleted`` for a tombstone, which has no content line. Values are left out, for none changes
without its stamp; so are access counts, which change without the record.

A digest is the XOR of the row hashes of all live memories: it does not depend on their order, and changes by
``digest ^ old ^ new``. It finds faults, not attackers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from memory.core.record import encode_stamps
from memory.core.state import State


def row_hash(memory_id: str, state: State) -> int:
    """The hash of a state, in [-2**63, 2**63)."""
    if state.deleted is not None:
        return tombstone_hash(memory_id, str(state.deleted))
    return stored_row_hash(
        memory_id,
        encode_stamps(state),
        scalars=state.scalars,
        tags=state.tags,
        metadata=state.metadata,
        content_sha256=content_sha256(state.value("content")),
    )


def stored_row_hash(
    memory_id: str,
    stamps: Mapping[str, Any],
    *,
    scalars: Iterable[str],
    tags: Iterable[str],
    metadata: Iterable[str],
    content_sha256: str,
) -> int:
    """The same of a memory as it is stored, without reading its stamps into objects.

    Args:
        memory_id: In its canonical form.
        stamps: What ``core.record.encode_stamps`` wrote.
        scalars: Names of all scalar registers, unknown ones included.
        tags: Names of tags; those that are only among the stamps (removed ones) may be left out.
        metadata: Names of metadata keys; likewise.
        content_sha256: SHA-256 of the content's UTF-8, hexadecimal.
    """
    base = stamps["*"]
    lines = [
        f"{name if name.isidentifier() and name.isascii() else json.dumps(name)}={stamps.get(name, base)}"
        for name in scalars
    ]
    for group, names in (("tags", tags), ("metadata", metadata)):
        listed = stamps.get(group, {})
        lines += [f"{group}.{json.dumps(name)}={listed.get(name, base)}" for name in {*names, *listed}]
    lines.sort()
    return _hash([memory_id, *lines, content_sha256])


def tombstone_hash(memory_id: str, stamp: str) -> int:
    """The hash of a deleted memory; digests leave it out."""
    return _hash([memory_id, f"deleted={stamp}"])


def content_sha256(content: str) -> str:
    """What goes into a row hash of the content."""
    return hashlib.sha256(content.encode()).hexdigest()


def _hash(lines: list[str]) -> int:
    text = "\n".join(lines) + "\n"
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big", signed=True)
