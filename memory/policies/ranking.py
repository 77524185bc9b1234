"""Ranking of recall: absolute relevance of a candidate, then the weighted order of the best ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from memory.policies.forgetting import decay, effective_importance

BM25_K1: Final = 1.2
BM25_B: Final = 0.2
"""Weak length normalisation: memories are short, and the longer ones do say more (measured on LoCoMo)."""
ROUNDING: Final = 6
"""Scores are compared at this many decimals: float32 cosines differ in their last digits between engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingWeights:
    """The dials of recall; defaults after the Hermes memory architecture, §5.2."""

    relevance: float = 0.6
    importance: float = 0.25
    recency: float = 0.15
    semantic_share: float = 0.4
    """Share of the semantic part in relevance; the rest is lexical."""
    recency_days: float = 30.0
    """Time constant of recency."""
    importance_days: float = 90.0
    """Time constant of effective importance."""
    effective_importance: bool = True
    """Rank by importance faded with time; False ranks by importance as stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What ranking needs to know of a memory; times in ms UTC."""

    memory_id: str
    cosine: float | None
    """None while the memory has no vector."""
    lexical: float
    """In [0, 1], see ``lexical_score``."""
    importance: float
    created_at: int
    last_access_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A candidate with its place among the others."""

    memory_id: str
    score: float
    relevance: float
    importance: float
    recency: float


def inverse_document_frequency(memories: int, containing: int) -> float:
    """``ln(1 + (N - n + 0.5) / (n + 0.5))`` of Okapi BM25 (Robertson and Zaragoza, 2009); never negative."""
    return math.log(1.0 + (memories - containing + 0.5) / (containing + 0.5))


def length_norm(length: int, mean_length: float) -> float:
    """BM25's weight of a term that is present once: 1 at mean length, more for shorter memories."""
    relative = length / mean_length if mean_length > 0 else 1.0
    return (BM25_K1 + 1.0) / (1.0 + BM25_K1 * (1.0 - BM25_B + BM25_B * relative))


def lexical_score(matched: Iterable[int], idf: Sequence[float], *, length: int, mean_length: float) -> float:
    """Share of the query's information that the memory holds, in [0, 1].

    BM25 with presence instead of term frequency, divided by the sum over all query terms. ``matched`` are
    indices into ``idf``, one weight per distinct query term, counted over the user's filtered memories.
    """
    total = math.fsum(idf)
    if total <= 0.0:
        return 0.0
    return min(1.0, math.fsum(idf[i] for i in matched) / total * length_norm(length, mean_length))


def relevance(cosine: float | None, lexical: float, *, floor: float, semantic_share: float, has_terms: bool) -> float:
    """Absolute relevance in [0, 1]: it does not depend on the other candidates, so thresholds mean something.

    ``floor`` is the cosine that unrelated texts reach with the embedding model. A query without a single term
    (stop words, punctuation) is judged by meaning alone.
    """
    semantic = 0.0 if cosine is None else min(max((cosine - floor) / (1.0 - floor), 0.0), 1.0)
    share = semantic_share if has_terms else 1.0
    return round(share * semantic + (1.0 - share) * lexical, ROUNDING)


def rank(
    candidates: Iterable[tuple[Candidate, float]], *, weights: RankingWeights, now: int, top_k: int, pool: int
) -> list[Ranked]:
    """Order (candidate, relevance) pairs: the ``pool`` most relevant ones, rescored, best ``top_k`` first.

    ``score = w_r · s + w_i · importance + w_t · recency`` with s the relevance scaled to [0, 1] across the
    pool (1 when all are equal): unscaled, models that put all cosines between .7 and .9 leave the order to
    recency. Ties: newer first, then id.
    """
    best = sorted(candidates, key=lambda pair: (-pair[1], -pair[0].created_at, pair[0].memory_id))[:pool]
    if not best:
        return []
    low, high = best[-1][1], best[0][1]
    scored = []
    for candidate, value in best:
        scaled = (value - low) / (high - low) if high > low else 1.0
        scored.append((_scored(candidate, value, scaled, weights, now), candidate))
    scored.sort(key=lambda pair: (-pair[0].score, -pair[1].created_at, pair[1].memory_id))
    return [ranked for ranked, _ in scored[:top_k]]


def _scored(candidate: Candidate, value: float, scaled: float, weights: RankingWeights, now: int) -> Ranked:
    importance = candidate.importance
    if weights.effective_importance:
        importance = effective_importance(
            importance,
            created_at=candidate.created_at,
            last_access_at=candidate.last_access_at,
            now=now,
            time_constant_days=weights.importance_days,
        )
    recency = decay(now - candidate.created_at, weights.recency_days)
    score = weights.relevance * scaled + weights.importance * importance + weights.recency * recency
    return Ranked(
        memory_id=candidate.memory_id,
        score=round(score, ROUNDING),
        relevance=value,
        importance=importance,
        recency=recency,
    )
