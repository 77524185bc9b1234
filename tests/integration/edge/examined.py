"""A replica before the doctor: what it holds, and what the doctor says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edge.doctor import Doctor
from edge.vectors.port import IndexFactory
from memory.connect import SystemClock

ZH = "项目代号叫夜莺，下周五交付第一版"
EN = "The staging server runs in Frankfurt"
TEA = "Prefers green tea"
Sql = Callable[..., list[tuple[Any, ...]]]
OWN_FIELDS = (
    "SELECT number, user_id, memory_id, rev, status, memory_type, created_at, importance, updated_at, source_session,"
    " version, stamps, metadata, tags, extra, content FROM memories ORDER BY 1",
    "SELECT * FROM memory_access ORDER BY 1, 2",
    "SELECT * FROM memory_tombstones ORDER BY 1",
)
FIRST = "(SELECT min(number) FROM memories)"


@contextmanager
def doctor(path: Path, factory: IndexFactory, *, repair: bool = False) -> Iterator[Doctor]:
    opened = Doctor(path, lambda _replica: factory, repair=repair)
    try:
        yield opened
    finally:
        opened.close()


def now() -> int:
    return SystemClock().now()


def found(path: Path, factory: IndexFactory, *, at: int | None = None) -> dict[str, int]:
    """Everything that is not as it should be, whether a problem or only worth knowing."""
    with doctor(path, factory) as opened:
        return {finding.name: finding.rows for finding in opened.examine(now=at or now()) if finding.rows}


def repaired(path: Path, factory: IndexFactory) -> dict[str, int]:
    with doctor(path, factory, repair=True) as opened:
        return {item.name: item.rows for item in opened.repair(now=now())}


def files(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "owner.lock"}
