"""Tables of a user's database on a device. Migrations create them; a test holds the two equal.

A file holds one user, so keys and indexes leave the user out that leads those of the centre. ``number`` is a
memory's place in this file: the index of words and the arrays of ``edge.sqlite.columns`` go by it. That index
(``memory_terms``, FTS5 over the column ``terms``) is no table of a model: only the migration makes it.
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    text,
)
from sqlmodel import Field, SQLModel

from memory.schema.columns import (
    MEMORY_ID,
    ORDERED_TEXT,
    AccessColumns,
    MemoryColumns,
    TagColumns,
    TombstoneColumns,
)

edge = MetaData()
_CLUSTERED = {"sqlite_with_rowid": False}


def _child_of_memory() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["memory_id"], ["memories.memory_id"], ondelete="CASCADE")


class Edge(SQLModel):
    """Base of the edge tables."""

    metadata = edge


class MemoryRow(Edge, MemoryColumns, table=True):
    """A live memory. ``terms`` is the text that the index of words holds, or will hold.

    What the centre had when it was last received: its revision there (``base_``), its hash, and its stamps, these only
    if they are others than the row's own. ``dirty``: edited since. A new memory has no base and is not dirty: the
    centre lacks it if its number is above ``pushed_upto`` of ``sync_state``.

    ``version`` is the revision and who wrote it: unlike the revision alone it is not used again, not even by a
    file that a backup has put back.
    """

    __tablename__ = "memories"
    __table_args__ = (
        UniqueConstraint("memory_id"),
        Index("memories_edits", "rev", sqlite_where=text("edited")),
        Index("memories_due", "memory_id", sqlite_where=text("embedding_due")),
        Index("memories_dirty", "rev", sqlite_where=text("dirty")),
    )
    number: int | None = Field(default=None, primary_key=True, sa_type=Integer())
    user_id: str = Field(sa_type=ORDERED_TEXT)
    memory_id: uuid.UUID = Field(sa_type=MEMORY_ID)
    rev: int = Field(sa_type=BigInteger())
    edited: bool = Field(sa_type=Boolean())
    version: str = Field(sa_type=Text())
    tags: list[str] = Field(sa_type=JSON())
    terms: str = Field(sa_type=Text())
    dirty: bool = Field(sa_type=Boolean(), sa_column_kwargs={"server_default": text("0")})
    base_epoch: str | None = Field(default=None, sa_type=Text())
    base_rev: int | None = Field(default=None, sa_type=BigInteger())
    shadow: dict[str, Any] | None = Field(default=None, sa_type=JSON())
    shadow_hash: int | None = Field(default=None, sa_type=BigInteger())


class TagRow(Edge, TagColumns, table=True):
    """A memory that has a tag, for filters: by tag first. A memory's own tags are read from its row."""

    __tablename__ = "memory_tags"
    __table_args__ = (PrimaryKeyConstraint("tag", "memory_id"), _CLUSTERED)
    user_id: str = Field(sa_type=ORDERED_TEXT)
    memory_id: uuid.UUID = Field(sa_type=MEMORY_ID)
    tag: str = Field(sa_type=ORDERED_TEXT)


class AccessRow(Edge, AccessColumns, table=True):
    """Accesses of a memory by one writer; ``acked`` of them are at the centre."""

    __tablename__ = "memory_access"
    __table_args__ = (
        _child_of_memory(),
        Index("memory_access_unsent", "memory_id", sqlite_where=text("count > acked")),
        _CLUSTERED,
    )
    user_id: str = Field(sa_type=ORDERED_TEXT)
    rev: int = Field(sa_type=BigInteger())
    acked: int = Field(sa_type=BigInteger(), sa_column_kwargs={"server_default": text("0")})


class TombstoneRow(Edge, TombstoneColumns, table=True):
    """A deleted memory. ``number`` is the place it had, if it was ever alive here.

    ``dirty``: the centre does not know yet; ``shadow_hash`` is that of the live memory which it still has.
    """

    __tablename__ = "memory_tombstones"
    __table_args__ = (
        Index("memory_tombstones_revisions", "rev"),
        Index("memory_tombstones_dirty", "rev", sqlite_where=text("dirty")),
        _CLUSTERED,
    )
    user_id: str = Field(sa_type=ORDERED_TEXT)
    rev: int = Field(sa_type=BigInteger())
    number: int | None = Field(default=None, sa_type=Integer())
    dirty: bool = Field(sa_type=Boolean(), sa_column_kwargs={"server_default": text("0")})
    shadow_hash: int | None = Field(default=None, sa_type=BigInteger())


