"""The HTTP embedder against a real server on this machine: requests, retries, time."""

from __future__ import annotations

import base64
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

import numpy as np
import pytest

from memory.core.errors import (
    EmbeddingError,
    EmbeddingInvalid,
    EmbeddingUnavailable,
    UsageError,
)
from memory.core.ports import Embedder
from memory.embedding.http import HttpEmbedder
from tests.integration.embedding_service import (
    KEY,
    MODEL,
    Handler,
    Make,
    Reply,
    Service,
    answers,
    drips,
    drops_mid_body,
    fails,
    good,
    hangs_up,
    stays_silent,
)


def test_texts_become_unit_vectors_in_their_order(service: Service, embedder: HttpEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    rows = embedder.embed_documents(["one", "two", "三"])
    assert rows == pytest.approx(MODEL.embed_documents(["one", "two", "三"]), abs=1e-6)
    assert rows.dtype == np.float32
    query = embedder.embed_query("two")
    assert query.shape == (8,)
    assert query.dtype == np.float32
    assert np.linalg.norm(query) == pytest.approx(1.0, abs=1e-6)
    assert service.requests[0] == {"model": "m", "input": ["one", "two", "三"], "encoding_format": "float"}
    assert service.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_without_a_key_no_authorization_is_sent(service: Service, make: Make) -> None:
    make(api_key=None, dimension=8).embed_query("a")
    assert "Authorization" not in service.headers[0]


def test_vectors_of_any_length_are_scaled_to_one(service: Service, embedder: HttpEmbedder) -> None:
    service.script = [answers(lambda d: [{**e, "embedding": [v * 40 for v in e["embedding"]]} for e in d])]
    assert np.linalg.norm(embedder.embed_query("a")) == pytest.approx(1.0, abs=1e-6)


def test_prefixes_dimensions_and_encoding_are_asked_for(service: Service, make: Make) -> None:
    embedder = make(
        dimension=8,
        request_dimensions=True,
        encoding_format=None,
        query_prefix="query: ",
        document_prefix="passage: ",
    )
    embedder.embed_query("a")
    embedder.embed_documents(["b"])
    assert service.requests == [
        {"model": "m", "input": ["query: a"], "dimensions": 8},
        {"model": "m", "input": ["passage: b"], "dimensions": 8},
    ]
    assert embedder.name == "m@8+passage:"


def test_odd_texts_can_be_sent(service: Service, embedder: HttpEmbedder) -> None:
    embedder.embed_documents(["", "a\0b", "\ud800", "\ud83d\ude42"])
    assert service.requests[0]["input"] == [" ", "a b", "\ufffd", "🙂"]


@pytest.mark.parametrize("asked", ["float", "base64"])
def test_base64_is_understood_whether_asked_for_or_not(service: Service, make: Make, asked: Any) -> None:
    def encode(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            entry["embedding"] = base64.b64encode(struct.pack("<8f", *entry["embedding"])).decode()

    service.otherwise = answers(encode)
    rows = make(dimension=8, encoding_format=asked).embed_documents(["one", "two"])
    assert rows == pytest.approx(MODEL.embed_documents(["one", "two"]), abs=1e-6)
    assert service.requests[0]["encoding_format"] == asked


def test_the_order_of_the_answer_does_not_matter(service: Service, embedder: HttpEmbedder) -> None:
    service.script = [answers(lambda d: d[::-1])]
    texts = ["one", "two", "three"]
    assert embedder.embed_documents(texts) == pytest.approx(MODEL.embed_documents(texts), abs=1e-6)


def test_a_huge_list_is_split_by_number_and_by_characters(service: Service, make: Make) -> None:
    texts = [str(number) for number in range(150)]
    rows = make(dimension=8).embed_documents(texts)
    assert rows == pytest.approx(MODEL.embed_documents(texts), abs=1e-6)
    assert [len(request["input"]) for request in service.requests] == [64, 64, 22]
    service.requests.clear()
    make(dimension=8, batch_characters=10).embed_documents(["aaaa", "bbbb", "cccc", "d" * 50, "e", "f"])
    assert [[text[0] for text in request["input"]] for request in service.requests] == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e", "f"],
    ]


def test_the_dimension_is_learnt_by_one_request_however_many_ask(service: Service, make: Make) -> None:
    embedder = make()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: embedder.dimension, range(8))) == {8}
    assert len(service.requests) == 1


def test_the_dimension_is_learnt_from_the_first_answer_too(service: Service, make: Make) -> None:
    embedder = make()
    embedder.embed_documents(["a"])
    assert embedder.dimension == 8
    assert embedder.embed_documents([]).shape == (0, 8)
    assert len(service.requests) == 1


def test_no_text_sends_nothing_when_the_dimension_is_given(service: Service, embedder: HttpEmbedder) -> None:
    empty = embedder.embed_documents([])
    assert empty.shape == (0, 8)
    assert empty.dtype == np.float32
    assert service.requests == []


def test_a_dimension_that_changes_is_refused(service: Service, make: Make) -> None:
    embedder = make()
    embedder.embed_query("a")
    service.script = [answers(lambda d: [{**e, "embedding": e["embedding"][:4]} for e in d])]
    with pytest.raises(EmbeddingInvalid, match="4 dimensions, not 8") as caught:
        embedder.embed_documents(["b"])
    assert caught.value.index == 0


