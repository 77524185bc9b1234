"""Ranking: relevance that means the same for every query, and the weighted order of the best candidates."""

from __future__ import annotations

import math
import random

import pytest

from memory.policies.forgetting import DAY_MS
from memory.policies.ranking import (
    Candidate,
    Ranked,
    RankingWeights,
    inverse_document_frequency,
    length_norm,
    lexical_score,
    rank,
    relevance,
)

NOW = 1_733_000_000_000
DEFAULTS = RankingWeights()
RELEVANCE_ONLY = RankingWeights(relevance=1.0, importance=0.0, recency=0.0)


def candidate(
    memory_id: str, *, days: float = 0.0, importance: float = 0.5, accessed_days: float | None = None
) -> Candidate:
    return Candidate(
        memory_id=memory_id,
        cosine=None,
        lexical=0.0,
        importance=importance,
        created_at=NOW - round(days * DAY_MS),
        last_access_at=None if accessed_days is None else NOW - round(accessed_days * DAY_MS),
    )


def ranked(
    *pairs: tuple[Candidate, float], weights: RankingWeights = DEFAULTS, top_k: int = 10, pool: int = 30
) -> list[Ranked]:
    return rank(pairs, weights=weights, now=NOW, top_k=top_k, pool=pool)


def ids(found: list[Ranked]) -> list[str]:
    return [item.memory_id for item in found]


def judged(
    cosine: float | None,
    lexical: float = 0.0,
    *,
    floor: float = 0.8,
    share: float = 0.4,
    has_terms: bool = True,
) -> float:
    return relevance(cosine, lexical, floor=floor, semantic_share=share, has_terms=has_terms)


# -- relevance