class VectorRow(Edge, table=True):
    """A memory's vector of the replica's model: little-endian float32."""

    __tablename__ = "memory_vectors"
    __table_args__ = (ForeignKeyConstraint(["number"], ["memories.number"], ondelete="CASCADE"),)
    number: int = Field(primary_key=True, sa_type=Integer())
    embedding: bytes = Field(sa_type=LargeBinary())


class StagedVectorRow(Edge, table=True):
    """A vector of the model that the replica is about to change to."""

    __tablename__ = "staged_vectors"
    __table_args__ = (ForeignKeyConstraint(["number"], ["memories.number"], ondelete="CASCADE"),)
    number: int = Field(primary_key=True, sa_type=Integer())
    model: str = Field(sa_type=ORDERED_TEXT)
    embedding: bytes = Field(sa_type=LargeBinary())


class TodoRow(Edge, table=True):
    """A change that has not reached the indexes yet; written in the transaction that makes it.

    New memories need no row: they are those with a number above the ``_upto`` of ``replica``. ``ticket`` is drawn
    at random with each change, so that whoever has carried out an earlier one can tell.
    """

    __tablename__ = "index_todo"
    __table_args__ = (_CLUSTERED,)
    memory_id: uuid.UUID = Field(primary_key=True, sa_type=MEMORY_ID)
    ticket: int = Field(sa_type=BigInteger())
    words: bool = Field(sa_type=Boolean())
    vector: bool = Field(sa_type=Boolean())


class ReplicaRow(Edge, table=True):
    """The one row about the whole file: whose it is, its revision and clock, where it lay, its model.

    ``numbers`` is the highest number given out; the indexes hold new memories up to their ``_upto``.
    ``words_removed``: the index of words may still hold words of memories that are gone.
    """

    __tablename__ = "replica"
    user_id: str = Field(primary_key=True, sa_type=ORDERED_TEXT)
    rev: int = Field(sa_type=BigInteger())
    hlc_ms: int = Field(sa_type=BigInteger())
    hlc_counter: int = Field(sa_type=BigInteger())
    numbers: int = Field(sa_type=Integer())
    words_upto: int = Field(sa_type=Integer())
    points_upto: int = Field(sa_type=Integer())
    words_removed: bool = Field(sa_type=Boolean())
    origin: str | None = Field(default=None, sa_type=Text())
    model: str = Field(sa_type=ORDERED_TEXT)
    dimension: int = Field(sa_type=Integer())


class SyncStateRow(Edge, table=True):
    """The one row about the centre: what has been received and sent, and how the last attempt ended.

    ``digest`` and ``live`` are XOR and number of all shadow hashes. ``suspicious``: compare everything next time.
    ``equal``: whether the last look at the head found the same digest.
    """

    __tablename__ = "sync_state"
    singleton: bool = Field(primary_key=True, sa_type=Boolean())
    device: str | None = Field(default=None, sa_type=Text())
    epoch: str | None = Field(default=None, sa_type=Text())
    cursor: int = Field(sa_type=BigInteger())
    pushed_upto: int = Field(sa_type=Integer())
    digest: int = Field(sa_type=BigInteger())
    live: int = Field(sa_type=Integer())
    suspicious: bool = Field(sa_type=Boolean())
    clock_offset: int = Field(sa_type=BigInteger())
    centre_rev: int | None = Field(default=None, sa_type=BigInteger())
    equal: bool | None = Field(default=None, sa_type=Boolean())
    state: str = Field(sa_type=Text())
    problem: str | None = Field(default=None, sa_type=Text())
    hint: str | None = Field(default=None, sa_type=Text())
    synced_at: int | None = Field(default=None, sa_type=BigInteger())
    tried_at: int | None = Field(default=None, sa_type=BigInteger())
    verified_at: int | None = Field(default=None, sa_type=BigInteger())


class SyncMarkRow(Edge, table=True):
    """A random name that the centre noted, too, with the revision it brought this replica to."""

    __tablename__ = "sync_marks"
    number: int | None = Field(default=None, primary_key=True, sa_type=Integer())
    mark: str = Field(sa_type=Text())
    rev: int = Field(sa_type=BigInteger())


class ConflictRow(Edge, table=True):
    """What could not be kept where it was: text that lost to another edit, records that the centre did not take."""

    __tablename__ = "conflicts"
    __table_args__ = (Index("conflicts_by_memory", "memory_id"),)
    number: int | None = Field(default=None, primary_key=True, sa_type=Integer())
    memory_id: str = Field(sa_type=Text())
    reason: str = Field(sa_type=Text())
    problem: str | None = Field(default=None, sa_type=Text())
    content: str | None = Field(default=None, sa_type=Text())
    record: dict[str, Any] = Field(sa_type=JSON())
    logged_at: int = Field(sa_type=BigInteger())
