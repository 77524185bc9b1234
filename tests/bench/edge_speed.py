"""Speed of a replica: recall, single adds, import, and opening. Run by ``tests.bench.speed --provider edge``.

Beside them, on the same vectors and filters: an exact scan by numpy of all vectors in memory, and the local mode of
qdrant-client. A raw add is one autocommit INSERT of the same columns, vector included, into one table with a primary
key, in a SQLite file with the same pragmas; a raw import the same rows in one transaction.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from qdrant_client import QdrantClient, models

import memory
from edge.sqlite.database import connect
from edge.sqlite.rows import vector_bytes
from memory.core.ports import Vector, Vectors
from memory.core.text import document_terms
from memory.engine.provider import StorageProvider
from memory.policies.admission import Filter
from tests.bench.measure import PrecomputedEmbedder, alternate, latency, sentences, throughput, unit_vectors
from tests.replicas import settle, storage_of

DIMENSION: Final = 384
FILTERS: Final = memory.RecallFilter(created_from=0)
USER: Final = "big"
RAW_TABLE: Final = """
CREATE TABLE raw (
    user_id TEXT, memory_id TEXT, content TEXT, memory_type TEXT, importance REAL, status TEXT, source_session TEXT,
    created_at INTEGER, updated_at INTEGER, tags JSON, metadata JSON, stamps JSON, extra JSON, rev INTEGER,
    length INTEGER, embedding_due BOOLEAN, terms TEXT, embedding BLOB, PRIMARY KEY (user_id, memory_id)
)
"""
RAW_INSERT: Final = (
    "INSERT INTO raw VALUES ('one', ?, ?, 'fact', 0.5, 'active', NULL, ?, ?, ?, ?, ?, '{}', ?, ?, 0, ?, ?)"
)


class DistinctEmbedder(PrecomputedEmbedder):
    """A vector of its own for every text, so that the nearest are few."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(DIMENSION)
        self._rows = dict(zip(texts, unit_vectors(len(texts), DIMENSION, 8), strict=True))

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """The prepared vectors."""
        return np.stack([self._rows[text] for text in texts])


def measure(only: str | None, folder: Path) -> list[dict[str, Any]]:
    """Everything, or one part."""
    report: list[dict[str, Any]] = []
    if only in (None, "recall_5000"):
        report += recall(folder, 5_000)
    if only in (None, "recall_50000"):
        report += recall(folder, 50_000)
    if only in (None, "add"):
        report += [single_add(folder), add_without_waiting(folder)]
    if only in (None, "import", "bulk"):
        report.append(bulk_import(folder))
    return report


def recall(folder: Path, count: int) -> list[dict[str, Any]]:
    """Hybrid recall of one user with so many memories, and opening them from disk."""
    path = folder / f"recall-{count}"
    texts = sentences(count, seed=2)
    embedder = DistinctEmbedder(texts)
    with open_store(path, embedder) as store:
        for start in range(0, count, 500):
            items = [memory.NewMemory(content=text, memory_type="event") for text in texts[start : start + 500]]
            store.add_many(items, user_id=USER)
        settle(store)
    start_time = time.perf_counter()
    questions = sentences(160, seed=99, shortest=10, longest=16)
    store = open_store(path, embedder)
    store.recall(questions[-1], user_id=USER, filters=FILTERS)
    opened = time.perf_counter() - start_time
    matrix = embedder.embed_documents(texts)
    asked = [embedder.embed_query(question) for question in questions]
    row = latency(
        f"recall_{count}",
        *alternate(
            lambda i: store.recall(questions[i], user_id=USER, filters=FILTERS, top_k=10),
            lambda i: nearest(matrix, asked[i], 30),
            rounds=150,
        ),
    )
    row["exact_recall"] = exact_recall(store, texts, matrix, asked[:50])
    row["qdrant_local_p50_ms"] = qdrant_local(folder / f"local-{count}", matrix, asked[:5])
    store.close()
    opening = {"name": f"open_{count}", "seconds": round(opened, 3)}
    return [row, opening]


def open_store(path: Path, embedder: PrecomputedEmbedder) -> StorageProvider:
    """A provider on a replica."""
    return memory.connect(f"edge://{path}", embedder=embedder, track_access=False)


def nearest(matrix: Vectors, vector: Vector, limit: int) -> Any:
    """The baseline: positions of the nearest, best first."""
    cosines = matrix @ vector
    best = np.argpartition(-cosines, limit)[:limit]
    return best[np.argsort(-cosines[best])]


def exact_recall(store: StorageProvider, texts: Sequence[str], matrix: Vectors, asked: Sequence[Vector]) -> float:
    """Share of the 50 truly nearest that the vector index finds."""
    found = 0
    with storage_of(store).users.writing(USER) as replica:
        search = replica.indexer.searcher()
        with replica.database.read() as connection:
            names = dict(connection.execute("SELECT memory_id, content FROM memories").fetchall())
        for vector in asked:
            hits = {names[hit.memory_id] for hit in search(vector, 50, Filter(created_from=0)) or []}
            found += len(hits & {texts[position] for position in nearest(matrix, vector, 50)})
    return round(found / (50 * len(asked)), 4)


