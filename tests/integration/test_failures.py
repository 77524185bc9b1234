"""Databases that are not there, not writable or go away: typed errors, and nothing half-written."""

from __future__ import annotations

import gc
import io
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import memory
from memory.postgres.embedded import EmbeddedServer


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("mysql://localhost/x", memory.ConfigError),
        ("no scheme at all", memory.ConfigError),
        ("postgresql://localhost:notaport/x", memory.StoreUnavailable),
        ("postgresql:///x?nonsense=1", memory.UsageError),
        ("https://memory.example.org", memory.Unsupported),
    ],
)
def test_a_url_that_cannot_be_used_is_named(url: str, error: type[memory.Error]) -> None:
    with pytest.raises(error) as caught:
        memory.connect(url, embedding_model="hashing", connect_timeout=2)
    assert caught.value.hint or caught.value.message


def test_a_password_never_appears_in_an_error(server: EmbeddedServer) -> None:
    for url in (
        "postgresql://me:s3cret@127.0.0.1:1/x",
        f"postgresql://nobody:s3cret@/memory?host={server.socket_directory}&port=5432",
        "postgresql://me:s3cret@localhost:notaport/x",
        "s3cret",
    ):
        with pytest.raises(memory.Error) as caught:
            memory.connect(url, embedding_model="hashing", connect_timeout=2)
        assert "s3cret" not in str(caught.value)
        assert "s3cret" not in repr(caught.value.fields)


def test_a_server_that_is_not_there_is_unavailable_and_worth_a_retry() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(memory.StoreUnavailable) as caught:
            memory.connect(f"postgresql://postgres@127.0.0.1:{port}/x", embedding_model="hashing", connect_timeout=2)
    assert caught.value.retryable
    assert "database URL" in caught.value.hint


def test_a_missing_database_is_named(server: EmbeddedServer) -> None:
    with pytest.raises(memory.StoreDenied, match="does not exist") as caught:
        memory.connect(server.url("not_here"), embedding_model="hashing", connect_timeout=2)
    assert not caught.value.retryable
    assert "database name" in caught.value.hint


def test_a_read_only_database_serves_reads_and_refuses_writes(database_url: str) -> None:
    with memory.connect(database_url, embedding_model="hashing") as store:
        added = store.add_memory("green tea", user_id="u")
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET default_transaction_read_only = on")
    with memory.connect(database_url, embedding_model="hashing", track_access=False) as store:
        assert store.recall("tea", user_id="u")[0].memory == added
        for write in (
            lambda: store.add_memory("more", user_id="u"),
            lambda: store.add_many([memory.NewMemory(content="more")], user_id="u"),
            lambda: store.update_memory(added.memory_id, user_id="u", content="x"),
            lambda: store.delete_memory(added.memory_id, user_id="u"),
        ):
            with pytest.raises(memory.StoreReadOnly) as caught:
                write()
            assert "primary" in caught.value.hint
        assert store.get_memory(added.memory_id, user_id="u") == added


@pytest.fixture
def own_server(reachable: Path) -> Iterator[tuple[EmbeddedServer, Callable[[], None]]]:
    """A server of this test's own, and a way to kill it as a power cut would."""
    server = EmbeddedServer(reachable / "postgres")
    server.start()

    def crash() -> None:
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    yield server, crash
    server.stop()


def test_a_crash_of_the_server_loses_nothing_acknowledged_and_the_provider_recovers(
    own_server: tuple[EmbeddedServer, Callable[[], None]],
) -> None:
    server, crash = own_server
    acknowledged = []
    with memory.connect(server.url(), embedding_model="hashing", auto_migrate=True, connect_timeout=30) as store:
        for i in range(200):
            if i == 100:
                crash()
            for attempt in range(200):
                try:
                    acknowledged.append(store.add_memory(f"note {i}", user_id="u").memory_id)
                except memory.StoreUnavailable:
                    assert attempt < 199
                else:
                    break
        held = {item.memory_id for page in pages(store) for item in page}
    assert set(acknowledged) <= held


