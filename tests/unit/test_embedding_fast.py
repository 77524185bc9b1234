"""The fastembed adapter, against a stand-in.

fastembed downloads its models, which tests must not; the stand-in has the signatures of fastembed 0.4 to
0.9 (``list_supported_models``, ``TextEmbedding(model_name, cache_dir=…)``, ``passage_embed``,
``query_embed``), so what is tested here is the adapter, not fastembed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from memory.core.errors import ConfigError, EmbeddingInvalid, EmbeddingUnavailable, Unsupported
from memory.core.ports import Embedder
from memory.embedding.factory import embedder_from
from memory.embedding.fast import FastembedEmbedder

MODEL = "BAAI/bge-small-zh-v1.5"


class StandIn:
    """Two-dimensional vectors: (characters, 1 for a passage or -1 for a question)."""

    made: ClassVar[list[tuple[str, str | None]]] = []
    inside: ClassVar[int] = 0
    failure: ClassVar[Exception | None] = None
    spoilt: ClassVar[bool] = False

    def __init__(self, model_name: str, cache_dir: str | None = None) -> None:
        if self.failure is not None:
            raise self.failure
        self.made.append((model_name, cache_dir))

    @classmethod
    def list_supported_models(cls) -> list[dict[str, Any]]:
        return [{"model": "other", "dim": 5}, {"model": MODEL, "dim": 2}]

    def passage_embed(self, texts: Iterable[str], batch_size: int = 256) -> Iterator[Any]:
        assert batch_size == 64
        for text in texts:
            type(self).inside += 1
            assert self.inside == 1, "two calls at once"
            text.encode("utf-8")
            yield np.array([len(text), 0 if not self.spoilt else np.nan, 1][: 3 if self.spoilt else 2])
            type(self).inside -= 1

    def query_embed(self, query: str | Iterable[str]) -> Iterator[Any]:
        for text in query:
            yield np.array([len(text), -1.0])


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    fresh = type("Fresh", (StandIn,), {"made": [], "inside": 0, "failure": None, "spoilt": False})
    module = ModuleType("fastembed")
    module.TextEmbedding = fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastembed", module)
    return fresh


def test_the_model_is_known_without_being_loaded(stand_in: type[StandIn]) -> None:
    embedder = embedder_from(f"fastembed:{MODEL}", similarity_floor=0.4)
    assert isinstance(embedder, FastembedEmbedder)
    assert isinstance(embedder, Embedder)
    assert embedder.name == f"{MODEL}@fastembed"
    assert (embedder.dimension, embedder.similarity_floor) == (2, 0.4)
    assert embedder.embed_documents([]).shape == (0, 2)
    assert stand_in.made == []


def test_passages_and_questions_go_their_own_ways_and_come_back_as_unit_vectors(
    stand_in: type[StandIn],
) -> None:
    embedder = FastembedEmbedder(MODEL, cache_dir="/models")
    rows = embedder.embed_documents(["abc", "\ud800\0"])
    assert rows == pytest.approx(np.array([[1.0, 0.0], [1.0, 0.0]]))
    query = embedder.embed_query("a")
    assert query == pytest.approx([0.5**0.5, -(0.5**0.5)])
    assert query.shape == (2,)
    assert rows.dtype == query.dtype == np.float32
    assert stand_in.made == [(MODEL, "/models")]


def test_prefixes_are_put_before_the_texts_and_stored_ones_are_part_of_the_name(
    stand_in: type[StandIn],
) -> None:
    embedder = embedder_from(f"fastembed:{MODEL}", query_prefix="query: ", document_prefix="passage: ")
    assert embedder.name == f"{MODEL}@fastembed+passage:"
    assert embedder.embed_query("abc") == pytest.approx(np.array([10.0, -1.0]) / 101**0.5)
    assert embedder.embed_documents(["abc"]).shape == (1, 2)


def test_threads_take_turns_and_load_once(stand_in: type[StandIn]) -> None:
    embedder = FastembedEmbedder(MODEL)
    threads = [threading.Thread(target=embedder.embed_documents, args=(["a"] * 50,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stand_in.made) == 1
    assert stand_in.inside == 0


def test_close_forgets_the_model_and_a_later_call_loads_it_again(stand_in: type[StandIn]) -> None:
    embedder = FastembedEmbedder(MODEL)
    embedder.embed_query("a")
    embedder.close()
    embedder.close()
    embedder.embed_query("a")
    assert len(stand_in.made) == 2


@pytest.mark.parametrize("failure", [ValueError("Could not load model from any source."), OSError("disk full")])
def test_a_failed_download_can_be_tried_again(stand_in: type[StandIn], failure: Exception) -> None:
    embedder = FastembedEmbedder(MODEL)
    stand_in.failure = failure
    with pytest.raises(EmbeddingUnavailable, match="network") as caught:
        embedder.embed_query("a")
    assert caught.value.__cause__ is failure
    stand_in.failure = None
    assert embedder.embed_query("a").shape == (2,)


def test_an_unusable_vector_is_refused(stand_in: type[StandIn]) -> None:
    stand_in.spoilt = True
    with pytest.raises(EmbeddingInvalid) as caught:
        FastembedEmbedder(MODEL).embed_documents(["a"])
    assert caught.value.index == 0


def test_names_are_looked_up_as_fastembed_does(stand_in: type[StandIn]) -> None:
    assert FastembedEmbedder(MODEL.lower()).dimension == 2
    with pytest.raises(ConfigError, match="no model 'unheard-of'"):
        FastembedEmbedder("unheard-of")
    with pytest.raises(ConfigError, match="has 2, not 3"):
        embedder_from(f"fastembed:{MODEL}", dimension=3)
    with pytest.raises(ConfigError, match="batch_size"):
        FastembedEmbedder(MODEL, batch_size=0)


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastembed", None)
    with pytest.raises(Unsupported, match=r'pip install "nightingale-memory\[fastembed\]"'):
        embedder_from(f"fastembed:{MODEL}")