def qdrant_local(path: Path, matrix: Vectors, asked: Sequence[Vector]) -> float:
    """Milliseconds of a filtered top-30 in the local mode of qdrant-client."""
    client = QdrantClient(path=str(path))
    client.create_collection(
        "bench", vectors_config=models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)
    )
    for start in range(0, len(matrix), 1_000):
        page = matrix[start : start + 1_000]
        payload = [{"status": "active", "created_at": start + i} for i in range(len(page))]
        ids: list[int | str | uuid.UUID] = [str(uuid.uuid4()) for _ in page]
        client.upsert("bench", models.Batch(ids=ids, vectors=page.tolist(), payloads=payload))
    where = models.Filter(
        must=[
            models.FieldCondition(key="status", match=models.MatchValue(value="active")),
            models.FieldCondition(key="created_at", range=models.Range(gte=0)),
        ]
    )
    timings = []
    for vector in asked:
        start_time = time.perf_counter()
        client.query_points("bench", query=vector.tolist(), query_filter=where, limit=30)
        timings.append((time.perf_counter() - start_time) * 1000.0)
    client.close()
    return round(statistics.median(timings), 3)


def single_add(folder: Path) -> dict[str, Any]:
    """One memory with one commit, as durable as the default."""
    texts = sentences(1_000, seed=3)
    store = open_store(folder / "add", PrecomputedEmbedder(DIMENSION))
    store.add_many([memory.NewMemory(content=text) for text in texts], user_id="one")
    settle(store)
    raw = raw_table(folder / "raw-add.db")
    vectors = unit_vectors(len(texts), DIMENSION, 4)
    with raw:
        raw.executemany(RAW_INSERT, [raw_values(i, text, vectors[i]) for i, text in enumerate(texts)])
    row = latency(
        "add",
        *alternate(
            lambda i: store.add_memory(texts[i], user_id="one", tags=["bench"], metadata={"i": i}),
            lambda i: raw.execute(RAW_INSERT, raw_values(i, texts[i], vectors[i])),
            rounds=900,
        ),
    )
    raw.close()
    store.close()
    return row


def add_without_waiting(folder: Path) -> dict[str, Any]:
    """The same with ``sqlite_synchronous="normal"``; what stands for raw is the default."""
    texts = sentences(900, seed=3)
    stores = [
        memory.connect(
            f"edge://{folder / mode}",
            embedder=PrecomputedEmbedder(DIMENSION),
            sqlite_synchronous=mode,
            track_access=False,
        )
        for mode in ("normal", "full")
    ]
    calls = [lambda i, store=store: store.add_memory(texts[i], user_id="one") for store in stores]
    row = latency("add_normal", *alternate(*calls, rounds=800))
    for store in stores:
        store.close()
    return row


def raw_table(path: Path) -> sqlite3.Connection:
    """A file with the table of the baseline, and the pragmas of a replica."""
    path.touch()
    raw = connect(path)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute(RAW_TABLE)
    return raw


def raw_values(number: int, text: str, vector: Vector) -> tuple[Any, ...]:
    """The values of a row, made from the same things as ours."""
    terms = document_terms(text)
    return (
        str(uuid.uuid4()),
        text,
        number,
        number,
        '["bench"]',
        '{"i": 1}',
        '{"*": "1733000000000.0.0123456789abcdef"}',
        number,
        terms.length,
        " ".join(terms.terms),
        vector_bytes(vector),
    )


def bulk_import(folder: Path) -> dict[str, Any]:
    """20,000 records from a file, until both indexes have them."""
    texts = sentences(20_000, seed=5)
    embedder = PrecomputedEmbedder(DIMENSION)
    with memory.connect("memory://", embedder=embedder) as origin:
        items = [memory.NewMemory(content=text, tags=["bench"], metadata={"i": i}) for i, text in enumerate(texts)]
        origin.add_many(items, user_id="bulk")
        origin.export_memories(folder / "bulk.jsonl")
    with open_store(folder / "import", embedder) as store:
        start = time.perf_counter()
        store.import_memories(folder / "bulk.jsonl")
        settle(store)
        seconds = time.perf_counter() - start
        details = store.stats().details
    if details["index_backlog_words"] or details["index_backlog_vectors"]:
        raise AssertionError(f"not indexed: {details}")
    raw = raw_table(folder / "raw-import.db")
    vectors = unit_vectors(len(texts), DIMENSION, 4)

    start = time.perf_counter()
    raw.execute("BEGIN")
    raw.executemany(RAW_INSERT, [raw_values(i, text, vectors[i]) for i, text in enumerate(texts)])
    raw.execute("COMMIT")
    raw_seconds = time.perf_counter() - start
    raw.close()
    return throughput("import", len(texts), seconds, raw_seconds)
