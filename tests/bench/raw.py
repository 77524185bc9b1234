"""The baselines: what plain psycopg does with the same data and no product around it."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from pgvector import Vector as PgVector

from memory.core.ports import Vector
from memory.core.text import document_terms
from memory.postgres.database import Db
from memory.postgres.terms import lexemes

COPIED: Final = ("embedding_models", "memories", "memory_tags", "memory_vectors")


class RawTables:
    """Tables and statements of the baselines, in the provider's database."""

    def __init__(self, connection: Db) -> None:
        self._db = connection
        self.dump: dict[str, bytes] = {}

    def fill_search_table(self) -> None:
        """One table, physically together by user, with a covering index: the best layout that was found."""
        self._db.execute("DROP TABLE IF EXISTS raw_search")
        self._db.execute(
            "CREATE TABLE raw_search AS SELECT user_id, memory_id, status, created_at, embedding FROM memory_vectors"
            " ORDER BY user_id, status, created_at"
        )
        self._db.execute(
            "CREATE INDEX raw_search_covering ON raw_search (user_id, status, created_at)"
            " INCLUDE (memory_id, embedding)"
        )
        self._db.execute("VACUUM ANALYZE raw_search")

    def nearest(self, user_id: str, vector: Vector, limit: int) -> list[Any]:
        """Exact top rows with the filters of a default recall and a time bound."""
        return self._db.execute(
            "SELECT memory_id, embedding <#> %b FROM raw_search"
            " WHERE user_id = %s AND status = 'active' AND created_at >= 0 ORDER BY 2 LIMIT %s",
            [PgVector(vector), user_id, limit],
        ).fetchall()

    def make_insert_table(self) -> None:
        """One table with the columns of a memory and its vector, and a primary key."""
        self._db.execute(
            "CREATE TABLE raw_insert AS SELECT m.*, ARRAY['']::text[] AS tags, v.embedding"
            " FROM memories m JOIN memory_vectors v USING (user_id, memory_id)"
        )
        self._db.execute("ALTER TABLE raw_insert ADD PRIMARY KEY (user_id, memory_id)")
        self._sample = self._db.execute("SELECT * FROM raw_insert LIMIT 1").fetchone()

    def insert(self, number: int, content: str, vector: Vector) -> None:
        """One autocommit INSERT."""
        terms = document_terms(content)
        self._db.execute(
            "INSERT INTO raw_insert (user_id, memory_id, content, memory_type, importance, status, source_session,"
            " created_at, updated_at, metadata, stamps, extra, length, embedding_due, rev, terms, tags, embedding)"
            " VALUES (%s, %s, %s, 'fact', 0.5, 'active', NULL, %s, %s, %s, %s, '{}', %s, false, %s,"
            " array_to_tsvector(%s), %s, %b)",
            [
                "one",
                uuid.uuid4(),
                content,
                number,
                number,
                '{"i": 1}',
                '{"*": "1733000000000.0.0123456789abcdef"}',
                terms.length,
                number,
                lexemes("one", terms.terms),
                ["bench"],
                PgVector(vector),
            ],
        )

    def copy_out(self) -> float:
        """COPY of every table's rows to the client; seconds."""
        start = time.perf_counter()
        for table in COPIED:
            with self._db.cursor().copy(f"COPY {table} TO STDOUT (FORMAT BINARY)") as copy:
                self.dump[table] = b"".join(copy)
        return time.perf_counter() - start

    def copy_in(self, dump: dict[str, bytes]) -> float:
        """COPY of the same values into the same tables and indexes of another database; seconds."""
        self._db.execute("UPDATE sync_meta SET model_id = NULL")
        self._db.execute("DELETE FROM embedding_models")
        start = time.perf_counter()
        for table in COPIED:
            with self._db.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(dump[table])
        return time.perf_counter() - start
