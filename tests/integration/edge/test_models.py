"""The embedding model of a replica: changed at once when all is embedded, resumed where it was interrupted."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memory
from edge import reembedding
from edge.directory import folder_name
from edge.reembedding import reembed
from edge.replica import Replica
from edge.sqlite import models
from memory.core.errors import EmbeddingInvalid, EmbeddingUnavailable
from memory.core.ports import Vectors
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import StorageProvider
from memory.engine.storage import Pending
from memory.testing.base import everything
from tests.plain_index import PlainFactory, plain_index
from tests.replicas import engine_index, findings, open_replica, settle, storage_of

USERS = ("u0", "u1", "u2")


class Model(HashingEmbedder):
    """A model by name that counts what it embeds; may fail after a number of texts."""

    def __init__(self, name: str, dimension: int = 64, *, fail_after: int | None = None) -> None:
        super().__init__(dimension, name=name)
        self.embedded: list[str] = []
        self.left = fail_after
        self.closed = False

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if self.left is not None:
            self.left -= len(texts)
            if self.left < 0:
                raise EmbeddingUnavailable("the service went away")
        self.embedded += texts
        return super().embed_documents(texts)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def factory() -> PlainFactory:
    return PlainFactory()


@pytest.fixture
def path(tmp_path: Path, factory: PlainFactory) -> Path:
    """A replica of model A: three users with 70 memories each, some archived, one deleted, and one without any."""
    path = tmp_path / "replica"
    with opened(path, Model("A"), factory) as store:
        for user in USERS:
            store.add_many([memory.NewMemory(content=f"note {n} of {user}") for n in range(70)], user_id=user)
            store.archive_memory(everything(store, user)[0].memory_id, user_id=user)
            store.delete_memory(store.add_memory("to be deleted", user_id=user).memory_id, user_id=user)
        store.delete_memory(store.add_memory("the only one", user_id="empty").memory_id, user_id="empty")
        settle(store)
    return path


def opened(path: Path, model: Model, factory: PlainFactory, **settings: Any) -> StorageProvider:
    return open_replica(path, index=plain_index(factory), embedder=model, retry_interval=3_600, **settings)


def change(path: Path, model: Model, factory: PlainFactory) -> int:
    return reembed(path, model, plain_index(factory), lambda _done, _total: None)


def sql(path: Path, statement: str, user_id: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path / "users" / folder_name(user_id) / "memory.db")) as connection:
        return connection.execute(statement).fetchall()


def vectors(path: Path) -> dict[tuple[str, int, int], int]:
    """How many vectors there are by model, its dimension and their length, over all users."""
    counts: dict[tuple[str, int, int], int] = {}
    for user in USERS:
        for name, dimension, length, count in sql(
            path,
            "SELECT model, dimension, length(embedding), count(*) FROM replica, memory_vectors GROUP BY 1, 2, 3",
            user,
        ):
            counts[name, dimension, length] = counts.get((name, dimension, length), 0) + count
    return counts


def staged(path: Path) -> int:
    return sum(sql(path, "SELECT count(*) FROM staged_vectors", user)[0][0] for user in USERS)


def finds(store: StorageProvider, text: str, user_id: str) -> bool:
    [hit] = store.recall(text, user_id=user_id, top_k=1, filters={"statuses": ["active", "archived"]})
    return hit.memory.content == text and hit.relevance > 0.9


def test_every_vector_is_changed_and_the_index_follows(path: Path, factory: PlainFactory) -> None:
    steps: list[tuple[int, int]] = []
    model = Model("B", 32)
    assert reembed(path, model, plain_index(factory), lambda *step: steps.append(step)) == 210
    assert vectors(path) == {("B", 32, 128): 210}
    assert staged(path) == 0
    assert sql(path, "SELECT model, dimension FROM replica", "empty") == [("B", 32)]
    assert steps[-1] == (210, 210)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert findings(path, index=plain_index(factory)) == {}
    with opened(path, model, factory) as store:
        figures = store.stats()
        assert (figures.embedding_model, figures.embedding_dimension) == ("B", 32)
        assert (figures.pending_embeddings, figures.details["index_backlog_vectors"]) == (0, 0)
        assert all(finds(store, f"note 7 of {user}", user) for user in USERS)
        store.add_memory("added later", user_id="empty")
        assert finds(store, "added later", "empty")
    with pytest.raises(memory.ModelMismatch):
        opened(path, Model("A"), factory)


def test_the_default_index_follows_too(tmp_path: Path) -> None:
    with open_replica(tmp_path, embedder=Model("A")) as store:
        store.add_many([memory.NewMemory(content=f"note {n}") for n in range(10)], user_id="u")
        settle(store)
    assert reembed(tmp_path, Model("B", 32), engine_index, lambda *_: None) == 10
    assert findings(tmp_path) == {}
    with open_replica(tmp_path, embedder=Model("B", 32)) as store:
        assert finds(store, "note 7", "u")


def test_an_interrupted_change_keeps_the_old_model_and_resumes(path: Path, factory: PlainFactory) -> None:
    first = Model("B", 32, fail_after=100)
    with pytest.raises(EmbeddingUnavailable):
        change(path, first, factory)
    assert len(first.embedded) == staged(path) > 60
    assert vectors(path) == {("A", 64, 256): 210}
    assert findings(path, index=plain_index(factory)) == {}
    with opened(path, Model("A"), factory) as store:
        assert all(finds(store, f"note 7 of {user}", user) for user in USERS)
    second = Model("B", 32)
    assert change(path, second, factory) == 210 - len(first.embedded) == len(second.embedded)
    assert not set(first.embedded) & set(second.embedded)
    assert vectors(path) == {("B", 32, 128): 210}
    assert findings(path, index=plain_index(factory)) == {}


def test_what_changes_between_two_attempts_is_embedded_as_it_is_then(path: Path, factory: PlainFactory) -> None:
    first = Model("B", fail_after=100)
    with pytest.raises(EmbeddingUnavailable):
        change(path, first, factory)
    done = [text for text in first.embedded if text.endswith("u0")]
    with opened(path, Model("A"), factory) as store:
        by_text = {item.content: item.memory_id for item in everything(store, "u0")}
        store.update_memory(by_text[done[0]], user_id="u0", content="edited meanwhile")
        store.update_memory(by_text[done[1]], user_id="u0", importance=0.1)
        store.delete_memory(by_text[done[2]], user_id="u0")
        store.add_memory("added meanwhile", user_id="u2")
    second = Model("B")
    change(path, second, factory)
    assert {"edited meanwhile", "added meanwhile"} <= set(second.embedded)
    assert not {done[1], done[2]} & set(second.embedded)
    assert vectors(path) == {("B", 64, 256): 210}
    with opened(path, Model("B"), factory) as store:
        assert finds(store, "edited meanwhile", "u0")
        assert finds(store, "added meanwhile", "u2")
        assert finds(store, done[1], "u0")
    assert findings(path, index=plain_index(factory)) == {}


def test_memories_that_wait_for_a_vector_get_one_of_the_new_model(path: Path, factory: PlainFactory) -> None:
    with opened(path, Model("A", fail_after=0), factory) as store:
        assert store.add_memory("waits", user_id="u1").notices
        assert store.stats().pending_embeddings == 1
    assert change(path, Model("B"), factory) == 211
    with opened(path, Model("B"), factory) as store:
        assert store.stats().pending_embeddings == 0
        assert finds(store, "waits", "u1")


def test_what_waits_is_embedded_on_demand_even_while_somebody_else_is_looking(
    path: Path, factory: PlainFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, go_on = threading.Event(), threading.Event()
    as_it_is = models.pending

    def slowly(*args: Any, **more: Any) -> list[Pending]:
        if threading.current_thread() is not threading.main_thread():
            looking.set()
            go_on.wait(60)
        return as_it_is(*args, **more)

    with opened(path, Model("A", fail_after=0), factory) as store:
        store.add_memory("waits", user_id="u0")
    monkeypatch.setattr("edge.storage.models.pending", slowly)
    with opened(path, Model("A"), factory) as store:
        assert looking.wait(60), "the background looks for what waits as soon as a provider is open"
        assert store.embed_pending() == 1
        assert store.stats().pending_embeddings == 0
        go_on.set()


def test_a_user_written_to_is_looked_at_again(path: Path, factory: PlainFactory) -> None:
    with opened(path, Model("A"), factory, defer_embedding=True) as store:
        store._backlog.stop()
        storage = storage_of(store)
        assert storage.pending(10, after=None) == []
        added = store.add_memory("waits", user_id="u1")
        assert [item.memory_id for item in storage.pending(10, after=None)] == [added.memory_id]
        assert [item.memory_id for item in storage.pending(10, after=None)] == [added.memory_id]
        assert storage.pending(10, after=("u1", added.memory_id)) == []
        assert [item.memory_id for item in storage.pending(10, after=None)] == [added.memory_id]


def test_a_user_that_could_not_be_looked_at_is_looked_at_again(
    path: Path, factory: PlainFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> list[Pending]:
        raise memory.StoreBusy

    with opened(path, Model("A"), factory, defer_embedding=True) as store:
        store._backlog.stop()
        added = store.add_memory("waits", user_id="u1")
        with monkeypatch.context() as patched:
            patched.setattr("edge.storage.models.pending", busy)
            assert storage_of(store).pending(10, after=None) == []
        assert [item.memory_id for item in storage_of(store).pending(10, after=None)] == [added.memory_id]


def test_a_change_that_ends_between_two_users_is_completed_by_whoever_opens(
    path: Path, factory: PlainFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    visited: list[str] = []

    def dies(replica: Replica) -> int:
        visited.append(replica.user_id)
        if len(visited) == 2:
            raise KeyboardInterrupt
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(reembedding, "_settle", dies)
        with pytest.raises(KeyboardInterrupt):
            change(path, Model("B", 32), factory)
    with pytest.raises(memory.ModelMismatch):
        opened(path, Model("A"), factory)
    late = Model("B", 32)
    with opened(path, late, factory) as store:
        assert all(finds(store, f"note 7 of {user}", user) for user in USERS)
        settle(store)
    assert late.embedded == []
    assert vectors(path) == {("B", 32, 128): 210}
    assert findings(path, index=plain_index(factory)) == {}


def test_changing_to_the_same_model_embeds_nothing(path: Path, factory: PlainFactory) -> None:
    same = Model("A")
    factory.points.clear()
    assert change(path, same, factory) == 0
    assert same.embedded == []
    assert findings(path, index=plain_index(factory)) == {}


def test_vectors_staged_in_another_dimension_are_not_taken_for_those_of_the_model(
    path: Path, factory: PlainFactory
) -> None:
    with pytest.raises(EmbeddingUnavailable):
        change(path, Model("B", 32, fail_after=100), factory)
    assert change(path, Model("B", 16), factory) == 210
    assert vectors(path) == {("B", 16, 64): 210}
    assert findings(path, index=plain_index(factory)) == {}


def test_a_change_that_was_given_up_leaves_nothing_behind_a_later_one(path: Path, factory: PlainFactory) -> None:
    with pytest.raises(EmbeddingUnavailable):
        change(path, Model("B", fail_after=100), factory)
    assert change(path, Model("C"), factory) == 210
    assert (vectors(path), staged(path)) == ({("C", 64, 256): 210}, 0)


def test_a_model_that_gives_no_usable_vectors_changes_nothing(path: Path, factory: PlainFactory) -> None:
    class Broken(Model):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            return np.full((len(texts), self.dimension), np.nan, np.float32)

    with pytest.raises(EmbeddingInvalid):
        change(path, Broken("B"), factory)
    assert (vectors(path), staged(path)) == ({("A", 64, 256): 210}, 0)
    opened(path, Model("A"), factory).close()


def test_a_user_that_cannot_be_opened_stops_a_change_before_it_begins(path: Path, factory: PlainFactory) -> None:
    file = path / "users" / folder_name("u1") / "memory.db"
    good = file.read_bytes()
    file.write_bytes(good[:5_000])
    model = Model("B")
    with pytest.raises(memory.IntegrityFailure, match=folder_name("u1")):
        change(path, model, factory)
    assert model.embedded == []
    file.write_bytes(good)
    with opened(path, Model("A"), factory) as store:
        assert finds(store, "note 7 of u1", "u1")


def test_an_empty_replica_changes_its_model(tmp_path: Path, factory: PlainFactory) -> None:
    opened(tmp_path, Model("A"), factory).close()
    assert change(tmp_path, Model("B", 32), factory) == 0
    with opened(tmp_path, Model("B", 32), factory) as store:
        store.add_memory("first", user_id="u")
        assert finds(store, "first", "u")


def test_a_service_that_is_down_at_open_is_trusted_to_be_the_model_it_was(path: Path, factory: PlainFactory) -> None:
    class Down(Model):
        @property
        def dimension(self) -> int:
            raise EmbeddingUnavailable("no answer")

        def embed_query(self, text: str) -> Any:
            raise EmbeddingUnavailable("no answer")

    with opened(path, Down("A", fail_after=0), factory) as store:
        assert store.add_memory("kept", user_id="u1").notices
        assert store.recall("note 7 of u1", user_id="u1", top_k=1)[0].memory.content == "note 7 of u1"
    with pytest.raises(EmbeddingUnavailable):
        opened(path, Down("another"), factory)


def test_a_callers_own_embedder_is_not_closed_by_a_failed_open(path: Path) -> None:
    mine = Model("B")
    with pytest.raises(memory.ModelMismatch):
        memory.connect(f"edge://{path}", embedder=mine)
    assert not mine.closed
