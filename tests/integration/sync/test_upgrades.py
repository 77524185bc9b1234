"""A replica from before it could sync: upgraded at open, it then sends everything that the centre does not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import memory
from edge.directory import folder_name

ROOT = Path(__file__).resolve().parents[3]
SETTINGS: dict[str, Any] = {"embedding_model": "hashing", "sync_background": False, "track_access": False}


def test_memories_and_deletions_from_before_the_upgrade_reach_the_centre(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "device"
    with memory.connect(f"edge://{path}", **SETTINGS) as store:
        kept = store.add_memory("项目代号叫夜莺", user_id="u", tags=["项目"])
        doomed = store.add_memory("deleted before the upgrade", user_id="u")
        store.export_memories(tmp_path / "export.jsonl")
        store.delete_memory(doomed.memory_id, user_id="u")
    file = path / "users" / folder_name("u") / "memory.db"
    older = [sys.executable, "-m", "alembic", "-x", f"url=sqlite:///{file}", "downgrade", "edge_0001"]
    done = subprocess.run(older, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with memory.connect(database_url, embedding_model="hashing") as centre:
        centre.import_memories(tmp_path / "export.jsonl")
        with memory.connect(f"edge://{path}", centre=database_url, **SETTINGS) as store:
            [report] = store.sync_now("u")
            assert (report.pushed, report.equal) == (2, True)
            assert store.get_memory(kept.memory_id, user_id="u") == kept
        assert [item.memory_id for item in centre.list_memories(user_id="u").items] == [kept.memory_id]
