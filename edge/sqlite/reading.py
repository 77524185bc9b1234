"""Reading memories back: by id, and page by page."""

from __future__ import annotations

from collections.abc import Sequence

from edge.sqlite.database import Db
from edge.sqlite.filters import ONE_OF, Where, listed, narrow, wide
from edge.sqlite.rows import SELECT_STATE, read_state
from memory.engine.storage import Stored
from memory.policies.admission import Filter


def fetch(connection: Db, memory_ids: Sequence[str]) -> dict[str, Stored]:
    """See ``Storage.fetch``."""
    rows = connection.execute(f"{SELECT_STATE} WHERE m.memory_id IN {ONE_OF}", (listed(memory_ids),))
    return {row[0]: read_state(row) for row in rows}


def list_page(connection: Db, given: Filter, *, limit: int, before: tuple[int, str] | None) -> list[Stored]:
    """See ``Storage.list_page``."""
    where = Where()
    narrow(where, given)
    wide(where, given)
    if before is not None:
        created_at, memory_id = before
        where.add("m.created_at <= ? AND (m.created_at < ? OR m.memory_id > ?)", created_at, created_at, memory_id)
    rows = connection.execute(
        f"{SELECT_STATE} WHERE {where} ORDER BY m.created_at DESC, m.memory_id LIMIT ?", (*where.params, limit)
    )
    return [read_state(row) for row in rows]
