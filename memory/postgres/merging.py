"""Merge at the centre: a page of records joined with what is stored, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from memory.core.clock import Tick, parse_stamp
from memory.core.merge import merge
from memory.core.state import UNCOUNTED, State
from memory.core.text import DocumentTerms
from memory.engine.storage import Incoming, NewText, Outcome
from memory.postgres.database import Db
from memory.postgres.rows import SELECT_STATE, FullRow, copy_rows, read_state
from memory.postgres.writing import bury, draw, is_current_model, write_state, write_text

_NO_TERMS: Final = DocumentTerms(frozenset(), 0)


@dataclass(frozen=True, slots=True)
class Held:
    """What the store has of a memory."""

    state: State
    rev: int
    """Of the record; access counts have their own."""
    due: bool = False


def merge_page(connection: Db, incoming: Sequence[Incoming], *, now: int, model_id: int) -> list[Outcome]:
    """See ``Storage.merge``. Users are locked in ascending order, so two pages never wait for each other."""
    outcomes: dict[int, Outcome] = {}
    for user_id in sorted({item.user_id for item in incoming}):
        mine = [(i, item) for i, item in enumerate(incoming) if item.user_id == user_id]
        # Memories in ascending order, too: late vectors (models.put_vectors) lock their rows like that.
        mine.sort(key=lambda pair: pair[1].memory_id)
        page = UserPage(connection, user_id, now=now, model_id=model_id)
        page.load(item.memory_id for _, item in mine)
        outcomes |= {i: page.join(item) for i, item in mine}
        page.finish()
    return [outcomes[i] for i in range(len(incoming))]


class UserPage:
    """The records of one user on a page: ``load`` them, ``join`` each, ``finish``. Holds the user's row."""

    def __init__(self, connection: Db, user_id: str, *, now: int, model_id: int) -> None:
        self._db, self._user_id, self._model_id = connection, user_id, model_id
        drawn = draw(connection, user_id, now=now, count=0)
        self.rev = drawn.rev
        """Of the user, what has been joined included."""
        self._tick: Tick = drawn.stamp.tick
        self._created: dict[str, FullRow] = {}
        self._current = is_current_model(connection, model_id)
        self.held: dict[str, Held] = {}
        """What is there of each loaded memory, what has been joined included."""

    def load(self, memory_ids: Iterable[str]) -> None:
        """Read what is stored of these memories."""
        params = {"user": self._user_id, "ids": [UUID(memory_id) for memory_id in set(memory_ids)]}
        live = self._db.execute(
            f"{SELECT_STATE} WHERE m.user_id = %(user)s AND m.memory_id = ANY(%(ids)s)", params
        ).fetchall()
        dead = self._db.execute(
            "SELECT memory_id::text, stamp, rev FROM memory_tombstones"
            " WHERE user_id = %(user)s AND memory_id = ANY(%(ids)s)",
            params,
        ).fetchall()
        self.held = {row[0]: Held(read_state(row).state, row[11], due=row[16]) for row in live}
        self.held |= {memory_id: Held(State(deleted=parse_stamp(stamp)), rev) for memory_id, stamp, rev in dead}

    def join(self, item: Incoming) -> Outcome:
        """Join one record with what is there. Its state may hold access counts alone, if the memory is there."""
        if not self._current:
            item = replace(item, vector=None)
        before = self.held.get(item.memory_id)
        state = item.state if before is None else merge(before.state, item.state)
        self._tick = max(self._tick, *(stamp.tick for stamp in state.stamps()))
        due = state.deleted is None and self._due(item, before, state)
        if before is None:
            self.held[item.memory_id] = Held(state, self._create(item, state), due)
            return Outcome("created", deferred=due)
        changed, rev = state != before.state, before.rev
        if item.memory_id in self._created:
            # The same id twice on a page: the first is not written yet, so write the join instead.
            self._replace_created(item, state)
        elif changed or due != before.due:
            rev = self._overwrite(item, before, state, due=due)
        self.held[item.memory_id] = Held(state, rev, due)
        return Outcome("merged" if changed else "unchanged", deferred=due)

    def finish(self) -> None:
        """Write what is still held back. Nothing may be joined after it."""
        copy_rows(self._db, list(self._created.values()), model_id=self._model_id)
        self._db.execute(
            "UPDATE sync_user SET rev = %s, hlc_ms = %s, hlc_counter = %s WHERE user_id = %s",
            [self.rev, *self._tick, self._user_id],
        )

    @staticmethod
    def _due(item: Incoming, before: Held | None, state: State) -> bool:
        fits = item.vector is not None and item.state.value("content") == state.value("content")
        kept = before is not None and not before.due and before.state.value("content") == state.value("content")
        return not (fits or kept)

    def _next_rev(self) -> int:
        self.rev += 1
        return self.rev

    def _create(self, item: Incoming, state: State) -> int:
        rev = self._next_rev()
        if state.deleted is not None:
            bury(self._db, self._user_id, item.memory_id, state.deleted, rev=rev)
            return rev
        self._created[item.memory_id] = FullRow(
            user_id=self._user_id,
            memory_id=item.memory_id,
            state=state,
            terms=item.terms or _NO_TERMS,
            vector=item.vector,
            rev=rev,
        )
        return rev

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

    def _overwrite(self, item: Incoming, before: Held, state: State, *, due: bool) -> int:
        """Write what has changed under one revision, the record's if it has; returns the record's."""
        was = before.state
        if state.deleted is not None:
            rev = self._next_rev()
            bury(self._db, self._user_id, item.memory_id, state.deleted, rev=rev)
            return rev
        written = state.without_accesses() != was.without_accesses()
        touched = (state.accesses, state.last_access) != (was.accesses, was.last_access)
        rev = self._next_rev() if written or touched else before.rev
        if written:
            write_state(self._db, self._user_id, item.memory_id, state, rev=rev, before=was)
        ours = item.state.value("content") == state.value("content")
        if ours and (not due or state.value("content") != was.value("content")):
            self._write_text(item, was, state)
        if touched:
            self._write_accesses(item.memory_id, was, state, rev)
        return rev if written else before.rev

    def _write_text(self, item: Incoming, before: State, state: State) -> None:
        same = state.value("content") == before.value("content")
        if same and item.vector is None:
            return
        text = NewText(terms=item.terms or _NO_TERMS, vector=item.vector)
        write_text(self._db, self._user_id, item.memory_id, text, state, model_id=self._model_id)

    def _write_accesses(self, memory_id: str, before: State, state: State, rev: int) -> None:
        """Write the slots that have changed; a later last access alone is noted in the slot that counts nothing."""
        changed = {w: n for w, n in state.accesses.items() if n != before.accesses.get(w)} or {UNCOUNTED: 0}
        for writer, count in changed.items():
            self._db.execute(
                "INSERT INTO memory_access AS a (user_id, memory_id, writer, count, last_access_at, rev)"
                " VALUES (%s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (user_id, memory_id, writer) DO UPDATE SET"
                "   count = greatest(a.count, excluded.count),"
                "   last_access_at = greatest(a.last_access_at, excluded.last_access_at), rev = excluded.rev",
                (self._user_id, UUID(memory_id), writer, count, state.last_access or 0, rev),
            )
