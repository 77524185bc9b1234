"""Counts, revisions and listings that stay right when a user fails, is made again, or somebody writes meanwhile."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

import memory
from edge.directory import folder_name
from edge.opening import EdgeSettings
from edge.sqlite import database, reading
from memory.policies.admission import Filter
from tests.replicas import open_replica, settle, storage_of


def test_counts_of_one_user_are_written_once_while_anothers_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 20)
    with open_replica(tmp_path, flush_interval=3_600) as store:
        added = {user: store.add_memory("green tea", user_id=user) for user in ("a", "b")}
        for user in added:
            store.recall("tea", user_id=user)
        stranger = sqlite3.connect(tmp_path / "users" / folder_name("b") / "memory.db", isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            with pytest.raises(memory.StoreError):
                store.flush()
        stranger.close()
        store.flush()
        counts = {user: store.get_memory(m.memory_id, user_id=user).access_count for user, m in added.items()}
        assert counts == {"a": 1, "b": 1}


@pytest.mark.parametrize("how", ["made again", "put back"])
def test_an_export_that_continues_an_earlier_one_misses_nothing_of_a_user_who(how: str, tmp_path: Path) -> None:
    path, folder = tmp_path / "replica", tmp_path / "replica" / "users" / folder_name("u")
    with open_replica(path) as store:
        store.add_memory("first", user_id="u")
    kept = (folder / "memory.db").read_bytes()
    with open_replica(path) as store:
        store.add_many([memory.NewMemory(content=f"note {i}") for i in range(20)], user_id="u")
        store.export_memories(tmp_path / "all.jsonl")
    if how == "made again":
        shutil.rmtree(folder)
    else:
        (folder / "memory.db").write_bytes(kept)  # into the same file, so nothing tells that it is a copy
    with open_replica(path) as store, memory.connect("memory://", embedding_model="hashing") as target:
        late = store.add_memory("written afterwards", user_id="u")
        store.export_memories(tmp_path / "since.jsonl", after=tmp_path / "all.jsonl")
        target.import_memories(tmp_path / "all.jsonl")
        target.import_memories(tmp_path / "since.jsonl")
        assert target.get_memory(late.memory_id, user_id="u").content == "written afterwards"


def test_a_page_is_full_although_newer_memories_are_known_already(tmp_path: Path) -> None:
    with open_replica(tmp_path) as store:
        store.add_many([memory.NewMemory(content=f"note {i}") for i in range(10)], user_id="u")
        replica = storage_of(store).users._open["u"].replica
        with replica.database.read() as early:
            early.execute("SELECT rev FROM replica").fetchone()
            store.add_many([memory.NewMemory(content=f"later {i}") for i in range(10)], user_id="u")
            store.list_memories(user_id="u")  # now the columns are ahead of the early view
            view = replica.columns.current(early)
            page = reading.list_page(early, view, Filter(), limit=5, before=None)
        assert len(page) == 5
        assert all(stored.state.value("content").startswith("note") for stored in page)


def test_opening_a_user_again_and_again_adds_no_slots_of_counts(tmp_path: Path) -> None:
    with open_replica(tmp_path, max_open_users=1, edge_settings=EdgeSettings(max_open_users=1)) as store:
        for user in ("a", "b"):
            store.add_memory("green tea", user_id=user)
        for _ in range(5):
            for user in ("a", "b"):
                assert len(store.recall("tea", user_id=user)) == 1
                store.flush()
        with sqlite3.connect(tmp_path / "users" / folder_name("a") / "memory.db") as file:
            assert file.execute("SELECT count(*), sum(count) FROM memory_access").fetchone() == (1, 5)
        file.close()


def test_programs_that_live_shortly_leave_little_to_read_one_by_one(tmp_path: Path) -> None:
    for _ in range(3):
        with open_replica(tmp_path) as store:
            store.add_many([memory.NewMemory(content=f"note {i}") for i in range(60)], user_id="u")
    with open_replica(tmp_path) as store:
        assert store.stats().details["index_backlog_vectors"] <= 120
        settle(store)
        assert store.stats().details["index_backlog_vectors"] == 0
