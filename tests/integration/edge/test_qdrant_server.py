"""The adapter for a Qdrant server, over real sockets: what it asks for, and what failures mean."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient, models

from edge.vectors.client import QdrantServerFactory
from edge.vectors.payload import FIELDS
from edge.vectors.port import VectorIndex
from memory.core.errors import ConfigError, StoreUnavailable, VectorIndexDamaged, VectorIndexUnavailable
from memory.policies.admission import Filter
from tests.integration.edge.indexes import DIMENSION, Kit, assert_exact, everything, make_points
from tests.integration.edge.qdrant_stub import (
    KEY,
    Handler,
    QdrantStub,
    answering,
    hanging_up,
    saying,
    silent,
)

POINTS = make_points(20)
ASKED = POINTS[0].vector
COLLECTION = "memories"


@pytest.fixture
def stub() -> Iterator[QdrantStub]:
    made = QdrantStub()
    made.start()
    yield made
    made.stop()


def make(url: str, tmp_path: Path, **settings: Any) -> Kit:
    return Kit("http", QdrantServerFactory(url, **{"collection": COLLECTION, "timeout": 1.0, **settings}), tmp_path)


@pytest.fixture
def kit(stub: QdrantStub, tmp_path: Path) -> Iterator[Kit]:
    made = make(stub.url, tmp_path)
    yield made
    made.factory.close()


@pytest.fixture
def index(kit: Kit) -> Iterator[VectorIndex]:
    with kit.opened() as opened:
        opened.upsert(POINTS)
        yield opened


def calls(kit: Kit, index: VectorIndex) -> dict[str, Callable[[], object]]:
    return {
        "open": lambda: kit.factory.open(kit.place()),
        "discard": lambda: kit.factory.discard(kit.place()),
        "search": lambda: index.search(ASKED, 5, Filter()),
        "upsert": lambda: index.upsert(POINTS),
        "remove": lambda: index.remove([POINTS[0].memory_id]),
        "entries": index.entries,
        "vectors": lambda: index.vectors([POINTS[0].memory_id]),
        "count": index.count,
    }


FAULTS: dict[str, tuple[Callable[[Handler], None], str]] = {
    "unauthorized": (saying(401, "Must provide an API key"), "qdrant_api_key"),
    "forbidden": (answering(403, b"Invalid API key", "text/plain"), "qdrant_api_key"),
    "somebody else": (answering(404, b"<html>no such page</html>", "text/html"), "qdrant_url"),
    "no such page": (answering(404, b'{"detail": "Not Found"}'), "qdrant_url"),
    "too many": (saying(429, "Rate limit exceeded"), ""),
    "internal": (saying(500, "Service internal error: No space left on device"), ""),
    "gateway": (answering(502, b"<html>bad gateway</html>", "text/html"), ""),
    "overloaded": (answering(503), ""),
    "strict": (saying(400, 'Bad request: Limit exceeded 20 > 10 for "limit"'), ""),
    "moved": (answering(301, b""), ""),
    "no JSON": (answering(200, b"<html>welcome</html>", "text/html"), "qdrant_url"),
    "nothing": (answering(200, b""), "qdrant_url"),
    "another JSON": (answering(200, b'{"hello": [1, 2]}'), ""),
    "no result": (answering(200, b'{"result": null, "status": "ok", "time": 0}'), ""),
    "cut": (answering(200, b'{"result": {"exi'), "qdrant_url"),
    "hangs up": (hanging_up, ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_not_an_answer_of_qdrant_means_try_later(
    name: str, stub: QdrantStub, kit: Kit, index: VectorIndex
) -> None:
    fault, hint = FAULTS[name]
    for call in calls(kit, index).values():
        stub.fault = fault
        with pytest.raises(VectorIndexUnavailable) as caught:
            call()
        assert hint in caught.value.hint
        assert isinstance(caught.value, StoreUnavailable)
        assert caught.value.retryable
        assert caught.value.__cause__ is not None
    stub.fault = None
    assert_exact(index, POINTS, Filter())
    assert index.count() == len(POINTS)


def test_a_silent_server_is_given_up_after_the_timeout(stub: QdrantStub, kit: Kit, index: VectorIndex) -> None:
    stub.fault = silent
    started = time.monotonic()
    with pytest.raises(VectorIndexUnavailable):
        index.search(ASKED, 5, Filter())
    assert time.monotonic() - started < 3  # the stub's silence; the timeout is a third of it
    stub.fault = None
    assert_exact(index, POINTS, Filter())


def test_a_server_that_is_not_up_yet_is_found_when_it_is(tmp_path: Path) -> None:
    stub = QdrantStub()
    kit = make(stub.url, tmp_path)
    for _ in range(3):
        with pytest.raises(VectorIndexUnavailable):
            kit.factory.open(kit.place())
        with pytest.raises(VectorIndexUnavailable):
            kit.factory.discard(kit.place())
    stub.start()
    with kit.opened() as index:
        index.upsert(POINTS)
        assert_exact(index, POINTS, Filter())
    kit.factory.close()
    stub.stop()
    with pytest.raises(VectorIndexUnavailable):
        make(stub.url, tmp_path).factory.open(kit.place())


@pytest.mark.parametrize("call", ["search", "upsert", "remove", "entries", "vectors", "count"])
def test_a_collection_that_vanishes_is_damage_that_opening_mends(
    call: str, stub: QdrantStub, kit: Kit, index: VectorIndex
) -> None:
    stub.engine.delete_collection(COLLECTION)
    with pytest.raises(VectorIndexDamaged):
        calls(kit, index)[call]()
    kit.factory.discard(kit.place())
    with kit.opened() as again:
        assert again.entries() == {}
        again.upsert(POINTS)
        assert_exact(again, POINTS, Filter())


def test_a_collection_made_anew_is_damage_for_all_who_had_it_open(
    stub: QdrantStub, kit: Kit, index: VectorIndex
) -> None:
    with kit.opened(kit.place("bob")) as bob:
        bob.upsert(POINTS)
        stub.engine.delete_collection(COLLECTION)
        with kit.opened() as again:
            again.upsert(POINTS)
            for lost in (index, bob):
                with pytest.raises(VectorIndexDamaged):
                    lost.search(ASKED, 5, Filter())
            assert_exact(again, POINTS, Filter())


@pytest.mark.parametrize(
    "vectors",
    [
        models.VectorParams(size=DIMENSION, distance=models.Distance.DOT),
        models.VectorParams(size=DIMENSION, distance=models.Distance.EUCLID),
        models.VectorParams(size=DIMENSION + 1, distance=models.Distance.COSINE),
        {"text": models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)},
    ],
)
def test_a_collection_that_does_not_fit_is_damage_and_a_discard_makes_it_anew(
    vectors: Any, stub: QdrantStub, kit: Kit
) -> None:
    stub.engine.create_collection(COLLECTION, vectors)
    for _ in range(2):
        with pytest.raises(VectorIndexDamaged):
            kit.factory.open(kit.place())
    kit.factory.discard(kit.place())
    with kit.opened() as index:
        index.upsert(POINTS)
        assert_exact(index, POINTS, Filter())


def test_a_collection_that_no_longer_fits_an_open_index_is_damage(
    stub: QdrantStub, kit: Kit, index: VectorIndex
) -> None:
    stub.engine.delete_collection(COLLECTION)
    other = models.VectorParams(size=DIMENSION + 1, distance=models.Distance.COSINE)
    stub.engine.create_collection(COLLECTION, other)
    stub.fault = saying(400, f"Wrong input: Vector dimension error: expected dim: {DIMENSION + 1}, got {DIMENSION}")
    with pytest.raises(VectorIndexDamaged):
        index.upsert(POINTS)
    stub.fault = saying(400, "Wrong input: Not existing vector name error: ")
    with pytest.raises(VectorIndexDamaged):
        index.search(ASKED, 5, Filter())


def test_another_user_keeps_the_points_when_one_changes_the_model(kit: Kit, index: VectorIndex) -> None:
    with kit.opened(kit.place("bob")) as bob:
        bob.upsert(POINTS)
    moved = kit.place(model="model-b")
    with pytest.raises(VectorIndexDamaged):
        kit.factory.open(moved)
    kit.factory.discard(moved)
    with kit.opened(moved) as again:
        assert again.count() == 0
        again.upsert(POINTS)
    with kit.opened(kit.place("bob")) as bob:
        assert bob.count() == len(POINTS)


def test_every_request_names_the_user_and_every_field_is_indexed(
    stub: QdrantStub, kit: Kit, index: VectorIndex
) -> None:
    for call in calls(kit, index).values():
        call()
    mine = {"key": "user_id", "match": {"value": "ann"}}
    asked = [(what, body) for _, what, body in stub.requests if "filter" in body]
    assert {what for what, _ in asked} == {"points/query", "points/scroll", "points/count", "points/delete"}
    for what, body in asked:
        (first, *_) = body["filter"]["must"]
        assert first["key"] == mine["key"], what
        assert first["match"]["value"] == "ann", what
    unscoped = {what for method, what, body in stub.requests if method == "POST" and "filter" not in body}
    assert unscoped == {"points"}  # by ids, which are made of the user's
    searches = [body for _, what, body in stub.requests if what == "points/query"]
    assert all(body["params"]["exact"] is True for body in searches)
    assert set(stub.indexed[COLLECTION]) == FIELDS | {"user_id", "model"}


def test_a_collection_without_indexes_of_fields_gets_them(stub: QdrantStub, kit: Kit) -> None:
    fitting = models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)
    stub.engine.create_collection(COLLECTION, fitting)
    stub.indexed[COLLECTION] = {"status": {"data_type": "keyword", "points": 0}}
    with kit.opened():
        assert set(stub.indexed[COLLECTION]) == FIELDS | {"user_id", "model"}
    made = [what for method, what, _ in stub.requests if (method, what) == ("PUT", "index")]
    assert len(made) == len(FIELDS) + 1


def test_many_open_for_the_first_time_at_once(stub: QdrantStub, tmp_path: Path) -> None:
    kits = [make(stub.url, tmp_path, timeout=10.0) for _ in range(4)]
    failures: list[Exception] = []

    def use(number: int) -> None:
        try:
            with kits[number % 4].opened(kits[0].place(f"user {number}")) as index:
                index.upsert(POINTS)
                assert_exact(index, POINTS, everything())
        except Exception as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kit in kits:
        kit.factory.close()
    assert failures == []


@pytest.mark.parametrize("key", [None, "wrong", KEY])
def test_the_key_is_sent(key: str | None, stub: QdrantStub, tmp_path: Path) -> None:
    stub.api_key = KEY
    kit = make(stub.url, tmp_path, api_key=key)
    if key == KEY:
        with kit.opened() as index:
            index.upsert(POINTS)
    else:
        with pytest.raises(VectorIndexUnavailable) as caught:
            kit.factory.open(kit.place())
        assert "qdrant_api_key" in caught.value.hint
        assert KEY not in str(caught.value)
    kit.factory.close()


@pytest.mark.parametrize("url", ["", "ftp://localhost", "http://[::1", "http://localhost:port", "http://"])
def test_a_url_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="qdrant_url"):
        QdrantServerFactory(url)


def test_a_key_that_cannot_be_sent_is_refused_without_being_told() -> None:
    with pytest.raises(ConfigError, match="qdrant_api_key") as caught:
        QdrantServerFactory("http://localhost:6333", api_key="schlüssel\n")
    assert "schl" not in str(caught.value)


def test_a_client_that_was_handed_in_stays_open() -> None:
    client = QdrantClient(":memory:")
    factory = QdrantServerFactory(client=client)
    factory.close()
    assert factory.name == "qdrant-server"
    assert client.get_collections().collections == []
    client.close()
