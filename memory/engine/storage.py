"""The port below the verbs: what a database must do. One adapter each for Postgres, SQLite and plain memory.

A storage decides nothing about importance, ranking or admission; it keeps states, draws stamps and revisions
inside its transactions, and finds candidates.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from memory.core.errors import Conflict
from memory.core.model import Stats
from memory.core.ports import Vector
from memory.core.state import Changes, State
from memory.core.text import DocumentTerms
from memory.policies.admission import Filter
from memory.policies.ranking import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A live memory as read back."""

    memory_id: str
    user_id: str
    state: State
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A memory to insert."""

    memory_id: str
    changes: Changes
    terms: DocumentTerms
    vector: Vector | None
    """None: to be embedded later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewText:
    """What goes with changed content."""

    terms: DocumentTerms
    vector: Vector | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question, prepared."""

    terms: tuple[str, ...]
    vector: Vector | None
    size: int
    """Candidates wanted from each side, dense and lexical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """An admitted record on its way in."""

    memory_id: str
    user_id: str
    state: State
    terms: DocumentTerms | None
    """None for a tombstone."""
    vector: Vector | None
    """Of this state's content, by this store's model; None: keep a fitting one or embed later."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an incoming record: ``created``, ``merged`` or ``unchanged``."""

    verdict: str
    deferred: bool = False
    """It is now live without a vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What an export covers; ``None`` or empty means all."""

    user_id: str | None = None
    created_from: int | None = None
    created_to: int | None = None
    statuses: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    after: Mapping[str, int] | None = None
    """Only what changed above these per-user revisions."""

    @property
    def complete(self) -> bool:
        """Whether every change of the users covered is in it, so that a later export can continue."""
        return not (self.statuses or self.tags or self.created_from is not None or self.created_to is not None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent view for an export."""

    epoch: str
    revisions: Mapping[str, int]
    records: Generator[Mapping[str, Any]] = field(compare=False)
    """JSON objects as of ``core.record.encode_record``, tombstones last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """Accesses of one memory since the last flush."""

    user_id: str
    memory_id: str
    count: int
    last_access_at: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A memory that waits for its vector."""

    user_id: str
    memory_id: str
    content: str


class Storage(Protocol):
    """Every write is one transaction; nothing here calls an embedder or the network beyond the database."""

    @property
    def dimension(self) -> int:
        """Length of the vectors that are kept."""

    def insert(self, user_id: str, drafts: Sequence[Draft], *, fresh_ids: bool) -> list[Stored]:
        """Write new memories, all or none, in order. ``fresh_ids``: all ids were drawn just now.

        Raises:
            Conflict: an id exists or was deleted; ``memory_id`` names it.
        """

    def change(
        self,
        user_id: str,
        memory_id: str,
        changes: Changes,
        *,
        text: NewText | None,
        expected_version: str | None,
    ) -> Stored:
        """Apply an edit to a live memory. An edit that changes nothing keeps the version.

        Raises:
            NotFound, Conflict. InvalidValue: ``check_result`` does not pass what it leads to.
        """

    def delete(self, user_id: str, memory_id: str) -> None:
        """Replace a live memory by its tombstone.

        Raises:
            NotFound.
        """

    def fetch(self, user_id: str, memory_ids: Sequence[str]) -> dict[str, Stored]:
        """Live memories by id; missing ones are left out."""

    def list_page(self, user_id: str, where: Filter, *, limit: int, before: tuple[int, str] | None) -> list[Stored]:
        """Newest first by (created_at descending, id ascending), after the position ``before``."""

    def candidates(self, user_id: str, query: Query, where: Filter) -> list[Candidate]:
        """The ``query.size`` nearest by cosine and the ``query.size`` best by words, with both figures each.

        All of ``where`` except ``min_relevance`` is applied before the search. Order is free.
        """

    def touch(self, touches: Sequence[Touch]) -> None:
        """Add to access counts; touches of memories that are gone are dropped.

        Raises:
            StoreError: nothing was written, or all but those in its field ``unwritten``.
        """

    def merge(self, incoming: Sequence[Incoming]) -> list[Outcome]:
        """Join records with what is stored, in one transaction; outcome i belongs to record i."""

    def pending(self, limit: int, *, after: tuple[str, str] | None) -> list[Pending]:
        """Memories without a vector of the current model, ordered by (user, id), after that position."""

    def put_vectors(self, vectors: Sequence[tuple[Pending, Vector]]) -> int:
        """Store late vectors; those whose content has changed meanwhile are dropped. Returns the number kept."""

    def snapshot(self, scope: Scope) -> AbstractContextManager[Snapshot]:
        """Open a consistent view of what ``scope`` covers; writers go on."""

    def stats(self, user_id: str | None) -> Stats:
        """Counts."""

    def close(self) -> None:
        """Let go of connections. Idempotent."""


def id_is_taken(memory_id: str) -> Conflict:
    """The error for a new memory whose id exists or was deleted."""
    return Conflict(
        "a memory with this id exists or was deleted",
        hint="leave memory_id out to get a new one, or update the existing memory",
        memory_id=memory_id,
    )
