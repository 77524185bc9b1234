"""The embedding model of a database: recorded, checked at open, changed without a pause."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from pgvector.psycopg import register_vector

import memory
from memory.core.errors import EmbeddingUnavailable
from memory.core.ports import Vectors
from memory.core.text import document_terms
from memory.embedding.hashing import HashingEmbedder
from memory.engine.storage import Draft
from memory.policies.admission import admit_new
from memory.postgres.database import Database
from memory.postgres.models import reembed
from memory.postgres.writing import insert_one


class Model(HashingEmbedder):
    """A model by name; may fail after a number of texts."""

    def __init__(self, name: str, dimension: int = 64, *, fail_after: int | None = None) -> None:
        super().__init__(dimension, name=name)
        self.left = fail_after

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if self.left is not None:
            self.left -= len(texts)
            if self.left < 0:
                raise EmbeddingUnavailable("the service went away")
        return super().embed_documents(texts)


def fill(url: str) -> None:
    with memory.connect(url, embedder=Model("A"), track_access=False) as store:
        for i in range(150):
            store.add_memory(f"note {i}", user_id=f"u{i % 3}")
        for item in store.list_memories(user_id="u0", limit=10).items:
            store.archive_memory(item.memory_id, user_id="u0")


def vectors_by_model(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return dict(
            connection.execute(
                "SELECT name, count(*) FROM memory_vectors JOIN embedding_models USING (model_id) GROUP BY name"
            ).fetchall()
        )


@pytest.mark.parametrize(("name", "dimension"), [("B", 64), ("A", 16), ("B", 16)])
def test_another_model_is_refused_at_open_with_both_names_and_the_command(
    database_url: str, name: str, dimension: int
) -> None:
    fill(database_url)
    with pytest.raises(memory.ModelMismatch) as caught:
        memory.connect(database_url, embedder=Model(name, dimension))
    error = caught.value
    assert (error.stored, error.stored_dimension) == ("A", 64)
    assert (error.configured, error.configured_dimension) == (name, dimension)
    for word in ("'A'", "64", f"{name!r}", str(dimension)):
        assert word in error.message
    assert "memory db reembed" in error.hint
    assert vectors_by_model(database_url) == {"A": 150}


def test_an_empty_database_takes_any_model(database_url: str) -> None:
    memory.connect(database_url, embedder=Model("A", 8)).close()
    with memory.connect(database_url, embedder=Model("B", 16)) as store:
        store.add_memory("first", user_id="u")
    assert vectors_by_model(database_url) == {"B": 1}
    with pytest.raises(memory.ModelMismatch):
        memory.connect(database_url, embedder=Model("A", 8))


def test_reembedding_changes_every_vector_archived_ones_too(database_url: str) -> None:
    fill(database_url)
    steps: list[Any] = []
    database = Database(database_url, pool_size=2, timeout=10)
    assert reembed(database, Model("B", 32), progress=lambda *step: steps.append(step)) == 150
    database.close()
    assert vectors_by_model(database_url) == {"B": 150}
    assert steps[-1] == (150, 150)
    with memory.connect(database_url, embedder=Model("B", 32)) as store:
        assert dict(store.stats().memories_by_status) == {"active": 140, "archived": 10}
        assert store.recall("note 1", user_id="u1", top_k=1)[0].memory.content == "note 1"
    with pytest.raises(memory.ModelMismatch):
        memory.connect(database_url, embedder=Model("A"))


def test_an_interrupted_reembedding_keeps_the_old_model_and_resumes(database_url: str) -> None:
    fill(database_url)
    database = Database(database_url, pool_size=2, timeout=10)
    with pytest.raises(EmbeddingUnavailable):
        reembed(database, Model("B", fail_after=100))
    assert vectors_by_model(database_url) == {"A": 150, "B": 64}
    with memory.connect(database_url, embedder=Model("A"), track_access=False) as store:
        hit = store.recall("note 1", user_id="u1", top_k=1)[0]
        assert hit.memory.content == "note 1"
        assert hit.relevance == pytest.approx(1.0)
        store.add_memory("added meanwhile", user_id="u1")
        edited = store.list_memories(user_id="u2", limit=1).items[0]
        store.update_memory(edited.memory_id, user_id="u2", content="edited meanwhile")
    counting = Model("B")
    counting.left = 10_000
    reembed(database, counting)
    database.close()
    assert 10_000 - counting.left <= 151 - 64 + 1
    assert vectors_by_model(database_url) == {"B": 151}
    with memory.connect(database_url, embedder=Model("B")) as store:
        for user, text in (("u1", "added meanwhile"), ("u2", "edited meanwhile")):
            assert store.recall(text, user_id=user, top_k=1)[0].relevance == pytest.approx(1.0)


def test_a_program_with_the_old_model_loses_nothing_after_the_change(database_url: str) -> None:
    fill(database_url)
    old = memory.connect(database_url, embedder=Model("A"), retry_interval=3_600)
    database = Database(database_url, pool_size=2, timeout=10)
    reembed(database, Model("B"))
    database.close()
    old.add_memory("by the old program", user_id="u1")
    old.add_many([memory.NewMemory(content=f"batch {i} of the old program") for i in range(2)], user_id="u1")
    edited = old.list_memories(user_id="u2", limit=1).items[0]
    old.update_memory(edited.memory_id, user_id="u2", content="edited by the old program")
    target = io.BytesIO()
    old.export_memories(target, user_id="u1")
    old.import_memories(io.BytesIO(target.getvalue()))
    assert vectors_by_model(database_url) == {"B": 149}
    with pytest.raises(memory.ModelMismatch, match="changed while this program ran"):
        old.recall("old program", user_id="u1")
    assert old.embed_pending() == 0
    old.close()
    with memory.connect(database_url, embedder=Model("B"), retry_interval=3_600) as new:
        new.embed_pending()
        assert new.stats().pending_embeddings == 0
    assert vectors_by_model(database_url) == {"B": 153}


def test_a_service_that_is_down_at_open_is_trusted_to_be_the_model_it_was(database_url: str) -> None:
    fill(database_url)

    class Down(Model):
        @property
        def dimension(self) -> int:
            raise EmbeddingUnavailable("no answer")

        def embed_query(self, text: str) -> Any:
            raise EmbeddingUnavailable("no answer")

        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            raise EmbeddingUnavailable("no answer")

    with memory.connect(database_url, embedder=Down("A"), retry_interval=3_600) as store:
        assert store.add_memory("kept", user_id="u1").notices
        assert store.recall("note 1", user_id="u1", top_k=1)[0].memory.content == "note 1"
    with pytest.raises(EmbeddingUnavailable):
        memory.connect(database_url, embedder=Down("another"))


def test_the_way_back_is_told_in_terms_of_settings(database_url: str) -> None:
    with memory.connect(database_url, embedding_model="hashing:32") as store:
        store.add_memory("x", user_id="u")
    with pytest.raises(memory.ModelMismatch) as caught:
        memory.connect(database_url, embedding_model="hashing:16")
    assert "'hashing:32'" in caught.value.hint
    assert "`memory --embedding-model hashing:16 db reembed`" in caught.value.hint


def test_a_callers_own_embedder_is_not_closed_by_a_failed_open(database_url: str) -> None:
    class Closing(Model):
        closed = False

        def close(self) -> None:
            self.closed = True

    fill(database_url)
    mine = Closing("B")
    with pytest.raises(memory.ModelMismatch):
        memory.connect(database_url, embedder=mine)
    assert not mine.closed


def test_a_change_of_model_that_another_one_has_overtaken_stops(database_url: str) -> None:
    fill(database_url)
    first = Database(database_url, pool_size=2, timeout=10)
    second = Database(database_url, pool_size=2, timeout=10)

    class Overtaken(Model):
        done = False

        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            if not self.done:
                self.done = True
                reembed(second, Model("C"))
            return super().embed_documents(texts)

    with pytest.raises(memory.Refused, match="another change"):
        reembed(first, Overtaken("B"))
    first.close()
    second.close()
    assert vectors_by_model(database_url) == {"C": 150}


def test_an_empty_database_is_not_taken_over_while_somebody_adds(database_url: str) -> None:
    with memory.connect(database_url, embedder=Model("A")) as store, psycopg.connect(database_url) as adding:
        assert store.stats().users == 0
        model = adding.execute("SELECT model_id FROM sync_meta").fetchone()
        assert model is not None
        draft = Draft(
            memory_id=str(uuid.uuid4()),
            changes=admit_new(memory.NewMemory(content="uncommitted"), now=1).changes,
            terms=document_terms("uncommitted"),
            vector=Model("A").embed_documents(["uncommitted"])[0],
        )
        register_vector(adding)
        insert_one(adding, "u", draft, now=1, model_id=model[0], dimension=64)
        with ThreadPoolExecutor(1) as thread:
            opening = thread.submit(memory.connect, database_url, embedder=Model("B"))
            time.sleep(0.3)
            assert not opening.done()
            adding.commit()
            with pytest.raises(memory.ModelMismatch):
                opening.result()
