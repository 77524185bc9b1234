"""Finds contradictions in the central database, and mends those that have one right answer.

``examine`` only reads. ``repair`` mends check by check, each in one transaction that first locks the users
concerned in ascending order, like every writer (see ``memory.postgres.writing``); the index of words is
mended page by page. Both may run while others write, and both may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Index, make_url
from sqlalchemy.schema import CreateIndex

from memory.core.clock import MAX_SKEW_MS
from memory.core.text import document_terms
from memory.engine.diagnosis import Finding, Repaired
from memory.postgres import migrations
from memory.postgres.checks import CHECKS, Check, Mend
from memory.postgres.database import Database, Db
from memory.postgres.epoch import adopt_epoch
from memory.postgres.tables import central
from memory.postgres.terms import lexemes

_DIALECT: Final = make_url("postgresql+psycopg://").get_dialect()()
_PAGE: Final = 200
"""Memories whose words are compared at a time."""


def examine(database: Database, *, now: int) -> list[Finding]:
    """Run every check. If the schema is not this program's, only that is found.

    Args:
        database: The central database.
        now: True time in ms UTC; stamps may not be far ahead of it.
    """
    with database.connection() as connection:
        schema = _schema(connection)
        if schema.is_problem:
            return [schema]
        found = [schema, _keys(connection), _indexes(connection)]
        found += [_examined(connection, check, now) for check in CHECKS]
    return [*found, _terms(database)]


def repair(database: Database, *, now: int) -> list[Repaired]:
    """Mend what can be mended and tell what was changed; nothing if the schema is not this program's."""
    with database.connection() as connection:
        if _schema(connection).is_problem:
            return []
    # Revisions drawn from here on must not continue those of the database that this one is a copy of.
    adopt_epoch(database)
    done = [Repaired("indexes", _mend_indexes(database))]
    done += [Repaired(check.name, _mend(database, check, check.mend, now)) for check in CHECKS if check.mend]
    done.append(Repaired("terms", _rewrite_terms(database)))
    return [item for item in done if item.rows]


# Rules about rows


def _examined(connection: Db, check: Check, now: int) -> Finding:
    with connection.transaction():
        _read_whole_tables(connection)
        row = connection.execute(f"SELECT count(*) FROM ({check.offenders}) o", _times(now)).fetchone()
    return Finding(
        name=check.name,
        meaning=check.meaning,
        rows=row[0] if row else 0,
        remedy=check.remedy,
        repairable=check.mend is not None,
        informational=check.informational,
    )


def _mend(database: Database, check: Check, mend: Mend, now: int) -> int:
    with database.transaction() as connection:
        _read_whole_tables(connection)
        found = connection.execute(
            f"SELECT DISTINCT o.user_id FROM ({check.offenders}) o ORDER BY 1", _times(now)
        ).fetchall()
        users = [row[0] for row in found]
        if not users:
            return 0
        _lock_users(connection, users)
        if check.by_memory:
            _lock_memories(connection, check.offenders, users)
        return mend(connection, users, now)


def _times(now: int) -> dict[str, int]:
    return {"ahead": now + MAX_SKEW_MS}


def _read_whole_tables(connection: Db) -> None:
    """Here, unlike in the verbs, reading a whole table is the plan to prefer. Until the transaction ends."""
    connection.execute("SET LOCAL enable_seqscan = on")


def _lock_users(connection: Db, users: Sequence[str]) -> None:
    connection.execute("SELECT FROM sync_user WHERE user_id = ANY(%s) ORDER BY user_id FOR UPDATE", [list(users)])


def _lock_memories(connection: Db, offenders: str, users: Sequence[str]) -> None:
    """Late vectors are stored under the lock of their memory alone, so that is needed beside the user's."""
    connection.execute(
        "SELECT FROM memories m WHERE m.user_id = ANY(%(users)s) AND (m.user_id, m.memory_id) IN"
        f" (SELECT o.user_id, o.memory_id FROM ({offenders}) o) ORDER BY m.user_id, m.memory_id FOR UPDATE",
        {"users": list(users)},
    )


# Schema, keys and indexes


def _schema(connection: Db) -> Finding:
    """The revision, and whether every table is there."""
    row = connection.execute(
        "SELECT to_regclass('alembic_version') IS NOT NULL,"
        " (SELECT count(*) FROM unnest(%s::text[]) AS t(name) WHERE to_regclass(t.name) IS NULL)",
        [list(central.tables)],
    ).fetchone()
    versioned, missing = row or (False, 0)
    found = connection.execute("SELECT version_num FROM alembic_version").fetchall() if versioned else []
    head, at = migrations.head(), ", ".join(sorted(version[0] for version in found)) or "none"
    return Finding(
        name="schema",
        meaning=f"tables missing, or a schema revision ({at}) other than this program's ({head})",
        rows=missing + (at != head),
        remedy=f"run `{migrations.UPGRADE_COMMAND}`; if the schema is newer, upgrade nightingale-memory",
        repairable=False,
    )


