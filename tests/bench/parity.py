"""Do a replica and the centre recall the same? Both import one export file of 2,000 mixed memories a user.

    python -m tests.bench.parity [--data FILE] [--queries N] [--json FILE]

With the bundled model; fixed time, access tracking off. ``--data``: the LoCoMo conversations, for half of the texts.
Prints how many of the questions, asked with every kind of filter, were answered with the same ids in the same order,
and the largest difference of a score.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import memory
from memory.embedding.local import LocalEmbedder
from memory.postgres.embedded import EmbeddedServer
from tests.bench.locomo import CachingEmbedder, load
from tests.bench.measure import write_report
from tests.parity import NOW, compare, fill, questions, texts
from tests.replicas import settle

MEMORIES = 2_000


def run(data: Path | None, queries: int, folder: Path) -> dict[str, Any]:
    """Fill one store, export it, import it twice, and compare."""
    turns = [] if data is None else [turn.text for conversation, _ in load(data, None) for turn in conversation]
    known = texts(MEMORIES, turns)
    embedder = CachingEmbedder(LocalEmbedder())
    fixed: dict[str, Any] = {"embedder": embedder, "now": NOW, "track_access": False}
    with memory.connect("memory://", **fixed) as origin:
        fill(origin, known, seed=5)
        origin.export_memories(folder / "all.jsonl")
    asked = list(questions(queries, known))
    with (
        EmbeddedServer(folder / "postgres") as server,
        memory.connect(server.url(), auto_migrate=True, **fixed) as centre,
        memory.connect(f"edge://{folder / 'replica'}", **fixed) as replica,
    ):
        for store in (centre, replica):
            report = store.import_memories(folder / "all.jsonl")
            if report.rejected_count or report.reembedded:
                raise AssertionError(f"not imported as exported: {report}")
        settle(replica)
        differing, largest = compare(replica, centre, asked)
        memories = sum(centre.stats().memories_by_status.values())
    for difference in differing:
        print(f"differs: {difference.question}\n  edge   {difference.ours}\n  centre {difference.theirs}")
    return {
        "memories": memories,
        "queries": len(asked),
        "identical": len(asked) - len(differing),
        "max_score_difference": largest,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="memory-bench-"))
    folder.chmod(0o755)
    try:
        report = run(options.data, options.queries, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("  ".join(f"{key}={value}" for key, value in report.items()))
    write_report(options.json, report)


if __name__ == "__main__":
    main()
