"""The HTTP embedder against a real server on this machine that answers by script."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from memory.core.errors import (
    EmbeddingError,
    EmbeddingInvalid,
    EmbeddingRejected,
    EmbeddingUnavailable,
    UsageError,
)
from memory.core.ports import Embedder
from memory.embedding.hashing import HashingEmbedder
from memory.embedding.http import HttpEmbedder

KEY = "sk-test-0123456789abcdef"
MODEL = HashingEmbedder(8)
Reply = Callable[["Handler", list[str]], None]


class Handler(BaseHTTPRequestHandler):
    """Records the request and lets the next reply of the script answer it."""

    protocol_version = "HTTP/1.1"
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers))
            reply = self.server.script.pop(0) if self.server.script else self.server.otherwise
        reply(self, body["input"])

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.script: list[Reply] = []
        self.otherwise: Reply = good
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.stopping = threading.Event()

    def handle_error(self, *_: Any) -> None:
        """Stay silent: clients that give up are the point of some tests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


def data(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"index": i, "embedding": row.tolist()} for i, row in enumerate(MODEL.embed_documents(texts))]


def good(handler: Handler, texts: list[str]) -> None:
    handler.send(200, json.dumps({"data": data(texts)}).encode())


def fails(status: int, body: object = None, **headers: str) -> Reply:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda handler, _: handler.send(status, json.dumps(body).encode() if body else b"", named)


def answers(change: Callable[[list[dict[str, Any]]], Any]) -> Reply:
    """A good answer whose list of data was changed; the change returns a new list, or None for in place."""

    def reply(handler: Handler, texts: list[str]) -> None:
        entries = data(texts)
        entries = change(entries) or entries
        handler.send(200, json.dumps({"data": entries}).encode())

    return reply


def poisoned_by(word: str, status: int = 400, message: str = "This input is not acceptable") -> Reply:
    def reply(handler: Handler, texts: list[str]) -> None:
        if any(word in text for text in texts):
            handler.send(status, json.dumps({"error": {"message": message}}).encode())
        else:
            good(handler, texts)

    return reply


