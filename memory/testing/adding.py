"""Adding memories, one at a time and many."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from memory.core.errors import Conflict, InvalidValue
from memory.core.model import MemoryType, NewMemory, Status
from memory.engine.provider import StorageProvider
from memory.testing.base import NOW, OpenStore, SuiteBase, everything


class AddingTests(SuiteBase):
    """``add_memory`` and ``add_many``."""

    def test_an_added_memory_is_read_back_equal(self, store: StorageProvider) -> None:
        added = store.add_memory(
            "项目代号叫夜莺，下周五交付第一版 🐦",
            user_id="u-42",
            memory_type="event",
            importance=0.25,
            tags=["Project", " 项目 ", "project", ""],
            metadata={"n": 1, "deep": {"list": [1.5, None, True, "文"]}, "": "empty key"},
            source_session="s-1",
            created_at=NOW - 5,
        )
        assert store.get_memory(added.memory_id, user_id="u-42") == added
        assert added.content == "项目代号叫夜莺，下周五交付第一版 🐦"
        assert added.memory_type is MemoryType.EVENT
        assert added.importance == 0.25
        assert added.tags == ("project", "项目")
        assert added.metadata == {"n": 1, "deep": {"list": [1.5, None, True, "文"]}, "": "empty key"}
        assert (added.source_session, added.created_at) == ("s-1", NOW - 5)
        assert (added.status, added.access_count, added.last_access_at) == (Status.ACTIVE, 0, None)

    def test_defaults_follow_document_1(self, store: StorageProvider) -> None:
        added = store.add_memory("x" * 50, user_id="u", memory_type="preference")
        assert added.importance == pytest.approx(0.9)
        assert added.created_at == added.updated_at == NOW
        assert uuid.UUID(added.memory_id).version == 4
        important = store.add_memory("short", user_id="u", metadata={"explicit_important": True})
        assert important.importance == 1.0

    def test_times_are_accepted_as_seconds_milliseconds_and_aware_datetimes(self, store: StorageProvider) -> None:
        moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
        milliseconds = int(moment.timestamp() * 1000)
        for given in (moment, milliseconds, milliseconds // 1000, moment.isoformat()):
            assert store.add_memory("t", user_id="u", created_at=given).created_at == milliseconds

    def test_white_space_line_breaks_and_markup_are_kept_as_they_are(self, store: StorageProvider) -> None:
        text = "  two  spaces\n\ttab\r\n<b>'quotes' \"and\" \\backslashes\\ %s %(x)s {}</b>  "
        assert store.add_memory(text, user_id="u").content == text

    def test_each_memory_gets_an_id_and_a_version_of_its_own(self, store: StorageProvider) -> None:
        first, second = (store.add_memory("same text", user_id="u") for _ in range(2))
        assert first.memory_id != second.memory_id
        assert len(everything(store, "u")) == 2

    def test_a_given_id_is_kept_and_cannot_be_used_twice(self, store: StorageProvider) -> None:
        own = str(uuid.uuid4())
        assert store.add_memory("mine", user_id="u", memory_id=own.upper()).memory_id == own
        with pytest.raises(Conflict):
            store.add_memory("again", user_id="u", memory_id=own)
        assert store.get_memory(own, user_id="u").content == "mine"

    def test_two_users_may_have_the_same_id(self, store: StorageProvider) -> None:
        own = str(uuid.uuid4())
        store.add_memory("of a", user_id="a", memory_id=own)
        store.add_memory("of b", user_id="b", memory_id=own)
        assert store.get_memory(own, user_id="a").content == "of a"
        assert store.get_memory(own, user_id="b").content == "of b"

    def test_many_are_added_in_order(self, store: StorageProvider) -> None:
        items = [NewMemory(content=f"note {i}", tags=[f"t{i % 3}"], metadata={"i": i}) for i in range(250)]
        added = store.add_many(items, user_id="u")
        assert [memory.content for memory in added] == [f"note {i}" for i in range(250)]
        assert {m.memory_id: m for m in everything(store, "u")} == {m.memory_id: m for m in added}

    def test_no_items_add_nothing(self, store: StorageProvider) -> None:
        assert store.add_many([], user_id="u") == []
        assert everything(store, "u") == []

    def test_one_bad_item_is_named_and_nothing_of_the_batch_is_stored(self, store: StorageProvider) -> None:
        items = [NewMemory(content="good"), NewMemory(content="fine"), NewMemory(content="bad", importance=7)]
        with pytest.raises(InvalidValue) as caught:
            store.add_many(items, user_id="u")
        assert caught.value.item == 2
        assert "memories[2].importance" in str(caught.value)
        assert everything(store, "u") == []

    def test_a_used_id_in_a_batch_stores_nothing_of_it(self, store: StorageProvider) -> None:
        used = store.add_memory("first", user_id="u").memory_id
        with pytest.raises(Conflict) as caught:
            store.add_many([NewMemory(content="new"), NewMemory(content="dup", memory_id=used)], user_id="u")
        assert caught.value.memory_id == used
        assert [memory.content for memory in everything(store, "u")] == ["first"]

    def test_the_same_id_twice_in_a_batch_stores_nothing_of_it(self, store: StorageProvider) -> None:
        twice = str(uuid.uuid4())
        with pytest.raises(Conflict):
            store.add_many([NewMemory(content=text, memory_id=twice) for text in ("a", "b")], user_id="u")
        assert everything(store, "u") == []

    def test_threads_that_add_at_once_lose_nothing(self, store: StorageProvider) -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda i: store.add_memory(f"note {i}", user_id=f"u{i % 3}"), range(120)))
        found = [memory.content for user in range(3) for memory in everything(store, f"u{user}")]
        assert sorted(found) == sorted(f"note {i}" for i in range(120))

    def test_what_was_added_is_there_after_opening_again(self, open_store: OpenStore) -> None:
        self.require("persistent")
        first = open_store()
        added = first.add_memory("会议改到周三", user_id="u", tags=["会议"])
        first.close()
        assert open_store().get_memory(added.memory_id, user_id="u") == added
