"""Speed of sync between a replica and a central Postgres.

    python -m tests.bench.sync [--records 20000] [--edits 1000000] [--json OUT]

- ``first_sync_rows_per_s``: an empty replica receives everything of one user, with 384-dimensional vectors, until it is
  stored; ``first_sync_indexed_rows_per_s``: until both indexes hold it, too. Beside them ``raw_rows_per_s``: the same
  rows read from Postgres by one cursor and inserted into a plain SQLite table.
- ``idle_round_trips``, ``idle_records_read``: a sync when nothing has happened; calls to the centre and lines read.
- ``visibility_ms``: from the return of ``add_memory`` on one replica until a second one has it, both syncing in the
  background: the median of 30.
- ``hot_push_records``, ``hot_push_peak_mb``: lines sent after very many edits of 1,000 memories, and what the push adds
  to the peak of resident memory (Linux only).
"""

from __future__ import annotations

import argparse
import re
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psycopg

import memory
from edge.provider import EdgeMemory
from edge.sqlite import outbox, writing
from memory.config import load_config
from memory.connect import centre_dial
from memory.core.centre import SyncCentre
from memory.core.state import Changes
from memory.postgres.embedded import EmbeddedServer
from tests.bench.measure import PrecomputedEmbedder, sentences, write_report
from tests.replicas import settle, storage_of
from tests.sync.faults import FaultyCarrier

DIMENSION: Final = 384
USER: Final = "user-一"
BATCH: Final = 2_000
HOT: Final = 1_000
VISIBLE_WITHIN_S: Final = 30.0


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--edits", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="memory-bench-"))
    folder.chmod(0o755)
    try:
        with EmbeddedServer(folder / "postgres") as server:
            report = measure(server.url(), folder, records=options.records, edits=options.edits)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, value in report.items():
        print(f"{name}={value}")
    write_report(options.json, report)


def measure(url: str, folder: Path, *, records: int, edits: int) -> dict[str, Any]:
    """All figures."""
    fill(url, records)
    report = {"records": records, **first_sync(url, folder / "first", records)}
    report["raw_rows_per_s"] = raw_copy(url, folder / "raw.db", records)
    report |= idle(url, folder / "first")
    report |= visibility(url, folder)
    return report | hot_push(url, folder / "hot", edits)


def fill(url: str, records: int) -> None:
    """Store that many memories of one user at the centre."""
    with memory.connect(url, embedder=PrecomputedEmbedder(DIMENSION), auto_migrate=True) as store:
        for start in range(0, records, BATCH):
            items = [
                memory.NewMemory(content=text, tags=["bench"])
                for text in sentences(min(BATCH, records - start), seed=start)
            ]
            store.add_many(items, user_id=USER)


def device(url: str, path: Path, *, background: bool = False) -> EdgeMemory:
    """A replica with that centre."""
    return memory.connect(
        f"edge://{path}",
        centre=url,
        embedder=PrecomputedEmbedder(DIMENSION),
        sync_background=background,
        track_access=False,
    )


def first_sync(url: str, path: Path, records: int) -> dict[str, Any]:
    """Everything of a user, to an empty replica."""
    with device(url, path) as replica:
        begin = time.perf_counter()
        [report] = replica.sync_now(USER)
        stored = time.perf_counter() - begin
        settle(replica)
        indexed = time.perf_counter() - begin
        if report.pulled != records or not report.equal:
            raise RuntimeError(f"the first sync ended otherwise: {report}")
    return {
        "first_sync_rows_per_s": round(records / stored),
        "first_sync_indexed_rows_per_s": round(records / indexed),
    }


