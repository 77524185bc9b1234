"""Counts of one user's file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from edge.sqlite import todo
from edge.sqlite.database import Db


@dataclass(slots=True)
class Figures:
    """Counts of one user, or of several added up."""

    users: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    deletions: int = 0
    accesses: int = 0
    pending: int = 0
    waiting_words: int = 0
    waiting_vectors: int = 0

    def add(self, other: Figures) -> None:
        """Add another user's."""
        self.users += other.users
        self.by_status += other.by_status
        self.deletions += other.deletions
        self.accesses += other.accesses
        self.pending += other.pending
        self.waiting_words += other.waiting_words
        self.waiting_vectors += other.waiting_vectors


def count_user(connection: Db) -> Figures:
    """Count what a file holds."""
    by_status = Counter(dict(connection.execute("SELECT status, count(*) FROM memories GROUP BY status").fetchall()))
    deletions, accesses, pending = connection.execute(
        "SELECT (SELECT count(*) FROM memory_tombstones), (SELECT coalesce(sum(count), 0) FROM memory_access),"
        " (SELECT count(*) FROM memories WHERE embedding_due)"
    ).fetchone()
    backlog = todo.backlog(connection)
    return Figures(
        users=int(bool(by_status)),
        by_status=by_status,
        deletions=deletions,
        accesses=accesses,
        pending=pending,
        waiting_words=backlog.words,
        waiting_vectors=backlog.vectors,
    )
