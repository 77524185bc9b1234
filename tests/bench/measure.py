"""Timing and reporting that the benchmarks share."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory.core.ports import Vector, Vectors

WORDS = (
    "project deadline coffee nightingale landlord keys monday answer bullet point meeting budget river guitar "
    "painting school camping library doctor weather recipe garden music flight hotel birthday marathon laptop "
    "password deploy server release feature customer invoice holiday mountain bicycle bakery theatre museum "
    "咖啡 项目 会议 生日 旅行 音乐 图书馆 医生 天气 预算 花园 马拉松 服务器 发布 客户 发票"
).split()
FUNCTION_WORDS = "the a of to and in that is was for with on as they it at by".split()


class PrecomputedEmbedder:
    """Answers from a table: benchmarks of the store do not measure a model."""

    name = "precomputed"
    similarity_floor = 0.0

    def __init__(self, dimension: int, seed: int = 7) -> None:
        self.dimension = dimension
        self._pool = unit_vectors(4_096, dimension, seed)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """One of the prepared vectors for each text."""
        if len(texts) == 1:  # a view: making it takes no time that would count as the store's
            at = hash(texts[0]) % len(self._pool)
            return self._pool[at : at + 1]
        return self._pool[[hash(text) % len(self._pool) for text in texts]]

    def embed_query(self, text: str) -> Vector:
        """As for documents."""
        row: Vector = self._pool[hash(text) % len(self._pool)]
        return row

    def close(self) -> None:
        """Nothing to let go of."""


def unit_vectors(count: int, dimension: int, seed: int) -> Vectors:
    """Random directions, float32."""
    raw = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return np.asarray(raw / np.linalg.norm(raw, axis=1, keepdims=True), dtype=np.float32)


def vocabulary(size: int = 5_000) -> list[str]:
    """Known words first, then invented ones, so that ranks go far enough for a natural distribution."""
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    pairs = [c + v for c in consonants for v in vowels]
    invented = (a + b + c for a in pairs for b in pairs[::3] for c in pairs[::5])
    return [*WORDS, *(word for word, _ in zip(invented, range(size - len(WORDS)), strict=False))]


def sentences(count: int, seed: int, *, shortest: int = 12, longest: int = 30) -> list[str]:
    """Texts whose content words follow Zipf-Mandelbrot (rank + 10)^-1, with as many function words between."""
    rng = np.random.default_rng(seed)
    words = vocabulary()
    weights = 1.0 / np.arange(11, len(words) + 11)
    weights /= weights.sum()
    out = []
    for i in range(count):
        content = rng.choice(words, size=int(rng.integers(shortest, longest + 1)) // 2, p=weights)
        function = rng.choice(FUNCTION_WORDS, size=len(content))
        pairs = " ".join(f"{a} {b}" for a, b in zip(function, content, strict=True))
        out.append(f"{pairs} {i}")
    return out


def alternate(
    ours: Callable[[int], object], raw: Callable[[int], object], *, rounds: int, warmup: int = 10
) -> tuple[list[float], list[float]]:
    """Run both in turn, so that the machine's moods hit both; milliseconds of each round."""
    for i in range(warmup):
        ours(i)
        raw(i)
    timings: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for call, sink in zip((ours, raw), timings, strict=True):
            start = time.perf_counter()
            call(i)
            sink.append((time.perf_counter() - start) * 1000.0)
    return timings


def latency(name: str, ours: list[float], raw: list[float]) -> dict[str, Any]:
    """A row of the report."""
    p50, raw_p50 = statistics.median(ours), statistics.median(raw)
    p95 = sorted(ours)[int(len(ours) * 0.95)]
    row = {"name": name, "p50_ms": p50, "p95_ms": p95, "raw_p50_ms": raw_p50, "ratio": p50 / raw_p50}
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}


def throughput(name: str, rows: int, seconds: float, raw_seconds: float) -> dict[str, Any]:
    """A row of the report; a ratio of 1 is as fast as raw."""
    ours, raw = rows / seconds, rows / raw_seconds
    return {
        "name": name,
        "rows_per_s": round(ours),
        "raw_rows_per_s": round(raw),
        "ratio": round(ours / raw, 3),
    }


def write_report(path: Path | None, report: Any) -> None:
    """Write the figures as JSON, if asked."""
    if path is not None:
        path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
