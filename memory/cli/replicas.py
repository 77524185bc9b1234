"""Upkeep of a replica on this device: what the commands of ``upkeep`` do for an ``edge:`` URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from memory.cli.session import Session
from memory.connect import index_maker
from memory.core.ports import Embedder
from memory.engine.diagnosis import Finding, Repaired

# `edge` is loaded by those who use it only.


def examine(session: Session, path: Path, *, now: int, repair: bool) -> tuple[list[Finding], list[Repaired]]:
    """Examine a replica, and repair it if asked and needed; the findings are those after the repair."""
    from edge.doctor import Doctor  # noqa: PLC0415

    doctor = Doctor(path, index_maker(session.config()), repair=repair)
    try:
        repaired = doctor.repair(now=now) if repair else []
        return doctor.examine(now=now), repaired
    finally:
        doctor.close()


def revisions(path: Path) -> tuple[str, str]:
    """The revision or revisions of a replica's files, and this program's; a replica without users has nothing older."""
    from edge.revisions import revisions as of_files  # noqa: PLC0415

    found, head = of_files(path)
    return ", ".join(found) or head, head


def head() -> str:
    """The revision of a replica's schema that this program works with."""
    from edge.sqlite.migrations import Schema  # noqa: PLC0415

    return Schema().branch.head


def upgrade(path: Path) -> None:
    """Upgrade a replica's files."""
    from edge.revisions import upgrade as upgrade_files  # noqa: PLC0415

    upgrade_files(path)


def reembed(session: Session, path: Path, embedder: Embedder, progress: Callable[[int, int], None]) -> int:
    """Change a replica's embedding model; returns how many memories were embedded."""
    from edge.reembedding import reembed as embed_all  # noqa: PLC0415

    return embed_all(path, embedder, index_maker(session.config()), progress)
