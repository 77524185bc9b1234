"""SQLModel bases without a table: each database makes its own table class from them, in its own MetaData.

Text is ordered by code point everywhere: SQLite does so by itself, Postgres with collation "C".
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Float, Integer, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB, TEXT
from sqlmodel import Field, SQLModel

ORDERED_TEXT = Text().with_variant(TEXT(collation="C"), "postgresql")
JSON_OBJECT = JSON().with_variant(JSONB(), "postgresql")
MEMORY_ID = Uuid().with_variant(Text(), "sqlite")
__all__ = [
    "JSON_OBJECT",
    "MEMORY_ID",
    "ORDERED_TEXT",
    "AccessColumns",
    "MemoryColumns",
    "TagColumns",
    "TombstoneColumns",
]


class OwnedColumns(SQLModel):
    """Every row belongs to one user, and every key leads with the user."""

    user_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    memory_id: uuid.UUID = Field(primary_key=True, sa_type=MEMORY_ID)


class MemoryColumns(OwnedColumns):
    """The record itself. ``stamps`` is what ``core.record.encode_stamps`` writes."""

    content: str = Field(sa_type=Text())
    memory_type: str = Field(sa_type=ORDERED_TEXT)
    importance: float = Field(sa_type=Float(53))
    status: str = Field(sa_type=ORDERED_TEXT)
    source_session: str | None = Field(default=None, sa_type=ORDERED_TEXT)
    created_at: int = Field(sa_type=BigInteger())
    updated_at: int = Field(sa_type=BigInteger())
    # A table attribute may not be called `metadata`, SQLAlchemy's own name.
    meta: dict[str, Any] = Field(sa_type=JSON_OBJECT, sa_column_kwargs={"name": "metadata"})
    stamps: dict[str, Any] = Field(sa_type=JSON_OBJECT)
    extra: dict[str, Any] = Field(sa_type=JSON_OBJECT)
    length: int = Field(sa_type=Integer())
    embedding_due: bool = Field(sa_type=Boolean())


class TagColumns(OwnedColumns):
    """A tag that a memory has, for filters."""

    tag: str = Field(primary_key=True, sa_type=ORDERED_TEXT)


class AccessColumns(OwnedColumns):
    """Recall counts, one row per writer, so that counters of several replicas merge exactly."""

    writer: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    count: int = Field(sa_type=BigInteger())
    last_access_at: int = Field(sa_type=BigInteger())


class TombstoneColumns(OwnedColumns):
    """What stays of a deleted memory."""

    stamp: str = Field(sa_type=ORDERED_TEXT)
