"""The port to the vector index: what every adapter does, and the values that pass through it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from memory.core.ports import Vector
from memory.policies.admission import Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one user's index is, and what its vectors are."""

    user_id: str
    folder: Path
    """The user's own; an adapter that keeps files does so in one folder of its own below it."""
    model: str
    dimension: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A memory as the index holds it: its vector, and the fields that filters ask for."""

    memory_id: str
    version: str
    """Changes whenever the memory does; read back by ``entries``."""
    vector: Vector
    status: str
    memory_type: str
    created_at: int
    """ms UTC"""
    importance: float
    source_session: str | None
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A point that a search found."""

    memory_id: str
    cosine: float


class VectorIndex(Protocol):
    """One user's points. Safe to call from several threads.

    Any method may raise :class:`~memory.core.errors.VectorIndexUnavailable` (try later) or
    :class:`~memory.core.errors.VectorIndexDamaged` (discard it and build it anew).
    """

    def search(self, vector: Vector, limit: int, where: Filter) -> list[Hit]:
        """The ``limit`` points nearest by cosine, exactly (no graph), nearest first; ties in any order.

        All of ``where`` is applied before the search, except ``min_relevance`` and the conditions on metadata,
        which the index does not know.
        """

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points. Idempotent: the memory's id is the point's."""

    def remove(self, memory_ids: Collection[str]) -> None:
        """Delete points; ids that are not there are passed over."""

    def flush(self) -> None:
        """Make everything written so far survive a crash of the machine."""

    def entries(self) -> dict[str, str]:
        """The version of every point, by memory id."""

    def vectors(self, memory_ids: Sequence[str]) -> dict[str, Vector]:
        """Vectors as held, float32 of length 1, by memory id; ids that are not there are left out."""

    def count(self) -> int:
        """Number of points."""

    def compact(self) -> None:
        """Give back the space of deleted points, if that is worth it."""

    def close(self) -> None:
        """Let go of files and connections. Idempotent."""


class IndexFactory(Protocol):
    """Opens the indexes of a replica's users."""

    name: str
    """For people: ``qdrant-edge``, ``qdrant-local`` or ``qdrant-server``."""

    def open(self, place: Place) -> VectorIndex:
        """Open a user's index, or make an empty one.

        Raises:
            VectorIndexDamaged: what is there cannot be read, or holds vectors of another model, dimension or
            distance. VectorIndexUnavailable: the server does not answer.
        """

    def discard(self, place: Place) -> None:
        """Remove all that is there of a user's index, readable or not."""

    def close(self) -> None:
        """Let go of what the indexes share. Idempotent."""
