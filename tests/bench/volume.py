"""Export and import of many records: how fast, and in how much memory.

    python -m tests.bench.volume [--records 200000] [--json FILE]

Export and import run in processes of their own; ``growth_mb`` is what their peak resident memory gains while
they work, after opening the store and a first recall (Linux only).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import psycopg

import memory
from memory.postgres.embedded import EmbeddedServer
from tests.bench.measure import PrecomputedEmbedder, sentences, write_report

ROOT: Final = Path(__file__).resolve().parents[2]
DIMENSION: Final = 384
BATCH: Final = 2_000
CHILD: Final = """
import json, re, sys, time, memory
from tests.bench.measure import PrecomputedEmbedder
url, verb, path = sys.argv[1:]
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
with memory.connect(url, embedder=PrecomputedEmbedder(384), auto_migrate=True) as store:
    store.recall("warm up", user_id="nobody")
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
    before, start = peak(), time.perf_counter()
    report = getattr(store, verb)(path)
    seconds = time.perf_counter() - start
    records = getattr(report, "memories", 0) or getattr(report, "created", 0)
    print(json.dumps({"records": records, "seconds": seconds, "growth_mb": peak() - before}))
"""


def fill(url: str, records: int, *, users: int) -> None:
    """Store that many memories with vectors."""
    with memory.connect(url, embedder=PrecomputedEmbedder(DIMENSION), auto_migrate=True) as store:
        for start in range(0, records, BATCH):
            count = min(BATCH, records - start)
            items = [memory.NewMemory(content=text, tags=["bench"]) for text in sentences(count, seed=start)]
            store.add_many(items, user_id=f"user-{(start // BATCH) % users}")


def measured(url: str, verb: str, path: Path) -> dict[str, Any]:
    """Run a verb in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, url, verb, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    figures: dict[str, Any] = json.loads(done.stdout)
    return {"name": verb, **figures, "records_per_s": round(figures["records"] / figures["seconds"])}


def main() -> None:
    """Fill one database, export it, import into another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="memory-bench-"))
    folder.chmod(0o755)
    try:
        with EmbeddedServer(folder / "postgres") as server:
            with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
                admin.execute("CREATE DATABASE target")
            fill(server.url(), options.records, users=50)
            path = folder / "all.jsonl"
            report = [
                measured(server.url(), "export_memories", path),
                measured(server.url("target"), "import_memories", path),
            ]
            size = path.stat().st_size / 1e6
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for row in report:
        print(
            "  ".join(f"{key}={round(value, 1) if isinstance(value, float) else value}" for key, value in row.items())
        )
    write_report(options.json, report)
    print(f"file_mb={size:.0f}")


if __name__ == "__main__":
    main()
