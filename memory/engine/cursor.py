"""Cursors of listings: opaque to callers, a position inside."""

from __future__ import annotations

import base64
import binascii
import json
import uuid

from memory.core.errors import InvalidValue


def encode(created_at: int, memory_id: str) -> str:
    """The position after a memory."""
    return base64.urlsafe_b64encode(json.dumps([created_at, memory_id]).encode()).decode("ascii")


def decode(cursor: object) -> tuple[int, str]:
    """Read ``encode``'s text.

    Raises:
        InvalidValue: it is not a cursor.
    """
    try:
        if not isinstance(cursor, str):
            raise TypeError
        created_at, memory_id = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
        if isinstance(created_at, bool) or not isinstance(created_at, int) or abs(created_at) > 2**53:
            raise TypeError
        return created_at, str(uuid.UUID(memory_id))
    except (ValueError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise InvalidValue(
            "cursor", "is not one that list_memories returned", hint="start again without a cursor"
        ) from None
