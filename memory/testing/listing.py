"""Listing: newest first, page by page."""

from __future__ import annotations

from typing import Any

import pytest

from memory.core.errors import InvalidValue
from memory.core.model import NewMemory
from memory.engine.provider import StorageProvider
from memory.testing.base import NOW, SuiteBase, ids


class ListingTests(SuiteBase):
    """``list_memories`` and ``stats``."""

    def test_pages_hold_every_memory_once_newest_first(self, store: StorageProvider) -> None:
        added = store.add_many(
            [NewMemory(content=f"n{i}", created_at=NOW - (i % 7) * 1_000) for i in range(53)], user_id="u"
        )
        expected = ids(sorted(added, key=lambda memory: (-memory.created_at, memory.memory_id)))
        for size in (1, 7, 53, 100):
            seen: list[str] = []
            cursor: str | None = None
            while True:
                page = store.list_memories(user_id="u", limit=size, cursor=cursor)
                assert len(page.items) <= size
                seen += ids(page.items)
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert seen == expected

    def test_a_listing_survives_changes_between_its_pages(self, store: StorageProvider) -> None:
        added = store.add_many([NewMemory(content=f"n{i}", created_at=NOW - i * 1_000) for i in range(20)], user_id="u")
        first = store.list_memories(user_id="u", limit=10)
        store.delete_memory(added[9].memory_id, user_id="u")
        store.delete_memory(added[15].memory_id, user_id="u")
        store.add_memory("newer", user_id="u", created_at=NOW)
        rest = store.list_memories(user_id="u", limit=20, cursor=first.next_cursor)
        assert ids(rest.items) == ids(m for i, m in enumerate(added) if i > 9 and i != 15)

    @pytest.mark.parametrize("cursor", ["", "x", "W10=", "eyJhIjoxfQ==", 5, "WzEsICIxIl0=", "W1tbW1tbW1s="])
    def test_a_cursor_of_no_listing_is_refused(self, store: StorageProvider, cursor: Any) -> None:
        with pytest.raises(InvalidValue, match="cursor"):
            store.list_memories(user_id="u", cursor=cursor)

    @pytest.mark.parametrize("limit", [0, -1, 10**6, True, None])
    def test_an_impossible_limit_is_refused(self, store: StorageProvider, limit: Any) -> None:
        with pytest.raises(InvalidValue, match="limit"):
            store.list_memories(user_id="u", limit=limit)

    def test_stats_count_one_user_or_all(self, store: StorageProvider) -> None:
        added = store.add_many([NewMemory(content=f"n{i}") for i in range(4)], user_id="a")
        store.add_memory("b", user_id="b")
        store.archive_memory(added[0].memory_id, user_id="a")
        store.delete_memory(added[1].memory_id, user_id="a")
        mine, every = store.stats(user_id="a"), store.stats()
        assert dict(mine.memories_by_status) == {"active": 2, "archived": 1}
        assert (mine.users, mine.deletions, mine.pending_embeddings) == (1, 1, 0)
        assert dict(every.memories_by_status) == {"active": 3, "archived": 1}
        assert every.users == 2
        assert every.embedding_dimension == 64