def _keys(connection: Db) -> Finding:
    row = connection.execute(
        "SELECT count(*) FROM unnest(%s::text[]) AS t(name) WHERE NOT EXISTS (SELECT FROM pg_index i"
        " WHERE i.indrelid = to_regclass(t.name) AND i.indisprimary AND i.indisvalid)",
        [list(central.tables)],
    ).fetchone()
    return Finding(
        name="keys",
        meaning="tables without their primary key, so that rows may be doubled",
        rows=row[0] if row else 0,
        remedy="export, and import into a new database: it was restored or changed by hand",
        repairable=False,
    )


def _indexes(connection: Db) -> Finding:
    missing, invalid = _faulty_indexes(connection)
    return Finding(
        name="indexes",
        meaning="indexes that are missing or invalid, so that searches are slow",
        rows=len(missing) + len(invalid),
        remedy="build them; writers wait meanwhile",
        repairable=True,
    )


def _faulty_indexes(connection: Db) -> tuple[list[Index], list[Index]]:
    """Missing ones, and invalid ones, as an interrupted or failed build leaves them."""
    declared = {str(index.name): index for table in central.sorted_tables for index in table.indexes}
    rows = connection.execute(
        "SELECT c.relname, i.indisvalid AND i.indisready FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname = ANY(%s) AND pg_table_is_visible(c.oid)",
        [list(declared)],
    ).fetchall()
    valid: dict[str, bool] = dict(rows)
    missing = [index for name, index in declared.items() if name not in valid]
    return missing, [index for name, index in declared.items() if not valid.get(name, True)]


def _mend_indexes(database: Database) -> int:
    with database.transaction() as connection:
        missing, invalid = _faulty_indexes(connection)
        for index in invalid:
            # The names are those of our own tables, never a caller's text.
            connection.execute(f'DROP INDEX "{index.name}"')
        for index in [*invalid, *missing]:
            connection.execute(str(CreateIndex(index).compile(dialect=_DIALECT)))
    return len(missing) + len(invalid)


# Words


def _terms(database: Database) -> Finding:
    return Finding(
        name="terms",
        meaning="memories indexed by other words than those of their content, so that recall misses them",
        rows=sum(len(page) for page in _wrong_pages(database)),
        remedy="index them again",
        repairable=True,
    )


def _rewrite_terms(database: Database) -> int:
    return sum(_rewrite_page(database, keys) for keys in _wrong_pages(database))


def _wrong_pages(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """Walk over all memories by key; the keys of those with wrong words, page by page."""
    after: tuple[str | None, Any] = (None, None)
    while True:
        with database.connection() as connection:
            rows = connection.execute(
                "SELECT user_id, memory_id, content, length, tsvector_to_array(terms) FROM memories"
                " WHERE %(user)s::text IS NULL OR (user_id, memory_id) > (%(user)s::text, %(id)s::uuid)"
                " ORDER BY user_id, memory_id LIMIT %(limit)s",
                {"user": after[0], "id": after[1], "limit": _PAGE},
            ).fetchall()
        if not rows:
            return
        after = (rows[-1][0], rows[-1][1])
        wrong = [(row[0], row[1]) for row in rows if not _right_terms(*row)]
        if wrong:
            yield wrong


def _right_terms(user_id: str, _memory_id: Any, content: str, length: int, stored: Sequence[str]) -> bool:
    right = document_terms(content)
    return length == right.length and set(stored) == set(lexemes(user_id, right.terms))


def _rewrite_page(database: Database, keys: Sequence[tuple[str, Any]]) -> int:
    with database.transaction() as connection:
        _lock_users(connection, sorted({user_id for user_id, _ in keys}))
        return sum(_rewrite(connection, user_id, memory_id) for user_id, memory_id in keys)


def _rewrite(connection: Db, user_id: str, memory_id: Any) -> int:
    row = connection.execute(
        "SELECT content FROM memories WHERE user_id = %s AND memory_id = %s FOR UPDATE", [user_id, memory_id]
    ).fetchone()
    if row is None:
        return 0
    right = document_terms(row[0])
    return connection.execute(
        "UPDATE memories SET length = %s, terms = array_to_tsvector(%s) WHERE user_id = %s AND memory_id = %s",
        [right.length, lexemes(user_id, right.terms), user_id, memory_id],
    ).rowcount
