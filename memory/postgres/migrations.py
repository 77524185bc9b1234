"""The schema's revision: checked at open, upgraded on request, safely by many hosts at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from alembic import command
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, pool, text
from sqlalchemy.exc import DBAPIError

from memory.core.errors import Refused, SchemaMismatch, StoreTimeout, Unsupported
from memory.postgres.database import require_conninfo, translated
from memory.schema.scripts import Branch, script_location

BRANCH: Final = "central"
UPGRADE_COMMAND: Final = "memory db upgrade"
VECTOR_EXTENSION: Final = "vector"
VECTOR_TYPE: Final = "vector"
_LOCK: Final = 0x6E69676874696E67  # "nighting": the advisory lock that one migrating host holds
_POLL_SECONDS: Final = 0.05


def central() -> Branch:
    """The migrations of the central database."""
    return Branch(BRANCH, script_location())


def head() -> str:
    """The revision that this program works with."""
    return central().head


def current(conninfo: str) -> str | None:
    """The revision that the database is at; None if it has no schema of ours."""
    with _connection(conninfo) as connection:
        return _current(connection)


def check(conninfo: str) -> None:
    """Refuse a database that is not at this program's revision.

    Raises:
        SchemaMismatch: too old, too new or empty; says which command to run.
    """
    with _connection(conninfo) as connection:
        _require_utf8(connection)
        at = _current(connection)
    branch = central()
    if at == branch.head:
        return
    if at is None:
        raise SchemaMismatch("the database has no memory schema yet", hint=f"run `{UPGRADE_COMMAND}`", current=at)
    _refuse_newer(at, branch)
    raise SchemaMismatch(
        f"the database schema ({at}) is older than this program ({branch.head})",
        hint=f"run `{UPGRADE_COMMAND}`",
        current=at,
    )


def upgrade(conninfo: str, *, target: str = f"{BRANCH}@head", timeout: float = 300.0) -> str:
    """Bring the schema to ``target``; hosts that come at the same time wait and find it done.

    Args:
        conninfo: libpq URL or key=value string.
        target: An Alembic revision of the central branch.
        timeout: Seconds to wait for another host's migration.

    Returns the revision reached.

    Raises:
        SchemaMismatch: the schema is newer than this program. StoreTimeout: another host held the lock too long.
        Unsupported: the server has no pgvector.
    """
    with _connection(conninfo) as connection, _migration_lock(connection, timeout):
        _require_utf8(connection)
        at = _current(connection)
        branch = central()
        if at is not None:
            _refuse_newer(at, branch)
        _require_vector(connection)
        config = branch.config()
        config.attributes["connection"] = connection
        command.upgrade(config, target)
        connection.commit()
        return _current(connection) or ""


def downgrade(conninfo: str, target: str) -> None:
    """Take the schema back; ``target`` is an Alembic revision, ``central@base`` drops everything."""
    with _connection(conninfo) as connection, _migration_lock(connection, 300.0):
        config = central().config()
        config.attributes["connection"] = connection
        command.downgrade(config, target)
        connection.commit()


def _refuse_newer(at: str, branch: Branch) -> None:
    if at not in branch.known:
        raise SchemaMismatch(
            f"the database schema ({at}) is newer than this program ({branch.head})",
            hint="upgrade nightingale-memory on this machine",
            current=at,
        )


@contextmanager
def _connection(conninfo: str) -> Iterator[Connection]:
    require_conninfo(conninfo)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(conninfo, connect_timeout=10),
        poolclass=pool.NullPool,
    )
    with translated(), _unwrapped(), engine.connect() as connection:
        yield connection


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Raise the driver's own error instead of SQLAlchemy's wrapper around it."""
    try:
        yield
    except DBAPIError as error:
        if error.orig is None:
            raise
        raise error.orig from error


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


@contextmanager
def _migration_lock(connection: Connection, timeout: float) -> Iterator[None]:
    """Polled rather than waited for: a waiting statement would block CREATE INDEX CONCURRENTLY elsewhere."""
    deadline = time.monotonic() + timeout
    while not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_LOCK})").scalar():
        connection.commit()
        if time.monotonic() > deadline:
            raise StoreTimeout(f"another process has been migrating this database for {timeout:g} s")
        time.sleep(_POLL_SECONDS)
    connection.commit()
    try:
        yield
    finally:
        connection.rollback()
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_LOCK})")
        connection.commit()


def _require_utf8(connection: Connection) -> None:
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if encoding not in ("UTF8", b"UTF8"):
        raise Unsupported(
            f"the database has the encoding {encoding!s}, memories need UTF8",
            hint="create another one: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )


def _require_vector(connection: Connection) -> None:
    """Make sure of the vector type before any table is made."""
    installed = connection.execute(text("SELECT to_regtype(:type) IS NOT NULL"), {"type": VECTOR_TYPE}).scalar()
    if not installed:
        available = connection.execute(
            text("SELECT count(*) FROM pg_available_extensions WHERE name = :name"), {"name": VECTOR_EXTENSION}
        ).scalar()
        if not available:
            raise Unsupported(
                "this Postgres server has no pgvector",
                hint="install pgvector 0.7 or later on the server, e.g. Debian's postgresql-17-pgvector",
            )
        try:
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector")
        except DBAPIError as error:
            if not isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
                raise
            hint = "have a superuser run `CREATE EXTENSION vector` in this database"
            raise Refused("this role may not create the extension vector", hint=hint) from error
    connection.commit()
