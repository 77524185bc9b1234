"""The central ``Storage``: each verb one transaction on the pool, the work done by the modules beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from memory.core.model import Stats
from memory.core.ports import Clock, Vector
from memory.core.state import Changes
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
)
from memory.policies.admission import Filter
from memory.policies.ranking import Candidate
from memory.postgres import models, writing
from memory.postgres.database import Database
from memory.postgres.filters import Where, narrow, wide
from memory.postgres.merging import merge_page
from memory.postgres.recall import find_candidates
from memory.postgres.rows import SELECT_STATE, read_state
from memory.postgres.snapshot import open_snapshot
from memory.postgres.tables import central


class PostgresStorage:
    """See :class:`~memory.engine.storage.Storage`."""

    def __init__(self, database: Database, clock: Clock, *, model_id: int, model: str, dimension: int) -> None:
        self._database, self._clock = database, clock
        self._model_id, self._model, self.dimension = model_id, model, dimension

    def insert(self, user_id: str, drafts: Sequence[Draft], *, fresh_ids: bool) -> list[Stored]:
        """See ``Storage``."""
        now = self._clock.now()
        if fresh_ids and len(drafts) == 1:
            with self._database.connection() as connection:
                stored = writing.insert_one(
                    connection,
                    user_id,
                    drafts[0],
                    now=now,
                    model_id=self._model_id,
                    dimension=self.dimension,
                )
            return [stored]
        with self._database.transaction() as connection:
            return writing.insert_many(
                connection, user_id, drafts, now=now, model_id=self._model_id, fresh_ids=fresh_ids
            )

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
        with self._database.transaction() as connection:
            return writing.change(
                connection,
                user_id,
                memory_id,
                changes,
                text=text,
                expected_version=expected_version,
                now=self._clock.now(),
                model_id=self._model_id,
            )

    def delete(self, user_id: str, memory_id: str) -> None:
        """See ``Storage``."""
        with self._database.transaction() as connection:
            writing.delete(connection, user_id, memory_id, now=self._clock.now())

    def fetch(self, user_id: str, memory_ids: Sequence[str]) -> dict[str, Stored]:
        """See ``Storage``."""
        with self._database.connection() as connection:
            rows = connection.execute(
                f"{SELECT_STATE} WHERE m.user_id = %s AND m.memory_id = ANY(%s)",
                [user_id, [UUID(memory_id) for memory_id in memory_ids]],
            ).fetchall()
        return {row[0]: read_state(row) for row in rows}

    def list_page(self, user_id: str, where: Filter, *, limit: int, before: tuple[int, str] | None) -> list[Stored]:
        """See ``Storage``."""
        conditions = Where()
        conditions.add("m.user_id = {}", user_id)
        narrow(conditions, "m", where)
        wide(conditions, "m", where)
        if before is not None:
            created, memory_id = conditions.bind(before[0]), conditions.bind(UUID(before[1]))
            conditions.parts.append(
                f"(m.created_at < {created} OR (m.created_at = {created} AND m.memory_id > {memory_id}))"
            )
        size = conditions.bind(limit)
        statement = f"{SELECT_STATE} WHERE {conditions} ORDER BY m.created_at DESC, m.memory_id LIMIT {size}"
        with self._database.connection() as connection:
            return [read_state(row) for row in connection.execute(statement, conditions.params).fetchall()]

    def candidates(self, user_id: str, query: Query, where: Filter) -> list[Candidate]:
        """See ``Storage``."""
        with self._database.connection() as connection:
            found = find_candidates(
                connection, user_id, query, where, model_id=self._model_id, dimension=self.dimension
            )
            if query.vector is not None and all(candidate.cosine is None for candidate in found):
                # No vector of our model at all: perhaps they have all been replaced.
                models.require_current(connection, self._model_id)
        return found

    def touch(self, touches: Sequence[Touch]) -> None:
        """See ``Storage``. One transaction, users in ascending order like everywhere."""
        by_user: dict[str, list[Touch]] = {}
        for item in touches:
            by_user.setdefault(item.user_id, []).append(item)
        with self._database.transaction() as connection:
            for user_id in sorted(by_user):
                writing.touch(connection, user_id, by_user[user_id])

    def merge(self, incoming: Sequence[Incoming]) -> list[Outcome]:
        """See ``Storage``."""
        with self._database.transaction() as connection:
            return merge_page(connection, incoming, now=self._clock.now(), model_id=self._model_id)

    def pending(self, limit: int, *, after: tuple[str, str] | None) -> list[Pending]:
        """See ``Storage``."""
        return models.pending(self._database, limit, after=after, model_id=self._model_id)

    def put_vectors(self, vectors: Sequence[tuple[Pending, Vector]]) -> int:
        """See ``Storage``."""
        with self._database.transaction() as connection:
            return models.put_vectors(connection, vectors, model_id=self._model_id)

    @contextmanager
    def snapshot(self, scope: Scope) -> Iterator[Snapshot]:
        """See ``Storage``."""
        with open_snapshot(self._database, scope, model_id=self._model_id, model=self._model) as snapshot:
            yield snapshot

    def stats(self, user_id: str | None) -> Stats:
        """See ``Storage``."""
        one = "" if user_id is None else " WHERE user_id = %(user)s"
        due = " AND embedding_due" if one else " WHERE embedding_due"
        statement = (
            f"SELECT (SELECT count(DISTINCT user_id) FROM memories{one}),"
            f" (SELECT coalesce(jsonb_object_agg(status, n), '{{}}') FROM"
            f"   (SELECT status, count(*) AS n FROM memories{one} GROUP BY status) s),"
            f" (SELECT count(*) FROM memory_tombstones{one}),"
            f" (SELECT coalesce(sum(count), 0)::int8 FROM memory_access{one}),"
            f" (SELECT count(*) FROM memories{one}{due}),"
            " (SELECT sum(pg_total_relation_size(name::regclass))::int8 FROM unnest(%(tables)s::text[]) AS t(name))"
        )
        params = {"user": user_id, "tables": list(central.tables)}
        with self._database.connection() as connection:
            row = connection.execute(statement, params).fetchone() or ()
        users, by_status, deletions, accesses, waiting, size = row
        return Stats(
            users=users,
            memories_by_status=dict(sorted(by_status.items())),
            deletions=deletions,
            accesses=accesses,
            pending_embeddings=waiting,
            embedding_model=self._model,
            embedding_dimension=self.dimension,
            storage_bytes=size if user_id is None else None,
        )

    def close(self) -> None:
        """See ``Storage``."""
        self._database.close()
