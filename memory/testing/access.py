"""Access counts: behind the caller's back, exact, and without changing the memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from memory.engine.provider import StorageProvider
from memory.testing.base import NOW, OpenStore, SuiteBase


class AccessTests(SuiteBase):
    """What recall notes about the memories it returns."""

    def test_recall_counts_an_access_of_each_memory_it_returns(self, store: StorageProvider) -> None:
        tea = store.add_memory("green tea", user_id="u")
        other = store.add_memory("black coffee", user_id="u")
        for _ in range(3):
            store.recall("tea", user_id="u", top_k=1)
        store.flush()
        read = store.get_memory(tea.memory_id, user_id="u")
        assert (read.access_count, read.last_access_at) == (3, NOW)
        untouched = store.get_memory(other.memory_id, user_id="u")
        assert (untouched.access_count, untouched.last_access_at) == (0, None)

    def test_an_access_changes_neither_version_nor_update_time(self, store: StorageProvider) -> None:
        added = store.add_memory("green tea", user_id="u")
        store.recall("tea", user_id="u")
        store.flush()
        read = store.get_memory(added.memory_id, user_id="u")
        assert (read.version, read.updated_at) == (added.version, added.updated_at)

    def test_reading_and_listing_count_as_no_access(self, store: StorageProvider) -> None:
        added = store.add_memory("green tea", user_id="u")
        store.list_memories(user_id="u")
        store.get_memory(added.memory_id, user_id="u")
        store.flush()
        assert store.get_memory(added.memory_id, user_id="u") == added

    def test_without_tracking_nothing_is_counted(self, open_store: OpenStore) -> None:
        store = open_store(track_access=False)
        added = store.add_memory("green tea", user_id="u")
        store.recall("tea", user_id="u")
        store.flush()
        assert store.get_memory(added.memory_id, user_id="u") == added

    def test_accesses_from_many_threads_are_counted_exactly(self, store: StorageProvider) -> None:
        added = store.add_memory("green tea", user_id="u")

        def recall_and_sometimes_flush(i: int) -> None:
            store.recall("tea", user_id="u")
            if i % 5 == 0:
                store.flush()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(recall_and_sometimes_flush, range(60)))
        store.flush()
        assert store.get_memory(added.memory_id, user_id="u").access_count == 60

    def test_a_memory_deleted_before_its_access_is_written_stays_deleted(self, store: StorageProvider) -> None:
        added = store.add_memory("green tea", user_id="u")
        store.recall("tea", user_id="u")
        store.delete_memory(added.memory_id, user_id="u")
        store.flush()
        assert store.stats().accesses == 0

    def test_closing_writes_what_is_buffered(self, open_store: OpenStore) -> None:
        self.require("persistent")
        store = open_store()
        added = store.add_memory("green tea", user_id="u")
        store.recall("tea", user_id="u")
        store.close()
        assert open_store().get_memory(added.memory_id, user_id="u").access_count == 1
