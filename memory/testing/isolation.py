"""Users are strangers to each other."""

from __future__ import annotations

import io
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from memory.core.errors import InvalidValue, NotFound
from memory.core.ports import Vector, Vectors
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import StorageProvider
from memory.testing.base import OpenStore, SuiteBase, everything


class SlowEmbedder(HashingEmbedder):
    """Takes a random moment, so that calls of different users overlap."""

    def embed_documents(self, texts: list[str]) -> Vectors:  # type: ignore[override]  # narrower on purpose
        """Embed after a moment."""
        time.sleep(random.random() / 200)  # noqa: S311  timing, not secrets
        return super().embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        """Embed after a moment."""
        time.sleep(random.random() / 200)  # noqa: S311  timing, not secrets
        return super().embed_query(text)


class IsolationTests(SuiteBase):
    """No verb reaches another user's memories."""

    def test_another_users_id_is_answered_like_a_missing_one(self, store: StorageProvider) -> None:
        mine = store.add_memory("secret of a", user_id="a")
        missing = "00000000-0000-4000-8000-000000000000"
        for call in (
            lambda i: store.get_memory(i, user_id="b"),
            lambda i: store.update_memory(i, user_id="b", content="taken"),
            lambda i: store.archive_memory(i, user_id="b"),
            lambda i: store.delete_memory(i, user_id="b"),
        ):
            answers = []
            for memory_id in (mine.memory_id, missing):
                with pytest.raises(NotFound) as caught:
                    call(memory_id)
                answers.append((caught.value.message, caught.value.hint))
            assert answers[0] == answers[1]
        assert store.get_memory(mine.memory_id, user_id="a") == mine

    def test_recall_listing_and_export_show_one_users_memories(self, store: StorageProvider) -> None:
        store.add_memory("shared words, text of a", user_id="a", tags=["t"])
        store.add_memory("shared words, text of b", user_id="b", tags=["t"])
        assert [hit.memory.user_id for hit in store.recall("shared words", user_id="a")] == ["a"]
        assert [m.user_id for m in store.list_memories(user_id="a", filters={"tags_any": ["t"]}).items] == ["a"]
        target = io.BytesIO()
        assert store.export_memories(target, user_id="a").memories == 1
        assert b"text of b" not in target.getvalue()

    def test_user_ids_are_taken_literally(self, store: StorageProvider) -> None:
        names = [
            "u",
            "U",
            "u ",
            "ú",
            "u%",
            "_",
            "*",
            "用户",
            "u' OR 'a'='a",
            "u\n",
            "a" * 512,
            "user:1",
            "user:10",
        ]
        for name in names:
            store.add_memory(f"memory of {name!r}", user_id=name)
        for name in names:
            assert [m.content for m in everything(store, name)] == [f"memory of {name!r}"]
            assert [hit.memory.content for hit in store.recall("memory", user_id=name)] == [f"memory of {name!r}"]

    def test_an_empty_user_never_means_everyone(self, store: StorageProvider) -> None:
        store.add_memory("kept", user_id="a")
        for user_id in ("", " "):
            with pytest.raises(InvalidValue):
                store.export_memories(io.BytesIO(), user_id=user_id)
            with pytest.raises(InvalidValue):
                store.stats(user_id=user_id)

    def test_alternating_users_in_many_threads_never_mix(self, open_store: OpenStore) -> None:
        store = open_store(embedder=SlowEmbedder(), pool_size=2)

        def turn(i: int) -> None:
            user = f"user-{i % 7}"
            added = store.add_memory(f"common words, note {i} of {user}", user_id=user)
            assert added.user_id == user
            for hit in store.recall("common words", user_id=user, top_k=50):
                assert hit.memory.user_id == user
                assert hit.memory.content.endswith(user)

        with ThreadPoolExecutor(10) as threads:
            list(threads.map(turn, range(140)))
        assert [len(everything(store, f"user-{n}")) for n in range(7)] == [20] * 7
