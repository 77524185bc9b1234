"""What the topics share: fixtures, and helpers to make and look at memories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Protocol

import pytest

from memory.core.model import Memory, Recalled
from memory.core.provider import MemoryProvider
from memory.engine.provider import StorageProvider

DAY: Final = 86_400_000
NOW: Final = 1_800_000_000_000
"""A fixed present for tests whose scores depend on time."""
CAPABILITIES: Final = frozenset({"persistent", "shared"})
"""``persistent``: a provider opened later on the same store sees the same memories. ``shared``: several may be
open on it at a time."""


class OpenStore(Protocol):
    """Opens a provider on a store of this test: one name, one store. Providers are closed after the test."""

    def __call__(self, name: str = "main", **settings: Any) -> StorageProvider:
        """``settings`` as for ``memory.connect``; a hashing embedder and a present of ``NOW`` unless given."""


class SuiteBase:
    """Fixtures and helpers of every topic."""

    capabilities: ClassVar[frozenset[str]] = CAPABILITIES

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """To be defined by the provider's own test class."""
        raise NotImplementedError("define the fixture `open_store` in your subclass")

    @pytest.fixture
    def store(self, open_store: OpenStore) -> StorageProvider:
        """One open provider on an empty store."""
        return open_store()

    def require(self, capability: str) -> None:
        """Skip unless the provider declares the capability: the only reason for a skip."""
        if capability not in self.capabilities:
            pytest.skip(f"the provider is not {capability}")


def contents(found: Iterable[Recalled]) -> list[str]:
    """Texts in order."""
    return [hit.memory.content for hit in found]


def ids(memories: Iterable[Memory]) -> list[str]:
    """Ids in order."""
    return [memory.memory_id for memory in memories]


def everything(store: MemoryProvider, user_id: str) -> list[Memory]:
    """All of a user's memories, whatever their status, newest first."""
    found: list[Memory] = []
    cursor: str | None = None
    while True:
        page = store.list_memories(user_id=user_id, filters={"statuses": ALL_STATUSES}, limit=100, cursor=cursor)
        found.extend(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return found


ALL_STATUSES: Final[Sequence[str]] = ("active", "archived", "superseded")
Check = Callable[[], object]
