"""Reading memories back: by id, and page by page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge.sqlite.columns import View, selected
from edge.sqlite.database import Db
from edge.sqlite.filters import ONE_OF, listed
from edge.sqlite.lookup import ids_of
from edge.sqlite.rows import SELECT_STATE, read_state
from memory.engine.storage import Stored
from memory.policies.admission import Filter


def fetch(connection: Db, memory_ids: Sequence[str]) -> dict[str, Stored]:
    """See ``Storage.fetch``."""
    rows = connection.execute(f"{SELECT_STATE} WHERE m.memory_id IN {ONE_OF}", (listed(memory_ids),))
    return {row[0]: read_state(row) for row in rows}


def list_page(connection: Db, view: View, given: Filter, *, limit: int, before: tuple[int, str] | None) -> list[Stored]:
    """See ``Storage.list_page``. The columns say which memories come next; only their rows are read."""
    numbers = np.flatnonzero(selected(connection, view, given))
    # The columns may be ahead of this view of the file: what is newer must not take the place of what is in it.
    numbers = numbers[numbers <= connection.execute("SELECT numbers FROM replica").fetchone()[0]]
    if before is not None:
        created_at, memory_id = before
        created = view.created_at[numbers]
        same = numbers[created == created_at].tolist()
        names = ids_of(connection, same)
        later = [number for number in same if names.get(number, "") > memory_id]
        numbers = np.concatenate([numbers[created < created_at], np.array(later, np.int64)])
    if len(numbers) > limit:
        created = view.created_at[numbers]
        numbers = numbers[created >= np.partition(created, len(created) - limit)[len(created) - limit]]
    names = ids_of(connection, numbers.tolist())
    first = sorted(names, key=lambda number: (-int(view.created_at[number]), names[number]))[:limit]
    found = fetch(connection, [names[number] for number in first])
    return [found[names[number]] for number in first]