def pages(store: memory.MemoryProvider) -> Iterator[Any]:
    cursor = None
    while True:
        page = store.list_memories(user_id="u", limit=50, cursor=cursor)
        yield page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def test_a_failed_flush_of_access_counts_is_made_up_for(database_url: str) -> None:
    with memory.connect(database_url, embedding_model="hashing", flush_interval=3_600) as store:
        added = store.add_memory("green tea", user_id="u")
        store.recall("tea", user_id="u")
        with psycopg.connect(database_url, autocommit=True) as admin:
            admin.execute("ALTER TABLE memory_access RENAME TO elsewhere")
            with pytest.raises(memory.StoreError):
                store.flush()
            admin.execute("ALTER TABLE elsewhere RENAME TO memory_access")
        store.recall("tea", user_id="u")
        store.flush()
        assert store.get_memory(added.memory_id, user_id="u").access_count == 2


def test_a_batch_that_the_database_refuses_leaves_nothing(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("ALTER TABLE memory_tags ADD CHECK (tag <> 'poison')")
    with memory.connect(database_url, embedding_model="hashing") as store:
        items = [memory.NewMemory(content=f"note {i}", tags=["poison"] if i == 90 else ["fine"]) for i in range(100)]
        with pytest.raises(memory.IntegrityFailure):
            store.add_many(items, user_id="u")
        with pytest.raises(memory.IntegrityFailure):
            store.add_memory("one", user_id="u", tags=["poison"])
        assert store.stats().memories_by_status == {}
        assert store.add_memory("fine", user_id="u").version == "1"


def test_a_failed_export_leaves_nothing_on_the_connection_it_used(database_url: str) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 100_000:
                raise OSError(28, "No space left on device")
            return super().write(data)

    with memory.connect(database_url, embedding_model="hashing", pool_size=1) as store:
        store.add_many([memory.NewMemory(content=f"note {i} " + "x" * 100) for i in range(2_000)], user_id="u")
        with pytest.raises(memory.TargetError) as caught:
            store.export_memories(Full())
        assert store._storage._database is not None  # type: ignore[attr-defined]
        with store._storage._database.transaction() as connection:  # type: ignore[attr-defined]
            del caught  # frees the traceback, and with it whatever still holds the cursor
            gc.collect()
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_after_a_restart_of_the_server_one_call_fails_and_not_one_a_connection(
    own_server: tuple[EmbeddedServer, Callable[[], None]],
) -> None:
    server, _ = own_server
    with memory.connect(
        server.url(), embedding_model="hashing", auto_migrate=True, pool_size=6, track_access=False
    ) as store:
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(lambda i: store.add_memory(f"note {i}", user_id=f"u{i}"), range(60)))
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'nightingale-memory' AND pid <> pg_backend_pid()"
            )
        failed = 0
        for _ in range(20):
            try:
                store.get_memory("00000000-0000-4000-8000-000000000000", user_id="u")
            except memory.StoreUnavailable:
                failed += 1
            except memory.NotFound:
                pass
        assert failed <= 1


def test_a_read_only_database_answers_and_forgets_who_asked(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with memory.connect(database_url, embedding_model="hashing") as store:
        store.add_memory("green tea", user_id="u")
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET default_transaction_read_only = on")
    with memory.connect(database_url, embedding_model="hashing") as store:
        assert len(store.recall("tea", user_id="u")) == 1
        assert store.export_memories(tmp_path / "e.jsonl").memories == 1
        assert len(store.recall("tea", user_id="u")) == 1
    assert caplog.text.count("accesses are not counted") == 1


def test_a_database_of_another_encoding_is_refused(server: EmbeddedServer) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS latin")
        admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0 LOCALE_PROVIDER libc")
    with pytest.raises(memory.Unsupported, match="LATIN1"):
        memory.connect(server.url("latin"), embedding_model="hashing", auto_migrate=True)
    with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
        admin.execute("DROP DATABASE latin")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.add_many(None, user_id="u"),
        lambda store: store.add_many("abc", user_id="u"),
        lambda _: memory.connect(123),  # type: ignore[call-overload]
        lambda _: memory.connect("memory://", config={}),  # type: ignore[call-overload]
        lambda _: memory.connect("postgresql://u:ab@cd@host/db"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_a_usage_error(call: Callable[[Any], Any]) -> None:
    with memory.connect("memory://", embedding_model="hashing") as store, pytest.raises(memory.UsageError) as caught:
        call(store)
    assert "cd@host" not in str(caught.value)
