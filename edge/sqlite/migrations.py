"""The schema of a user's file: made once for new users, upgraded at open, a copy kept first."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final

from alembic import command
from sqlalchemy import Connection, create_engine, event, pool
from sqlalchemy.exc import DBAPIError

from edge.sqlite.database import Db, connect, translated
from memory.core.errors import SchemaMismatch
from memory.schema.scripts import Branch, script_location

logger = logging.getLogger(__name__)
BRANCH: Final = "edge"


class Schema:
    """Brings files to this program's revision."""

    def __init__(self, scripts: Path | None = None) -> None:
        """``scripts``: another directory of migrations, for tests."""
        self.branch = Branch(BRANCH, scripts or script_location())

    @cached_property
    def blank(self) -> bytes:
        """An empty file at the newest revision, to begin a user with: Alembic runs once, not once a user."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            self._migrate(connection)
            return connection.serialize()

    def prepare(self, path: Path) -> None:
        """Make sure that a file is at the newest revision; an older one is copied, then upgraded.

        Raises:
            SchemaMismatch: it is newer than this program, or not ours.
        """
        with translated(path), closing(connect(path)) as connection:
            at = revision_of(connection)
            if at == self.branch.head:
                return
            if at is None:
                raise SchemaMismatch(f"{path}: is no memory database", hint="put the replica's own file back")
            if at not in self.branch.known:
                raise SchemaMismatch(
                    f"{path}: its schema ({at}) is newer than this program ({self.branch.head})",
                    hint="upgrade nightingale-memory on this device",
                    current=at,
                )
            kept = _keep_copy(connection, path, at)
            logger.info("%s: upgrading from %s to %s; a copy is kept as %s", path, at, self.branch.head, kept.name)
            self._migrate(connection)

    def revision(self, path: Path) -> str | None:
        """The revision that a file, not open, is at."""
        with translated(path), closing(connect(path)) as connection:
            return revision_of(connection)

    def _migrate(self, connection: Db) -> None:
        """Run Alembic in one transaction, so that a crash leaves the file at the old revision."""
        with _alchemy(connection) as wrapped, wrapped.begin():
            config = self.branch.config()
            config.attributes["connection"] = wrapped
            command.upgrade(config, self.branch.target)


def revision_of(connection: Db) -> str | None:
    """The revision that a file is at; None if it has no schema of ours."""
    known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'alembic_version'").fetchone()
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if known else None
    return None if row is None else str(row[0])


def _keep_copy(connection: Db, path: Path, revision: str) -> Path:
    """A complete copy beside the file, in place only when it is whole."""
    kept = path.with_name(f"{path.name}.{revision}")
    partial = path.with_name(f"{kept.name}.partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as target:
        connection.backup(target)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.chmod(0o600)
    partial.replace(kept)
    return kept


@contextmanager
def _alchemy(connection: Db) -> Iterator[Connection]:
    """The connection as Alembic wants it, with real transactions: SQLAlchemy leaves BEGIN to the driver."""
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=pool.StaticPool)
    event.listen(engine, "begin", lambda wrapped: wrapped.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.connect() as wrapped:
            yield wrapped
    except DBAPIError as error:
        if error.orig is None:
            raise
        raise error.orig from error
