"""Tables of the central database. Migrations create them; a test holds the two equal.

Leading column of every key and index is ``user_id``, so the data shard by user. The ``terms`` of the text
index carry a prefix of the user for the same reason (see ``memory.postgres.terms``).
"""

from __future__ import annotations

from typing import Any

from pgvector.sqlalchemy import VECTOR
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlmodel import Field, SQLModel

from memory.schema.columns import (
    ORDERED_TEXT,
    AccessColumns,
    MemoryColumns,
    OwnedColumns,
    TagColumns,
    TombstoneColumns,
)

central = MetaData()


def _child_of_memory() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["user_id", "memory_id"], ["memories.user_id", "memories.memory_id"], ondelete="CASCADE"
    )


class Central(SQLModel):
    """Base of the central tables."""

    metadata = central


class MemoryRow(Central, MemoryColumns, table=True):
    """A live memory."""

    __tablename__ = "memories"
    __table_args__ = (
        Index(
            "memories_listing",
            "user_id",
            "status",
            text("created_at DESC"),
            "memory_id",
            postgresql_include=["memory_type", "length"],
        ),
        Index("memories_revisions", "user_id", "rev"),
        Index("memories_terms", "terms", postgresql_using="gin", postgresql_with={"fastupdate": "off"}),
        Index("memories_due", "user_id", "memory_id", postgresql_where=text("embedding_due")),
    )
    rev: int = Field(sa_type=BigInteger())
    terms: Any = Field(sa_type=TSVECTOR())


class TagRow(Central, TagColumns, table=True):
    """A tag of a memory."""

    __tablename__ = "memory_tags"
    __table_args__ = (_child_of_memory(), Index("memory_tags_by_tag", "user_id", "tag", "memory_id"))


class AccessRow(Central, AccessColumns, table=True):
    """Accesses of a memory by one writer. Its own ``rev`` lets recall go unnoticed by the record."""

    __tablename__ = "memory_access"
    __table_args__ = (_child_of_memory(),)
    rev: int = Field(sa_type=BigInteger())


class VectorRow(Central, OwnedColumns, table=True):
    """A vector with just what a default recall filters by.

    The covering index keeps one user's vectors physically together and is read alone; its tuples must fit a
    third of a page, hence the bound on the dimension. Longer vectors use the index without the vector.
    """

    __tablename__ = "memory_vectors"
    __table_args__ = (
        _child_of_memory(),
        Index(
            "memory_vectors_covering",
            "user_id",
            "model_id",
            "status",
            "created_at",
            "memory_id",
            postgresql_include=["memory_type", "embedding"],
            postgresql_where=text("dimension <= 512"),
        ),
        Index(
            "memory_vectors_long",
            "user_id",
            "model_id",
            "status",
            "created_at",
            postgresql_include=["memory_type", "memory_id"],
            postgresql_where=text("dimension > 512"),
        ),
    )
    model_id: int = Field(primary_key=True, sa_type=Integer(), foreign_key="embedding_models.model_id")
    status: str = Field(sa_type=ORDERED_TEXT)
    memory_type: str = Field(sa_type=ORDERED_TEXT)
    created_at: int = Field(sa_type=BigInteger())
    dimension: int = Field(sa_type=SmallInteger())
    embedding: Any = Field(sa_type=VECTOR())


class TombstoneRow(Central, TombstoneColumns, table=True):
    """A deleted memory."""

    __tablename__ = "memory_tombstones"
    __table_args__ = (Index("memory_tombstones_revisions", "user_id", "rev"),)
    rev: int = Field(sa_type=BigInteger())


class SyncUserRow(Central, table=True):
    """A user's revision and clock. Its row lock orders that user's writers."""

    __tablename__ = "sync_user"
    user_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    rev: int = Field(sa_type=BigInteger())
    hlc_ms: int = Field(sa_type=BigInteger())
    hlc_counter: int = Field(sa_type=BigInteger())


class EmbeddingModelRow(Central, table=True):
    """An embedding model whose vectors are, or will be, here."""

    __tablename__ = "embedding_models"
    __table_args__ = (UniqueConstraint("name", "dimension"),)
    model_id: int | None = Field(
        default=None, primary_key=True, sa_type=Integer(), sa_column_args=[Identity(always=True)]
    )
    name: str = Field(sa_type=ORDERED_TEXT)
    dimension: int = Field(sa_type=SmallInteger())


class SyncMetaRow(Central, table=True):
    """The one row about the whole database."""

    __tablename__ = "sync_meta"
    __table_args__ = (CheckConstraint("singleton", name="sync_meta_singleton"),)
    singleton: bool = Field(default=True, primary_key=True)
    epoch: str = Field(sa_type=ORDERED_TEXT)
    origin: str | None = Field(default=None, sa_type=ORDERED_TEXT)
    model_id: int | None = Field(default=None, sa_type=Integer(), foreign_key="embedding_models.model_id")