@pytest.mark.parametrize(
    ("cosine", "lexical", "expected"),
    [
        (0.8, 0.0, 0.0),
        (0.9, 0.0, 0.2),
        (1.0, 0.0, 0.4),
        (0.8, 1.0, 0.6),
        (1.0, 1.0, 1.0),
        (0.9, 0.5, 0.5),
        (0.3, 0.5, 0.3),
        (-1.0, 0.0, 0.0),
        (1.000_001, 1.0, 1.0),
        (None, 0.5, 0.3),
        (None, 0.0, 0.0),
    ],
)
def test_relevance_is_the_weighted_sum_of_scaled_cosine_and_lexical_share(
    cosine: float | None, lexical: float, expected: float
) -> None:
    assert judged(cosine, lexical) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("floor", [0.0, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("has_terms", [True, False])
def test_relevance_stays_between_zero_and_one(floor: float, share: float, has_terms: bool) -> None:
    for cosine in (None, -1.0, -0.5, 0.0, 0.79, 0.8, 0.95, 1.0, 1.0000002):
        for lexical in (0.0, 0.3, 1.0):
            assert 0.0 <= judged(cosine, lexical, floor=floor, share=share, has_terms=has_terms) <= 1.0


def test_a_query_without_words_is_judged_by_meaning_alone() -> None:
    assert judged(1.0, has_terms=False) == 1.0
    assert judged(0.9, has_terms=False) == pytest.approx(0.5)
    assert judged(None, has_terms=False) == 0.0


def test_relevance_is_rounded_so_that_engines_agree() -> None:
    assert judged(0.912_345_678_9) == judged(0.912_345_678_1) == round(judged(0.912_345_678_9), 6)


# -- lexical score


def test_a_rare_word_weighs_more_than_a_common_one_and_none_less_than_nothing() -> None:
    weights = [inverse_document_frequency(1_000, containing) for containing in (0, 1, 10, 500, 1_000)]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] > 0.0
    assert inverse_document_frequency(10, 3) == pytest.approx(math.log(1 + 7.5 / 3.5))
    assert inverse_document_frequency(0, 0) > 0.0


def test_the_length_norm_is_one_at_the_mean_and_more_for_shorter_memories() -> None:
    assert length_norm(12, 12.0) == pytest.approx(1.0)
    assert length_norm(3, 12.0) > 1.0 > length_norm(48, 12.0) > 0.0
    assert length_norm(0, 12.0) > length_norm(1, 12.0)
    assert length_norm(5, 0.0) == pytest.approx(1.0)


def test_the_lexical_score_is_the_share_of_the_querys_information() -> None:
    idf = [3.0, 1.0]
    assert lexical_score([0, 1], idf, length=10, mean_length=10.0) == pytest.approx(1.0)
    assert lexical_score([0], idf, length=10, mean_length=10.0) == pytest.approx(0.75)
    assert lexical_score([1], idf, length=10, mean_length=10.0) == pytest.approx(0.25)
    assert lexical_score([], idf, length=10, mean_length=10.0) == 0.0


def test_the_lexical_score_never_exceeds_one() -> None:
    assert lexical_score([0], [2.0], length=1, mean_length=100.0) == 1.0


def test_a_shorter_memory_with_the_same_words_scores_more() -> None:
    short, long = (lexical_score([0], [1.0, 1.0], length=n, mean_length=10.0) for n in (5, 20))
    assert short > long


@pytest.mark.parametrize("idf", [[], [0.0], [0.0, 0.0]])
def test_a_query_without_information_scores_nothing(idf: list[float]) -> None:
    assert lexical_score(range(len(idf)), idf, length=5, mean_length=5.0) == 0.0


# -- rank


def test_no_candidates_give_no_results() -> None:
    assert ranked() == []
    assert ranked((candidate("a"), 0.5), pool=0) == []


def test_the_score_is_the_documents_formula_over_scaled_relevance() -> None:
    best, middle, worst = ranked(
        (candidate("worst", days=0.0, importance=0.2), 0.1),
        (candidate("middle", days=15.0, importance=0.5), 0.4),
        (candidate("best", days=60.0, importance=0.9), 0.7),
    )
    assert ids([best, middle, worst]) == ["best", "middle", "worst"]
    faded = 0.9 * math.exp(-60 / 90)
    assert best.importance == pytest.approx(faded)
    assert best.recency == pytest.approx(math.exp(-2))
    assert best.score == pytest.approx(0.6 * 1.0 + 0.25 * faded + 0.15 * math.exp(-2), abs=1e-6)
    assert middle.score == pytest.approx(0.6 * 0.5 + 0.25 * 0.5 * math.exp(-15 / 90) + 0.15 * math.exp(-0.5), abs=1e-6)
    assert worst.score == pytest.approx(0.6 * 0.0 + 0.25 * 0.2 + 0.15 * 1.0, abs=1e-6)


def test_the_result_shows_relevance_as_it_was_not_as_it_was_scaled() -> None:
    found = ranked((candidate("a"), 0.31), (candidate("b"), 0.29))
    assert {item.memory_id: item.relevance for item in found} == {"a": 0.31, "b": 0.29}


def test_where_all_are_equally_relevant_each_counts_as_fully_relevant() -> None:
    for value in (0.0, 0.25, 1.0):
        found = ranked((candidate("a", days=1), value), (candidate("b", days=2), value))
        assert [item.score for item in found] == [
            pytest.approx(0.6 + 0.25 * item.importance + 0.15 * item.recency, abs=1e-6) for item in found
        ]


def test_a_single_candidate_counts_as_fully_relevant() -> None:
    (only,) = ranked((candidate("a", importance=0.4), 0.01))
    assert only.score == pytest.approx(0.6 + 0.25 * 0.4 + 0.15)


def test_ties_go_to_the_newer_and_then_to_the_smaller_id() -> None:
    same = RankingWeights(relevance=1.0, importance=0.0, recency=0.0)
    pairs = [
        (candidate("d", days=3), 0.5),
        (candidate("b", days=1), 0.5),
        (candidate("c", days=1), 0.5),
        (candidate("a", days=2), 0.5),
        (candidate("z", days=9), 0.9),
    ]
    for seed in range(5):
        random.Random(seed).shuffle(pairs)
        assert ids(ranked(*pairs, weights=same)) == ["z", "b", "c", "a", "d"]


def test_differences_in_the_last_digits_of_a_float_decide_nothing() -> None:
    older, newer = candidate("a", days=2), candidate("b", days=1)
    anchors = [(candidate("low"), 0.0), (candidate("high"), 1.0)]
    for noise in (1e-9, -1e-9, 0.0):
        found = ranked(*anchors, (older, 0.5 + noise), (newer, 0.5), weights=RELEVANCE_ONLY)
        assert ids(found) == ["high", "b", "a", "low"]


def test_with_weights_one_zero_zero_the_order_is_that_of_relevance() -> None:
    pairs = [(candidate(f"m{i}", days=i * 40 % 97, importance=i % 7 / 7), (i * 37 % 50) / 50) for i in range(50)]
    found = ranked(*pairs, weights=RELEVANCE_ONLY, top_k=50, pool=50)
    assert [item.relevance for item in found] == sorted((value for _, value in pairs), reverse=True)
    assert found[0].score == 1.0
    assert found[-1].score == 0.0


def test_cosines_between_seven_and_nine_tenths_do_not_let_recency_decide() -> None:
    """The trap: unscaled, the difference of such cosines is nothing beside 0.15 · recency."""
    cosines = {"answer": 0.9, "related": 0.86, "other": 0.8, "noise": 0.7}
    ages = {"answer": 365.0, "related": 200.0, "other": 1.0, "noise": 0.0}
    unscaled = {
        name: 0.6 * cosine + 0.25 * 0.5 * math.exp(-ages[name] / 90) + 0.15 * math.exp(-ages[name] / 30)
        for name, cosine in cosines.items()
    }
    assert max(unscaled, key=lambda name: unscaled[name]) != "answer"
    found = ranked(*((candidate(name, days=ages[name]), judged(cosine, floor=0.7)) for name, cosine in cosines.items()))
    assert ids(found)[0] == "answer"


def test_importance_and_recency_decide_between_equally_relevant_ones() -> None:
    assert ids(ranked((candidate("old", days=100), 0.5), (candidate("new"), 0.5))) == ["new", "old"]
    assert ids(ranked((candidate("minor", importance=0.1), 0.5), (candidate("major", importance=0.9), 0.5))) == [
        "major",
        "minor",
    ]


def test_effective_importance_fades_and_stored_importance_does_not() -> None:
    memory = candidate("a", days=90, importance=0.8)
    (faded,) = ranked((memory, 0.5))
    (stored,) = ranked((memory, 0.5), weights=RankingWeights(effective_importance=False))
    assert faded.importance == pytest.approx(0.8 * math.exp(-1))
    assert stored.importance == 0.8
    assert stored.score - faded.score == pytest.approx(0.25 * (0.8 - 0.8 * math.exp(-1)), abs=1e-6)


def test_an_access_refreshes_importance_and_leaves_recency_alone() -> None:
    (plain,) = ranked((candidate("a", days=90), 0.5))
    (accessed,) = ranked((candidate("a", days=90, accessed_days=0.0), 0.5))
    assert accessed.importance == 0.5 > plain.importance
    assert accessed.recency == plain.recency


def test_the_time_constants_are_dials() -> None:
    weights = RankingWeights(recency_days=10.0, importance_days=20.0)
    (found,) = ranked((candidate("a", days=20, importance=1.0), 0.5), weights=weights)
    assert found.recency == pytest.approx(math.exp(-2))
    assert found.importance == pytest.approx(math.exp(-1))


def test_a_memory_from_the_future_counts_as_new() -> None:
    (found,) = ranked((candidate("a", days=-30, importance=0.5), 0.5))
    assert (found.recency, found.importance) == (1.0, 0.5)


def test_only_the_pool_of_the_most_relevant_is_rescored() -> None:
    pairs = [(candidate(f"m{i}", days=300, importance=0.0), 0.9 - i / 100) for i in range(6)]
    tempting = (candidate("new and important", importance=1.0), 0.5)
    assert "new and important" not in ids(ranked(*pairs, tempting, top_k=2, pool=6))
    assert "new and important" in ids(ranked(*pairs, tempting, top_k=7, pool=7))


def test_relevance_is_scaled_across_the_pool_and_not_across_what_it_left_out() -> None:
    pairs = [(candidate("a"), 0.9), (candidate("b"), 0.8), (candidate("c"), 0.0)]
    found = ranked(*pairs, weights=RELEVANCE_ONLY, pool=2)
    assert [(item.memory_id, item.score) for item in found] == [("a", 1.0), ("b", 0.0)]


def test_the_best_top_k_are_returned() -> None:
    pairs = [(candidate(f"m{i:02}"), i / 20) for i in range(20)]
    assert ids(ranked(*pairs, top_k=3, pool=9)) == ["m19", "m18", "m17"]
    assert len(ranked(*pairs, top_k=50, pool=50)) == 20


def test_the_order_of_the_candidates_does_not_matter() -> None:
    pairs = [(candidate(f"m{i}", days=i % 5, importance=i % 3 / 3), i % 4 / 4) for i in range(40)]
    expected = ranked(*pairs, top_k=12, pool=30)
    for seed in range(5):
        random.Random(seed).shuffle(pairs)
        assert ranked(*pairs, top_k=12, pool=30) == expected


def test_the_defaults_are_the_documents_weights() -> None:
    assert (DEFAULTS.relevance, DEFAULTS.importance, DEFAULTS.recency) == (0.6, 0.25, 0.15)
    assert (DEFAULTS.recency_days, DEFAULTS.importance_days) == (30.0, 90.0)
    assert DEFAULTS.effective_importance
