"""Connections to the central database: the pool, and driver errors told as ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from pgvector.psycopg.vector import register_vector_info
from psycopg import Connection, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types import TypeInfo
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from memory.core.errors import (
    ConfigError,
    IntegrityFailure,
    SchemaMismatch,
    StoreBusy,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
)

logger = logging.getLogger(__name__)
Row = tuple[Any, ...]
Db = Connection[Row]

SESSION: Final = (
    # Compiling a query that runs for 2 ms costs 50.
    "SET jit = off",
    # Every query here has an index that leads with the user; before the first ANALYZE the planner would
    # think little of it, and a plan cached then would stay.
    "SET enable_seqscan = off",
    # Planning recall takes as long as carrying it out, and its plan does not depend on the values.
    "SET plan_cache_mode = force_generic_plan",
    # Stamps and revisions are drawn by this program: the triggers that draw them for raw SQL need not.
    "SET nightingale.stamps = 'kept'",
)

# A network that swallows everything must not hold a caller for the quarter of an hour that the system would go on
# sending: a request that nobody acknowledges fails after half a minute, an answer that never comes after two.
NETWORK: Final = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 60,
    "keepalives_interval": 20,
    "keepalives_count": 3,
}

# Most telling class first; the last one catches the rest.
_TRANSLATION: Final[tuple[tuple[type[BaseException], type[StoreError]], ...]] = (
    (PoolTimeout, StoreTimeout),
    (PoolClosed, StoreUnavailable),
    (errors.ReadOnlySqlTransaction, StoreReadOnly),
    (errors.DiskFull, StoreFull),
    (errors.DeadlockDetected, StoreBusy),
    (errors.SerializationFailure, StoreBusy),
    (errors.QueryCanceled, StoreTimeout),
    (errors.LockNotAvailable, StoreTimeout),
    (errors.UndefinedTable, SchemaMismatch),
    (errors.UndefinedColumn, SchemaMismatch),
    (errors.OperationalError, StoreUnavailable),
    (errors.InterfaceError, StoreUnavailable),
    (errors.IntegrityError, IntegrityFailure),
    (errors.Error, StoreError),
)
# The server refuses a connection with an error code that libpq does not pass on, only the text.
_DENIED: Final = re.compile(
    r'FATAL: +(password authentication failed|(role|database) "[^"]*" does not exist|no pg_hba\.conf entry)'
)
_HINTS: Final[dict[type[StoreError], str]] = {SchemaMismatch: "run `memory db upgrade`"}


@contextmanager
def translated() -> Iterator[None]:
    """Raise the driver's errors as the tree of ``memory.core.errors``, the cause kept."""
    try:
        yield
    except tuple(source for source, _ in _TRANSLATION) as error:
        kind = next(target for source, target in _TRANSLATION if isinstance(error, source))
        if kind is StoreUnavailable and _DENIED.search(str(error)):
            kind = StoreDenied
        message = (kind.__doc__ or "").splitlines()[0] + f" [{_first_line(error)}]"
        raise kind(message, hint=_HINTS.get(kind, "")) from error


def _first_line(error: BaseException) -> str:
    """What the server said, without the statement and its values: those are the user's."""
    diagnostic = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    lines = (diagnostic or str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def require_conninfo(conninfo: str) -> None:
    """Refuse what libpq cannot read, without repeating it: it may hold a password.

    Raises:
        ConfigError: neither a URL nor a key=value string.
    """
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        raise _unreadable() from None
    if "@" in str(parts.get("host", "")):
        raise _unreadable()  # the rest of a password with an @ in it


def _patient(conninfo: str) -> str:
    """With what says how long to believe in a silent network, unless it says so itself."""
    given = {name: value for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    return make_conninfo("", **{**NETWORK, **given})


def _unreadable() -> ConfigError:
    return ConfigError(
        "the database URL cannot be read",
        hint="write postgresql://user:password@host:port/database, with %40 for @ in the password",
    )


class Database:
    """A pool of autocommit connections."""

    def __init__(self, conninfo: str, *, pool_size: int, timeout: float) -> None:
        """Open the pool and wait for a first connection.

        Args:
            conninfo: libpq URL or key=value string.
            pool_size: Most connections at a time.
            timeout: Seconds to wait for a connection, at open and later.

        Raises:
            StoreUnavailable: none could be made.
        """
        require_conninfo(conninfo)
        self._timeout = timeout
        with translated():
            # The pool retries in the background and would only report a time-out: ask once by hand, so that
            # a wrong password or host is named.
            psycopg.connect(conninfo, connect_timeout=max(2, round(timeout))).close()
            self._pool: ConnectionPool[Db] = ConnectionPool(
                _patient(conninfo),
                min_size=1,
                max_size=pool_size,
                timeout=timeout,
                kwargs={"autocommit": True, "application_name": "nightingale-memory"},
                configure=_configure,
                open=True,
            )

    @contextmanager
    def connection(self) -> Iterator[Db]:
        """An autocommit connection; each statement is its own transaction."""
        with translated(), self._lent() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Db]:
        """A connection inside one transaction, committed when the block ends well."""
        with translated(), self._lent() as connection, connection.transaction():
            yield connection

    @contextmanager
    def _lent(self) -> Iterator[Db]:
        """A connection of the pool. One that turns out broken tells of a restart: the others are looked at, too."""
        lent: Db | None = None
        try:
            with self._pool.connection() as lent:
                yield lent
        except psycopg.OperationalError:
            if lent is not None and lent.broken:
                self._pool.check()
            raise

    def close(self) -> None:
        """Close every connection. Idempotent."""
        self._pool.close()


def _configure(connection: Db) -> None:
    info = TypeInfo.fetch(connection, "vector")
    if info is not None:
        register_vector_info(connection, info)
    connection.execute("; ".join(SESSION))
