"""The search on a device: candidates by vector from Qdrant and by words from FTS5, both rated from SQLite.

Qdrant proposes, SQLite decides. What the index names counts only if the memory is there and passes the filter in
this view of the file, and its cosine is computed from the stored vector. Memories on their way to the index are
compared one by one. So a new memory is found at once, a deleted one never, and a lost or wrong index costs time,
never a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from edge.sqlite.columns import Mask, View, selected
from edge.sqlite.database import Db
from edge.sqlite.lookup import cosines, facts_of, ids_of, numbers_of
from edge.sqlite.points import waiting_points
from edge.sqlite.words import match_words
from edge.vectors.port import Hit
from memory.core.ports import Vector
from memory.engine.storage import Query
from memory.policies.admission import Filter
from memory.policies.ranking import ROUNDING, Candidate

SCAN_UP_TO: Final = 500
"""A filter on metadata, which the index does not know, that leaves fewer: compare these instead of asking it."""
SLACK: Final = 16
"""Asked for beyond what is wanted, so that the next one after the last shows whether it ties."""
NOISE: Final = 2e-6
"""What cosines of the index may differ from exact ones: it computes in float32."""


class Search(Protocol):
    """Asks the index; None when it does not answer, or cannot be trusted yet."""

    def __call__(self, vector: Vector, limit: int, where: Filter) -> list[Hit] | None:
        """As ``VectorIndex.search``."""


def find_candidates(connection: Db, view: View, search: Search, query: Query, where: Filter) -> list[Candidate]:
    """See ``Storage.candidates``; in a read transaction."""
    mask = selected(connection, view, where)
    if not mask.any():
        return []
    near: dict[int, float] = {}
    lexical: dict[int, float] = {}
    chosen: set[int] = set()
    if query.vector is not None:
        proposed = _proposed(connection, mask, search, query.vector, query.size, where)
        near = cosines(connection, query.vector, proposed)
        chosen.update(_best(connection, view, near, query.size))
    if query.terms:
        words = match_words(connection, view, mask, query.terms)
        shortlist = words.best(query.size, view).tolist()
        lexical = dict(zip(words.numbers.tolist(), words.scores.tolist(), strict=True))
        chosen.update(_best(connection, view, {number: lexical[number] for number in shortlist}, query.size))
    if query.vector is not None:
        near |= cosines(connection, query.vector, [number for number in chosen if number not in near])
    return [
        Candidate(
            memory_id=fact.memory_id,
            cosine=near.get(fact.number),
            lexical=lexical.get(fact.number, 0.0),
            importance=fact.importance,
            created_at=fact.created_at,
            last_access_at=fact.last_access_at,
        )
        for fact in facts_of(connection, chosen)
    ]


def _best(connection: Db, view: View, figures: Mapping[int, float], size: int) -> list[int]:
    """The ``size`` highest figures; ties as everywhere: newer first, then by id, read only where it decides."""
    if len(figures) <= size:
        return list(figures)
    keys = {number: (-round(figure, ROUNDING), -int(view.created_at[number])) for number, figure in figures.items()}
    last = sorted(keys.values())[size - 1]
    tied = [number for number, key in keys.items() if key == last]
    names = ids_of(connection, tied)
    tied.sort(key=lambda number: names.get(number, ""))
    better = [number for number, key in keys.items() if key < last]
    return [*better, *tied[: size - len(better)]]


def _proposed(connection: Db, mask: Mask, search: Search, vector: Vector, size: int, where: Filter) -> list[int]:
    """Numbers among which the ``size`` nearest of the mask are: from the index, or else all of the mask.

    Asks the index for more until enough are valid, and the last one found is surely farther than the last wanted.
    """
    allowed = int(np.count_nonzero(mask))
    if where.conditions and allowed <= SCAN_UP_TO:
        return _every(mask)
    waiting = waiting_points(connection)
    fresh = [number for number in waiting.values() if number is not None and mask[number]]
    limit = _first_limit(mask, allowed, size, where, len(waiting))
    while (hits := search(vector, limit, where)) is not None:
        valid = _confirmed(connection, mask, hits, waiting)
        if len(hits) < limit:
            return [number for _, number in valid] + fresh
        if len(valid) >= size and hits[-1].cosine < (bound := valid[size - 1][0] - NOISE):
            return [number for cosine, number in valid if cosine >= bound] + fresh
        limit *= 4
    return _every(mask)


def _every(mask: Mask) -> list[int]:
    numbers: list[int] = np.flatnonzero(mask).tolist()
    return numbers


def _first_limit(mask: Mask, allowed: int, size: int, where: Filter, waiting: int) -> int:
    """How much to ask for: more by as much as conditions that the index does not know will throw away."""
    wanted = size + SLACK
    if where.conditions:
        wanted = wanted * len(mask) // allowed + SLACK
    return wanted + min(waiting, size)


def _confirmed(
    connection: Db, mask: Mask, hits: Sequence[Hit], waiting: Mapping[str, int | None]
) -> list[tuple[float, int]]:
    """Cosine and number of the hits that are memories of the mask and need no other look, in the order given."""
    settled = [hit for hit in hits if hit.memory_id not in waiting]
    numbers = numbers_of(connection, (hit.memory_id for hit in settled))
    known = ((hit.cosine, numbers[hit.memory_id]) for hit in settled if hit.memory_id in numbers)
    return [(cosine, number) for cosine, number in known if mask[number]]
