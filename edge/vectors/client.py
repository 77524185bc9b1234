"""Qdrant through its Python client: a server, or the client's own local mode.

The server keeps one collection for all users of a replica. Every request names the user; a point's id is made of user
and memory, since two users may have memories of one id. The name of the model is a field of each point, not of the
collection: when the model changes, users move to the new one at different times, and servers before 1.16 keep no
metadata. Points of another model make a user's index count as damaged when it is opened.

Local mode is one collection per user in files of its own. It loads everything into memory and compares in Python, which
``tests.bench.speed --provider edge`` measures beside the engine; above 20,000 points the client itself warns of it. Its
files are pickles: whoever can write them can run code.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from edge.vectors.client_errors import local_errors, server_errors
from edge.vectors.client_values import (
    DIGITS,
    MEMORY,
    MODEL,
    REQUEST,
    SCHEMAS,
    USER,
    batches,
    condition,
    equals,
    field,
    size_of,
    struct,
)
from edge.vectors.folder import IndexFolder
from edge.vectors.payload import VERSION, as_list, as_vector, pushed_down
from edge.vectors.port import Hit, Place, Point, VectorIndex
from memory.core.errors import ConfigError, StoreError, StoreFull, VectorIndexDamaged, VectorIndexUnavailable
from memory.core.ports import Vector
from memory.policies.admission import Filter

_PAGE: Final = 10_000
"""Points listed in one request."""


class QdrantLocalFactory:
    """Opens a client in local mode per user, in ``<folder>/index-local``."""

    name = "qdrant-local"

    def open(self, place: Place) -> VectorIndex:
        """See the port. With no space left on the disk, the index is unavailable."""
        folder = IndexFolder(place.folder / "index-local")
        try:
            with local_errors("opening", folder.path):
                return _LocalIndex(_opened(folder, place), folder, place)
        except StoreFull as error:
            raise VectorIndexUnavailable(error.message, hint=error.hint) from error

    def discard(self, place: Place) -> None:
        """See the port. The index must not be open.

        Raises:
            StoreError: the system refuses to delete it.
        """
        folder = IndexFolder(place.folder / "index-local")
        with local_errors("deleting", folder.path):
            folder.remove()

    def close(self) -> None:
        """Nothing is shared."""


class QdrantServerFactory:
    """Opens users' shares of one collection on a server; it is made when first needed."""

    name = "qdrant-server"

    def __init__(
        self,
        url: str = "",
        api_key: str | None = None,
        collection: str = "memories",
        timeout: float = 10.0,
        *,
        client: QdrantClient | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            url: With scheme, e.g. ``http://localhost:6333``.
            api_key: Sent with every request.
            collection: The replica's own.
            timeout: Seconds, rounded up, to connect and to wait for each answer.
            client: A ready one, in place of url, key and timeout; it stays open at ``close``.

        Raises:
            ConfigError: the URL or the key cannot be used.
        """
        self._is_own = client is None
        self._collection = _Collection(_connect(url, api_key, timeout) if client is None else client, collection)

    def open(self, place: Place) -> VectorIndex:
        """See the port."""
        with self._collection.calling("opening"):
            self._collection.ensure(place.dimension)
        index = _ServerIndex(self._collection, place)
        strange = index.count_strange()
        if strange:
            raise VectorIndexDamaged(f"The Qdrant server holds {strange:,} vectors that are not of {place.model}")
        return index

    def discard(self, place: Place) -> None:
        """See the port. A collection of another dimension or distance is made anew, for all users."""
        collection = self._collection
        with collection.calling("deleting from"):
            if not collection.exists():
                return
            if collection.misfit(place.dimension):
                collection.replace(place.dimension)
            else:
                mine = models.FilterSelector(filter=models.Filter(must=[equals(USER, place.user_id)]))
                collection.client.delete(collection.name, mine, wait=True)

    def close(self) -> None:
        """See the port."""
        if self._is_own:
            self._collection.client.close()


class _Collection:
    """A collection, and how it is reached. ``generation`` counts how often it was made anew."""

    def __init__(self, client: QdrantClient, name: str) -> None:
        self.client, self.name = client, name
        options = client.init_options
        self.is_local = options["path"] is not None or options["location"] == ":memory:"
        # Local mode ignores search parameters and indexes of fields, and warns of both. It is not made for threads.
        self.exact = None if self.is_local else models.SearchParams(exact=True)
        self.generation = 0
        self._lock: AbstractContextManager[Any] = threading.RLock() if self.is_local else nullcontext()

    @contextmanager
    def calling(self, doing: str) -> Iterator[None]:
        """For the requests in the block: failures become errors of ours."""
        with self._lock, local_errors(doing, Path(self.name)) if self.is_local else server_errors():
            yield

    def exists(self) -> bool:
        """Whether it is there, fit or not."""
        return self.client.collection_exists(self.name)

    def ensure(self, dimension: int) -> None:
        """Make it if it is not there, and complete its indexes of fields.

        Raises:
            VectorIndexDamaged: it is of another dimension or distance.
        """
        if not self.exists():
            self._create(dimension)
        misfit = self.misfit(dimension)
        if misfit:
            raise VectorIndexDamaged(misfit)
        if not self.is_local:
            present = self._info().payload_schema.keys()
            for key in SCHEMAS.keys() - present:
                self.client.create_payload_index(self.name, key, SCHEMAS[key], wait=True)

    def misfit(self, dimension: int) -> str:
        """What keeps it from holding vectors of this dimension to compare by cosine; nothing if it can."""
        held = self._info().config.params.vectors
        if not isinstance(held, models.VectorParams):
            return f"The collection {self.name} has vectors with names"
        found, wanted = (held.size, held.distance.value), (dimension, models.Distance.COSINE.value)
        return "" if found == wanted else f"The collection {self.name} is of {found}, not {wanted}"

    def replace(self, dimension: int) -> None:
        """Make it anew, empty."""
        self.client.delete_collection(self.name)
        self._create(dimension)

    def _create(self, dimension: int) -> None:
        vectors = models.VectorParams(size=dimension, distance=models.Distance.COSINE)
        try:
            self.client.create_collection(self.name, vectors, hnsw_config=models.HnswConfigDiff(m=0))
        except UnexpectedResponse:
            if not self.exists():  # else somebody was faster
                raise
        else:
            self.generation += 1

    def _info(self) -> models.CollectionInfo:
        return self.client.get_collection(self.name)


class _Index:
    """One user's points in a collection: what both kinds have in common. See the port."""

    def __init__(self, collection: _Collection, place: Place) -> None:
        self._collection, self._place = collection, place
        self._client, self._name = collection.client, collection.name
        self._closed = False

    def search(self, vector: Vector, limit: int, where: Filter) -> list[Hit]:
        """See the port."""
        query = as_list(vector, self._place.dimension)
        if limit < 1:
            return []
        with self._calling("searching"):
            found = self._client.query_points(
                self._name,
                query,
                query_filter=self._filter(*map(condition, pushed_down(where))),
                search_params=self._collection.exact,
                limit=limit,
                with_payload=[MEMORY],
            )
            return [Hit(field(point, MEMORY), float(point.score)) for point in found.points]

    def upsert(self, points: Sequence[Point]) -> None:
        """See the port."""
        for batch in batches(points):
            structs = [struct(self._point_id(point.memory_id), point, self._place) for point in batch]
            with self._changing("writing to", size=sum(map(size_of, batch))):
                self._client.upsert(self._name, structs, wait=True)

    def remove(self, memory_ids: Collection[str]) -> None:
        """See the port."""
        if not memory_ids:
            return
        selector = self._selector([self._point_id(memory_id) for memory_id in memory_ids])
        with self._changing("deleting from", size=0):
            self._client.delete(self._name, selector, wait=True)

    def flush(self) -> None:
        """See the port. Every change was waited for."""

    def entries(self) -> dict[str, str]:
        """See the port."""
        versions: dict[str, str] = {}
        following: Any = None
        while True:
            with self._calling("listing"):
                records, following = self._client.scroll(
                    self._name, self._filter(), limit=_PAGE, offset=following, with_payload=[MEMORY, VERSION]
                )
                versions.update((field(record, MEMORY), field(record, VERSION)) for record in records)
            if following is None:
                return versions

    def vectors(self, memory_ids: Sequence[str]) -> dict[str, Vector]:
        """See the port."""
        held: dict[str, Vector] = {}
        dimension = self._place.dimension
        count = max(1, REQUEST // (DIGITS * dimension))
        for start in range(0, len(memory_ids), count):
            ids = [self._point_id(memory_id) for memory_id in memory_ids[start : start + count]]
            with self._calling("reading"):
                records = self._client.retrieve(self._name, ids, with_payload=[MEMORY, USER], with_vectors=True)
                mine = {field(r, MEMORY): r for r in records if field(r, USER) == self._place.user_id}
                held.update((name, as_vector(r.vector, dimension, name)) for name, r in mine.items())
        return held

    def count(self) -> int:
        """See the port."""
        with self._calling("counting"):
            return self._client.count(self._name, self._filter(), exact=True).count

    def compact(self) -> None:
        """See the port. A server does so by itself, and local mode uses the space again."""

    def close(self) -> None:
        """See the port."""
        self._closed = True

    # -- what differs

    def _point_id(self, memory_id: str) -> str:
        return memory_id

    def _filter(self, *conditions: models.Condition) -> models.Filter | None:
        return models.Filter(must=list(conditions)) if conditions else None

    def _selector(self, point_ids: list[str]) -> models.FilterSelector | models.PointIdsList:
        return models.PointIdsList(points=list(point_ids))

    @contextmanager
    def _calling(self, doing: str) -> Iterator[None]:
        with self._collection.calling(doing):
            if self._closed:
                raise VectorIndexUnavailable("The vector index is closed", hint="open it again")
            yield

    def _changing(self, doing: str, *, size: int) -> AbstractContextManager[None]:  # noqa: ARG002
        return self._calling(doing)


class _LocalIndex(_Index):
    """All points of a collection."""

    def __init__(self, collection: _Collection, folder: IndexFolder, place: Place) -> None:
        super().__init__(collection, place)
        self._folder = folder

    def flush(self) -> None:
        """See the port. Every change was committed; what remains is to note how long the files are."""
        with self._calling("flushing"):
            self._folder.record()

    def close(self) -> None:
        """See the port."""
        with suppress(StoreError), self._collection.calling("closing"):  # every change was committed
            self._closed = True
            self._client.close()

    @contextmanager
    def _changing(self, doing: str, *, size: int) -> Iterator[None]:
        with self._calling(doing):
            self._folder.require_space(size)
            yield


class _ServerIndex(_Index):
    """The user's share of a collection."""

    def __init__(self, collection: _Collection, place: Place) -> None:
        super().__init__(collection, place)
        self._mine = equals(USER, place.user_id)
        self._ours = equals(MODEL, place.model)
        self._generation = collection.generation

    def count_strange(self) -> int:
        """Number of the user's points that are of another model."""
        other = models.Filter(must=[self._mine], must_not=[equals(MODEL, self._place.model)])
        with self._calling("opening"):
            return self._client.count(self._name, other, exact=True).count

    def _point_id(self, memory_id: str) -> str:
        return str(uuid.uuid5(uuid.UUID(memory_id), self._place.user_id))

    def _filter(self, *conditions: models.Condition) -> models.Filter:
        return models.Filter(must=[self._mine, self._ours, *conditions])

    def _selector(self, point_ids: list[str]) -> models.FilterSelector:
        return models.FilterSelector(filter=self._filter(models.HasIdCondition(has_id=list(point_ids))))

    @contextmanager
    def _calling(self, doing: str) -> Iterator[None]:
        with super()._calling(doing):
            if self._generation != self._collection.generation:
                raise VectorIndexDamaged(f"The collection {self._name} has been made anew meanwhile")
            yield


def _opened(folder: IndexFolder, place: Place) -> _Collection:
    """A client in local mode with its one collection."""
    fresh = not folder.exists()
    if fresh:
        folder.create()
        folder.require_space(0)
    else:
        folder.check(place)
    client = QdrantClient(path=str(folder.data), force_disable_check_same_thread=True)
    try:
        collection = _Collection(client, "memories")
        if not fresh and not collection.exists():
            raise VectorIndexDamaged(f"The vector index at {folder.path} has lost its collection")
        collection.ensure(place.dimension)
    except BaseException:
        client.close()
        raise
    if fresh:
        folder.claim(place)
    return collection


def _connect(url: str, api_key: str | None, timeout: float) -> QdrantClient:
    # Given as api_key, the client warns on standard error where the connection is not encrypted.
    headers = {"api-key": api_key} if api_key else None
    try:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError("no server is named")
        return QdrantClient(url=url, timeout=math.ceil(timeout), headers=headers, check_compatibility=False)
    except ValueError as error:
        raise ConfigError(f"qdrant_url {url!r}, or qdrant_api_key, cannot be used: {type(error).__name__}") from error
