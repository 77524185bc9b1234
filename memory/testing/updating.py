"""Updating, archiving and deleting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from memory.core.errors import Conflict, InvalidValue, NotFound
from memory.core.model import MemoryType, Status
from memory.engine.provider import StorageProvider
from memory.testing.base import SuiteBase, contents, everything


class UpdatingTests(SuiteBase):
    """``update_memory``, ``archive_memory``, ``delete_memory``."""

    def test_an_update_changes_what_it_names_and_nothing_else(self, store: StorageProvider) -> None:
        before = store.add_memory(
            "old text",
            user_id="u",
            importance=0.7,
            tags=["x"],
            metadata={"cat": 1, "keep": True},
            source_session="s",
        )
        after = store.update_memory(before.memory_id, user_id="u", content="new text")
        assert after.content == "new text"
        for name in (
            "importance",
            "tags",
            "metadata",
            "source_session",
            "created_at",
            "memory_type",
            "status",
        ):
            assert getattr(after, name) == getattr(before, name)
        assert after.version != before.version
        assert store.get_memory(before.memory_id, user_id="u") == after

    def test_metadata_keys_are_set_one_by_one(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u", metadata={"a": 1, "b": {"x": 1}, "c": 3})
        changed = store.update_memory(
            added.memory_id,
            user_id="u",
            metadata={"b": {"y": 2}, "d": None},
            remove_metadata=["c", "unknown"],
        )
        assert changed.metadata == {"a": 1, "b": {"y": 2}, "d": None}

    def test_tags_are_replaced_or_added_and_removed(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u", tags=["a", "b"])
        changed = store.update_memory(added.memory_id, user_id="u", add_tags=["C"], remove_tags=["a", "zz"])
        assert changed.tags == ("b", "c")
        assert store.update_memory(added.memory_id, user_id="u", tags=["only"]).tags == ("only",)
        assert store.update_memory(added.memory_id, user_id="u", tags=[]).tags == ()

    def test_every_scalar_can_be_changed(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u", source_session="s")
        changed = store.update_memory(
            added.memory_id,
            user_id="u",
            memory_type="summary",
            importance=0,
            status="superseded",
            source_session=None,
        )
        assert (changed.memory_type, changed.importance) == (MemoryType.SUMMARY, 0.0)
        assert (changed.status, changed.source_session) == (Status.SUPERSEDED, None)

    def test_an_updated_text_is_found_and_the_old_one_is_not(self, store: StorageProvider) -> None:
        added = store.add_memory("the cat sleeps", user_id="u")
        store.add_memory("something else entirely", user_id="u")
        store.update_memory(added.memory_id, user_id="u", content="鲸鱼在海里")
        best = store.recall("鲸鱼", user_id="u", top_k=1)[0]
        assert best.memory.content == "鲸鱼在海里"
        assert best.relevance > 0.5
        assert all(hit.relevance < 0.5 for hit in store.recall("cat sleeps", user_id="u"))

    def test_an_update_without_effect_keeps_the_version(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u", tags=["a"], metadata={"k": 1})
        same = store.update_memory(
            added.memory_id, user_id="u", content="m", add_tags=["a"], remove_tags=["b"], metadata={"k": 1}
        )
        assert same == added
        assert store.update_memory(added.memory_id, user_id="u") == added

    def test_a_number_of_another_kind_is_a_change(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u", metadata={"k": 1})
        changed = store.update_memory(added.memory_id, user_id="u", metadata={"k": True})
        assert changed.metadata["k"] is True
        assert changed.version != added.version

    def test_of_two_updates_on_one_version_one_wins(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u")
        first = store.update_memory(added.memory_id, user_id="u", content="one", expected_version=added.version)
        with pytest.raises(Conflict):
            store.update_memory(added.memory_id, user_id="u", content="two", expected_version=added.version)
        assert store.get_memory(added.memory_id, user_id="u") == first
        again = store.update_memory(added.memory_id, user_id="u", content="two", expected_version=first.version)
        assert again.content == "two"

    def test_racing_updates_on_one_version_have_one_winner(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u")

        def attempt(i: int) -> bool:
            try:
                store.update_memory(added.memory_id, user_id="u", content=f"{i}", expected_version=added.version)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(attempt, range(8))) == 1

    def test_racing_updates_of_different_fields_all_hold(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u")
        with ThreadPoolExecutor(8) as threads:
            list(
                threads.map(
                    lambda i: store.update_memory(
                        added.memory_id, user_id="u", add_tags=[f"t{i}"], metadata={f"k{i}": i}
                    ),
                    range(16),
                )
            )
        final = store.get_memory(added.memory_id, user_id="u")
        assert set(final.tags) == {f"t{i}" for i in range(16)}
        assert final.metadata == {f"k{i}": i for i in range(16)}

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("content", {"content": " "}),
            ("importance", {"importance": 2}),
            ("status", {"status": "deleted"}),
            ("memory_type", {"memory_type": "x"}),
            ("user", {"user": "other"}),
            ("created_at", {"created_at": 5}),
            ("remove_tags", {"add_tags": ["a"], "remove_tags": ["a"]}),
            ("remove_metadata", {"metadata": {"a": 1}, "remove_metadata": ["a"]}),
            ("remove_metadata", {"remove_metadata": "a"}),
            ("expected_version", {"expected_version": 3}),
        ],
    )
    def test_a_bad_change_is_named_and_changes_nothing(
        self, store: StorageProvider, field: str, changes: dict[str, Any]
    ) -> None:
        added = store.add_memory("m", user_id="u")
        with pytest.raises(InvalidValue) as caught:
            store.update_memory(added.memory_id, user_id="u", **{"content": "changed", **changes})
        assert field in str(caught.value)
        assert store.get_memory(added.memory_id, user_id="u") == added

    def test_what_a_caller_does_to_a_returned_memory_stays_the_callers(self, store: StorageProvider) -> None:
        given: dict[str, Any] = {"list": [1]}
        added = store.add_memory("m", user_id="u", metadata=given)
        given["list"].append(2)
        added.metadata["list"].append(3)
        store.get_memory(added.memory_id, user_id="u").metadata["list"].append(4)
        assert store.get_memory(added.memory_id, user_id="u").metadata == {"list": [1]}

    def test_many_small_edits_cannot_make_a_memory_too_large(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u", tags=[f"t{i}" for i in range(200)], metadata={"a": "x" * 40_000})
        with pytest.raises(InvalidValue, match="tags"):
            store.update_memory(added.memory_id, user_id="u", add_tags=[f"more{i}" for i in range(100)])
        with pytest.raises(InvalidValue, match="metadata"):
            store.update_memory(added.memory_id, user_id="u", metadata={"b": "x" * 40_000})
        assert store.get_memory(added.memory_id, user_id="u") == added

    def test_an_archived_memory_is_out_of_recall_until_it_is_back(self, store: StorageProvider) -> None:
        added = store.add_memory("the cat sleeps", user_id="u")
        archived = store.archive_memory(added.memory_id, user_id="u")
        assert archived.status is Status.ARCHIVED
        assert store.archive_memory(added.memory_id, user_id="u") == archived
        assert store.recall("cat", user_id="u") == []
        assert contents(store.recall("cat", user_id="u", filters={"statuses": ["archived"]})) == ["the cat sleeps"]
        store.update_memory(added.memory_id, user_id="u", status="active")
        assert contents(store.recall("cat", user_id="u")) == ["the cat sleeps"]

    def test_a_deleted_memory_is_gone_for_every_verb(self, store: StorageProvider) -> None:
        added = store.add_memory("the cat sleeps", user_id="u", tags=["pet"])
        kept = store.add_memory("the dog barks", user_id="u", tags=["pet"])
        store.delete_memory(added.memory_id, user_id="u")
        assert everything(store, "u") == [kept]
        assert contents(store.recall("the cat sleeps", user_id="u")) == ["the dog barks"]
        for call in (store.get_memory, store.archive_memory, store.delete_memory):
            with pytest.raises(NotFound):
                call(added.memory_id, user_id="u")
        with pytest.raises(NotFound):
            store.update_memory(added.memory_id, user_id="u", content="back")

    def test_the_id_of_a_deleted_memory_is_never_used_again(self, store: StorageProvider) -> None:
        added = store.add_memory("m", user_id="u")
        store.delete_memory(added.memory_id, user_id="u")
        with pytest.raises(Conflict):
            store.add_memory("again", user_id="u", memory_id=added.memory_id)
