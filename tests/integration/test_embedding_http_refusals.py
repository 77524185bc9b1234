"""The HTTP embedder against a real server on this machine: unusable answers, refusals, secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memory.core.errors import (
    EmbeddingInvalid,
    EmbeddingRejected,
)
from memory.embedding.http import HttpEmbedder
from tests.integration.embedding_service import (
    KEY,
    MODEL,
    Handler,
    Make,
    Service,
    answers,
    fails,
    good,
    poisoned_by,
)


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
        (lambda e: e.update(embedding=None), "missing"),
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
def test_an_answer_that_is_no_json_object_is_refused(service: Service, embedder: HttpEmbedder, body: bytes) -> None:
    service.script = [lambda handler, _: handler.send(200, body)]
    with pytest.raises(EmbeddingInvalid, match="without a list of vectors"):
        embedder.embed_query("a")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_poisoned_item_among_five_is_named(service: Service, embedder: HttpEmbedder, status: int) -> None:
    service.otherwise = poisoned_by("poison", status)
    with pytest.raises(EmbeddingRejected, match=r"item 3: .*not acceptable") as caught:
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


def test_a_batch_that_is_only_too_large_is_halved_and_succeeds(service: Service, embedder: HttpEmbedder) -> None:
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
    with pytest.raises(EmbeddingRejected, match=r"answered 400: .*(withheld|too long)") as caught:
        embedder.embed_documents(["the PIN of my card is 4711, 我的银行卡密码是四七一一"])
    assert not any(part in str(caught.value) for part in ("PIN", "4711", "银行", "94f6"))


def test_a_long_explanation_is_cut_to_one_short_line(service: Service, embedder: HttpEmbedder) -> None:
    service.otherwise = fails(404, {"error": {"message": "no\nsuch model " + "x" * 5000}})
    with pytest.raises(EmbeddingRejected) as caught:
        embedder.embed_query("a")
    assert len(caught.value.message) < 260
    assert "\n" not in caught.value.message
