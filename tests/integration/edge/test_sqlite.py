"""SQLite as a replica uses it: settings, others that have the file open, full disks, the log, traces of the deleted."""

from __future__ import annotations

import os
import resource
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import memory
from edge.directory import folder_name
from edge.opening import EdgeSettings
from edge.sqlite import database
from edge.sqlite.database import Database
from memory.core.errors import StoreError
from memory.engine.provider import StorageProvider
from memory.engine.storage import Scope
from memory.testing.base import everything
from tests.integration.edge.others import Holder, elsewhere
from tests.plain_index import plain_index
from tests.replicas import findings, open_replica, settle, storage_of

QUIET = EdgeSettings(synchronous="normal", drain_interval=3_600.0)
"""Without work in the background, and without waiting for the disk where a test needs no power cut."""
MB = 1_000_000


def file_of(path: Path, user_id: str = "u") -> Path:
    return path / "users" / folder_name(user_id) / "memory.db"


def database_of(store: StorageProvider, user_id: str = "u") -> Database:
    with storage_of(store).users.lease(user_id) as replica:
        assert replica is not None
        return replica.database


def wal_bytes(store: StorageProvider) -> int:
    return int(store.stats().details["wal_bytes"])


# Settings


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
def test_the_settings_are_in_force_on_every_connection(tmp_path: Path, synchronous: str, level: int) -> None:
    settings = EdgeSettings(synchronous=synchronous)
    with open_replica(tmp_path, index=plain_index(), edge_settings=settings) as store:
        store.add_memory("green tea", user_id="u")
        opened = database_of(store)
        with opened.write() as writer, opened.read() as reader, opened.read() as another:
            for connection in (writer, reader, another):
                found = {
                    name: connection.execute(f"PRAGMA {name}").fetchone()[0]
                    for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys", "secure_delete")
                }
                assert found == {
                    "journal_mode": "wal",
                    "synchronous": level,
                    "busy_timeout": 5_000,
                    "foreign_keys": 1,
                    "secure_delete": 1,
                }
                assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (1_000,)
            assert [one.execute("PRAGMA query_only").fetchone()[0] for one in (writer, reader, another)] == [0, 1, 1]


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with open_replica(tmp_path, index=plain_index()) as store:
        store.add_memory("green tea", user_id="u")
        with pytest.raises(memory.StoreReadOnly), database_of(store).read() as reader:
            reader.execute("DELETE FROM memories")
        assert len(everything(store, "u")) == 1


def test_the_setting_of_a_program_reaches_the_file(tmp_path: Path) -> None:
    for setting, level in (("full", 2), ("normal", 1)):
        url = f"edge://{tmp_path}"
        with memory.connect(url, embedding_model="hashing", sqlite_synchronous=setting) as store:
            store.add_memory("green tea", user_id="u")
            with database_of(store).write() as writer:
                assert writer.execute("PRAGMA synchronous").fetchone() == (level,)


# Others that have the file open


