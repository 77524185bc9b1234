"""A replica on a device passes the conformance suite, on each of its three vector indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from qdrant_client import QdrantClient

from edge.vectors.client import QdrantLocalFactory, QdrantServerFactory
from edge.vectors.port import IndexFactory
from memory.engine.provider import StorageProvider
from memory.testing import OpenStore, ProviderSuite
from memory.testing.base import NOW
from tests.replicas import engine_index, open_replica


class EdgeSuite(ProviderSuite):
    """What the three have in common: each store is a directory with one owner at a time."""

    capabilities = frozenset({"persistent"})
    __test__: ClassVar[bool] = False

    @pytest.fixture
    def index(self) -> Callable[[str], IndexFactory]:
        raise NotImplementedError

    @pytest.fixture
    def open_store(
        self, tmp_path_factory: pytest.TempPathFactory, index: Callable[[str], IndexFactory]
    ) -> Iterator[OpenStore]:
        folder = tmp_path_factory.mktemp("replicas")
        opened: list[StorageProvider] = []

        def open_one(name: str = "main", **settings: Any) -> StorageProvider:
            opened.append(open_replica(folder / name, index=index, **{"now": NOW, **settings}))
            return opened[-1]

        yield open_one
        for store in opened:
            store.close()


class TestEdgeEngine(EdgeSuite):
    __test__: ClassVar[bool] = True

    @pytest.fixture
    def index(self) -> Callable[[str], IndexFactory]:
        return engine_index


class TestQdrantLocal(EdgeSuite):
    __test__: ClassVar[bool] = True

    @pytest.fixture
    def index(self) -> Callable[[str], IndexFactory]:
        return lambda _replica: QdrantLocalFactory()


class TestQdrantServer(EdgeSuite):
    """The adapter for a server, its calls answered by the client's own local engine."""

    __test__: ClassVar[bool] = True

    @pytest.fixture
    def index(self) -> Iterator[Callable[[str], IndexFactory]]:
        client = QdrantClient(":memory:")
        yield lambda replica: QdrantServerFactory(client=client, collection=f"memory-{replica}")
        client.close()
