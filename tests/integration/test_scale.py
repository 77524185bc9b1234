"""Exports and imports stream: memory does not grow with their size, and writers go on."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

import memory
from tests.bench import volume

RECORDS = 20_000


def test_export_and_import_stream_in_little_memory(database_url: str, empty_database_url: str, tmp_path: Path) -> None:
    volume.fill(database_url, RECORDS, users=3)
    path = tmp_path / "all.jsonl"
    exported = volume.measured(database_url, "export_memories", path)
    imported = volume.measured(empty_database_url, "import_memories", path)
    assert exported["records"] == imported["records"] == RECORDS
    # A run that held the file, or its rows, would need more than its size.
    assert path.stat().st_size > 45_000_000
    assert 0 < exported["growth_mb"] < 40
    assert 0 < imported["growth_mb"] < 80


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


def test_an_increment_on_a_database_that_was_set_back_is_refused(database_url: str) -> None:
    with memory.connect(database_url, embedding_model="hashing") as store:
        store.add_memory("one", user_id="u")
        full = io.BytesIO()
        store.export_memories(full)
        # What putting an older copy of the data directory back amounts to: same identity, lower revision.
        with psycopg.connect(database_url, autocommit=True) as admin:
            admin.execute("DELETE FROM memories")
            admin.execute("UPDATE sync_user SET rev = 0")
        with pytest.raises(memory.Refused, match="restored"):
            store.export_memories(io.BytesIO(), after=io.BytesIO(full.getvalue()))
