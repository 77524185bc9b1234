"""Filters: applied before the search, typed, and never text of a statement."""

from __future__ import annotations

from typing import Any

import pytest

from memory.core.errors import InvalidValue
from memory.core.model import NewMemory, RecallFilter
from memory.engine.provider import StorageProvider
from memory.testing.base import DAY, NOW, SuiteBase

MEMORIES = {
    "a": NewMemory(content="alpha tea", memory_type="fact", importance=0.2, tags=["x"], created_at=NOW - 3 * DAY),
    "b": NewMemory(content="beta tea", memory_type="event", importance=0.5, tags=["x", "y"], created_at=NOW - 2 * DAY),
    "c": NewMemory(content="gamma tea", memory_type="preference", importance=0.9, tags=["项目"], created_at=NOW - DAY),
    "d": NewMemory(content="delta tea", memory_type="summary", source_session="s-1", created_at=NOW),
}
METADATA: dict[str, dict[str, Any]] = {
    "int": {"v": 3},
    "float": {"v": 3.5},
    "word": {"v": "m"},
    "upper": {"v": "M"},
    "han": {"v": "文"},
    "true": {"v": True},
    "null": {"v": None},
    "list": {"v": [3]},
    "object": {"v": {"eq": 3}},
    "digits": {"v": "3"},
    "none": {},
    "dotted": {"a.b": 1, "v": 100},
}
CONDITIONS: list[tuple[Any, set[str]]] = [
    ({"v": 3}, {"int"}),
    ({"v": 3.0}, {"int"}),
    ({"v": "3"}, {"digits"}),
    ({"v": True}, {"true"}),
    ({"v": None}, {"null"}),
    ({"v": {"eq": "文"}}, {"han"}),
    ({"v": {"ne": 3}}, {"float", "dotted"}),
    ({"v": {"ne": "m"}}, {"upper", "han", "digits"}),
    ({"v": {"ne": True}}, set()),
    ({"v": {"gt": 3}}, {"float", "dotted"}),
    ({"v": {"gte": 3}}, {"int", "float", "dotted"}),
    ({"v": {"lt": 3.5}}, {"int"}),
    ({"v": {"lte": 3.5}}, {"int", "float"}),
    ({"v": {"gte": 3, "lt": 100}}, {"int", "float"}),
    ({"v": {"gt": "M"}}, {"word", "han"}),
    ({"v": {"lt": "M"}}, {"digits"}),
    ({"v": {"in": [3, "m", None, True]}}, {"int", "word", "null", "true"}),
    ({"v": {"in": []}}, set()),
    ({"v": {"exists": True}}, set(METADATA) - {"none"}),
    ({"v": {"exists": False}}, {"none"}),
    ({"a.b": 1}, {"dotted"}),
    ({"v": 100, "a.b": {"exists": True}}, {"dotted"}),
    ({"v' OR '1'='1": 1}, set()),
    ({'a"); DROP TABLE memories;--': "x' OR '1'='1"}, set()),
    ({"$where": 1}, set()),
    ({"v": "x' OR '1'='1"}, set()),
    ({"%s": "%(user)s"}, set()),
    ({"{}": "{}"}, set()),
]
DEEP: dict[str, Any] = {"eq": 1}
for _ in range(200):
    DEEP = {"eq": DEEP}
REFUSED: list[Any] = [
    {"metadata": {"v": {"$gt": 3}}},
    {"metadata": {"v": {"like": "a%"}}},
    {"metadata": {"v": {}}},
    {"metadata": {"v": {"eq": [1]}}},
    {"metadata": {"v": DEEP}},
    {"metadata": {"v": {"gt": None}}},
    {"metadata": {"v": {"gt": True}}},
    {"metadata": {"v": {"in": "abc"}}},
    {"metadata": {"v": {"exists": 1}}},
    {"metadata": {"v": float("nan")}},
    {"metadata": {5: 1}},
    {"metadata": {f"k{i}": 1 for i in range(1_001)}},
    {"metadata": [1]},
    {"$or": [{}]},
    {"user_id": "other"},
    {"statuses": []},
    {"statuses": ["deleted"]},
    {"statuses": "active"},
    {"types": ["dream"]},
    {"tags_any": "x"},
    {"min_importance": 2},
    {"min_relevance": float("nan")},
    {"created_from": "soon"},
    {"source_session": ""},
    "status = 'active'",
    5,
]


