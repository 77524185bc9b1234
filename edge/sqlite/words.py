"""Search by words: postings from FTS5, rated by BM25 with presence (``memory.policies.ranking``), in arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.sqlite.columns import Mask, Numbers, View, parsed_numbers
from edge.sqlite.database import Db
from memory.policies.ranking import BM25_B, BM25_K1, ROUNDING, inverse_document_frequency

Scores = NDArray[np.float64]


class WordMatches(NamedTuple):
    """Memories that hold a term of the question, and how much of it they say: in (0, 1]."""

    numbers: Numbers
    scores: Scores

    def best(self, size: int, view: View) -> Numbers:
        """The ``size`` best, newer first among equals, and all that equal the last in both."""
        if len(self.numbers) <= size:
            return self.numbers
        rounded = np.round(self.scores, ROUNDING)
        created = view.created_at[self.numbers]
        order = np.lexsort((-created, -rounded))
        last = order[size - 1]
        enough = (rounded > rounded[last]) | ((rounded == rounded[last]) & (created >= created[last]))
        chosen: Numbers = self.numbers[enough]
        return chosen


def match_words(connection: Db, view: View, mask: Mask, terms: Sequence[str]) -> WordMatches:
    """Rate all memories of the mask that hold a term, by the statistics of the mask."""
    waiting = _waiting(connection)
    weights = np.zeros(len(mask))
    memories = int(np.count_nonzero(mask))
    idf = []
    for term in terms:
        found = _postings(connection, term, waiting)
        found = found[found < len(mask)]
        found = found[mask[found]]
        weight = inverse_document_frequency(memories, len(found))
        weights[found] += weight
        idf.append(weight)
    numbers = np.flatnonzero(weights)
    lengths = view.length[numbers]
    mean = float(view.length[mask].mean()) if memories else 0.0
    return WordMatches(numbers, lexical_scores(weights[numbers], lengths, total=math.fsum(idf), mean_length=mean))


def lexical_scores(weights: Scores, lengths: NDArray[np.int32], *, total: float, mean_length: float) -> Scores:
    """``ranking.lexical_score`` for many memories at once: ``weights`` are sums of matched terms' idf."""
    if not len(weights):
        return weights
    norms = (BM25_K1 + 1.0) / (1.0 + BM25_K1 * (1.0 - BM25_B + BM25_B * lengths / mean_length))
    return np.minimum(1.0, weights / total * norms)


def _postings(connection: Db, term: str, waiting: Sequence[tuple[int, frozenset[str]]]) -> Numbers:
    row = connection.execute(
        "SELECT group_concat(rowid, ' ') FROM memory_terms WHERE memory_terms MATCH ?", (f'"{term}"',)
    ).fetchone()
    indexed = parsed_numbers(row[0])
    queued = [number for number, terms in waiting if term in terms]
    return np.concatenate([indexed, np.array(queued, np.int64)]) if queued else indexed


def _waiting(connection: Db) -> list[tuple[int, frozenset[str]]]:
    """Memories whose words have not reached the index: numbers and terms."""
    rows = connection.execute(
        "SELECT m.number, m.terms FROM index_todo t JOIN memories m USING (memory_id) WHERE t.words"
        " UNION ALL SELECT number, terms FROM memories WHERE number > (SELECT words_upto FROM replica)"
    ).fetchall()
    return [(number, frozenset(terms.split(" "))) for number, terms in rows]
