"""THE contract: what every memory provider does, at the centre, on a device, over HTTP and in memory.

Rules that hold for every verb:

- Each call names its ``user_id``, taken literally; no call reaches another user's memories, and an id of
  another user is answered exactly like an id that does not exist. (Export and import by an operator, with
  ``user_id=None``, are the exception.)
- Bad input raises :class:`~memory.core.errors.InvalidValue` before anything is written.
- A verb that returns has been committed; a verb that raises has changed nothing.
- Safe to call from several threads.
- Any verb may raise :class:`~memory.core.errors.StoreError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, Self, runtime_checkable

from memory.core.model import (
    ExportReport,
    ImportReport,
    Memory,
    MemoryPage,
    NewMemory,
    Recalled,
    RecallFilter,
    Stats,
)


@runtime_checkable
class MemoryProvider(Protocol):
    """Remember, recall, change, forget and move the memories of users."""

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
        """Store one memory. Not idempotent unless ``memory_id`` is given.

        Args:
            content: What to remember; not empty.
            user_id: Whose memory it is.
            memory_type: ``fact``, ``preference``, ``event`` or ``summary``.
            importance: In [0, 1]; computed from type, length and ``metadata["explicit_important"]`` if None.
            tags: Labels, lower-cased and de-duplicated.
            metadata: A JSON object of the caller's own.
            source_session: The conversation it comes from.
            created_at: When it happened, now if None: milliseconds UTC (below 1e11: seconds), an aware datetime, or
                its ISO 8601 text.
            memory_id: A UUID of the caller's; drawn at random if None.

        If embedding fails, the memory is kept, found by its words, and embedded later; the returned memory
        says so in ``notices``.

        Raises:
            Conflict: ``memory_id`` exists already, or belonged to a deleted memory.
        """

    def add_many(self, memories: Iterable[NewMemory], *, user_id: str) -> list[Memory]:
        """Store a batch in one transaction, in order: all or none.

        Raises:
            InvalidValue: ``item`` is the index of the unacceptable memory.
        """

    def get_memory(self, memory_id: str, *, user_id: str) -> Memory:
        """Read one memory, whatever its status. Counts as no access.

        Raises:
            NotFound: no such memory of this user.
        """

    def list_memories(
        self,
        *,
        user_id: str,
        filters: RecallFilter | Mapping[str, Any] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> MemoryPage:
        """Read memories newest first (``created_at``, then id), a page at a time. Counts as no access.

        Pages are stable: a memory that exists during the whole listing appears exactly once.
        """

    def recall(
        self,
        query: str,
        *,
        user_id: str,
        filters: RecallFilter | Mapping[str, Any] | None = None,
        top_k: int | None = None,
    ) -> list[Recalled]:
        """The memories that answer ``query`` best, best first; at most ``top_k`` (the configured default if None).

        Filters apply before the search, never after: if k memories match, k are returned. Returned memories
        count as accessed, behind the caller's back, unless access tracking is off. Reads the caller's own
        writes. If the query cannot be embedded, recall goes by words alone and says so in the ``notices`` of
        the memories returned.

        Raises:
            ModelMismatch: the store's embedding model was changed while this provider was open.
        """

    def update_memory(
        self, /, memory_id: str, *, user_id: str, expected_version: str | None = None, **changes: Any
    ) -> Memory:
        """Change the given fields; all others stay as they are.

        Args:
            memory_id: The memory to change.
            user_id: Its user.
            expected_version: Change it only if its ``version`` is still this one.
            **changes: ``content``, ``memory_type``, ``importance``, ``status``, ``source_session``; ``tags``
                (the whole new set) or ``add_tags`` and ``remove_tags``; ``metadata`` (keys to set, others
                stay) and ``remove_metadata`` (keys to remove).

        Raises:
            NotFound: no such memory of this user. Conflict: it is at another version.
        """

    def archive_memory(self, memory_id: str, *, user_id: str) -> Memory:
        """Take a memory out of default recall. Idempotent; back with ``update_memory(status="active")``.

        Raises:
            NotFound: no such memory of this user.
        """

    def delete_memory(self, memory_id: str, *, user_id: str) -> None:
        """Erase a memory for good: its content and vector go at once, its id is never used again.

        Raises:
            NotFound: no such memory of this user; so also the second time.
        """

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
        """Write a consistent snapshot as JSONL; the suffix ``.gz`` or ``.zst`` of a path compresses.

        Args:
            target: A path, written beside itself and moved into place when complete, or a binary stream.
            user_id: Only this user's; all users' if None.
            created_from: Only memories created at or after.
            created_to: Only memories created before.
            statuses: Only these; all if empty.
            tags: Only memories with one of these.
            after: An earlier export of the same user or users. Only what changed since is written, deletions
                included. Cannot be combined with ``statuses``, ``tags`` or times.

        Raises:
            TargetError: the file cannot be written; nothing is left at ``target``.
            Refused: ``after`` is of another database history or was filtered.
        """

    def import_memories(
        self, source: str | Path | IO[bytes], *, user_id: str | None = None, progress: Any = None
    ) -> ImportReport:
        """Merge an export into this store, by id. Idempotent, and safe to repeat after an interruption.

        Args:
            source: A path or binary stream; plain, gzip or zstd, recognised by content.
            user_id: Take only this user's records; the others are rejected by line number. All if None.
            progress: Called as ``progress(records_done, records_total)`` after each page.

        A framed file is checked whole before anything is written. Vectors of another embedding model are made
        anew. Records that cannot be taken are reported with their line numbers, the others are taken.

        Raises:
            FormatError: not an export of ours, damaged, or of a newer format; nothing was written.
        """

    def stats(self, *, user_id: str | None = None) -> Stats:
        """Figures about one user's memories, or about all."""

    def flush(self) -> None:
        """Write out what is buffered (access counts) and wait for it."""

    def close(self) -> None:
        """Flush and let go of connections and threads. Idempotent; later calls of other verbs fail."""

    def __enter__(self) -> Self:
        """Open already; returns itself."""

    def __exit__(self, *exc_info: object) -> None:
        """Close."""
