"""`memory://` passes the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import memory
from memory.engine.provider import StorageProvider
from memory.testing import OpenStore, ProviderSuite
from memory.testing.base import NOW


class TestVolatile(ProviderSuite):
    capabilities = frozenset()  # gone with the provider

    @pytest.fixture
    def open_store(self) -> Iterator[OpenStore]:
        opened: list[StorageProvider] = []

        def open_one(name: str = "main", **settings: Any) -> StorageProvider:
            if "embedder" not in settings:
                settings = {"embedding_model": "hashing", **settings}
            opened.append(memory.connect("memory://", **{"now": NOW, **settings}))
            return opened[-1]

        yield open_one
        for store in opened:
            store.close()
