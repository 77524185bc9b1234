"""The verbs of ``MemoryProvider``, written once for every provider that keeps its own data.

Order of work in every verb: admission, then embedding, then one storage transaction. So nothing is written
for bad input, and no connection is held while a model computes. What each verb promises stands once, in the
contract (``memory.core.provider``), from where ``help`` shows it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from memory.core.errors import InvalidValue, NotFound, UsageError
from memory.core.model import (
    ExportReport,
    ImportReport,
    Memory,
    MemoryPage,
    NewMemory,
    Notice,
    Recalled,
    RecallFilter,
    Stats,
    Status,
)
from memory.core.ports import Clock, Embedder
from memory.core.provider import MemoryProvider
from memory.core.text import document_terms
from memory.engine import cursor as cursors
from memory.engine.access import AccessBuffer
from memory.engine.embedding import Embedded, PendingEmbedder, embed_documents
from memory.engine.exporting import Exporter
from memory.engine.importing import Importer
from memory.engine.recalling import Recaller, seen
from memory.engine.storage import Draft, NewText, Storage, Stored
from memory.policies import limits, normalise
from memory.policies.admission import (
    Admitted,
    admit_changes,
    admit_filter,
    admit_new,
    known_memory_id,
)
from memory.policies.ranking import RankingWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the verbs need to know of the configuration."""

    weights: RankingWeights = field(default_factory=RankingWeights)
    top_k: int = 10
    track_access: bool = True
    defer_embedding: bool = False
    flush_interval: float = 1.0
    """Seconds between writes of access counts."""
    retry_interval: float = 30.0
    """Seconds between attempts to embed what waits."""


