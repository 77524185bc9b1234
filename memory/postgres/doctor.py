"""Finds contradictions in the central database, and mends those that have one right answer.

A finding is a value: what is wrong, in how many places, and what to do. Nothing here changes a memory's own
fields; what is mended is derived from them, or is the bookkeeping that readers of changes rely on.

``examine`` only reads. ``repair`` mends one check after the other, each in one transaction that first locks
the users concerned like every writer does (see ``memory.postgres.writing``); the text index is mended page by
page. Both may run while others write, and both may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex

from memory.core.clock import MAX_SKEW_MS, parse_stamp
from memory.postgres import migrations, upkeep
from memory.postgres.database import Database, Db
from memory.postgres.tables import central
from memory.postgres.writing import bury, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    name: str
    meaning: str
    """What it means if there are any."""
    rows: int
    """How many there are."""
    remedy: str
    """What repair does about it or, if it cannot be repaired, what else to do."""
    repairable: bool
    informational: bool = False
    """Not a fault, only worth knowing."""

    @property
    def is_problem(self) -> bool:
        """Whether something has to be done."""
        return self.rows > 0 and not self.informational


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did: in how many rows."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A rule about rows of users, as a query for the rows that break it."""

    name: str
    meaning: str
    remedy: str
    offenders: str
    """Yields ``user_id`` and, where ``by_memory``, ``memory_id``; may use ``%(ahead)s``."""
    by_memory: bool = True
    mend: Callable[[Db, Sequence[str], int], int] | None = None
    """Called in a transaction as ``mend(connection, locked_users, now)``; returns the rows changed."""
    informational: bool = False


def examine(database: Database, *, now: int) -> list[Finding]:
    """Run every check. On a schema of another version only that is found: nothing else can be told.

    Args:
        database: The central database.
        now: True time in ms UTC, against which stamps are held.
    """
    with database.connection() as connection:
        schema = _schema(connection)
        if schema.is_problem:
            return [schema]
        keys = _missing_keys(connection)
        indexes = [*_missing_indexes(connection), *_invalid_indexes(connection)]
        found = [schema, _keys_finding(keys), _index_finding(indexes)]
        found.extend(_count(connection, check, now) for check in CHECKS)
    return [*found, upkeep.wrong_terms(database), *_informational(database, now)]


def repair(database: Database, *, now: int) -> list[Repaired]:
    """Mend what can be mended; names only what was changed.

    Raises:
        SchemaMismatch: the schema is not at this program's revision.
    """
    with database.connection() as connection:
        if _schema(connection).is_problem:
            return []
    done = [Repaired("indexes", _mend_indexes(database))]
    for check in CHECKS:
        if check.mend is not None:
            done.append(Repaired(check.name, _mend(database, check, check.mend, now)))
    done.append(Repaired("terms", upkeep.rewrite_terms(database)))
    return [item for item in done if item.rows]
