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
    Text,
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
    """Accesses of a memory by one writer. Its own ``rev`` lets recall go unnoticed by the record.

    The index by revision is partial so that only those who ask by revision may use it: to whoever looks for slots of
    one memory, it would offer all of the user's.
    """

    __tablename__ = "memory_access"
    __table_args__ = (
        _child_of_memory(),
        Index("memory_access_revisions", "user_id", "rev", postgresql_where=text("rev > 0")),
    )
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


def _zero() -> Any:
    return Field(default=0, sa_type=BigInteger(), sa_column_kwargs={"server_default": text("0")})


class SyncUserRow(Central, table=True):
    """A user's revision and clock. Its row lock orders that user's writers.

    ``epoch`` names the history that the revisions are of, and is the writer of the centre's stamps and counts.
    ``digest``, ``live_count`` and ``access_total`` are those at ``hashed_rev`` (see ``memory.postgres.digest``). Until
    ``watched_until``, ms UTC, a change is told to those who listen.
    """

    __tablename__ = "sync_user"
    user_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    rev: int = Field(sa_type=BigInteger())
    hlc_ms: int = Field(sa_type=BigInteger())
    hlc_counter: int = Field(sa_type=BigInteger())
    epoch: str = Field(sa_type=ORDERED_TEXT)
    digest: int = _zero()
    live_count: int = _zero()
    access_total: int = _zero()
    hashed_rev: int = _zero()
    watched_until: int = _zero()


class LineageRow(Central, table=True):
    """A former epoch of a user, and the revision up to which this database still holds what it gave out."""

    __tablename__ = "sync_lineage"
    user_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    epoch: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    bound_rev: int = Field(sa_type=BigInteger())


class DeviceRow(Central, table=True):
    """A device that holds a user's memories. Marks of it above ``pruned_rev`` are all kept."""

    __tablename__ = "sync_device"
    user_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    device_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    schema_: str = Field(sa_type=ORDERED_TEXT, sa_column_kwargs={"name": "schema"})
    model: str = Field(sa_type=ORDERED_TEXT)
    token_hash: str | None = Field(default=None, sa_type=ORDERED_TEXT)
    registered_at: int = Field(sa_type=BigInteger())
    last_seen_at: int = Field(sa_type=BigInteger())
    revoked_at: int | None = Field(default=None, sa_type=BigInteger())
    pruned_rev: int = _zero()


class MarkRow(Central, table=True):
    """A random name that a device has noted, too, with the revision that it had received then."""

    __tablename__ = "sync_mark"
    user_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    device_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    number: int | None = Field(
        default=None, primary_key=True, sa_type=BigInteger(), sa_column_args=[Identity(always=True)]
    )
    mark: str = Field(sa_type=ORDERED_TEXT)
    rev: int = Field(sa_type=BigInteger())


class HashRow(Central, OwnedColumns, table=True):
    """The hash of a memory as it was at ``hashed_rev``; of one deleted since it is still in the digest."""

    __tablename__ = "memory_hashes"
    row_hash: int = Field(sa_type=BigInteger())


class ConflictRow(Central, OwnedColumns, table=True):
    """A text that lost to an edit made at the same time; ``winner`` is the stamp of that one."""

    __tablename__ = "memory_conflicts"
    __table_args__ = (_child_of_memory(),)
    stamp: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    content: str = Field(sa_type=Text())
    winner: str = Field(sa_type=ORDERED_TEXT)
    device_id: str = Field(sa_type=ORDERED_TEXT)
    logged_at: int = Field(sa_type=BigInteger())


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
