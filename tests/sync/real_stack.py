"""Stacks with real replicas: SQLite and a vector index, before a centre in this process."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from edge.vectors.engine import EdgeEngineFactory
from memory.core.centre import SyncCentre
from tests.plain_index import PlainFactory
from tests.sync.model_stack import ModelCentre
from tests.sync.plain_centre import PlainCentre
from tests.sync.ports import Centre, MakeStack
from tests.sync.real_edge import RealEdge


class RealStack:
    """``ports.Stack``: real replicas, in a directory that goes with it."""

    def __init__(self, now: Callable[[], int], rng: random.Random, centre: Centre, *, engine: bool) -> None:
        self._now, self._rng, self.centre = now, rng, centre
        self._engine = engine
        self.folder = Path(tempfile.mkdtemp(prefix="memory-sync-"))

    def new_edge(self, name: str, carrier: SyncCentre) -> RealEdge:
        factory = EdgeEngineFactory() if self._engine else PlainFactory()
        return RealEdge(name, carrier, self._now, self._rng, self.folder, lambda _replica: factory)

    def close(self) -> None:
        self.centre.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def real_stack(*, engine: bool) -> MakeStack:
    """Makes stacks of real replicas with Qdrant's engine, or an index in memory, and a plain centre."""
    return lambda now, rng: RealStack(now, rng, ModelCentre(PlainCentre(now, rng)), engine=engine)