def raw_copy(url: str, path: Path, records: int) -> int:
    """The baseline: the same rows with their vectors, through nothing but the two drivers."""
    begin = time.perf_counter()
    target = sqlite3.connect(path, isolation_level=None)
    target.execute("PRAGMA journal_mode = WAL")
    target.execute("CREATE TABLE raw (memory_id TEXT PRIMARY KEY, content TEXT, stamps TEXT, rev INTEGER, vector BLOB)")
    with psycopg.connect(url) as source, source.cursor("raw") as cursor:
        cursor.itersize = 1_000
        cursor.execute(
            "SELECT m.memory_id::text, m.content, m.stamps::text, m.rev, vector_send(v.embedding) FROM memories m"
            " JOIN memory_vectors v USING (user_id, memory_id) WHERE m.user_id = %s",
            [USER],
        )
        while rows := cursor.fetchmany(1_000):
            target.execute("BEGIN")
            target.executemany("INSERT INTO raw VALUES (?, ?, ?, ?, ?)", rows)
            target.execute("COMMIT")
    target.close()
    return round(records / (time.perf_counter() - begin))


def idle(url: str, path: Path) -> dict[str, Any]:
    """A sync with nothing to do."""
    with device(url, path) as replica:
        counting = FaultyCarrier(_dialled(url))
        replica._link._dial = lambda: counting
        replica.sync_now(USER)  # the first one after opening may have something to note
        trips, lines = counting.round_trips, counting.records_read
        begin = time.perf_counter()
        [report] = replica.sync_now(USER)
        seconds = time.perf_counter() - begin
        if report.round_trips != counting.round_trips - trips:
            raise RuntimeError("the report counts other round trips than there were")
    return {
        "idle_round_trips": report.round_trips,
        "idle_records_read": counting.records_read - lines,
        "idle_ms": round(seconds * 1000, 2),
    }


def _dialled(url: str) -> SyncCentre:
    dial = centre_dial(load_config(centre_url=url))
    if dial is None:
        raise RuntimeError("no centre")
    return dial()


def visibility(url: str, folder: Path) -> dict[str, Any]:
    """How soon another replica has what one has written."""
    user = "user-seen"
    with (
        device(url, folder / "writer", background=True) as writer,
        device(url, folder / "reader", background=True) as reader,
    ):
        writer.add_memory("the first", user_id=user)
        writer.sync_now(user)
        reader.sync_now(user)
        waits = []
        for text in sentences(30, seed=5):
            made = writer.add_memory(text, user_id=user)
            begin = time.perf_counter()
            while not storage_of(reader).fetch(user, [made.memory_id]):
                if time.perf_counter() - begin > VISIBLE_WITHIN_S:
                    raise RuntimeError("a write did not become visible")
                time.sleep(0.001)
            waits.append((time.perf_counter() - begin) * 1000)
    return {"visibility_ms": round(statistics.median(waits), 1), "visibility_worst_ms": round(max(waits), 1)}


def hot_push(url: str, path: Path, edits: int) -> dict[str, Any]:
    """Push 1,000 memories after very many edits of them."""
    user = "user-hot"
    with device(url, path) as replica:
        made = replica.add_many([memory.NewMemory(content=text) for text in sentences(HOT, seed=6)], user_id=user)
        replica.sync_now(user)
        _edit(replica, user, [item.memory_id for item in made], edits)
        with Path("/proc/self/clear_refs").open("w") as peak:
            peak.write("5")  # the peak starts again from here
        before = _peak_mb()
        [report] = replica.sync_now(user)
        growth = _peak_mb() - before
    return {"hot_edits": edits, "hot_push_records": report.pushed, "hot_push_peak_mb": round(growth, 1)}


def _edit(replica: EdgeMemory, user: str, ids: list[str], edits: int) -> None:
    """Edits as ``update_memory`` makes them, but many to a transaction: a commit each would wait for hours."""
    storage = storage_of(replica)
    with storage.users.writing(user) as opened:
        for start in range(0, edits, 10_000):
            with opened.database.write() as connection:
                for i in range(start, min(start + 10_000, edits)):
                    writing.change(
                        connection,
                        opened.author,
                        ids[i % len(ids)],
                        Changes(scalars={"importance": (i % 9_973) / 9_973}, add_tags=frozenset([f"t{i % 7}"])),
                        text=None,
                        expected_version=None,
                        now=time.time_ns() // 1_000_000,
                    )
        with opened.database.read() as connection:
            waiting = outbox.pending(connection)[0]
    if waiting != len(ids):
        raise RuntimeError(f"{waiting} memories wait to be sent")


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    main()