@pytest.mark.parametrize(
    "trouble",
    [fails(status) for status in (408, 409, 425, 429, 500, 502, 503, 504)]
    + [drops_mid_body, hangs_up, fails(200, {"error": {"code": 429, "message": "slow down"}})],
)
def test_passing_trouble_is_waited_out(
    service: Service, embedder: HttpEmbedder, waits: list[float], trouble: Reply
) -> None:
    service.script = [trouble, trouble]
    assert embedder.embed_documents(["one"]) == pytest.approx(MODEL.embed_documents(["one"]), abs=1e-6)
    assert len(service.requests) == 3
    assert 0.25 <= waits[0] <= 0.5 <= waits[1] <= 1.0


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "9", "retry_after_ms": "2500"}, 2.5),
        ({"Date": formatdate(1_000_000_000), "Retry_After": formatdate(1_000_000_011, usegmt=True)}, 11.0),
    ],
)
def test_retry_after_is_honoured(
    service: Service, embedder: HttpEmbedder, waits: list[float], headers: dict[str, str], wait: float
) -> None:
    def reply(handler: Handler, _: list[str]) -> None:
        handler.send_response_only(429)  # without a Date of its own
        for key, value in headers.items():
            handler.send_header(key.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    service.script = [reply]
    embedder.embed_query("a")
    assert waits == [wait]


@pytest.mark.parametrize("value", ["-5", "soon", "nan", "inf", "Mon, 99 Foo 2020 00:00:00 GMT", ""])
def test_an_unreadable_retry_after_is_ignored(
    service: Service, embedder: HttpEmbedder, waits: list[float], value: str
) -> None:
    service.script = [fails(429, Retry_After=value)]
    embedder.embed_query("a")
    assert 0.25 <= waits[0] <= 0.5


def test_a_retry_after_beyond_the_waiting_time_gives_up_at_once(
    service: Service, embedder: HttpEmbedder, waits: list[float]
) -> None:
    service.script = [fails(429, {"error": {"message": "quota used up"}}, Retry_After="3600")]
    with pytest.raises(EmbeddingUnavailable, match="answered 429: quota used up") as caught:
        embedder.embed_query("a")
    assert (caught.value.status, caught.value.retry_after, caught.value.attempts) == (429, 3600.0, 1)
    assert caught.value.retryable
    assert waits == []


def test_attempts_are_bounded_for_each_request(service: Service, embedder: HttpEmbedder, waits: list[float]) -> None:
    service.otherwise = fails(503)
    with pytest.raises(EmbeddingUnavailable) as caught:
        embedder.embed_documents(["a"])
    assert (len(service.requests), len(waits), caught.value.attempts) == (4, 3, 4)


def test_waiting_is_bounded_for_the_whole_call(service: Service, make: Make, waits: list[float]) -> None:
    embedder = make(dimension=8, batch_size=1, max_wait=5.0, max_attempts=100)
    service.script = [fails(429, Retry_After="2"), good, fails(429, Retry_After="2"), good, fails(429)]
    service.otherwise = fails(429, Retry_After="2")
    with pytest.raises(EmbeddingUnavailable):
        embedder.embed_documents(["a", "b", "c"])
    assert sum(waits) <= 5.0
    assert waits[:2] == [2.0, 2.0]


def test_a_service_that_is_not_there_is_unavailable(make: Make, waits: list[float]) -> None:
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        embedder = make(base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1", dimension=8)
        with pytest.raises(EmbeddingUnavailable, match="ConnectError") as caught:
            embedder.embed_query("a")
    assert len(waits) == 3
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("trouble", [stays_silent, drips])
def test_a_service_that_does_not_finish_in_time_is_unavailable(service: Service, make: Make, trouble: Reply) -> None:
    service.otherwise = trouble
    started = time.monotonic()
    with pytest.raises(EmbeddingUnavailable, match=r"within 0\.2 s"):
        make(dimension=8, timeout=0.2, max_attempts=2).embed_query("a")
    assert time.monotonic() - started < 3.0
    assert len(service.requests) == 2


def test_a_timeout_is_waited_out(service: Service, make: Make) -> None:
    service.script = [stays_silent]
    assert make(dimension=8, timeout=0.3).embed_query("one").shape == (8,)


def test_threads_share_one_embedder(service: Service, embedder: HttpEmbedder) -> None:
    texts = [str(number) for number in range(20)]
    expected = MODEL.embed_documents(texts)
    with ThreadPoolExecutor(8) as pool:
        for rows in pool.map(lambda _: embedder.embed_documents(texts), range(16)):
            assert rows == pytest.approx(expected, abs=1e-6)


def test_a_closed_embedder_says_so(service: Service, embedder: HttpEmbedder) -> None:
    embedder.embed_query("a")
    embedder.close()
    embedder.close()
    with pytest.raises(UsageError, match="closed") as caught:
        embedder.embed_query("a")
    assert not isinstance(caught.value, EmbeddingError)