def drops_mid_body(handler: Handler, _: list[str]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [')
    handler.close_connection = True


def hangs_up(handler: Handler, _: list[str]) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def stays_silent(handler: Handler, _: list[str]) -> None:
    handler.server.stopping.wait(10)
    handler.close_connection = True


def drips(handler: Handler, _: list[str]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _i in range(100):
        handler.wfile.write(b" ")
        if handler.server.stopping.wait(0.05):
            break
    handler.close_connection = True


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Service() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.stopping.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def make(service: Service, waits: list[float]) -> Iterator[Callable[..., HttpEmbedder]]:
    made: list[HttpEmbedder] = []

    def build(**settings: Any) -> HttpEmbedder:
        defaults: dict[str, Any] = {"base_url": service.url, "api_key": KEY, "sleep": waits.append}
        embedder = HttpEmbedder("m", **{**defaults, **settings})
        made.append(embedder)
        return embedder

    yield build
    for embedder in made:
        embedder.close()


@pytest.fixture
def embedder(make: Callable[..., HttpEmbedder]) -> HttpEmbedder:
    return make(dimension=8)


Make = Callable[..., HttpEmbedder]


def test_texts_become_unit_vectors_in_their_order(service: Service, embedder: HttpEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    rows = embedder.embed_documents(["one", "two", "三"])
    assert rows == pytest.approx(MODEL.embed_documents(["one", "two", "三"]), abs=1e-6)
    assert rows.dtype == np.float32
    query = embedder.embed_query("two")
    assert (query.shape, query.dtype) == ((8,), np.float32)
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
    assert (empty.shape, empty.dtype) == ((0, 8), np.float32)
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


def test_attempts_are_bounded_for_each_request(
    service: Service, embedder: HttpEmbedder, waits: list[float]
) -> None:
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
def test_a_service_that_does_not_finish_in_time_is_unavailable(
    service: Service, make: Make, trouble: Reply
) -> None:
    service.otherwise = trouble
    started = time.monotonic()
    with pytest.raises(EmbeddingUnavailable, match=r"within 0\.2 s"):
        make(dimension=8, timeout=0.2, max_attempts=2).embed_query("a")
    assert time.monotonic() - started < 3.0
    assert len(service.requests) == 2


def test_a_timeout_is_waited_out(service: Service, make: Make) -> None:
    service.script = [stays_silent]
    assert make(dimension=8, timeout=0.3).embed_query("one").shape == (8,)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda e: e.update(embedding=[float("nan")] * 8), "NaN"),
        (lambda e: e.update(embedding=[float("inf")] * 8), "infinite"),
        (lambda e: e.update(embedding=[None] * 8), "NaN"),
        (lambda e: e.update(embedding=[0.0] * 8), "all zero"),
        (lambda e: e.update(embedding=[0.5] * 7), "7 dimensions, not 8"),
        (lambda e: e.update(embedding=[]), "flat list"),
        (lambda e: e.update(embedding=["x"] * 8), "list of numbers"),
        (lambda e: e.update(embedding="no base64!"), "base64"),
        (lambda e: e.update(embedding="AAA="), "base64"),
        (lambda e: e.pop("embedding"), "missing"),
    ],
)
def test_an_unusable_vector_is_refused_by_the_position_of_its_text(
    service: Service, make: Make, spoil: Callable[[dict[str, Any]], None], match: str
) -> None:
    embedder = make(dimension=8, batch_size=4)
    service.script = [good, answers(lambda d: spoil(d[2]))]
    with pytest.raises(EmbeddingInvalid, match=match) as caught:
        embedder.embed_documents([str(number) for number in range(8)])
    assert caught.value.index == 6
    assert len(service.requests) == 2  # such an answer would come again


def test_ragged_vectors_are_refused_when_no_dimension_is_known(service: Service, make: Make) -> None:
    embedder = make()
    service.script = [answers(lambda d: d[1].update(embedding=[1.0] * 9))]
    with pytest.raises(EmbeddingInvalid, match="9 dimensions, not 8") as caught:
        embedder.embed_documents(["a", "b"])
    assert caught.value.index == 1
    assert embedder.dimension == 8


@pytest.mark.parametrize(
    ("change", "match", "index"),
    [
        (lambda d: d[:-1], "did not answer for item 2", 2),
        (lambda d: d[1:], "did not answer for item 0", 0),
        (lambda d: [*d, d[1]], "answered twice for item 1", 1),
        (lambda d: [*d, {**d[0], "index": 3}], "no item it was sent", None),
        (lambda d: d[0].update(index=-1), "no item it was sent", None),
        (lambda d: d[0].update(index="0"), "no item it was sent", None),
        (lambda d: d[0].update(index=False), "no item it was sent", None),
        (lambda d: [1, 2, 3], "no item it was sent", None),
        (lambda d: {"0": d}, "without a list of vectors", None),
    ],
)
def test_every_index_must_be_there_once(
    service: Service, embedder: HttpEmbedder, change: Any, match: str, index: int | None
) -> None:
    service.script = [answers(change)]
    with pytest.raises(EmbeddingInvalid, match=match) as caught:
        embedder.embed_documents(["a", "b", "c"])
    assert caught.value.fields.get("index") == index


@pytest.mark.parametrize("body", [b"", b"<html>login</html>", b"[1]", b"{" * 100_000, b"\xff", b"null"])
def test_an_answer_that_is_no_json_object_is_refused(
    service: Service, embedder: HttpEmbedder, body: bytes
) -> None:
    service.script = [lambda handler, _: handler.send(200, body)]
    with pytest.raises(EmbeddingInvalid, match="without a list of vectors"):
        embedder.embed_query("a")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_poisoned_item_among_five_is_named(service: Service, embedder: HttpEmbedder, status: int) -> None:
    service.otherwise = poisoned_by("poison", status)
    with pytest.raises(EmbeddingRejected, match="item 3: .*not acceptable") as caught:
        embedder.embed_documents(["a", "b", "c", "poison", "e"])
    assert (caught.value.index, caught.value.status) == (3, status)
    assert not caught.value.retryable
    assert embedder.embed_documents(["a", "b", "c", "e"]).shape == (4, 8)


@pytest.mark.parametrize("count", [1, 5])
def test_the_first_item_is_named_only_after_something_else_was_accepted(
    service: Service, embedder: HttpEmbedder, count: int
) -> None:
    service.otherwise = poisoned_by("poison")
    with pytest.raises(EmbeddingRejected) as caught:
        embedder.embed_documents(["poison", "b", "c", "d", "e"][:count])
    assert caught.value.index == 0


def test_a_service_that_refuses_everything_blames_no_item(service: Service, embedder: HttpEmbedder) -> None:
    service.otherwise = fails(400, {"error": {"message": "model is gone"}})
    with pytest.raises(EmbeddingRejected, match="answered 400: model is gone") as caught:
        embedder.embed_documents(["a", "b", "c", "d"])
    assert "index" not in caught.value.fields
    assert len(service.requests) == 4  # four, two and one of them, then a harmless text


def test_a_batch_that_is_only_too_large_is_halved_and_succeeds(
    service: Service, embedder: HttpEmbedder
) -> None:
    def at_most_two(handler: Handler, texts: list[str]) -> None:
        (good if len(texts) <= 2 else fails(413))(handler, texts)

    service.otherwise = at_most_two
    texts = [str(number) for number in range(7)]
    assert embedder.embed_documents(texts) == pytest.approx(MODEL.embed_documents(texts), abs=1e-6)


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "API key"), (403, "API key"), (404, "model name"), (302, ""), (418, "")]
)
def test_other_refusals_are_final_at_once(
    service: Service, embedder: HttpEmbedder, waits: list[float], status: int, hint: str
) -> None:
    service.otherwise = fails(status, {"error": {"message": "no"}})
    with pytest.raises(EmbeddingRejected, match=f"answered {status}: no") as caught:
        embedder.embed_documents(["a", "b"])
    assert caught.value.status == status
    assert hint in caught.value.hint
    assert (len(service.requests), waits) == (1, [])


