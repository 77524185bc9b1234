"""The log of what could not be kept where it was, for a person to look through."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge.sqlite.database import Db
from edge.sqlite.rows import encode_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """An entry: what a memory held before something else won."""

    number: int
    memory_id: str
    reason: str
    """``overwritten``, ``deleted``, ``gone`` or ``rejected``; see ``edge.sync.plan.REASONS``."""
    problem: str | None
    """What the centre said, of ``rejected``."""
    content: str | None
    record: Mapping[str, Any]
    """All of it, as of ``core.record``; without the vector."""
    logged_at: int
    """ms UTC."""


def log_conflict(
    connection: Db, memory_id: str, reason: str, record: Mapping[str, Any], *, now: int, problem: str | None = None
) -> None:
    """Add an entry; the same one twice is one."""
    kept = {name: value for name, value in record.items() if name not in ("vector", "embedding_version", "sync")}
    connection.execute(
        "INSERT INTO conflicts (memory_id, reason, problem, content, record, logged_at) SELECT ?, ?, ?, ?, ?, ?"
        " WHERE NOT EXISTS (SELECT 1 FROM conflicts WHERE memory_id = ? AND reason = ? AND record = ?)",
        (
            *(memory_id, reason, problem, record.get("content"), text := encode_json(kept), now),
            *(memory_id, reason, text),
        ),
    )


def list_conflicts(connection: Db) -> list[Conflict]:
    """All entries, oldest first."""
    rows = connection.execute(
        "SELECT number, memory_id, reason, problem, content, record, logged_at FROM conflicts ORDER BY number"
    )
    return [_entry(row) for row in rows]


def read_conflict(connection: Db, number: int) -> Conflict | None:
    """One entry."""
    row = connection.execute(
        "SELECT number, memory_id, reason, problem, content, record, logged_at FROM conflicts WHERE number = ?",
        (number,),
    ).fetchone()
    return None if row is None else _entry(row)


def _entry(row: tuple[Any, ...]) -> Conflict:
    number, memory_id, reason, problem, content, record, logged_at = row
    return Conflict(
        number=number,
        memory_id=memory_id,
        reason=reason,
        problem=problem,
        content=content,
        record=json.loads(record),
        logged_at=logged_at,
    )


def dismiss(connection: Db, number: int) -> bool:
    """Remove an entry; False if there is none."""
    return connection.execute("DELETE FROM conflicts WHERE number = ?", (number,)).rowcount > 0


def count_conflicts(connection: Db) -> int:
    """How many entries there are."""
    return int(connection.execute("SELECT count(*) FROM conflicts").fetchone()[0])
