"""Recall reads through the right indexes whatever the planner believes, and never through a filtered graph."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import ClientCursor

import memory
from memory.core.text import query_terms
from memory.embedding.hashing import HashingEmbedder
from memory.engine.storage import Query
from memory.policies.admission import admit_filter
from memory.postgres.database import SESSION
from memory.postgres.recall import candidates_statement

FILTERS: dict[str, dict[str, Any]] = {
    "default": {},
    "time and type": {"created_from": 0, "types": ["fact"]},
    "tags": {"tags_any": ["t1"]},
    "metadata": {"metadata": {"i": {"gte": 3}}},
}
ALLOWED = {
    "memory_vectors_covering",
    "memory_vectors_pkey",
    "memories_terms",
    "memories_listing",
    "memories_pkey",
    "memory_tags_pkey",
    "memory_tags_by_tag",
    "memory_access_pkey",
    "memories_revisions",
}


@pytest.fixture
def many_users(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """30 users of 120 memories, one of 5."""
    with memory.connect(database_url, embedding_model="hashing", track_access=False) as store:
        for user in range(30):
            store.add_many(
                [
                    memory.NewMemory(content=f"green tea note {i} of {user}", tags=[f"t{i % 3}"], metadata={"i": i})
                    for i in range(120)
                ],
                user_id=f"user-{user}",
            )
        store.add_many([memory.NewMemory(content=f"black coffee {i}") for i in range(5)], user_id="small")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("; ".join(SESSION))
        yield connection


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def plan_of(connection: psycopg.Connection[Any], filters: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    """The plan nodes of a recall, as a cached generic plan or planned for these very values."""
    query = Query(terms=query_terms("green tea"), vector=HashingEmbedder().embed_query("green tea"), size=50)
    found = candidates_statement("user-3", query, admit_filter(filters), model_id=model_id(connection), dimension=64)
    assert found is not None
    statement, params = found
    literal = {name: str(value.to_list()) if name == "vector" else value for name, value in params.items()}
    names = list(params)
    kinds = {"user": "text", "vector": "vector", "terms": "text[]", "k1": "float8", "b": "float8", "model": "int4"}
    declared = [kinds.get(name) or sql_type(params[name]) for name in names]
    for number, name in enumerate(names, start=1):
        statement = statement.replace(f"%({name})s", f"${number}").replace(f"%({name})b", f"${number}")
    connection.execute("DEALLOCATE ALL")
    connection.execute(f"SET plan_cache_mode = {mode}")
    connection.execute(f"PREPARE recall ({', '.join(declared)}) AS {statement}")
    cursor = ClientCursor(connection)
    placeholders = ", ".join(["%s"] * len(names))
    values = [literal[name] for name in names]
    row = cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE recall ({placeholders})", values).fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return list(nodes(plan[0]["Plan"]))


def sql_type(value: Any) -> str:
    if isinstance(value, list):
        return "text[]"
    return "int8" if isinstance(value, int) else "numeric" if value.__class__.__name__ == "Decimal" else "text"


def model_id(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT model_id FROM sync_meta").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("filters", FILTERS.values(), ids=list(FILTERS))
def test_recall_uses_only_indexes_that_lead_with_the_user(
    many_users: psycopg.Connection[Any], filters: dict[str, Any], mode: str, analysed: bool
) -> None:
    if analysed:
        many_users.execute("VACUUM ANALYZE")
    plan = plan_of(many_users, filters, mode)
    scans = [node for node in plan if "Scan" in node["Node Type"]]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"]
    used = {node["Index Name"] for node in scans if "Index Name" in node}
    assert used <= ALLOWED
    assert "memories_terms" in used
    for node in scans:
        if node.get("Index Name") not in (None, "memories_terms"):
            assert "user_id =" in node["Index Cond"], node
        if node.get("Index Name") == "memories_terms":
            assert "terms @@" in node["Index Cond"]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_vectors_are_read_from_the_covering_index_alone(many_users: psycopg.Connection[Any], mode: str) -> None:
    many_users.execute("VACUUM ANALYZE")
    scans = [node for node in plan_of(many_users, {}, mode) if node.get("Index Name") == "memory_vectors_covering"]
    # The scan of the user's vectors, and the look-up of those that only words have found.
    assert [node["Node Type"] for node in scans] == ["Index Only Scan"] * 2


def test_every_user_gets_all_rows_even_beside_a_vector_graph(
    database_url: str, many_users: psycopg.Connection[Any]
) -> None:
    many_users.execute("ALTER TABLE memory_vectors ALTER COLUMN embedding TYPE vector(64)")
    many_users.execute("CREATE INDEX graph ON memory_vectors USING hnsw (embedding vector_ip_ops)")
    many_users.execute("ANALYZE")
    for mode in ("force_custom_plan", "force_generic_plan"):
        used = {node.get("Index Name") for node in plan_of(many_users, {}, mode)}
        assert "graph" not in used
    with memory.connect(database_url, embedding_model="hashing", track_access=False) as store:
        for user in range(30):
            assert len(store.recall("black coffee", user_id=f"user-{user}", top_k=10)) == 10
        assert len(store.recall("green tea", user_id="small", top_k=10)) == 5


def test_recall_by_meaning_is_exact(database_url: str, many_users: psycopg.Connection[Any]) -> None:
    embedder = HashingEmbedder()
    settings: dict[str, Any] = {"semantic_share": 1.0, "rerank_alpha": 1.0, "rerank_beta": 0.0, "rerank_gamma": 0.0}
    with memory.connect(database_url, embedder=embedder, track_access=False, **settings) as store:
        texts = [f"green tea note {i} of 7" for i in range(120)]
        matrix = embedder.embed_documents(texts)
        for question in ("green tea note 17", "note of 7", "完全无关"):
            cosines = matrix @ embedder.embed_query(question)
            best = np.sort(np.clip(cosines, 0, 1))[::-1][:10]
            found = [hit.relevance for hit in store.recall(question, user_id="user-7", top_k=10)]
            assert found == pytest.approx(best.tolist(), abs=2e-6)


@pytest.mark.parametrize("dimension", [3, 512, 513, 1_536, 3_072])
def test_vectors_of_any_usual_dimension_are_stored_and_found(database_url: str, dimension: int) -> None:
    with memory.connect(database_url, embedder=HashingEmbedder(dimension), semantic_share=1.0) as store:
        store.add_memory("green tea", user_id="u")
        store.add_many([memory.NewMemory(content=f"something else {i}") for i in range(3)], user_id="u")
        hits = store.recall("green tea", user_id="u")
        assert len(hits) == 4
        assert hits[0].memory.content == "green tea"
        assert hits[0].relevance == pytest.approx(1.0, abs=1e-5)
