"""Recall: candidates from the storage, rated and ranked, then read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from memory.core.errors import EmbeddingError
from memory.core.model import Memory, Notice, Recalled
from memory.core.ports import Embedder, Vector
from memory.core.state import as_memory
from memory.core.text import query_terms
from memory.engine.embedding import checked
from memory.engine.storage import Query, Storage, Stored
from memory.policies.admission import Filter
from memory.policies.ranking import Ranked, RankingWeights, rank, relevance

logger = logging.getLogger(__name__)
MIN_CANDIDATES: Final = 50
"""Taken from each side, dense and lexical, however small ``top_k`` is."""
POOL_FACTOR: Final = 3
"""``top_k`` times this many of the most relevant candidates are rescored."""


class Recaller:
    """Answers questions from a storage."""

    def __init__(self, storage: Storage, embedder: Embedder, weights: RankingWeights) -> None:
        self._storage, self._embedder, self._weights = storage, embedder, weights

    def recall(self, user_id: str, text: str, where: Filter, *, top_k: int, now: int) -> list[Recalled]:
        """The best ``top_k`` memories for an admitted question at ``now`` (ms UTC)."""
        vector, notices = self._embed(text)
        ranked = self._rank(user_id, text, vector, where, pool=top_k * POOL_FACTOR, now=now)
        return self._collect(user_id, ranked, where, top_k, notices)

    def _embed(self, text: str) -> tuple[Vector | None, tuple[Notice, ...]]:
        try:
            return checked(self._embedder.embed_query(text), (self._storage.dimension,)), ()
        except EmbeddingError as error:
            logger.warning("recall goes by words alone: %s", error.message)
            notice = Notice("recalled_by_words", f"the query could not be embedded: {error.message}", error.hint)
            return None, (notice,)

    def _rank(
        self, user_id: str, text: str, vector: Vector | None, where: Filter, *, pool: int, now: int
    ) -> list[Ranked]:
        terms = query_terms(text)
        query = Query(terms=terms, vector=vector, size=max(MIN_CANDIDATES, pool))
        # Without a vector of the question nothing has a meaning to compare: words decide alone, up to 1.
        share = self._weights.semantic_share if vector is not None else 0.0
        rated = []
        for candidate in self._storage.candidates(user_id, query, where):
            value = relevance(
                candidate.cosine,
                candidate.lexical,
                floor=self._embedder.similarity_floor,
                semantic_share=share,
                has_terms=bool(terms),
            )
            if where.min_relevance is None or value >= where.min_relevance:
                rated.append((candidate, value))
        return rank(rated, weights=self._weights, now=now, top_k=pool, pool=pool)

    def _collect(
        self, user_id: str, ranked: Sequence[Ranked], where: Filter, top_k: int, notices: tuple[Notice, ...]
    ) -> list[Recalled]:
        """Read the best; one that was deleted or archived since the search makes room for the next."""
        found: list[Recalled] = []
        position = 0
        while len(found) < top_k and position < len(ranked):
            batch = ranked[position : position + top_k - len(found)]
            position += len(batch)
            rows = self._storage.fetch(user_id, [item.memory_id for item in batch])
            for item in batch:
                row = rows.get(item.memory_id)
                if row is not None and row.state.value("status") in where.statuses:
                    found.append(
                        Recalled(
                            memory=seen(row, notices),
                            score=item.score,
                            relevance=item.relevance,
                            importance=item.importance,
                            recency=item.recency,
                        )
                    )
        return found


def seen(stored: Stored, notices: tuple[Notice, ...] = ()) -> Memory:
    """What the caller sees of a stored memory."""
    memory = as_memory(stored.memory_id, stored.user_id, stored.state, version=stored.version)
    return replace(memory, notices=notices) if notices else memory