class StorageProvider(MemoryProvider):
    """A MemoryProvider on a ``Storage``."""

    def __init__(
        self,
        storage: Storage,
        embedder: Embedder,
        clock: Clock,
        settings: EngineSettings,
        *,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._storage, self._embedder, self._clock, self._settings = storage, embedder, clock, settings
        self._on_close = on_close
        self._accesses = AccessBuffer(storage.touch, interval=settings.flush_interval)
        self._backlog = PendingEmbedder(storage, embedder, interval=settings.retry_interval)
        self._recaller = Recaller(storage, embedder, settings.weights)
        self._process = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        # Always, not only when this provider defers: something may wait from earlier, or from another host.
        self._backlog.wake()

    # -- writing

    def add_memory(
        self,
        content: str,
        *,
        user_id: str,
        memory_type: str = "fact",
        importance: float | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        source_session: str | None = None,
        created_at: Any = None,
        memory_id: str | None = None,
    ) -> Memory:
        item = NewMemory(
            content=content,
            memory_type=memory_type,
            importance=importance,
            tags=tags,
            metadata=metadata,
            source_session=source_session,
            created_at=created_at,
            memory_id=memory_id,
        )
        user_id = self._ready(user_id)
        return self._insert(user_id, [admit_new(item, now=self._clock.now())], fresh_ids=memory_id is None)[0]

    def add_many(self, memories: Iterable[NewMemory], *, user_id: str) -> list[Memory]:
        user_id = self._ready(user_id)
        now = self._clock.now()
        items = _listed(memories)
        if len(items) > limits.MAX_BATCH:
            raise InvalidValue(
                "memories",
                f"{len(items):,} items, the limit is {limits.MAX_BATCH:,}",
                hint="send several batches",
            )
        admitted = [_admit_item(index, item, now) for index, item in enumerate(items)]
        fresh = all(item.memory_id is None for item in items)
        return self._insert(user_id, admitted, fresh_ids=fresh) if admitted else []

    def update_memory(
        self, /, memory_id: str, *, user_id: str, expected_version: str | None = None, **changes: Any
    ) -> Memory:
        user_id = self._ready(user_id)
        known = _known(memory_id)
        if expected_version is not None and not isinstance(expected_version, str):
            raise InvalidValue("expected_version", "must be the string that a memory's `version` holds")
        admitted = admit_changes(changes)
        text: NewText | None = None
        notices: tuple[Notice, ...] = ()
        if "content" in admitted.scalars:
            content = admitted.scalars["content"]
            embedded = self._embed([content])[0]
            text = NewText(terms=document_terms(content), vector=embedded.vector)
            notices = _notices(embedded)
        stored = self._storage.change(user_id, known, admitted, text=text, expected_version=expected_version)
        return self._answer(stored, notices)

    def archive_memory(self, memory_id: str, *, user_id: str) -> Memory:
        return self.update_memory(memory_id, user_id=user_id, status=Status.ARCHIVED)

    def delete_memory(self, memory_id: str, *, user_id: str) -> None:
        user_id = self._ready(user_id)
        self._storage.delete(user_id, _known(memory_id))

    # -- reading

    def get_memory(self, memory_id: str, *, user_id: str) -> Memory:
        user_id = self._ready(user_id)
        known = _known(memory_id)
        stored = self._storage.fetch(user_id, [known]).get(known)
        if stored is None:
            raise NotFound(memory_id=memory_id)
        return seen(stored)

    def list_memories(
        self,
        *,
        user_id: str,
        filters: RecallFilter | Mapping[str, Any] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> MemoryPage:
        user_id = self._ready(user_id)
        where = admit_filter(filters)
        if where.min_relevance is not None:
            raise InvalidValue("filters.min_relevance", "a listing has no query to be relevant to", hint="use recall")
        limit = normalise.whole_number(limit, "limit", low=1, high=limits.MAX_PAGE)
        before = None if cursor is None else cursors.decode(cursor)
        rows = self._storage.list_page(user_id, where, limit=limit + 1, before=before)
        items = tuple(seen(row) for row in rows[:limit])
        more = len(rows) > limit
        return MemoryPage(items, cursors.encode(items[-1].created_at, items[-1].memory_id) if more else None)

    def recall(
        self,
        query: str,
        *,
        user_id: str,
        filters: RecallFilter | Mapping[str, Any] | None = None,
        top_k: int | None = None,
    ) -> list[Recalled]:
        user_id = self._ready(user_id)
        text = normalise.required_text(query, "query", max_bytes=limits.MAX_QUERY_BYTES)
        where = admit_filter(filters)
        wanted = self._settings.top_k if top_k is None else top_k
        wanted = normalise.whole_number(wanted, "top_k", low=1, high=limits.MAX_TOP_K)
        now = self._clock.now()
        found = self._recaller.recall(user_id, text, where, top_k=wanted, now=now)
        if self._settings.track_access and found:
            self._accesses.note(user_id, [hit.memory.memory_id for hit in found], now)
        return found

    def stats(self, *, user_id: str | None = None) -> Stats:
        self._check_open()
        return self._storage.stats(None if user_id is None else normalise.identifier(user_id, "user_id"))

    # -- moving

    def export_memories(
        self,
        target: str | Path | IO[bytes],
        *,
        user_id: str | None = None,
        created_from: Any = None,
        created_to: Any = None,
        statuses: Sequence[str] = (),
        tags: Sequence[str] = (),
        after: str | Path | IO[bytes] | None = None,
    ) -> ExportReport:
        self._check_open()
        self._accesses.flush()
        exporter = Exporter(self._storage, self._embedder.name, self._clock)
        return exporter.run(
            target,
            user_id=user_id,
            created_from=created_from,
            created_to=created_to,
            statuses=statuses,
            tags=tags,
            after=after,
        )

    def import_memories(
        self, source: str | Path | IO[bytes], *, user_id: str | None = None, progress: Any = None
    ) -> ImportReport:
        self._check_open()
        report = Importer(self._storage, self._embedder, self._clock).run(source, user_id=user_id, progress=progress)
        if report.deferred:
            self._backlog.wake()
        return report

    # -- life

    def embed_pending(self) -> int:
        """Embed now what waits for a vector; returns how many vectors were stored."""
        self._check_open()
        return self._backlog.drain()

    def flush(self) -> None:
        self._check_open()
        self._accesses.flush()

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._process != os.getpid():
            return  # connections, threads and counts are the parent's
        try:
            self._backlog.stop()
            self._accesses.stop()
        finally:
            self._storage.close()
            self._embedder.close()
            self._on_close()

    def __enter__(self) -> Self:
        """Open already."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
        self.close()

    # -- steps

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the provider is closed", hint="open a new one with memory.connect()")
        if self._process != os.getpid():
            # Two processes on one connection would read each other's answers.
            raise UsageError(
                "the provider was opened before this process was forked", hint="call memory.connect() in each process"
            )

    def _ready(self, user_id: object) -> str:
        self._check_open()
        return normalise.identifier(user_id, "user_id")

    def _embed(self, texts: Sequence[str]) -> list[Embedded]:
        if self._settings.defer_embedding:
            return [Embedded(None)] * len(texts)
        return embed_documents(self._embedder, texts, self._storage.dimension)

    def _insert(self, user_id: str, items: Sequence[Admitted], *, fresh_ids: bool) -> list[Memory]:
        embedded = self._embed([item.content for item in items])
        drafts = [
            Draft(
                memory_id=item.memory_id,
                changes=item.changes,
                terms=document_terms(item.content),
                vector=result.vector,
            )
            for item, result in zip(items, embedded, strict=True)
        ]
        rows = self._storage.insert(user_id, drafts, fresh_ids=fresh_ids)
        if any(draft.vector is None for draft in drafts):
            self._backlog.wake()
        return [seen(row, _notices(result)) for row, result in zip(rows, embedded, strict=True)]

    def _answer(self, stored: Stored, notices: tuple[Notice, ...]) -> Memory:
        if notices or self._settings.defer_embedding:
            self._backlog.wake()
        return seen(stored, notices)


def _listed(memories: object) -> list[Any]:
    if isinstance(memories, str | bytes) or not isinstance(memories, Iterable):
        raise InvalidValue("memories", f"must be a list of NewMemory, not {type(memories).__name__}")
    return list(memories)


def _admit_item(index: int, item: object, now: int) -> Admitted:
    if not isinstance(item, NewMemory):
        problem, hint = f"must be a NewMemory, not {type(item).__name__}", "write memory.NewMemory(content=…)"
        raise InvalidValue(f"memories[{index}]", problem, hint=hint, item=index)
    try:
        return admit_new(item, now=now)
    except InvalidValue as error:
        raise InvalidValue(f"memories[{index}].{error.field}", error.problem, hint=error.hint, item=index) from error


def _known(memory_id: object) -> str:
    known = known_memory_id(memory_id)
    if known is None:
        raise NotFound(memory_id=memory_id)
    return known


def _notices(embedded: Embedded) -> tuple[Notice, ...]:
    return () if embedded.notice is None else (embedded.notice,)
