"""The values that callers see: frozen, and free of anything that only a store needs to know."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class MemoryType(enum.StrEnum):
    """What kind of thing is remembered."""

    FACT = "fact"
    PREFERENCE = "preference"
    EVENT = "event"
    SUMMARY = "summary"


class Status(enum.StrEnum):
    """Where a memory is in its life. A deleted memory has no status: nothing of it can be read."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a caller should know about a call that nevertheless succeeded."""

    code: str
    """A stable word, e.g. ``embedding_deferred``."""
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One remembered thing of one user. Times are integer milliseconds since 1970-01-01 UTC."""

    memory_id: str
    user_id: str
    content: str
    memory_type: MemoryType = MemoryType.FACT
    importance: float = 0.5
    """As stored, in [0, 1]; time does not rewrite it."""
    status: Status = Status.ACTIVE
    tags: tuple[str, ...] = ()
    """Lower-cased, without duplicates, in code-point order."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source_session: str | None = None
    created_at: int = 0
    updated_at: int = 0
    last_access_at: int | None = None
    """When a recall last returned it; None if never."""
    access_count: int = 0
    version: str = ""
    """Opaque; changes whenever the memory changes. Give it to ``update_memory(expected_version=…)``."""
    notices: tuple[Notice, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A memory that a recall found, with the parts of its score."""

    memory: Memory
    score: float
    """The order of the results: weighted sum of scaled relevance, importance and recency."""
    relevance: float
    """How well it answers the query, in [0, 1], independent of the other results."""
    importance: float
    """The importance that entered the score (see ``MemoryConfig.rank_by``)."""
    recency: float
    """exp(-age in days / time constant), in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallFilter:
    """Which of a user's memories are considered; every given condition must hold.

    ``metadata`` maps a top-level key to a scalar (equality) or to a mapping of the operators ``eq ne gt gte
    lt lte in exists``. Comparison is typed: a value of another type never matches and never raises, and
    ``ne`` matches only values that are there and of the same type.
    """

    statuses: Sequence[str] = (Status.ACTIVE,)
    types: Sequence[str] = ()
    tags_all: Sequence[str] = ()
    tags_any: Sequence[str] = ()
    created_from: Any = None
    """Inclusive. Milliseconds, or a timezone-aware datetime."""
    created_to: Any = None
    """Exclusive."""
    source_session: str | None = None
    min_importance: float | None = None
    min_relevance: float | None = None
    """Only for ``recall``: results below this relevance are left out."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemory:
    """What ``add_many`` takes per item; the fields mean the same as in ``add_memory``."""

    content: str
    memory_type: str = MemoryType.FACT
    importance: float | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    source_session: str | None = None
    created_at: Any = None
    memory_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryPage:
    """A page of a listing; ``next_cursor`` is None on the last one."""

    items: tuple[Memory, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export wrote."""

    memories: int
    deletions: int
    bytes: int
    """Of the uncompressed lines, begin and end included."""
    sha256: str
    incremental: bool


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A line of an import file that was not taken, and why."""

    line: int
    reason: str
    hint: str = ""
    memory_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import did. ``created + merged + unchanged + rejected`` is the number of records read."""

    created: int = 0
    merged: int = 0
    unchanged: int = 0
    reembedded: int = 0
    """Of created and merged: those whose vector did not fit and was made anew."""
    deferred: int = 0
    """Of created and merged: those kept without a vector because embedding failed; it is retried later."""
    rejected: tuple[RejectedLine, ...] = ()
    rejected_count: int = 0
    """All rejections; ``rejected`` names the first thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Figures about a store, or about one user's part of it."""

    users: int
    memories_by_status: Mapping[str, int]
    deletions: int
    accesses: int
    pending_embeddings: int
    """Memories that recall finds by their words only, until the embedding model has seen them."""
    embedding_model: str
    embedding_dimension: int
    storage_bytes: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
