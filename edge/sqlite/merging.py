"""Merge on a device: records joined with what is stored, one after the other, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edge.sqlite.database import Db
from edge.sqlite.rows import Author, Base, insert_row, write_accesses
from edge.sqlite.writing import Held, bury, held, overwrite, write_vector
from memory.core.clock import Tick, parse_stamp
from memory.core.merge import merge
from memory.core.state import State
from memory.core.text import document_terms
from memory.engine.storage import Incoming, NewText, Outcome


class Known(NamedTuple):
    """What is here of a memory: its live row, and its state, live or deleted."""

    live: Held | None
    state: State | None


class Merging:
    """One transaction's records. Revisions are counted here and written at the end."""

    def __init__(self, connection: Db, author: Author) -> None:
        self._db, self._author = connection, author
        rev, ms, counter, numbers = connection.execute(
            "SELECT rev, hlc_ms, hlc_counter, numbers FROM replica"
        ).fetchone()
        self._rev: int = rev
        self._numbers: int = numbers
        self._tick = Tick(ms, counter)

    def run(self, incoming: Sequence[Incoming]) -> list[Outcome]:
        """Join each; outcome i belongs to record i."""
        outcomes = [self._join(item) for item in incoming]
        self.finish()
        return outcomes

    def finish(self) -> None:
        """Write down what has been given out."""
        self._db.execute(
            "UPDATE replica SET rev = ?, hlc_ms = ?, hlc_counter = ?, numbers = ?",
            (self._rev, *self._tick, self._numbers),
        )

    def look(self, memory_id: str) -> Known:
        """What is here of a memory."""
        before = held(self._db, memory_id)
        return Known(before, self._known(memory_id) if before is None else before.stored.state)

    def _join(self, item: Incoming) -> Outcome:
        known = self.look(item.memory_id)
        state = item.state if known.state is None else merge(known.state, item.state)
        deferred = self.store(item, known, state)
        verdict = "created" if known.state is None else "unchanged" if state == known.state else "merged"
        return Outcome(verdict, deferred=deferred)

    def store(self, item: Incoming, known: Known, state: State, base: Base | None = None) -> bool:
        """Write what a record and what is here make together; returns whether it waits for a vector now.

        ``base`` goes with a new memory that is exactly what was received from the centre.
        """
        self._tick = max(self._tick, *(stamp.tick for stamp in state.stamps()))
        if state.deleted is not None:
            if state != known.state:
                bury(self._db, self._author.user_id, item.memory_id, state.deleted, rev=self._next_rev())
            return False
        if known.live is None:
            self._create(item, state, base)
            return item.vector is None
        return self._overwrite(item, known.live, state)

    def _known(self, memory_id: str) -> State | None:
        row = self._db.execute("SELECT stamp FROM memory_tombstones WHERE memory_id = ?", (memory_id,)).fetchone()
        return None if row is None else State(deleted=parse_stamp(row[0]))

    def _next_rev(self) -> int:
        self._rev = max(self._rev, self._author.floor) + 1
        return self._rev

    def _create(self, item: Incoming, state: State, base: Base | None) -> None:
        self._numbers += 1
        text = _text(item, state)
        insert_row(
            self._db,
            self._author,
            item.memory_id,
            state,
            number=self._numbers,
            rev=self._next_rev(),
            terms=text.terms,
            vector=text.vector,
            base=base,
        )

    def _overwrite(self, item: Incoming, before: Held, state: State) -> bool:
        """Write the join of two live states; returns whether it waits for a vector now."""
        held_state = before.stored.state
        content = state.value("content")
        same = content == held_state.value("content")
        if state.without_accesses() != held_state.without_accesses():
            text = None if same else _text(item, state)
            rev = self._next_rev()
            overwrite(self._db, self._author, item.memory_id, before, state, rev=rev, text=text)
        if (state.accesses, state.last_access) != (held_state.accesses, held_state.last_access):
            write_accesses(self._db, self._author.user_id, item.memory_id, state, self._next_rev())
        fits = item.vector is not None and item.state.value("content") == content
        if not same:
            return not fits
        if before.due and fits and item.vector is not None:
            write_vector(self._db, item.memory_id, before.number, item.vector)
        return before.due and not fits


def _text(item: Incoming, state: State) -> NewText:
    """What goes with the content of a join: the record's, if the content is."""
    content = state.value("content")
    if item.terms is not None and item.state.value("content") == content:
        return NewText(terms=item.terms, vector=item.vector)
    return NewText(terms=document_terms(content), vector=None)
