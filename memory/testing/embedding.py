"""When the embedding model fails, nothing is lost, and the caller is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from memory.core.errors import EmbeddingError, EmbeddingInvalid, EmbeddingRejected, EmbeddingUnavailable
from memory.core.model import NewMemory
from memory.core.ports import Vector, Vectors
from memory.embedding.hashing import HashingEmbedder
from memory.testing.base import OpenStore, SuiteBase, contents


class FailingEmbedder(HashingEmbedder):
    """Fails for texts that hold a poison, or for all, until it is healed."""

    def __init__(self, error: EmbeddingError, *, poison: str = "") -> None:
        super().__init__()
        self.error, self.poison, self.healed = error, poison, False
        self.calls = 0

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed, or fail."""
        self.calls += 1
        if not self.healed and any(self.poison in text for text in texts):
            raise self.error
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        """Embed, or fail."""
        if not self.healed and self.poison in text:
            raise self.error
        return super().embed_query(text)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Give background work a moment."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class EmbeddingTests(SuiteBase):
    """Failing, late and deferred embeddings."""

    @pytest.mark.parametrize(
        "error", [EmbeddingUnavailable("down"), EmbeddingRejected("no"), EmbeddingInvalid("NaN")], ids=repr
    )
    def test_a_memory_that_cannot_be_embedded_is_kept_and_found_by_its_words(
        self, open_store: OpenStore, error: EmbeddingError
    ) -> None:
        embedder = FailingEmbedder(error)
        store = open_store(embedder=embedder, retry_interval=3_600)
        added = store.add_memory("项目代号叫夜莺", user_id="u")
        assert [notice.code for notice in added.notices] == ["embedding_deferred"]
        assert error.message in added.notices[0].message
        assert store.stats().pending_embeddings == 1
        found = store.recall("夜莺", user_id="u")
        assert contents(found) == ["项目代号叫夜莺"]
        assert found[0].relevance == pytest.approx(1.0)
        assert [notice.code for notice in found[0].memory.notices] == ["recalled_by_words"]

    def test_it_is_embedded_as_soon_as_the_model_answers(self, open_store: OpenStore) -> None:
        embedder = FailingEmbedder(EmbeddingUnavailable("down"))
        store = open_store(embedder=embedder, retry_interval=0.05)
        store.add_memory("green tea", user_id="u")
        embedder.healed = True
        wait_until(lambda: store.stats().pending_embeddings == 0)
        hit = store.recall("green tea", user_id="u")[0]
        assert hit.relevance == pytest.approx(1.0)
        assert hit.memory.notices == ()

    def test_one_bad_item_of_five_is_deferred_and_four_are_embedded(self, open_store: OpenStore) -> None:
        embedder = FailingEmbedder(EmbeddingInvalid("zero vector"), poison="bad")
        store = open_store(embedder=embedder, retry_interval=3_600)
        items = [NewMemory(content=text) for text in ("one", "two", "bad three", "four", "five")]
        added = store.add_many(items, user_id="u")
        assert [bool(memory.notices) for memory in added] == [False, False, True, False, False]
        assert store.stats().pending_embeddings == 1

    @pytest.mark.parametrize("wrong", ["short", "nan", "fewer", "text"])
    def test_an_embedder_that_returns_nonsense_spoils_nothing(self, open_store: OpenStore, wrong: str) -> None:
        class Nonsense(HashingEmbedder):
            def embed_documents(self, texts: Sequence[str]) -> Vectors:
                vectors = super().embed_documents(texts).copy()
                if not any("odd" in text for text in texts):
                    return vectors
                if wrong == "nan":
                    vectors[0, 0] = float("nan")
                answers: dict[str, Any] = {"short": vectors[:, :32], "nan": vectors, "fewer": vectors[:0], "text": "?"}
                return answers[wrong]  # type: ignore[no-any-return]  # wrong on purpose

        store = open_store(embedder=Nonsense(), retry_interval=3_600)
        added = store.add_many([NewMemory(content=text) for text in ("green tea", "odd one")], user_id="u")
        assert [bool(memory.notices) for memory in added] == [False, True]
        assert contents(store.recall("green tea", user_id="u"))[0] == "green tea"
        assert contents(store.recall("odd", user_id="u"))[0] == "odd one"

    def test_what_another_provider_left_waiting_is_embedded_too(self, open_store: OpenStore) -> None:
        self.require("shared")
        running = open_store(retry_interval=0.1)
        other = open_store(embedder=FailingEmbedder(EmbeddingUnavailable("down")), retry_interval=3_600)
        other.add_memory("green tea", user_id="u")
        other.close()
        wait_until(lambda: running.stats().pending_embeddings == 0)

    def test_an_outage_is_not_hammered_item_by_item(self, open_store: OpenStore) -> None:
        embedder = FailingEmbedder(EmbeddingUnavailable("down"))
        store = open_store(embedder=embedder, retry_interval=3_600)
        store.add_many([NewMemory(content=f"note {i}") for i in range(64)], user_id="u")
        assert embedder.calls <= 3

    def test_an_update_that_cannot_be_embedded_drops_the_old_vector(self, open_store: OpenStore) -> None:
        embedder = FailingEmbedder(EmbeddingUnavailable("down"), poison="new")
        store = open_store(embedder=embedder, retry_interval=3_600, semantic_share=1.0)
        added = store.add_memory("green tea", user_id="u")
        changed = store.update_memory(added.memory_id, user_id="u", content="new topic")
        assert [notice.code for notice in changed.notices] == ["embedding_deferred"]
        assert store.stats().pending_embeddings == 1
        assert all(hit.relevance == 0.0 for hit in store.recall("green tea", user_id="u"))

    def test_deferred_embedding_returns_before_the_model_is_asked(self, open_store: OpenStore) -> None:
        gate = threading.Event()

        class GatedEmbedder(HashingEmbedder):
            def embed_documents(self, texts: Sequence[str]) -> Vectors:
                gate.wait(30)
                return super().embed_documents(texts)

        store = open_store(embedder=GatedEmbedder(), defer_embedding=True)
        added = store.add_memory("green tea", user_id="u")
        assert added.notices == ()
        assert contents(store.recall("tea", user_id="u")) == ["green tea"]
        assert store.stats().pending_embeddings == 1
        gate.set()
        wait_until(lambda: store.stats().pending_embeddings == 0)

    def test_what_waits_is_embedded_after_opening_again(self, open_store: OpenStore) -> None:
        self.require("persistent")
        store = open_store(embedder=FailingEmbedder(EmbeddingUnavailable("down")), retry_interval=3_600)
        store.add_memory("green tea", user_id="u")
        store.close()
        again = open_store()
        wait_until(lambda: again.stats().pending_embeddings == 0)
        assert again.recall("green tea", user_id="u")[0].relevance == pytest.approx(1.0)
