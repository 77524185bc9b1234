"""Replicas for tests: opened with an index of the test's choice, watched at every durable step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.doctor import Doctor
from edge.opening import EdgeSettings, open_storage
from edge.sqlite.migrations import Schema
from edge.storage import EdgeStorage
from edge.vectors.engine import EdgeEngineFactory
from edge.vectors.port import IndexFactory
from memory.config import load_config
from memory.connect import FixedClock, SystemClock, make_embedder
from memory.core.ports import Clock, Embedder
from memory.engine.provider import StorageProvider


def nothing(_name: str) -> None:
    """A step that nobody watches."""


def engine_index(_replica: str) -> IndexFactory:
    """The default index."""
    return EdgeEngineFactory()


def open_replica(
    path: Path,
    *,
    index: Callable[[str], IndexFactory] = engine_index,
    embedder: Embedder | None = None,
    step: Callable[[str], None] = nothing,
    schema: Schema | None = None,
    edge_settings: EdgeSettings | None = None,
    **settings: Any,
) -> StorageProvider:
    """A provider on the replica in a directory. ``settings`` as for ``memory.connect``; hashing unless given."""
    config = load_config(**{"embedding_model": "hashing", **settings})
    clock: Clock = SystemClock() if config.now is None else FixedClock(config.now)
    ready = embedder or make_embedder(config)
    storage = open_storage(path, ready, clock, index, edge_settings or EdgeSettings(), schema=schema, step=step)
    return StorageProvider(storage, ready, clock, config.engine_settings())


def storage_of(provider: StorageProvider) -> EdgeStorage:
    """The storage behind a provider."""
    storage = provider._storage
    assert isinstance(storage, EdgeStorage)
    return storage


def settle(provider: StorageProvider) -> None:
    """Bring the indexes of all open users up to date."""
    storage_of(provider).drain()


def findings(
    path: Path, *, index: Callable[[str], IndexFactory] = engine_index, repair: bool = False
) -> dict[str, int]:
    """What the doctor finds in a replica that nobody has open: breaches by check, only those that are problems."""
    doctor = Doctor(path, index, repair=repair)
    try:
        if repair:
            doctor.repair(now=SystemClock().now())
        return {found.name: found.rows for found in doctor.examine(now=SystemClock().now()) if found.is_problem}
    finally:
        doctor.close()
