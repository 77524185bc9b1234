"""Quality of recall on the LoCoMo conversations (Maharana et al., 2024; CC BY-NC 4.0, not in this repository).

    python -m tests.bench.locomo --data FILE [--provider centre|edge|volatile] [--limit N] [--json FILE]

One memory a turn: date, speaker, text, image caption; type event; created when its session took place. Asked one
day after the conversation's last session, access tracking off, ten results. No LLM. A session hit: some
retrieved turn is of a session that holds evidence; a turn hit: some retrieved turn is itself evidence.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import memory
from memory.core.ports import Embedder, Vector, Vectors
from memory.embedding.local import LocalEmbedder
from memory.postgres.embedded import EmbeddedServer
from tests.bench.measure import write_report

DAY_MS: Final = 86_400_000
TOP_K: Final = 10
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "stored_importance": {"rank_by": "stored"},
    "relevance_only": {"rerank_alpha": 1.0, "rerank_beta": 0.0, "rerank_gamma": 0.0},
}


@dataclass(frozen=True)
class Turn:
    """One utterance."""

    dia_id: str
    session: int
    created_at: int
    text: str


@dataclass(frozen=True)
class Question:
    """A question and the turns that answer it."""

    text: str
    evidence: frozenset[str]


class CachingEmbedder:
    """Embeds each text once for all three settings."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self._queries: dict[str, Vector] = {}
        self.name, self.dimension = inner.name, inner.dimension
        self.similarity_floor = inner.similarity_floor

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """As the model does."""
        return self._inner.embed_documents(texts)

    def embed_query(self, text: str) -> Vector:
        """As the model does, once."""
        if text not in self._queries:
            self._queries[text] = self._inner.embed_query(text)
        return self._queries[text]

    def close(self) -> None:
        """Shared by several providers."""


def load(path: Path, limit: int | None) -> list[tuple[list[Turn], list[Question]]]:
    """The conversations with their questions that have evidence."""
    samples = json.loads(path.read_text(encoding="utf-8"))[:limit]
    return [(list(_turns(sample["conversation"])), list(_questions(sample["qa"]))) for sample in samples]


def _turns(conversation: dict[str, Any]) -> Iterator[Turn]:
    for name, turns in conversation.items():
        match = re.fullmatch(r"session_(\d+)", name)
        if match is None:
            continue
        spoken = conversation[f"{name}_date_time"]
        date = datetime.strptime(spoken, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for turn in turns:
            text = f"{date:%d %B %Y}, {turn['speaker']}: {turn['text']}"
            if turn.get("blip_caption"):
                text += f" [image: {turn['blip_caption']}]"
            yield Turn(turn["dia_id"], int(match[1]), int(date.timestamp() * 1000), text)


def _questions(entries: list[dict[str, Any]]) -> Iterator[Question]:
    for entry in entries:
        evidence = {part for given in entry.get("evidence", []) for part in re.split(r"[;,\s]+", given) if part}
        if evidence:
            yield Question(entry["question"], frozenset(evidence))


@contextmanager
def database(provider: str) -> Iterator[str]:
    """The URL of an empty store."""
    if provider == "volatile":
        yield "memory://"
        return
    folder = Path(tempfile.mkdtemp(prefix="memory-bench-"))
    folder.chmod(0o755)
    try:
        if provider == "edge":
            yield f"edge://{folder / 'replica'}"
            return
        with EmbeddedServer(folder / "postgres") as server:
            yield server.url()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ask(
    store: memory.MemoryProvider, user: str, turns: list[Turn], questions: list[Question]
) -> list[tuple[bool, bool]]:
    """Per question: was a session hit, was a turn hit."""
    by_text = {turn.text: turn for turn in turns}
    known = {turn.dia_id: turn.session for turn in turns}
    hits = []
    for question in questions:
        evidence = question.evidence & known.keys()
        if not evidence:
            continue
        found = [by_text[hit.memory.content] for hit in store.recall(question.text, user_id=user, top_k=TOP_K)]
        sessions = {known[dia_id] for dia_id in evidence}
        hits.append((any(t.session in sessions for t in found), any(t.dia_id in evidence for t in found)))
    return hits


def run(data: Path, provider: str, limit: int | None) -> dict[str, Any]:
    """Store the conversations once and ask under each of the settings."""
    start = time.perf_counter()
    embedder = CachingEmbedder(LocalEmbedder())
    conversations = load(data, limit)
    results: dict[str, list[tuple[bool, bool]]] = {name: [] for name in SETTINGS}
    with database(provider) as url:
        with memory.connect(url, embedder=embedder, auto_migrate=True) as store:
            exported = Path(tempfile.mkdtemp()) / "all.jsonl"
            for number, (turns, _) in enumerate(conversations):
                items = [memory.NewMemory(content=t.text, memory_type="event", created_at=t.created_at) for t in turns]
                store.add_many(items, user_id=f"conversation-{number}")
            store.export_memories(exported)
        for number, (turns, questions) in enumerate(conversations):
            now = max(turn.created_at for turn in turns) + DAY_MS
            for name, settings in SETTINGS.items():
                with memory.connect(url, embedder=embedder, track_access=False, now=now, **settings) as store:
                    if provider == "volatile":
                        store.import_memories(exported, user_id=f"conversation-{number}")
                    results[name] += ask(store, f"conversation-{number}", turns, questions)
        shutil.rmtree(exported.parent)
    report: dict[str, Any] = {"questions": len(results["defaults"]), "seconds": time.perf_counter() - start}
    for name, hits in results.items():
        report[name] = {
            "session_hit_at_10": sum(session for session, _ in hits) / len(hits),
            "turn_hit_at_10": sum(turn for _, turn in hits) / len(hits),
        }
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--provider", choices=["centre", "edge", "volatile"], default="centre")
    parser.add_argument("--limit", type=int, help="only the first N conversations")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = run(options.data, options.provider, options.limit)
    for name in SETTINGS:
        row = report[name]
        print(f"{name:18} session hit@10 {row['session_hit_at_10']:.4f}  turn hit@10 {row['turn_hit_at_10']:.4f}")
    write_report(options.json, report)
    figures = "  ".join(
        f"{name}={report[name]['session_hit_at_10']:.3f}/{report[name]['turn_hit_at_10']:.3f}" for name in SETTINGS
    )
    print(f"questions={report['questions']}  seconds={report['seconds']:.0f}  {figures}")


if __name__ == "__main__":
    main()
