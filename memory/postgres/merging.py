"""Merge at the centre: a page of records joined with what is stored, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from memory.core.clock import Tick, parse_stamp
from memory.core.merge import merge
from memory.core.state import State
from memory.core.text import DocumentTerms
from memory.engine.storage import Incoming, NewText, Outcome
from memory.postgres.database import Db
from memory.postgres.rows import SELECT_STATE, FullRow, access_values, copy_rows, read_state
from memory.postgres.writing import bury, draw, is_current_model, write_state, write_text

_NO_TERMS: Final = DocumentTerms(frozenset(), 0)


@dataclass(frozen=True, slots=True)
class _Held:
    """What the store has of a memory."""

    state: State
    due: bool = False


def merge_page(connection: Db, incoming: Sequence[Incoming], *, now: int, model_id: int) -> list[Outcome]:
    """See ``Storage.merge``. Users are locked in ascending order, so two pages never wait for each other."""
    outcomes: dict[int, Outcome] = {}
    for user_id in sorted({item.user_id for item in incoming}):
        mine = [(i, item) for i, item in enumerate(incoming) if item.user_id == user_id]
        # Memories in ascending order, too: late vectors (models.put_vectors) lock their rows like that.
        mine.sort(key=lambda pair: pair[1].memory_id)
        outcomes |= _UserPage(connection, user_id, now=now, model_id=model_id).run(mine)
    return [outcomes[i] for i in range(len(incoming))]


class _UserPage:
    """The records of one user on a page."""

    def __init__(self, connection: Db, user_id: str, *, now: int, model_id: int) -> None:
        self._db, self._user_id, self._model_id = connection, user_id, model_id
        drawn = draw(connection, user_id, now=now, count=0)
        self._rev = drawn.rev
        self._tick: Tick = drawn.stamp.tick
        self._created: dict[str, FullRow] = {}

    def run(self, items: Sequence[tuple[int, Incoming]]) -> dict[int, Outcome]:
        if not is_current_model(self._db, self._model_id):
            items = [(i, replace(item, vector=None)) for i, item in items]
        held = self._load({item.memory_id for _, item in items})
        outcomes = {i: self._join(item, held) for i, item in items}
        copy_rows(self._db, list(self._created.values()), model_id=self._model_id)
        self._db.execute(
            "UPDATE sync_user SET rev = %s, hlc_ms = %s, hlc_counter = %s WHERE user_id = %s",
            [self._rev, *self._tick, self._user_id],
        )
        return outcomes

    def _load(self, memory_ids: set[str]) -> dict[str, _Held]:
        params = {"user": self._user_id, "ids": [UUID(memory_id) for memory_id in memory_ids]}
        live = self._db.execute(
            f"{SELECT_STATE} WHERE m.user_id = %(user)s AND m.memory_id = ANY(%(ids)s)", params
        ).fetchall()
        dead = self._db.execute(
            "SELECT memory_id::text, stamp FROM memory_tombstones"
            " WHERE user_id = %(user)s AND memory_id = ANY(%(ids)s)",
            params,
        ).fetchall()
        held = {row[0]: _Held(read_state(row).state, due=row[16]) for row in live}
        return held | {memory_id: _Held(State(deleted=parse_stamp(stamp))) for memory_id, stamp in dead}

    def _join(self, item: Incoming, held: dict[str, _Held]) -> Outcome:
        before = held.get(item.memory_id)
        state = item.state if before is None else merge(before.state, item.state)
        self._tick = max(self._tick, *(stamp.tick for stamp in state.stamps()))
        due = state.deleted is None and self._due(item, before, state)
        held[item.memory_id] = _Held(state, due)
        if before is None:
            self._create(item, state)
            return Outcome("created", deferred=due)
        changed = state != before.state
        if item.memory_id in self._created:
            # The same id twice on a page: the first is not written yet, so write the join instead.
            self._replace_created(item, state)
        elif changed or due != before.due:
            self._overwrite(item, before.state, state, due=due)
        return Outcome("merged" if changed else "unchanged", deferred=due)

    @staticmethod
    def _due(item: Incoming, before: _Held | None, state: State) -> bool:
        fits = item.vector is not None and item.state.value("content") == state.value("content")
        kept = before is not None and not before.due and before.state.value("content") == state.value("content")
        return not (fits or kept)

    def _next_rev(self) -> int:
        self._rev += 1
        return self._rev

    def _create(self, item: Incoming, state: State) -> None:
        rev = self._next_rev()
        if state.deleted is not None:
            bury(self._db, self._user_id, item.memory_id, state.deleted, rev=rev)
            return
        self._created[item.memory_id] = FullRow(
            user_id=self._user_id,
            memory_id=item.memory_id,
            state=state,
            terms=item.terms or _NO_TERMS,
            vector=item.vector,
            rev=rev,
        )

    def _replace_created(self, item: Incoming, state: State) -> None:
        row = self._created[item.memory_id]
        if state.deleted is not None:
            del self._created[item.memory_id]
            bury(self._db, self._user_id, item.memory_id, state.deleted, rev=row.rev)
        elif state.value("content") == row.state.value("content"):
            fits = item.state.value("content") == state.value("content")
            vector = item.vector if row.vector is None and fits else row.vector
            self._created[item.memory_id] = replace(row, state=state, vector=vector)
        else:
            self._created[item.memory_id] = replace(row, state=state, terms=item.terms or _NO_TERMS, vector=item.vector)

    def _overwrite(self, item: Incoming, before: State, state: State, *, due: bool) -> None:
        if state.deleted is not None:
            bury(self._db, self._user_id, item.memory_id, state.deleted, rev=self._next_rev())
            return
        if state.without_accesses() != before.without_accesses():
            write_state(self._db, self._user_id, item.memory_id, state, rev=self._next_rev(), before=before)
        ours = item.state.value("content") == state.value("content")
        if ours and (not due or state.value("content") != before.value("content")):
            self._write_text(item, before, state)
        if (state.accesses, state.last_access) != (before.accesses, before.last_access):
            self._write_accesses(item.memory_id, state)

    def _write_text(self, item: Incoming, before: State, state: State) -> None:
        same = state.value("content") == before.value("content")
        if same and item.vector is None:
            return
        text = NewText(terms=item.terms or _NO_TERMS, vector=item.vector)
        write_text(self._db, self._user_id, item.memory_id, text, state, model_id=self._model_id)

    def _write_accesses(self, memory_id: str, state: State) -> None:
        rev = self._next_rev()
        for values in access_values(self._user_id, memory_id, state, rev):
            self._db.execute(
                "INSERT INTO memory_access AS a (user_id, memory_id, writer, count, last_access_at, rev)"
                " VALUES (%s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (user_id, memory_id, writer) DO UPDATE SET"
                "   count = greatest(a.count, excluded.count),"
                "   last_access_at = greatest(a.last_access_at, excluded.last_access_at), rev = excluded.rev",
                values,
            )