@pytest.mark.parametrize(
    "message",
    [
        f"Incorrect API key provided: {KEY}. Find yours at example.com",
        "Incorrect API key provided: sk-test-*****cdef.",
        f"bad header 'Bearer {KEY[3:]}'",
    ],
)
def test_the_key_is_never_in_an_error(service: Service, embedder: HttpEmbedder, message: str) -> None:
    service.otherwise = fails(401, {"error": {"message": message}})
    with pytest.raises(EmbeddingRejected, match="answered 401") as caught:
        embedder.embed_query("a")
    for shown in (str(caught.value), repr(caught.value), repr(caught.value.fields), repr(embedder)):
        assert KEY not in shown
        assert "cdef" not in shown


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "cannot embed 'the PIN of my card is 4711'"}},
        {"error": "cannot embed: the PIN of my ca..."},
        {"detail": [{"msg": "too long", "loc": ["input"], "input": "the PIN of my card is 4711"}]},
        {"message": "无法处理：银行卡密码…"},
        {"error": {"message": "cannot embed '\\u94f6\\u884c'"}},
    ],
)
def test_memories_are_never_in_an_error(service: Service, embedder: HttpEmbedder, body: Any) -> None:
    service.otherwise = fails(400, body)
    with pytest.raises(EmbeddingRejected, match="answered 400: .*(withheld|too long)") as caught:
        embedder.embed_documents(["the PIN of my card is 4711", "我的银行卡密码是四七一一"])
    assert not any(part in str(caught.value) for part in ("PIN", "4711", "银行", "94f6"))


def test_a_long_explanation_is_cut_to_one_short_line(service: Service, embedder: HttpEmbedder) -> None:
    service.otherwise = fails(404, {"error": {"message": "no\nsuch model " + "x" * 5000}})
    with pytest.raises(EmbeddingRejected) as caught:
        embedder.embed_query("a")
    assert len(caught.value.message) < 260
    assert "\n" not in caught.value.message


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
