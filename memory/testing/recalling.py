"""Recall: what is found, in which order, and how it is scored."""

from __future__ import annotations

import math

import pytest

from memory.core.model import NewMemory
from memory.engine.provider import StorageProvider
from memory.testing.base import DAY, NOW, OpenStore, SuiteBase, contents

LANGUAGES = [
    ("咖啡", "我喜欢喝咖啡"),
    ("コーヒー", "コーヒーが好き"),
    ("커피", "커피를 좋아해요"),
    ("Kaffee", "Ich trinke Kaffee"),
    ("кофе", "Люблю кофе"),
    ("猫", "家里有两只猫咪"),
    ("deadlines", "The deadline moved"),
    ("RUNNING", "she runs daily"),
    ("ｃａｆé", "the café on the corner"),
]


class RecallTests(SuiteBase):
    """``recall``."""

    @pytest.mark.parametrize(("query", "expected"), LANGUAGES)
    def test_a_word_finds_its_memory_in_any_language(self, open_store: OpenStore, query: str, expected: str) -> None:
        store = open_store(semantic_share=0.0)
        store.add_many([NewMemory(content=text) for _, text in LANGUAGES], user_id="u")
        hits = store.recall(query, user_id="u", filters={"min_relevance": 0.01})
        assert contents(hits) == [expected]

    def test_as_many_come_back_as_asked_for_or_exist(self, store: StorageProvider) -> None:
        store.add_many([NewMemory(content=f"unrelated {i}") for i in range(30)], user_id="u")
        for top_k, expected in ((1, 1), (7, 7), (30, 30), (1_000, 30)):
            assert len(store.recall("zebra", user_id="u", top_k=top_k)) == expected
        assert len(store.recall("zebra", user_id="u")) == 10
        assert store.recall("zebra", user_id="nobody") == []

    def test_results_are_ordered_by_score_and_show_its_parts(self, store: StorageProvider) -> None:
        store.add_many(
            [NewMemory(content=f"budget meeting {i}", importance=i / 10, created_at=NOW - i * DAY) for i in range(10)],
            user_id="u",
        )
        hits = store.recall("budget", user_id="u")
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        low, high = min(hit.relevance for hit in hits), max(hit.relevance for hit in hits)
        for hit in hits:
            age = (NOW - hit.memory.created_at) / DAY
            scaled = (hit.relevance - low) / (high - low) if high > low else 1.0
            assert 0.0 <= hit.relevance <= 1.0
            assert hit.importance == pytest.approx(hit.memory.importance * math.exp(-age / 90))
            assert hit.recency == pytest.approx(math.exp(-age / 30))
            expected = 0.6 * scaled + 0.25 * hit.importance + 0.15 * hit.recency
            assert hit.score == pytest.approx(expected, abs=2e-6)

    def test_relevance_does_not_depend_on_the_other_results(self, store: StorageProvider) -> None:
        store.add_many([NewMemory(content=f"filler number {i}") for i in range(20)], user_id="u")
        store.add_memory("the nightingale project", user_id="u")
        alone = store.recall("nightingale", user_id="u", top_k=1)[0]
        among = store.recall("nightingale", user_id="u", top_k=20)[0]
        assert alone.relevance == among.relevance

    def test_min_relevance_leaves_out_what_is_below(self, store: StorageProvider) -> None:
        store.add_memory("the nightingale project", user_id="u")
        store.add_memory("完全不同的话题", user_id="u")
        every = store.recall("nightingale project", user_id="u")
        assert len(every) == 2
        strict = store.recall("nightingale project", user_id="u", filters={"min_relevance": every[0].relevance})
        assert contents(strict) == ["the nightingale project"]

    def test_equal_scores_are_ordered_newer_first_then_by_id(self, open_store: OpenStore) -> None:
        store = open_store(rerank_alpha=1.0, rerank_beta=0.0, rerank_gamma=0.0)
        added = store.add_many(
            [NewMemory(content="same text", created_at=NOW - (i % 3) * DAY) for i in range(9)], user_id="u"
        )
        expected = sorted(added, key=lambda memory: (-memory.created_at, memory.memory_id))
        assert [hit.memory for hit in store.recall("same text", user_id="u")] == expected

    def test_newer_and_more_important_memories_win_among_equally_relevant_ones(self, store: StorageProvider) -> None:
        store.add_memory("tea in the morning", user_id="u", created_at=NOW - 60 * DAY, importance=0.5)
        store.add_memory("tea in the morning", user_id="u", created_at=NOW, importance=0.5)
        store.add_memory("tea in the morning", user_id="u", created_at=NOW - 60 * DAY, importance=1.0)
        hits = store.recall("tea in the morning", user_id="u")
        assert [(hit.memory.created_at, hit.memory.importance) for hit in hits] == [
            (NOW, 0.5),
            (NOW - 60 * DAY, 1.0),
            (NOW - 60 * DAY, 0.5),
        ]

    def test_recency_does_not_outvote_relevance(self, store: StorageProvider) -> None:
        store.add_memory("项目代号叫夜莺", user_id="u", created_at=NOW - 300 * DAY)
        store.add_many([NewMemory(content=f"今天天气不错 {i}", created_at=NOW - i) for i in range(40)], user_id="u")
        assert contents(store.recall("项目代号是什么", user_id="u", top_k=1)) == ["项目代号叫夜莺"]

    def test_stored_importance_can_rank_instead_of_the_faded_one(self, open_store: OpenStore) -> None:
        store = open_store(rank_by="stored")
        store.add_memory("old but important", user_id="u", importance=0.9, created_at=NOW - 365 * DAY)
        assert store.recall("old", user_id="u")[0].importance == 0.9

    def test_a_memory_of_the_future_counts_as_of_now(self, store: StorageProvider) -> None:
        store.add_memory("trip next month", user_id="u", created_at=NOW + 30 * DAY)
        hit = store.recall("trip", user_id="u")[0]
        assert hit.recency == 1.0
        assert hit.importance == hit.memory.importance

    def test_a_query_of_stop_words_or_signs_goes_by_meaning(self, store: StorageProvider) -> None:
        store.add_memory("who are you", user_id="u")
        assert len(store.recall("what is it?", user_id="u")) == 1
        assert len(store.recall("?!…", user_id="u")) == 1

    def test_a_very_long_query_is_answered(self, store: StorageProvider) -> None:
        store.add_memory("likes green tea", user_id="u")
        store.add_memory("other", user_id="u")
        query = "green tea " + " ".join(f"word{i} 词语{i}" for i in range(5_000))
        assert len(store.recall(query, user_id="u")) == 2

    def test_quotes_and_operators_in_a_query_are_just_text(self, store: StorageProvider) -> None:
        store.add_memory("it's the user's o'clock \\ & | ! : * <-> test", user_id="u")
        for query in (
            "o'clock",
            "it's",
            "a & b | !c",
            "x' OR '1'='1",
            "\\",
            "%s %(x)s",
            "test:*",
            "(((",
            '"quoted"',
        ):
            assert len(store.recall(query, user_id="u")) == 1

    def test_writes_are_seen_by_the_next_recall(self, store: StorageProvider) -> None:
        for i in range(20):
            added = store.add_memory(f"fact number {i}", user_id="u")
            assert added.memory_id in [hit.memory.memory_id for hit in store.recall(f"fact {i}", user_id="u", top_k=30)]
            store.delete_memory(added.memory_id, user_id="u")
            assert store.recall(f"fact {i}", user_id="u", top_k=30) == []
