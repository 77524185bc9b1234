"""A ``Storage`` of dictionaries under one lock: no index, no cleverness."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from memory.core.clock import Stamp, Tick, next_tick
from memory.core.errors import Conflict, NotFound
from memory.core.merge import merge
from memory.core.model import Stats
from memory.core.ports import Clock, Vector
from memory.core.record import Record, encode_record
from memory.core.state import Changes, Register, State, created_state
from memory.core.text import document_terms
from memory.engine.storage import (
    Draft,
    Incoming,
    NewText,
    Outcome,
    Pending,
    Query,
    Scope,
    Snapshot,
    Stored,
    Touch,
    id_is_taken,
)
from memory.policies.admission import Filter, check_result
from memory.policies.ranking import ROUNDING, Candidate, inverse_document_frequency, lexical_score
from memory.volatile.matching import matches


@dataclass(slots=True)
class _Row:
    state: State
    rev: int
    access_rev: int = 0
    vector: Vector | None = None


class _User:
    """One user's rows, live and deleted, with the clock and revision they share."""

    def __init__(self) -> None:
        self.rows: dict[str, _Row] = {}
        self.rev = 0
        self.tick = Tick()

    def stamp(self, now: int, writer: str) -> Stamp:
        self.tick = next_tick(self.tick, now)
        return Stamp(*self.tick, writer)

    def next_rev(self) -> int:
        self.rev += 1
        return self.rev

    def live(self) -> list[tuple[str, _Row]]:
        return [(key, row) for key, row in self.rows.items() if row.state.deleted is None]


