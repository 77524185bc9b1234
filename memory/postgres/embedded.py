"""The embedded Postgres server: one for each data directory, shared by every process that opens it.

``EmbeddedServer`` holds the server; the keeper (see ``keeper.py``) owns it. An opener creates the cluster if
there is none, starts a keeper if there is none, and from then on only keeps a shared lock that the kernel
takes back however the process ends. So a killed holder never leaves a server running, and a killed keeper is
replaced by the next one who opens or leaves; the replacement adopts the running server.

Layout of the directory::

    data/                the cluster, owned by the account that runs Postgres
    socket/              where it listens, mode 0700; there is no TCP port and no password
    control/             lock files and server.log
    binaries-<version>/  a copy of the binaries, only where that account cannot reach the installed ones

A process forked from a holder inherits the lock and holds the server, too, until it ends or calls ``stop``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import quote

import platformdirs
import psycopg
from psycopg import sql

from memory.core.errors import (
    Error,
    InvalidValue,
    Refused,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    Unsupported,
)
from memory.postgres import cluster, keeper
from memory.postgres.installation import (
    TREE,
    USE_ANOTHER_DATABASE,
    binaries_for,
    package_directory,
    require_reachable,
    server_account,
)

if sys.platform != "win32":
    import fcntl

DATABASE = "memory"

LOG_LIMIT_BYTES = 4 * 1024 * 1024
LOG_TAIL_BYTES = 8 * 1024
POLL_S = 0.02
CONNECT_TIMEOUT_S = 5
STOP_TIMEOUT_S = keeper.FAST_SHUTDOWN_S + 30.0


def default_directory() -> Path:
    """The directory used when none is configured: the user's own, or the machine's for root."""
    if sys.platform != "win32" and os.geteuid() == 0:
        return Path("/var/lib/nightingale-memory/postgres")
    return platformdirs.user_data_path("nightingale-memory", appauthor=False) / "postgres"


class EmbeddedServer:
    """A hold on the embedded server of one directory.

    ``settings`` are Postgres settings; whoever starts the server decides them for all who join. As root,
    ``run_as`` names the account that runs the server. Methods may be called from any thread.
    """

    def __init__(
        self,
        directory: Path,
        *,
        run_as: str | None = None,
        start_timeout: float = 60.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise Unsupported("the embedded server does not run on Windows", hint=USE_ANOTHER_DATABASE)
        # One name for one directory, whatever becomes of the working directory.
        self.directory = Path(directory).expanduser().resolve()
        if any(character < " " or character == "\x7f" for character in str(self.directory)):
            # Postgres notes the path in a file that has one fact a line.
            raise InvalidValue("directory", f"{str(self.directory)!r} contains control characters")
        self._run_as = run_as
        self._start_timeout = start_timeout
        self._settings = cluster.checked_settings(settings or {})
        self._control = self.directory / "control"
        self._data = self.directory / "data"
        self._log = self._control / "server.log"
        self._socket_directory: Path | None = None
        self._hold: int | None = None
        self._mutex = threading.Lock()

    def start(self) -> str:
        """Start or join the server and return the URL of its database; repeating it does no harm."""
        with self._mutex, self._translated():
            deadline = time.monotonic() + self._start_timeout
            cluster.claim(self.directory)
            with self._opening(deadline):
                joining = self._hold is None
                if self._hold is None:
                    self._hold = self._acquire("holders.lock", fcntl.LOCK_SH, deadline)
                try:
                    self._bring_up(deadline)
                except BaseException:
                    if joining:
                        self._let_go()
                    raise
            return self.url()

    def stop(self) -> None:
        """Give up the hold; return once the server has shut down, or at once if others still hold it."""
        with self._mutex, self._translated():
            if self._hold is None:
                return
            deadline = time.monotonic() + STOP_TIMEOUT_S
            try:
                with self._opening(deadline):
                    self._let_go()
                    self._await_shutdown(deadline)
            except FileNotFoundError:
                pass  # the directory has been removed, and nothing can be asked any more
            finally:
                self._let_go()

    def url(self, database: str = DATABASE) -> str:
        """The URL of a database of this server, for libpq and for SQLAlchemy."""
        host = quote(os.fsencode(self.socket_directory), safe="")
        name = quote(database, safe="")
        return f"postgresql://{cluster.ROLE}@/{name}?host={host}&port={cluster.PORT}"

    @property
    def socket_directory(self) -> Path:
        """Where the server listens: as it says itself, or as it would be started from here."""
        return self._socket_directory or cluster.choose_socket_directory(self.directory)

    @property
    def bin_directory(self) -> Path:
        """Where ``pg_dump``, ``pg_basebackup`` and the other client programs are."""
        return package_directory() / TREE / "bin"

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster; None when no server runs."""
        written = keeper.PostmasterFile.read(self._data)
        return written.pid if written and self._would_block("server.lock", fcntl.LOCK_SH) else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Locks

    @contextlib.contextmanager
    def _opening(self, deadline: float) -> Iterator[None]:
        """Be the only one who starts, joins or leaves this server."""
        lock = self._acquire("start.lock", fcntl.LOCK_EX, deadline)
        try:
            yield
        finally:
            # Unlocked, not only closed: a process forked meanwhile by another thread has the descriptor, too.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _acquire(self, name: str, mode: int, deadline: float) -> int:
        lock = keeper.open_lock(self._control / name)
        try:
            while not keeper.try_lock(lock, mode):
                self._pause(deadline, f"another process keeps {self._control / name}")
        except BaseException:
            os.close(lock)
            raise
        return lock

    @contextlib.contextmanager
    def _keeper_lock(self) -> Iterator[int | None]:
        """The lock of the keeper, to hand to a new one; None while there is a keeper."""
        lock = keeper.open_lock(self._control / "keeper.lock")
        try:
            yield lock if keeper.try_lock(lock, fcntl.LOCK_EX) else None
        finally:
            os.close(lock)

    def _would_block(self, name: str, mode: int) -> bool:
        lock = keeper.open_lock(self._control / name)
        try:
            return not keeper.try_lock(lock, mode)
        finally:
            os.close(lock)

    def _let_go(self) -> None:
        # Closed, not unlocked: a forked process may go on using the server with its copy of the descriptor.
        hold, self._hold = self._hold, None
        if hold is not None:
            os.close(hold)

    def _pause(self, deadline: float, problem: str) -> None:
        if time.monotonic() > deadline:
            log = cluster.last_lines(self._log_tail())
            raise StoreTimeout(problem, hint="try again, or raise start_timeout", log=log)
        time.sleep(POLL_S)

    # Starting

    def _bring_up(self, deadline: float) -> None:
        """Return when the server answers and has a keeper."""
        started = False
        while True:
            with self._keeper_lock() as lock:
                if lock is not None and started:
                    raise cluster.failure("the embedded Postgres server did not start", self._log_tail())
                if lock is not None:
                    self._start_keeper(lock, deadline)
                    started = True
            problem = self._connection_problem()
            if not problem:
                return
            self._pause(deadline, f"the embedded Postgres server did not answer in time: {problem}")

    def _start_keeper(self, lock: int, deadline: float) -> None:
        """Start a keeper, which takes the lock over and then starts or adopts the server."""
        if getattr(sys, "frozen", False) or not sys.executable:
            raise Unsupported("the embedded server needs a Python interpreter", hint=USE_ANOTHER_DATABASE)
        self._refuse_foreign_server()
        account = server_account(self._run_as, self._data)
        require_reachable(account, self.directory)
        binaries = binaries_for(account, self.directory)
        sync = self._settings.get("fsync") != "off"
        cluster.create(self.directory, account, binaries, sync=sync, timeout=deadline - time.monotonic())
        sockets = cluster.choose_socket_directory(self.directory)
        cluster.make_private(sockets, account)
        require_reachable(account, sockets)
        # As root the keeper stays root: the interpreter, too, may lie where nobody else can reach it.
        script = [sys.executable, "-I", "-S", str(Path(keeper.__file__).resolve())]
        owner = f"{account.uid}:{account.gid}" if account else ""
        server = cluster.command(binaries, self._data, sockets, self._settings)
        with self._open_log() as log:
            detaching = subprocess.Popen(  # noqa: S603 - our own program, arguments as a list
                [*script, str(lock), owner, str(self.directory), str(sockets), *server],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
                cwd="/",
            )
        detaching.wait()

    def _refuse_foreign_server(self) -> None:
        """Joining a server that no keeper may stop would break what we promise about its end."""
        written = keeper.PostmasterFile.read(self._data)
        if (
            written is not None
            and keeper.serves(written.pid, self._data)
            and not self._would_block("server.lock", fcntl.LOCK_SH)
        ):
            raise StoreUnavailable(
                f"a Postgres server that was started by hand runs in {self._data}",
                hint=f"stop it (process {written.pid}) and start again",
                pid=written.pid,
            )

    def _open_log(self) -> IO[bytes]:
        """The log that the keeper and Postgres append to; a start is the moment to bound its size."""
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > LOG_LIMIT_BYTES:
                self._log.replace(self._log.with_suffix(".log.1"))
        return os.fdopen(os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")

    def _log_tail(self) -> bytes:
        try:
            return self._log.read_bytes()[-LOG_TAIL_BYTES:]
        except FileNotFoundError:
            return b""

    def _connection_problem(self) -> str:
        """Connect to the server and see to its database; what is in the way, or nothing."""
        written = keeper.PostmasterFile.read(self._data)
        if written is None or not written.ready:
            return "it is still starting"
        # The server was perhaps started by a process with another temporary directory, so ask its own file.
        self._socket_directory = Path(written.socket_directory)
        if not cluster.is_private(self._socket_directory, self._data.stat().st_uid):
            return f"{self._socket_directory} is not private"
        try:
            with psycopg.connect(
                self.url("postgres"), autocommit=True, connect_timeout=CONNECT_TIMEOUT_S
            ) as connection:
                _create_database(connection)
        except psycopg.errors.DiskFull as error:
            raise StoreFull from error
        except psycopg.OperationalError as error:
            return str(error)  # not up yet, or going down under our hands
        return ""

    # Stopping

    def _await_shutdown(self, deadline: float) -> None:
        """Return when the server has ended, or as soon as it is clear that others hold it."""
        while True:
            with self._keeper_lock() as lock:
                if lock is not None and not self._would_block("server.lock", fcntl.LOCK_SH):
                    return
                if lock is not None:
                    self._start_keeper(lock, deadline)  # the last one was killed, and somebody must stop it
            taken = self._would_block("holders.lock", fcntl.LOCK_EX)
            if taken and not self._would_block("holders.lock", fcntl.LOCK_SH):
                return  # shared, so by other holders; the keeper takes it exclusively
            self._pause(deadline, "the embedded Postgres server is still shutting down")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _translate(error, self.directory) from error


def _create_database(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Create the database if it is missing; the caller is the only one who starts this server."""
    found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
    if found is None:
        # template0, because nobody can be connected to it, which would make the command fail.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0")
        connection.execute(statement.format(sql.Identifier(DATABASE)))


def _translate(error: OSError, directory: Path) -> Error:
    place = error.filename or directory
    if isinstance(error, PermissionError):
        return Refused(f"{place} is closed to this user", hint="choose a directory of your own")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"there is no space left in {directory}")
    if error.errno == errno.EROFS:
        return StoreReadOnly(f"{directory} is on a read-only file system", hint="choose another directory")
    return StoreUnavailable(f"{place} cannot be used: {error.strerror}", hint="choose another directory")
