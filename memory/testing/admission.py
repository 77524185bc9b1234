"""Bad input: refused with the field's name and nothing written, or normalised as stated."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from memory.core.errors import InvalidValue, NotFound, UsageError
from memory.engine.provider import StorageProvider
from memory.testing.base import Check, SuiteBase, everything

BAD_ADDITIONS: list[tuple[str, dict[str, Any]]] = [
    ("content", {"content": ""}),
    ("content", {"content": " \n\t　"}),
    ("content", {"content": None}),
    ("content", {"content": b"bytes"}),
    ("content", {"content": "x" * (5 * 1024 * 1024)}),
    ("user_id", {"user_id": ""}),
    ("user_id", {"user_id": "   "}),
    ("user_id", {"user_id": None}),
    ("user_id", {"user_id": "a\x00b"}),
    ("user_id", {"user_id": "a\ud800b"}),
    ("user_id", {"user_id": "x" * 600}),
    ("memory_type", {"memory_type": "dream"}),
    ("memory_type", {"memory_type": None}),
    ("importance", {"importance": float("nan")}),
    ("importance", {"importance": -1}),
    ("importance", {"importance": 7}),
    ("importance", {"importance": True}),
    ("importance", {"importance": "0.5"}),
    ("created_at", {"created_at": datetime(2026, 1, 1)}),  # noqa: DTZ001  naive on purpose
    ("created_at", {"created_at": -1}),
    ("created_at", {"created_at": float("inf")}),
    ("created_at", {"created_at": 10**18}),
    ("created_at", {"created_at": "next Friday"}),
    ("tags", {"tags": "project"}),
    ("tags", {"tags": [f"t{i}" for i in range(1_000)]}),
    ("tags[0]", {"tags": ["x" * 200]}),
    ("tags[0]", {"tags": [7]}),
    ("metadata.a", {"metadata": {"a": {1, 2}}}),
    ("metadata.a", {"metadata": {"a": float("nan")}}),
    ("metadata.a", {"metadata": {"a": b"bytes"}}),
    ("metadata key", {"metadata": {1: "a"}}),
    ("metadata", {"metadata": ["a"]}),
    ("metadata", {"metadata": {"big": "x" * 70_000}}),
    ("source_session", {"source_session": ""}),
    ("memory_id", {"memory_id": "not-a-uuid"}),
]


class AdmissionTests(SuiteBase):
    """What is refused and what is normalised."""

    @pytest.mark.parametrize(("field", "arguments"), BAD_ADDITIONS, ids=lambda value: str(value)[:40])
    def test_a_bad_addition_names_its_field_and_writes_nothing(
        self, store: StorageProvider, field: str, arguments: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidValue) as caught:
            store.add_memory(**{"content": "fine", "user_id": "u", **arguments})
        assert caught.value.field.startswith(field)
        assert field.split("[", maxsplit=1)[0] in str(caught.value)
        assert store.stats().memories_by_status == {}

    def test_nul_and_lone_surrogates_are_replaced_in_every_text(self, store: StorageProvider) -> None:
        added = store.add_memory(
            "a\x00b\ud800c",
            user_id="u",
            tags=["t\x00ag", "\udfff"],
            metadata={"k\x00": "v\x00", "nested": {"x": ["\ud83d"]}},
            source_session="s\x00",
        )
        assert added.content == "ab\ufffdc"
        assert added.tags == ("tag", "\ufffd")
        assert added.metadata == {"k": "v", "nested": {"x": ["\ufffd"]}}
        assert added.source_session == "s"
        assert store.get_memory(added.memory_id, user_id="u") == added

    def test_a_query_with_nul_and_surrogates_is_answered(self, store: StorageProvider) -> None:
        store.add_memory("likes green tea", user_id="u")
        assert len(store.recall("green\x00 tea\ud800", user_id="u")) == 1

    def test_a_text_of_a_megabyte_of_distinct_words_is_stored_and_found(self, store: StorageProvider) -> None:
        text = " ".join(f"word{i}" for i in range(120_000))
        assert len(text) > 1_200_000
        added = store.add_memory(text, user_id="u")
        assert store.recall("word17", user_id="u")[0].memory.memory_id == added.memory_id
        assert store.get_memory(added.memory_id, user_id="u").content == text

    def test_numbers_keep_their_value_and_kind(self, store: StorageProvider) -> None:
        numbers = {
            "int": 3,
            "float": 3.0,
            "tiny": 1e-7,
            "big": 10**30,
            "large": 1e20,
            "zero": -0.0,
            "true": True,
        }
        added = store.add_memory("n", user_id="u", metadata=numbers)
        read = store.get_memory(added.memory_id, user_id="u").metadata
        assert read == added.metadata == numbers
        assert {key: type(value) for key, value in read.items()} == {
            key: type(value) for key, value in added.metadata.items()
        }

    @pytest.mark.parametrize("top_k", [0, -1, 10**6, True, "3", 2.5])
    def test_an_impossible_top_k_is_refused(self, store: StorageProvider, top_k: Any) -> None:
        with pytest.raises(InvalidValue, match="top_k"):
            store.recall("q", user_id="u", top_k=top_k)

    @pytest.mark.parametrize("query", ["", "  ", None, 5])
    def test_an_empty_query_is_refused(self, store: StorageProvider, query: Any) -> None:
        with pytest.raises(InvalidValue, match="query"):
            store.recall(query, user_id="u")

    @pytest.mark.parametrize("user_id", ["", " ", None, 5])
    def test_every_verb_refuses_a_missing_user(self, store: StorageProvider, user_id: Any) -> None:
        kept = store.add_memory("kept", user_id="u")
        calls: list[Check] = [
            lambda: store.recall("q", user_id=user_id),
            lambda: store.list_memories(user_id=user_id),
            lambda: store.get_memory(kept.memory_id, user_id=user_id),
            lambda: store.update_memory(kept.memory_id, user_id=user_id, content="x"),
            lambda: store.archive_memory(kept.memory_id, user_id=user_id),
            lambda: store.delete_memory(kept.memory_id, user_id=user_id),
            lambda: store.add_many([], user_id=user_id),
        ]
        for call in calls:
            with pytest.raises(InvalidValue, match="user_id"):
                call()
        assert everything(store, "u") == [kept]

    @pytest.mark.parametrize("memory_id", ["nope", "x' OR '1'='1", "00000000-0000-0000-0000-000000000000"])
    def test_an_id_that_no_memory_has_is_not_found(self, store: StorageProvider, memory_id: str) -> None:
        for call in (store.get_memory, store.archive_memory, store.delete_memory):
            with pytest.raises(NotFound):
                call(memory_id, user_id="u")
        with pytest.raises(NotFound):
            store.update_memory(memory_id, user_id="u", content="x")

    def test_a_closed_provider_says_so(self, store: StorageProvider) -> None:
        store.close()
        store.close()
        with pytest.raises(UsageError, match="closed"):
            store.recall("q", user_id="u")
