"""Qdrant's own engine inside this process: one shard of files per user, always searched exactly.

An open shard has one thread. Searches let other Python threads run; all else holds the interpreter meanwhile, which is
felt with ``compact``, and where an index is made anew again and again. ``tests.bench.speed --provider edge`` measures.

The engine maps its files into memory. Whoever cuts them under an open shard ends the process: they are for their owner
alone. So does a disk that fills up while the engine writes: changes begin only with ``folder.RESERVE`` bytes to spare.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import qdrant_edge as engine

from edge.vectors.folder import IndexFolder, failure
from edge.vectors.payload import (
    FIELDS,
    FLOATS,
    KEYWORDS,
    VERSION,
    AnyOf,
    Condition,
    as_list,
    as_vector,
    payload_of,
    pushed_down,
)
from edge.vectors.port import Hit, Place, Point, VectorIndex
from memory.core.errors import StoreError, StoreFull, VectorIndexDamaged, VectorIndexUnavailable
from memory.core.ports import Vector
from memory.policies.admission import Filter

_NEVER: Final = 2**40
"""KB; no segment grows so large that a graph is built for it."""
_PAGE: Final = 5_000
"""Points read at a time, so that changes need not wait for all."""
_EXACT: Final = engine.SearchParams(exact=True)


class EdgeEngineFactory:
    """Opens a shard per user in ``<folder>/index``."""

    name = "qdrant-edge"

    def open(self, place: Place) -> VectorIndex:
        """See the port. With no space left on the disk, the index is unavailable."""
        folder = IndexFolder(place.folder / "index")
        try:
            with _translated("opening", folder.path):
                shard = _load(folder, place) if folder.exists() else _create(folder, place)
        except StoreFull as error:
            raise VectorIndexUnavailable(error.message, hint=error.hint) from error
        return EdgeEngineIndex(shard, folder, place)

    def discard(self, place: Place) -> None:
        """See the port. The index must not be open.

        Raises:
            StoreError: the system refuses to delete it.
        """
        folder = IndexFolder(place.folder / "index")
        with _translated("deleting", folder.path):
            folder.remove()

    def close(self) -> None:
        """Nothing is shared."""


class EdgeEngineIndex:
    """A shard. See the port."""

    def __init__(self, shard: engine.EdgeShard, folder: IndexFolder, place: Place) -> None:
        self._shard, self._folder, self._place = shard, folder, place
        self._changes = threading.Lock()

    def search(self, vector: Vector, limit: int, where: Filter) -> list[Hit]:
        """See the port."""
        request = engine.QueryRequest(
            limit=limit,
            query=engine.Query.Nearest(as_list(vector, self._place.dimension)),
            filter=_filter(pushed_down(where)),
            params=_EXACT,
            with_payload=False,
            with_vector=False,
        )
        with self._translated("searching"):
            return [Hit(str(found.id), found.score) for found in self._shard.query(request)]

    def upsert(self, points: Sequence[Point]) -> None:
        """See the port. Raises ``StoreFull`` when there is no space left."""
        if not points:
            return
        user_id, dimension = self._place.user_id, self._place.dimension
        operation = engine.UpdateOperation.upsert_points(
            [engine.Point(p.memory_id, as_list(p.vector, dimension), payload_of(p, user_id)) for p in points]
        )
        with self._changing("writing to", size=sum(_size(point) for point in points)):
            self._shard.update(operation)

    def remove(self, memory_ids: Collection[str]) -> None:
        """See the port. Raises ``StoreFull`` when there is no space left: deleting writes, too."""
        if not memory_ids:
            return
        operation = engine.UpdateOperation.delete_points(list(memory_ids))
        with self._changing("deleting from", size=0):
            self._shard.update(operation)

    def flush(self) -> None:
        """See the port. Raises ``StoreFull`` when there is no space left."""
        with self._changes, self._translated("flushing"):
            self._shard.flush()
            self._folder.record()

    def entries(self) -> dict[str, str]:
        """See the port."""
        versions: dict[str, str] = {}
        request = engine.ScrollRequest(limit=_PAGE, with_payload=[VERSION], with_vector=False)
        while True:
            with self._translated("listing"):
                records, following = self._shard.scroll(request)
            versions.update((str(record.id), self._version(record)) for record in records)
            if following is None:
                return versions
            request = engine.ScrollRequest(offset=following, limit=_PAGE, with_payload=[VERSION], with_vector=False)

    def vectors(self, memory_ids: Sequence[str]) -> dict[str, Vector]:
        """See the port."""
        with self._translated("reading"):
            records = self._shard.retrieve(list(memory_ids), with_payload=False, with_vector=True)
        return {str(r.id): as_vector(r.vector, self._place.dimension, str(r.id)) for r in records}

    def count(self) -> int:
        """See the port."""
        with self._translated("counting"):
            return self._shard.count(engine.CountRequest(exact=True))

    def compact(self) -> None:
        """See the port. Worth it from 1,000 deleted points on, if they are a fifth of all.

        Raises ``StoreFull`` when there is no space left. Interrupted by the end of the process, it may leave an index
        that counts as damaged.
        """
        with self._changes, self._translated("compacting"):
            if self._shard.optimize():
                self._shard.flush()
                self._folder.record()

    def close(self) -> None:
        """See the port."""
        # What cannot be written now was never flushed, so nobody relies on it.
        with self._changes, suppress(StoreError), self._translated("closing"):
            self._shard.close()

    # -- steps

    @contextmanager
    def _changing(self, doing: str, *, size: int) -> Iterator[None]:
        with self._changes, self._translated(doing):
            self._folder.require_space(size)
            yield

    def _translated(self, doing: str) -> AbstractContextManager[None]:
        return _translated(doing, self._folder.path)

    def _version(self, record: engine.Record) -> str:
        version = (record.payload or {}).get(VERSION)
        if not isinstance(version, str):
            raise VectorIndexDamaged(f"The vector index at {self._folder.path} has lost the fields of {record.id}")
        return version


def _create(folder: IndexFolder, place: Place) -> engine.EdgeShard:
    folder.create()
    folder.require_space(0)
    shard = engine.EdgeShard.create(str(folder.data), _config(place.dimension))
    for key in sorted(FIELDS):
        shard.update(engine.UpdateOperation.create_field_index(key, _schema(key)))
    shard.flush()
    folder.claim(place)
    return shard


def _load(folder: IndexFolder, place: Place) -> engine.EdgeShard:
    folder.check(place)
    # Given the configuration, the engine compares its own with it: dimension, distance, log.
    shard = engine.EdgeShard.load(str(folder.data), _config(place.dimension))
    missing = FIELDS - shard.info().payload_schema.keys()
    if missing:
        shard.close()
        raise VectorIndexDamaged(f"The vector index at {folder.path} has lost the indexes of {sorted(missing)}")
    folder.record()  # to load is to fold journals into other files, and to delete them
    return shard


def _config(dimension: int) -> engine.EdgeConfig:
    return engine.EdgeConfig(
        vectors=engine.EdgeVectorParams(
            size=dimension,
            distance=engine.Distance.Cosine,
            datatype=engine.VectorStorageDatatype.Float32,
            # Any other placement reads a chunk of 32 MB at open, however few vectors are in it.
            memory=engine.Memory.Cold,
        ),
        hnsw_config=engine.HnswIndexConfig(m=0, ef_construct=4, full_scan_threshold=_NEVER),
        optimizers=engine.EdgeOptimizersConfig(
            deleted_threshold=0.2,
            vacuum_min_vector_number=1_000,
            default_segment_number=1,
            indexing_threshold=_NEVER,
        ),
        max_search_threads=1,  # a search runs in the thread that asks; these only help with several segments
        wal_enabled=False,  # what is not flushed is queued above
    )


def _schema(key: str) -> engine.PayloadSchemaType | engine.IntegerIndexParams:
    if key in KEYWORDS:
        return engine.PayloadSchemaType.Keyword
    if key in FLOATS:
        return engine.PayloadSchemaType.Float
    return engine.IntegerIndexParams(lookup=False, range=True)


def _filter(conditions: Sequence[Condition]) -> engine.Filter | None:
    return engine.Filter(must=[_condition(condition) for condition in conditions]) if conditions else None


def _condition(condition: Condition) -> engine.FieldCondition:
    if isinstance(condition, AnyOf):
        return engine.FieldCondition(key=condition.key, match=engine.MatchAny(list(condition.values)))
    return engine.FieldCondition(key=condition.key, range=engine.RangeFloat(gte=condition.gte, lt=condition.lt))


def _size(point: Point) -> int:
    """About how many bytes a point takes, generously."""
    return 4 * point.vector.size + 4_096 + 16 * sum(map(len, point.tags))


@contextmanager
def _translated(doing: str, path: Path) -> Iterator[None]:
    """Turn failures of the engine and the file system into errors of ours; callers' mistakes pass as they are."""
    try:
        yield
    except OSError as error:
        raise failure(error, doing, path) from error
    except Exception as error:
        if type(error) is not Exception:  # the engine's own failures are of no narrower class
            raise
        if "not initialized" in str(error):
            raise VectorIndexUnavailable("The vector index is closed", hint="open it again") from error
        raise failure(error, doing, path) from error
    except BaseException as error:
        # A panic in the engine is no Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise failure(error, doing, path) from error