def lock(pipe: Connection, file: Path) -> None:
    """Hold SQLite's own lock for writing until told, as a backup or a shell may."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        pipe.send("locked")
        pipe.recv()
        connection.execute("ROLLBACK")


def test_a_stranger_who_is_writing_makes_the_store_busy_and_nothing_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 50)
    index = plain_index()
    with open_replica(tmp_path, index=index, edge_settings=QUIET) as store:
        added = store.add_memory("green tea", user_id="u")
        stranger = Holder(file_of(tmp_path), lock)
        for write in (
            lambda: store.add_memory("black tea", user_id="u"),
            lambda: store.add_many([memory.NewMemory(content="black tea")] * 3, user_id="u"),
            lambda: store.update_memory(added.memory_id, user_id="u", content="black tea"),
            lambda: store.delete_memory(added.memory_id, user_id="u"),
        ):
            with pytest.raises(memory.StoreBusy) as caught:
                write()
            assert caught.value.retryable
            assert "close what else has this file open" in caught.value.hint
        assert [hit.memory.content for hit in store.recall("tea", user_id="u")] == ["green tea"]
        stranger.close()
        store.update_memory(added.memory_id, user_id="u", content="black tea")
        assert [item.content for item in everything(store, "u")] == ["black tea"]
    assert findings(tmp_path, index=index) in ({}, {"points": 1})


def test_a_stranger_who_is_writing_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    with open_replica(tmp_path, index=plain_index()) as store:
        store.add_memory("green tea", user_id="u")
        stranger = Holder(file_of(tmp_path), lock)
        soon = threading.Timer(0.3, stranger.close)
        soon.start()
        store.add_memory("black tea", user_id="u")
        assert sorted(item.content for item in everything(store, "u")) == ["black tea", "green tea"]
        soon.join()


# No space left


def test_a_full_file_refuses_and_nothing_is_half_written(tmp_path: Path) -> None:
    index = plain_index()
    with open_replica(tmp_path, index=index, edge_settings=QUIET) as store:
        added = store.add_memory("green tea", user_id="u", tags=["茶"])
        with database_of(store).write() as writer:
            [pages] = writer.execute("PRAGMA page_count").fetchone()
        database_of(store)._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        large = "all work and no play " * 10_000
        for write in (
            lambda: store.add_memory(large, user_id="u"),
            lambda: store.add_many([memory.NewMemory(content="small"), memory.NewMemory(content=large)], user_id="u"),
            lambda: store.update_memory(added.memory_id, user_id="u", content=large, add_tags=["new"]),
        ):
            with pytest.raises(memory.StoreFull) as caught:
                write()
            assert "free some disk space" in caught.value.hint
        assert [(item.content, item.tags) for item in everything(store, "u")] == [("green tea", ("茶",))]
        assert store.recall("tea", user_id="u")[0].memory.memory_id == added.memory_id
        database_of(store)._writer.execute("PRAGMA max_page_count = 1000000")
        store.add_memory(large, user_id="u")
        assert sorted(item.content for item in everything(store, "u")) == sorted([large, "green tea"])
        settle(store)
    assert findings(tmp_path, index=index) == {}


def add_up_to_a_limit(path: Path) -> tuple[list[str], str]:
    """Add until the system lets no file grow any more, then go on without the limit; what was acknowledged."""
    acknowledged: list[str] = []
    failed = ""
    with open_replica(path, index=plain_index(), edge_settings=QUIET) as store:
        acknowledged.append(store.add_memory("the first", user_id="u").memory_id)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MB, hard))
        try:
            for number in range(1_000):
                added = store.add_memory(f"note {number} " + os.urandom(4_000).hex(), user_id="u")
                acknowledged.append(added.memory_id)
        except StoreError as error:
            failed = type(error).__name__
        with_limit = {item.memory_id for item in everything(store, "u")}
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert with_limit == set(acknowledged)
        acknowledged.append(store.add_memory("the last", user_id="u").memory_id)
    return acknowledged, failed


def test_a_file_that_may_not_grow_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    acknowledged, failed = elsewhere(add_up_to_a_limit, tmp_path)
    assert failed in ("StoreFull", "StoreUnavailable")
    assert 10 < len(acknowledged) < 1_000
    with open_replica(tmp_path, index=plain_index()) as store:
        assert [item.memory_id for item in everything(store, "u")] == acknowledged[::-1]
        assert store.recall("the last", user_id="u")[0].memory.content == "the last"
    assert set(findings(tmp_path, index=plain_index())) <= {"points"}


# The log


def test_threads_write_on_beside_a_long_reader_and_the_log_is_cut_afterwards(tmp_path: Path) -> None:
    index = plain_index()
    with open_replica(tmp_path, index=index, edge_settings=QUIET) as store:
        store.add_many([memory.NewMemory(content=f"before {n}") for n in range(50)], user_id="u")

        def work(thread: int) -> None:
            for number in range(200):
                store.add_memory(f"note {thread} {number}", user_id="u")

        with storage_of(store).snapshot(Scope()) as snapshot:
            seen = [next(snapshot.records)]
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(work, range(8)))
            assert wal_bytes(store) > 10 * MB, "the log should have grown, or this shows nothing"
            storage_of(store).tidy()
            seen += list(snapshot.records)
        assert sorted(record["content"] for record in seen) == sorted(f"before {n}" for n in range(50))
        storage_of(store).tidy()
        assert wal_bytes(store) == 0
        assert file_of(tmp_path).with_name("memory.db-wal").stat().st_size == 0
        contents = {item.content for item in everything(store, "u")}
        assert len(contents) == 1_650
        settle(store)
    assert not file_of(tmp_path).with_name("memory.db-wal").exists()
    assert findings(tmp_path, index=index) == {}


def test_the_log_stays_small_while_nobody_reads_for_long(tmp_path: Path) -> None:
    largest = 0
    with open_replica(tmp_path, index=plain_index(), edge_settings=QUIET) as store:
        for number in range(2_000):
            store.add_memory(f"note {number}", user_id="u")
            largest = max(largest, file_of(tmp_path).with_name("memory.db-wal").stat().st_size)
    assert largest < 8 * MB


# Traces of the deleted

SECRET = ("zqxjkvwp", "夜莺夜莺密码", "geheimwort")
"""In a content, in tags and metadata, in a content that was replaced."""


def remember_secrets(store: StorageProvider) -> tuple[str, str]:
    for number in range(200):
        store.add_memory(f"note {number}", user_id="u", tags=["kept"])
    long = store.add_memory(f"{SECRET[0]} " * 3_000, user_id="u", tags=[SECRET[1]], metadata={"k": SECRET[1]})
    changed = store.add_memory(f"the word is {SECRET[2]}", user_id="u")
    settle(store)
    return long.memory_id, changed.memory_id


def forget_secrets(store: StorageProvider, long: str, changed: str) -> None:
    store.delete_memory(long, user_id="u")
    store.update_memory(changed, user_id="u", content="nothing")


def secrets_in(path: Path) -> set[str]:
    held = b"".join(file.read_bytes() for file in file_of(path).parent.glob("memory.db*"))
    # The index of words may hold a word without its beginning.
    return {secret for secret in SECRET if secret[2:].encode() in held}


def test_nothing_of_what_was_deleted_stays_in_the_files_of_sqlite(tmp_path: Path) -> None:
    with open_replica(tmp_path, index=plain_index(), edge_settings=QUIET) as store:
        made = remember_secrets(store)
        storage_of(store).tidy()
        assert secrets_in(tmp_path) == set(SECRET)
        forget_secrets(store, *made)
        storage_of(store).tidy()
        assert secrets_in(tmp_path) == set()
        assert len(everything(store, "u")) == 201
    assert secrets_in(tmp_path) == set()


def test_closing_leaves_nothing_of_what_was_deleted(tmp_path: Path) -> None:
    with open_replica(tmp_path, index=plain_index(), edge_settings=QUIET) as store:
        forget_secrets(store, *remember_secrets(store))
    assert [file.name for file in file_of(tmp_path).parent.glob("memory.db*")] == ["memory.db"]
    assert secrets_in(tmp_path) == set()


def forget_and_wait(pipe: Connection, path: Path) -> None:
    with open_replica(path, index=plain_index(), edge_settings=QUIET) as store:
        forget_secrets(store, *remember_secrets(store))
        pipe.send("forgotten")
        pipe.recv()


def test_what_a_killed_program_had_deleted_is_gone_after_the_next_one(tmp_path: Path) -> None:
    holder = Holder(tmp_path, forget_and_wait)
    holder.kill()
    holder.close()
    assert secrets_in(tmp_path) == set(SECRET)
    with open_replica(tmp_path, index=plain_index()) as store:
        assert len(everything(store, "u")) == 201
    assert secrets_in(tmp_path) == set()
