"""Speed of the store beside plain drivers, embeddings precomputed.

    python -m tests.bench.speed [--provider centre|edge] [--only NAME] [--json FILE]

For a replica see ``tests.bench.edge_speed``. Raw baselines of the centre, in the same database and run: the best
exact top-30 over one table with the same filters, one autocommit INSERT of the same columns into one table with a
primary key, and COPY of the same values into the same tables and indexes.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from pgvector.psycopg import register_vector

import memory
from memory.engine.provider import StorageProvider
from memory.postgres.embedded import EmbeddedServer
from tests.bench import edge_speed
from tests.bench.measure import (
    PrecomputedEmbedder,
    alternate,
    latency,
    sentences,
    throughput,
    unit_vectors,
    write_report,
)
from tests.bench.raw import RawTables

DIMENSION = 384
FILTERS = memory.RecallFilter(created_from=0)


class Bench:
    """One database with a provider and a raw connection."""

    def __init__(self, server: EmbeddedServer, name: str) -> None:
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{name}"')
        self.url = server.url(name)
        self.embedder = PrecomputedEmbedder(DIMENSION)
        self.store: StorageProvider = memory.connect(
            self.url, embedder=self.embedder, auto_migrate=True, track_access=False
        )
        self.raw = psycopg.connect(self.url, autocommit=True)
        self.raw.execute("SET jit = off")
        register_vector(self.raw)

    def close(self) -> None:
        """Let go of both."""
        self.raw.close()
        self.store.close()

    def fill(self, owners: list[str], texts: list[str]) -> None:
        """Store text i for owner i, interleaved as real users' are, and let both tables settle."""
        size = 500
        for start in range(0, len(texts), size):
            by_owner: dict[str, list[memory.NewMemory]] = {}
            for owner, text in zip(owners[start : start + size], texts[start : start + size], strict=True):
                by_owner.setdefault(owner, []).append(memory.NewMemory(content=text, memory_type="event"))
            for owner, items in by_owner.items():
                self.store.add_many(items, user_id=owner)
        self.raw.execute("VACUUM ANALYZE")

    def recall(self, name: str, users: list[str], rows_of_each: int, rounds: int) -> dict[str, Any]:
        """Hybrid recall against the raw exact top-30."""
        tables = RawTables(self.raw)
        tables.fill_search_table()
        questions = sentences(rounds + 10, seed=99, shortest=10, longest=16)
        vectors = [self.embedder.embed_query(question) for question in questions]

        def ours(i: int) -> None:
            found = self.store.recall(questions[i], user_id=users[i % len(users)], filters=FILTERS, top_k=10)
            if len(found) != min(10, rows_of_each):
                raise AssertionError(f"{len(found)} of {min(10, rows_of_each)} rows")

        def raw(i: int) -> None:
            tables.nearest(users[i % len(users)], vectors[i], 30)

        return latency(name, *alternate(ours, raw, rounds=rounds))


def recall_500(server: EmbeddedServer) -> dict[str, Any]:
    """50 users of 500 memories each."""
    bench = Bench(server, "recall_500")
    users = [f"user-{i}" for i in range(50)]
    texts = sentences(25_000, seed=1)
    bench.fill([users[i % 50] for i in range(len(texts))], texts)
    row = bench.recall("recall_500", users, 500, rounds=300)
    bench.close()
    return row


def recall_5000(server: EmbeddedServer) -> dict[str, Any]:
    """One user of 5,000 memories among 50,000."""
    bench = Bench(server, "recall_5000")
    texts = sentences(50_000, seed=2)
    owners = ["big" if i % 10 == 0 else f"user-{i % 90}" for i in range(len(texts))]
    bench.fill(owners, texts)
    row = bench.recall("recall_5000_of_50000", ["big"], 5_000, rounds=150)
    bench.close()
    return row


def single_add(server: EmbeddedServer) -> dict[str, Any]:
    """One memory with one commit."""
    bench = Bench(server, "single_add")
    texts = sentences(900, seed=3)
    for owner in range(20):
        items = [memory.NewMemory(content=text) for text in texts[:500]]
        bench.store.add_many(items, user_id=f"user-{owner}")
    tables = RawTables(bench.raw)
    tables.make_insert_table()
    vectors = unit_vectors(len(texts), DIMENSION, 4)

    def ours(i: int) -> None:
        bench.store.add_memory(texts[i], user_id="one", tags=["bench"], metadata={"i": i})

    def raw(i: int) -> None:
        tables.insert(i, texts[i], vectors[i])

    row = latency("add", *alternate(ours, raw, rounds=600))
    bench.close()
    return row


def bulk(server: EmbeddedServer, folder: Path) -> list[dict[str, Any]]:
    """add_many, export and import of 20,000 memories against COPY of the same values."""
    bench = Bench(server, "bulk")
    texts = sentences(20_000, seed=5)
    items = [memory.NewMemory(content=text, tags=["bench"], metadata={"i": i}) for i, text in enumerate(texts)]
    start = time.perf_counter()
    for at in range(0, len(items), 1_000):
        bench.store.add_many(items[at : at + 1_000], user_id="bulk")
    added = time.perf_counter() - start
    start = time.perf_counter()
    bench.store.export_memories(folder / "bulk.jsonl")
    exported = time.perf_counter() - start
    tables = RawTables(bench.raw)
    copied_out = tables.copy_out()
    target = Bench(server, "bulk_raw")
    copied_in = RawTables(target.raw).copy_in(tables.dump)
    target.close()
    bench.close()
    target = Bench(server, "bulk_import")
    start = time.perf_counter()
    report = target.store.import_memories(folder / "bulk.jsonl")
    imported = time.perf_counter() - start
    if report.created != len(texts):
        raise AssertionError(f"imported {report.created} of {len(texts)}")
    target.close()
    return [
        throughput("add_many", len(texts), added, copied_in),
        throughput("import", len(texts), imported, copied_in),
        throughput("export", len(texts), exported, copied_out),
    ]


def centre(only: str | None, folder: Path) -> list[dict[str, Any]]:
    """Everything about the centre, or one part."""
    report: list[dict[str, Any]] = []
    with EmbeddedServer(folder / "postgres") as server:
        if only in (None, "recall_500"):
            report.append(recall_500(server))
        if only in (None, "recall_5000"):
            report.append(recall_5000(server))
        if only in (None, "add"):
            report.append(single_add(server))
        if only in (None, "bulk"):
            report.extend(bulk(server, folder))
    return report


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=["centre", "edge"], default="centre")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=["recall_500", "recall_5000", "recall_50000", "add", "bulk", "import"])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="memory-bench-"))
    folder.chmod(0o755)
    try:
        report = (centre if options.provider == "centre" else edge_speed.measure)(options.only, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for row in report:
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    write_report(options.json, report)


if __name__ == "__main__":
    main()
