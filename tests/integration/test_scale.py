"""Exports and imports stream: memory does not grow with their size, and writers go on."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import memory
from tests.bench.measure import PrecomputedEmbedder

RECORDS = 20_000
CHILD = """
import resource, sys, memory
from tests.bench.measure import PrecomputedEmbedder
url, verb, path = sys.argv[1:]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
with memory.connect(url, embedder=PrecomputedEmbedder(384)) as store:
    store.recall("warm up", user_id="nobody")
    before = peak()
    getattr(store, verb)(path)
    print(peak() - before)
"""


def growth_mb(url: str, verb: str, path: Path) -> int:
    """Growth of the peak memory of a process that exports or imports."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, url, verb, str(path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_export_and_import_stream_in_little_memory(database_url: str, empty_database_url: str, tmp_path: Path) -> None:
    with memory.connect(database_url, embedder=PrecomputedEmbedder(384)) as store:
        for start in range(0, RECORDS, 2_000):
            items = [memory.NewMemory(content=f"note {start + i} " + "word " * 20) for i in range(2_000)]
            store.add_many(items, user_id=f"user-{start % 3}")
    path = tmp_path / "all.jsonl"
    # The file has 45 MB; a run that held it, or its rows, would need far more than that.
    assert growth_mb(database_url, "export_memories", path) < 40
    assert path.stat().st_size > 40_000_000
    memory.connect(empty_database_url, embedder=PrecomputedEmbedder(384), auto_migrate=True).close()
    assert growth_mb(empty_database_url, "import_memories", path) < 80
    with memory.connect(empty_database_url, embedder=PrecomputedEmbedder(384)) as store:
        assert store.stats().memories_by_status == {"active": RECORDS}


def test_an_export_is_one_moment_while_writers_go_on(database_url: str) -> None:
    with memory.connect(database_url, embedding_model="hashing") as store:
        pairs = [
            (store.add_memory(f"left {i}", user_id="u"), store.add_memory(f"right {i}", user_id="u"))
            for i in range(100)
        ]
        stop = threading.Event()

        def swap() -> None:
            """Keeps every pair equal, but only between two transactions of one thread's making."""
            step = 0
            while not stop.is_set():
                step += 1
                for left, right in pairs[:20]:
                    store.update_memory(left.memory_id, user_id="u", metadata={"step": step})
                    store.update_memory(right.memory_id, user_id="u", metadata={"step": step})

        writer = threading.Thread(target=swap)
        writer.start()
        try:
            for _ in range(10):
                target = io.BytesIO()
                store.export_memories(target)
                check_one_moment(target.getvalue(), pairs)
        finally:
            stop.set()
            writer.join()


def check_one_moment(data: bytes, pairs: list[Any]) -> None:
    lines = [json.loads(line) for line in data.splitlines()]
    begin, records = lines[0], {line["memory_id"]: line for line in lines[1:-1]}
    assert len(records) == 200
    assert max(record["rev"] for record in records.values()) == begin["revisions"]["u"]
    steps = [
        records[left.memory_id]["metadata"].get("step", 0) - records[right.memory_id]["metadata"].get("step", 0)
        for left, right in pairs
    ]
    # Of one moment, at most one pair is between its two updates.
    assert sum(1 for difference in steps if difference) <= 1