class VolatileStorage:
    """See :class:`~memory.engine.storage.Storage`."""

    def __init__(self, clock: Clock, *, model: str, dimension: int) -> None:
        self._clock, self._model, self.dimension = clock, model, dimension
        self._users: dict[str, _User] = {}
        self._epoch = uuid.uuid4().hex[:16]
        self._lock = threading.RLock()

    def insert(self, user_id: str, drafts: Sequence[Draft], *, fresh_ids: bool) -> list[Stored]:  # noqa: ARG002
        """See ``Storage``."""
        with self._lock:
            user = self._users.get(user_id, _User())
            seen: set[str] = set()
            for draft in drafts:
                if draft.memory_id in user.rows or draft.memory_id in seen:
                    raise id_is_taken(draft.memory_id)
                seen.add(draft.memory_id)
            self._users[user_id] = user
            stamp = user.stamp(self._clock.now(), self._epoch)
            for draft in drafts:
                state = created_state(stamp, draft.changes)
                user.rows[draft.memory_id] = _Row(state, user.next_rev(), vector=draft.vector)
            return [self._stored(user_id, draft.memory_id) for draft in drafts]

    def change(
        self,
        user_id: str,
        memory_id: str,
        changes: Changes,
        *,
        text: NewText | None,
        expected_version: str | None,
    ) -> Stored:
        """See ``Storage``."""
        with self._lock:
            row = self._live_row(user_id, memory_id)
            if expected_version is not None and expected_version != str(row.rev):
                raise Conflict(memory_id=memory_id)
            user = self._users[user_id]
            state = row.state.written(user.stamp(self._clock.now(), self._epoch), changes)
            if state != row.state:
                check_result(row.state, state)
                if text is not None and state.value("content") != row.state.value("content"):
                    row.vector = text.vector
                row.state, row.rev = state, user.next_rev()
            return self._stored(user_id, memory_id)

    def delete(self, user_id: str, memory_id: str) -> None:
        """See ``Storage``."""
        with self._lock:
            self._live_row(user_id, memory_id)
            user = self._users[user_id]
            stamp = user.stamp(self._clock.now(), self._epoch)
            user.rows[memory_id] = _Row(State(deleted=stamp), user.next_rev())

    def fetch(self, user_id: str, memory_ids: Sequence[str]) -> dict[str, Stored]:
        """See ``Storage``."""
        with self._lock:
            live = dict(self._user(user_id).live())
            return {key: self._stored(user_id, key) for key in memory_ids if key in live}

    def list_page(self, user_id: str, where: Filter, *, limit: int, before: tuple[int, str] | None) -> list[Stored]:
        """See ``Storage``."""
        with self._lock:
            found = [
                (-row.state.value("created_at"), key)
                for key, row in self._user(user_id).live()
                if matches(row.state, where)
            ]
            after = None if before is None else (-before[0], before[1])
            page = sorted(position for position in found if after is None or position > after)[:limit]
            return [self._stored(user_id, key) for _, key in page]

    def candidates(self, user_id: str, query: Query, where: Filter) -> list[Candidate]:
        """See ``Storage``."""
        with self._lock:
            rows = [(key, row) for key, row in self._user(user_id).live() if matches(row.state, where)]
        every = self._rated(rows, query)
        dense = [c for c in every if c.cosine is not None]
        dense.sort(key=lambda c: (-round(c.cosine or 0.0, ROUNDING), -c.created_at, c.memory_id))
        lexical = [c for c in every if c.lexical > 0.0]
        lexical.sort(key=lambda c: (-round(c.lexical, ROUNDING), -c.created_at, c.memory_id))
        chosen = {c.memory_id: c for c in dense[: query.size] + lexical[: query.size]}
        return list(chosen.values())

    def _rated(self, rows: Sequence[tuple[str, _Row]], query: Query) -> list[Candidate]:
        documents = [document_terms(row.state.value("content")) for _, row in rows]
        counts = Counter(term for document in documents for term in document.terms)
        idf = [inverse_document_frequency(len(rows), counts[term]) for term in query.terms]
        mean = sum(document.length for document in documents) / max(len(rows), 1)
        out = []
        for (key, row), document in zip(rows, documents, strict=True):
            matched = [i for i, term in enumerate(query.terms) if term in document.terms]
            known = query.vector is not None and row.vector is not None
            out.append(
                Candidate(
                    memory_id=key,
                    cosine=float(np.dot(query.vector, row.vector)) if known else None,  # type: ignore[arg-type]
                    lexical=lexical_score(matched, idf, length=document.length, mean_length=mean),
                    importance=row.state.value("importance"),
                    created_at=row.state.value("created_at"),
                    last_access_at=row.state.last_access,
                )
            )
        return out

    def touch(self, touches: Sequence[Touch]) -> None:
        """See ``Storage``."""
        with self._lock:
            for touch in touches:
                user = self._user(touch.user_id)
                row = dict(user.live()).get(touch.memory_id)
                if row is not None:
                    accesses = dict(row.state.accesses)
                    accesses[self._epoch] = accesses.get(self._epoch, 0) + touch.count
                    last = max(row.state.last_access or 0, touch.last_access_at)
                    row.state = replace(row.state, accesses=accesses, last_access=last)
                    row.access_rev = user.next_rev()

    def merge(self, incoming: Sequence[Incoming]) -> list[Outcome]:
        """See ``Storage``."""
        with self._lock:
            return [self._merge_one(item) for item in incoming]

    def _merge_one(self, item: Incoming) -> Outcome:
        user = self._users.setdefault(item.user_id, _User())
        row = user.rows.get(item.memory_id)
        state = item.state if row is None else merge(row.state, item.state)
        user.tick = max(user.tick, *(stamp.tick for stamp in state.stamps()))
        vector = None if row is None else row.vector
        content = state.value("content")
        if row is None or row.state.value("content") != content or vector is None:
            vector = item.vector if item.state.value("content") == content else None
        if row is not None and state == row.state:
            row.vector = vector
            return Outcome("unchanged", deferred=state.deleted is None and vector is None)
        rev = user.next_rev()
        new = _Row(state, rev, rev, None if state.deleted else vector)
        if row is not None and row.state.without_accesses() == state.without_accesses():
            new.rev = row.rev
        user.rows[item.memory_id] = new
        verdict = "created" if row is None else "merged"
        return Outcome(verdict, deferred=state.deleted is None and vector is None)

    def pending(self, limit: int, *, after: tuple[str, str] | None) -> list[Pending]:
        """See ``Storage``."""
        with self._lock:
            waiting = [
                Pending(user_id, key, row.state.value("content"))
                for user_id, user in self._users.items()
                for key, row in user.live()
                if row.vector is None and (after is None or (user_id, key) > after)
            ]
            return sorted(waiting, key=lambda item: (item.user_id, item.memory_id))[:limit]

    def put_vectors(self, vectors: Sequence[tuple[Pending, Vector]]) -> int:
        """See ``Storage``."""
        stored = 0
        with self._lock:
            for item, vector in vectors:
                row = dict(self._user(item.user_id).live()).get(item.memory_id)
                if row is not None and row.state.value("content") == item.content:
                    row.vector = vector
                    stored += 1
        return stored

    @contextmanager
    def snapshot(self, scope: Scope) -> Iterator[Snapshot]:
        """See ``Storage``."""
        with self._lock:
            chosen = {u: user for u, user in self._users.items() if scope.user_id in (None, u)}
            revisions = {user_id: user.rev for user_id, user in sorted(chosen.items()) if user.rev}
            records = [
                self._record(user_id, key, row)
                for user_id, user in sorted(chosen.items())
                for key, row in sorted(user.rows.items())
                if _in_scope(user_id, row, scope)
            ]
        records.sort(key=lambda record: "content" not in record)
        yield Snapshot(self._epoch, revisions, (record for record in records))

    def _record(self, user_id: str, memory_id: str, row: _Row) -> Mapping[str, Any]:
        record = Record(
            memory_id=memory_id,
            user_id=user_id,
            state=row.state,
            vector=row.vector,
            model=self._model,
            rev=row.rev,
        )
        return encode_record(record)

    def stats(self, user_id: str | None) -> Stats:
        """See ``Storage``."""
        with self._lock:
            users = [user for key, user in self._users.items() if user_id in (None, key)]
            live = [row for user in users for _, row in user.live()]
            return Stats(
                users=sum(1 for user in users if user.live()),
                memories_by_status=dict(sorted(Counter(row.state.value("status") for row in live).items())),
                deletions=sum(len(user.rows) for user in users) - len(live),
                accesses=sum(sum(row.state.accesses.values()) for row in live),
                pending_embeddings=sum(1 for row in live if row.vector is None),
                embedding_model=self._model,
                embedding_dimension=self.dimension,
            )

    def close(self) -> None:
        """Nothing to let go of."""

    def _user(self, user_id: str) -> _User:
        return self._users.get(user_id) or _User()

    def _live_row(self, user_id: str, memory_id: str) -> _Row:
        row = self._user(user_id).rows.get(memory_id)
        if row is None or row.state.deleted is not None:
            raise NotFound(memory_id=memory_id)
        return row

    def _stored(self, user_id: str, memory_id: str) -> Stored:
        row = self._users[user_id].rows[memory_id]
        # A copy: what a caller does to nested metadata stays the caller's.
        metadata = {key: Register(r.stamp, deepcopy(r.value)) for key, r in row.state.metadata.items()}
        state = replace(row.state, metadata=metadata)
        return Stored(memory_id=memory_id, user_id=user_id, state=state, version=str(row.rev))


def _in_scope(user_id: str, row: _Row, scope: Scope) -> bool:
    if scope.after is not None:
        return max(row.rev, row.access_rev) > scope.after.get(user_id, 0)
    if row.state.deleted is not None:
        return scope.complete
    created = row.state.value("created_at")
    return (
        (not scope.statuses or row.state.value("status") in scope.statuses)
        and (not scope.tags or not set(row.state.present_tags()).isdisjoint(scope.tags))
        and (scope.created_from is None or created >= scope.created_from)
        and (scope.created_to is None or created < scope.created_to)
    )