class FilterTests(SuiteBase):
    """Filters of ``recall`` and ``list_memories``."""

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({}, "abcd"),
            ({"types": ["fact", "event"]}, "ab"),
            ({"tags_any": ["Y", "项目"]}, "bc"),
            ({"tags_all": ["x", "y"]}, "b"),
            ({"tags_all": ["x"], "tags_any": ["y"]}, "b"),
            ({"created_from": NOW - 2 * DAY}, "bcd"),
            ({"created_to": NOW - 2 * DAY}, "a"),
            ({"created_from": NOW - 2 * DAY, "created_to": NOW}, "bc"),
            ({"source_session": "s-1"}, "d"),
            ({"source_session": "s-"}, ""),
            ({"min_importance": 0.5}, "bcd"),
            ({"statuses": ["archived"]}, ""),
            ({"statuses": ["active", "archived"]}, "abcd"),
            ({"types": ["event"], "tags_any": ["x"], "min_importance": 0.4, "created_to": NOW}, "b"),
        ],
        ids=str,
    )
    def test_recall_and_listing_take_the_same_memories(
        self, store: StorageProvider, filters: dict[str, Any], expected: str
    ) -> None:
        added = store.add_many(MEMORIES.values(), user_id="u")
        names = {memory.memory_id: name for memory, name in zip(added, MEMORIES, strict=True)}
        recalled = {names[hit.memory.memory_id] for hit in store.recall("tea", user_id="u", filters=filters)}
        listed = {names[m.memory_id] for m in store.list_memories(user_id="u", filters=filters).items}
        typed = {
            names[hit.memory.memory_id] for hit in store.recall("tea", user_id="u", filters=RecallFilter(**filters))
        }
        assert recalled == listed == typed == set(expected)

    @pytest.mark.parametrize(("conditions", "expected"), CONDITIONS, ids=lambda value: str(value)[:50])
    def test_metadata_is_compared_by_type(
        self, store: StorageProvider, conditions: dict[str, Any], expected: set[str]
    ) -> None:
        store.add_many([NewMemory(content=name, metadata=meta) for name, meta in METADATA.items()], user_id="u")
        filters = {"metadata": conditions}
        listed = {memory.content for memory in store.list_memories(user_id="u", filters=filters).items}
        recalled = {hit.memory.content for hit in store.recall("anything", user_id="u", filters=filters, top_k=50)}
        assert listed == recalled == expected

    @pytest.mark.parametrize("filters", REFUSED, ids=lambda value: str(value)[:50])
    def test_a_filter_that_makes_no_sense_is_refused(self, store: StorageProvider, filters: Any) -> None:
        store.add_memory("kept", user_id="u")
        for call in (
            lambda: store.recall("q", user_id="u", filters=filters),
            lambda: store.list_memories(user_id="u", filters=filters),
        ):
            with pytest.raises(InvalidValue) as caught:
                call()
            assert caught.value.field

    def test_filters_apply_before_the_best_are_taken(self, store: StorageProvider) -> None:
        store.add_many([NewMemory(content="green tea", tags=["old"]) for _ in range(400)], user_id="u")
        wanted = store.add_memory("完全无关的一句话", user_id="u", tags=["live"])
        for filters in ({"tags_any": ["live"]}, {"metadata": {"v": {"exists": False}}, "tags_all": ["live"]}):
            assert [
                hit.memory.memory_id for hit in store.recall("green tea", user_id="u", filters=filters, top_k=2)
            ] == [wanted.memory_id]

    def test_one_live_memory_among_many_archived_ones_is_found(self, store: StorageProvider) -> None:
        for memory in store.add_many([NewMemory(content="green tea") for _ in range(120)], user_id="u"):
            store.archive_memory(memory.memory_id, user_id="u")
        wanted = store.add_memory("black coffee", user_id="u")
        assert [hit.memory.memory_id for hit in store.recall("green tea", user_id="u", top_k=2)] == [wanted.memory_id]
