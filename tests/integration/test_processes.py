"""Many processes and threads on one database: no error, no lost write, revisions without gaps."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import memory
from memory.core.clock import MAX_COUNTER, Tick, next_tick
from memory.embedding.hashing import HashingEmbedder
from memory.engine.storage import Pending, Touch
from memory.postgres.storage import PostgresStorage
from memory.postgres.writing import draw

WRITER = """
import sys, memory
url, number, users = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with memory.connect(url, embedding_model="hashing") as store:
    for i in range(20):
        store.add_memory(f"note {i} of process {number}", user_id=f"user-{(number + i) % users}")
    batch = [memory.NewMemory(content=f"batch {i} of {number}", tags=["b"]) for i in range(10)]
    store.add_many(batch, user_id=f"user-{number % users}")
    print("done")
"""


@pytest.mark.parametrize("users", [1, 4])
def test_ten_processes_that_add_at_once_lose_nothing_and_leave_no_gap(database_url: str, users: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, database_url, str(i), str(users)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(10)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [out.strip() for out, _ in outputs] == ["done"] * 10, outputs
    with psycopg.connect(database_url) as connection:
        total = connection.execute("SELECT count(*) FROM memories").fetchone()
        assert total == (300,)
        rows = connection.execute(
            "SELECT m.user_id, array_agg(m.rev ORDER BY m.rev), max(s.rev) FROM memories m"
            " JOIN sync_user s USING (user_id) GROUP BY m.user_id"
        ).fetchall()
        for _, revisions, head in rows:
            assert revisions == list(range(1, head + 1))


def test_a_reader_that_sees_a_revision_has_seen_all_below_it(database_url: str) -> None:
    stop = threading.Event()
    gaps: list[Any] = []

    def watch() -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            while not stop.is_set():
                row = connection.execute("SELECT count(*), coalesce(max(rev), 0) FROM memories").fetchone()
                if row is None or row[0] != row[1]:
                    gaps.append(row)

    with memory.connect(database_url, embedding_model="hashing") as store:
        watcher = threading.Thread(target=watch)
        watcher.start()
        threads = [
            threading.Thread(target=lambda n=n: [store.add_memory(f"{n} {i}", user_id="u") for i in range(40)])
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        watcher.join()
    assert gaps == []


def test_stamps_in_sql_are_the_clocks_of_python(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        tick = Tick()
        for now in (5, 5, 4, 9, 9, 1, 10):
            tick = next_tick(tick, now)
            assert draw(connection, "u", now=now, count=1).stamp.tick == tick
        connection.execute("UPDATE sync_user SET hlc_counter = %s", [MAX_COUNTER])
        assert draw(connection, "u", now=0, count=1).stamp.tick == next_tick(Tick(10, MAX_COUNTER), 0)


def lent_by(pool: Any) -> int:
    stats = pool.get_stats()
    lent: int = stats["pool_size"] - stats["pool_available"]
    return lent


def test_no_connection_is_held_while_a_model_computes(database_url: str) -> None:
    class Watching(HashingEmbedder):
        def __init__(self) -> None:
            super().__init__()
            self.borrowed: list[int] = []

        def embed_documents(self, texts: Any) -> Any:
            self.note()
            return super().embed_documents(texts)

        def embed_query(self, text: str) -> Any:
            self.note()
            return super().embed_query(text)

        def note(self) -> None:
            assert isinstance(store._storage, PostgresStorage)
            pool = store._storage._database._pool
            deadline = time.monotonic() + 10
            while (lent := lent_by(pool)) and time.monotonic() < deadline:
                time.sleep(0.01)  # a background thread gives its connection back; one of this call stays lent
            self.borrowed.append(lent)

    embedder = Watching()
    with memory.connect(database_url, embedder=embedder, pool_size=2) as store:
        added = store.add_memory("tea", user_id="u")
        store.add_many([memory.NewMemory(content="coffee")], user_id="u")
        store.update_memory(added.memory_id, user_id="u", content="green tea")
        store.recall("tea", user_id="u")
        assert len(embedder.borrowed) == 4
        assert set(embedder.borrowed) == {0}


def test_a_small_pool_serves_many_threads_and_is_given_back(database_url: str) -> None:
    class Moody(HashingEmbedder):
        def embed_documents(self, texts: Any) -> Any:
            if "fail" in texts[0]:
                raise RuntimeError("a bug in somebody's embedder")
            return super().embed_documents(texts)

    errors: list[BaseException] = []
    with memory.connect(database_url, embedder=Moody(), pool_size=2, connect_timeout=20) as store:

        def turn(i: int) -> None:
            try:
                store.add_memory(f"{'fail' if i % 3 == 0 else 'note'} {i}", user_id=f"u{i % 5}")
            except RuntimeError as error:
                errors.append(error)

        threads = [threading.Thread(target=turn, args=(i,)) for i in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) == 17
        assert sum(store.stats().memories_by_status.values()) == 33
        assert sessions(database_url) <= 2
    assert sessions(database_url) == 0


def test_opening_and_closing_often_leaves_nothing_behind(database_url: str) -> None:
    before = threading.active_count()
    for _ in range(20):
        with memory.connect(database_url, embedding_model="hashing") as store:
            store.add_memory("x", user_id="u")
            store.recall("x", user_id="u")
    assert sessions(database_url) == 0
    assert threading.active_count() <= before + 1


def sessions(url: str) -> int:
    """Connections of ours that the server knows; it notices a closed one a moment later."""
    statement = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'nightingale-memory'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(100):
            row = connection.execute(statement).fetchone()
            count = int(row[0]) if row else 0
            if count <= 2:
                connection.execute("SELECT pg_sleep(0.02)")
            if count == 0:
                break
        return count


FORKING = """
import os, sys, memory
store = memory.connect(sys.argv[1], embedding_model="hashing", pool_size=1)
store.add_memory("of the parent", user_id="u")
pid = os.fork()
if pid == 0:
    try:
        store.recall("parent", user_id="u")
    except memory.UsageError as error:
        store.close()
        print("refused:", error.message, flush=True)
        with memory.connect(sys.argv[1], embedding_model="hashing") as own:
            print("own:", own.recall("parent", user_id="u")[0].memory.content, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent:", store.recall("parent", user_id="u")[0].memory.content)
store.close()
"""


def test_a_forked_process_cannot_use_its_parents_connections(database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, database_url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "refused: the provider was opened before this process was forked",
        "own: of the parent",
        "parent: of the parent",
    ]


def test_accesses_and_late_vectors_of_the_same_memories_never_deadlock(database_url: str) -> None:
    embedder = HashingEmbedder()
    with memory.connect(database_url, embedder=embedder, track_access=False, pool_size=4) as store:
        added = store.add_many([memory.NewMemory(content=f"note {i}") for i in range(64)], user_id="u")
        storage = store._storage
        vectors = [
            (Pending("u", item.memory_id, item.content), embedder.embed_documents([item.content])[0]) for item in added
        ]
        touches = [Touch(user_id="u", memory_id=item.memory_id, count=1, last_access_at=1) for item in added[::-1]]
        with ThreadPoolExecutor(4) as threads:
            work: list[Future[Any]] = [threads.submit(storage.touch, touches) for _ in range(10)]
            work += [threads.submit(storage.put_vectors, vectors) for _ in range(10)]
            for future in work:
                future.result()
        assert store.stats().accesses == 640
