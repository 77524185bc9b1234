"""The text index at the centre: tsvectors made of our own tokens, each carrying a mark of its user.

The mark makes the user the leading part of every key of the GIN index, so that a search reads one user's
postings only. Two users may share a mark; that costs time, never correctness, for every query also asks for
the user itself.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable


def user_mark(user_id: str) -> str:
    """Four characters that stand for a user in the index."""
    digest = hashlib.blake2s(user_id.encode(), digest_size=3).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")


def lexemes(user_id: str, terms: Iterable[str]) -> list[str]:
    """Terms as they stand in the index."""
    mark = user_mark(user_id)
    return [mark + term for term in terms]


def tsquery(lexeme: str) -> str:
    """The text form of a query for one lexeme, for a cast to tsquery."""
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def tsvector_binary(found: Iterable[str]) -> bytes:
    """The binary form of a tsvector without positions, for COPY.

    Layout (``tsvectorsend`` in the Postgres sources): count as int32, then for each lexeme, in byte
    order, a zero-terminated string and its number of positions as int16.
    """
    encoded = sorted(lexeme.encode() for lexeme in found)
    return struct.pack("!i", len(encoded)) + b"".join(raw + b"\x00\x00\x00" for raw in encoded)
