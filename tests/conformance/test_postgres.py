"""The centre passes the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import memory
from memory.engine.provider import StorageProvider
from memory.testing import OpenStore, ProviderSuite
from memory.testing.base import NOW


class TestPostgres(ProviderSuite):
    @pytest.fixture
    def open_store(self, database_url: str, new_database: Callable[..., str]) -> Iterator[OpenStore]:
        urls = {"main": database_url}
        opened: list[StorageProvider] = []

        def open_one(name: str = "main", **settings: Any) -> StorageProvider:
            if name not in urls:
                urls[name] = new_database()
            if "embedder" not in settings:
                settings = {"embedding_model": "hashing", **settings}
            opened.append(memory.connect(urls[name], **{"now": NOW, **settings}))
            return opened[-1]

        yield open_one
        for store in opened:
            store.close()
