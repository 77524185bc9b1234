"""The same memories recalled at the centre and on a device: the same, in the same order, with the same scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memory
from tests.parity import NOW, compare, fill, questions, texts
from tests.replicas import open_replica, settle


def test_centre_and_replica_recall_the_same_in_the_same_order(database_url: str, tmp_path: Path) -> None:
    known = texts(400)
    fixed: dict[str, Any] = {"embedding_model": "hashing", "now": NOW, "track_access": False}
    with memory.connect("memory://", **fixed) as origin:
        fill(origin, known, seed=5)
        origin.export_memories(tmp_path / "all.jsonl")
    with (
        memory.connect(database_url, **fixed) as centre,
        open_replica(tmp_path / "replica", now=NOW, track_access=False) as replica,
    ):
        for store in (centre, replica):
            assert store.import_memories(tmp_path / "all.jsonl").rejected_count == 0
        asked = list(questions(200, known))
        before_indexing, _ = compare(replica, centre, asked[:60])
        assert before_indexing == []
        settle(replica)
        differing, largest = compare(replica, centre, asked)
        assert differing == []
        assert largest <= 1e-4
        assert sum(len(centre.recall(q.text, user_id=q.user_id, filters=q.filters)) for q in asked) > 1_000
