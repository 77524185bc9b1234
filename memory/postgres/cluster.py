"""The directory of an embedded server: claiming it, creating the cluster, choosing the socket, the command.

Nothing here takes a lock or starts the server; ``EmbeddedServer`` calls these functions while it holds the
lock of the directory. ``account`` is the unprivileged account of a server that root starts, else None.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from memory.core.errors import (
    ConfigError,
    InvalidValue,
    Refused,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
)
from memory.postgres.installation import MAJOR_VERSION, UNFINISHED, USE_ANOTHER_DATABASE, Account
from memory.postgres.keeper import SERVER_ENVIRONMENT

ROLE = "postgres"
PORT = 5432  # never a TCP port: it only names the socket file

# sockaddr_un holds 104 bytes on macOS and 108 on Linux; the shorter limit is right for both.
LONGEST_SOCKET_PATH = 103

# What a caller may change with ``settings``.
DEFAULT_SETTINGS = {
    "shared_buffers": "256MB",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Statements and key values are what people asked an agent to remember: keep them out of the log.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
}

# A parallel build of an HNSW index wants this much; containers have 64 MB unless somebody asked for more.
ENOUGH_SHARED_MEMORY_BYTES = 256 * 1024 * 1024

LOG_TAIL_LINES = 20

HINTS = {
    "No space left on device": "free some disk space and start again",
    "could not look up effective user ID": f"add this user to /etc/passwd, or {USE_ANOTHER_DATABASE}",
    '"postmaster.pid" already exists': "stop the server that somebody started by hand in this directory",
    "unrecognized configuration parameter": "correct the settings of the embedded server",
}


def claim(directory: Path) -> None:
    """Create the directory, or check that it is ours; what exists keeps its mode.

    Root's directory lets others pass, because the account of the server must reach the data in it, which
    are closed to everybody else.
    """
    as_root = os.geteuid() == 0
    for place in (*reversed(directory.parents), directory):
        if place.exists():
            continue
        mode = 0o755 if place != directory else 0o711 if as_root else 0o700
        place.mkdir(mode, exist_ok=True)
        if as_root:
            place.chmod(mode)  # whatever the umask of root
    if directory.stat().st_uid != os.geteuid():
        raise Refused(
            f"{directory} belongs to another user",
            hint="choose a directory of your own, or run as the user it belongs to",
        )
    (directory / "control").mkdir(0o700, exist_ok=True)


def create(directory: Path, account: Account | None, binaries: Path, *, sync: bool, timeout: float) -> None:
    """Create the cluster in one step, or check that the one that exists is for this version."""
    for leftover in directory.glob(f"{UNFINISHED}*"):
        # The initdb of a killed process may still be writing; then the next start removes the rest.
        shutil.rmtree(leftover, ignore_errors=True)
    if (directory / "data").exists():
        _require_version(directory / "data")
        return
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
    if account is not None:
        os.chown(unfinished, account.uid, account.gid)
    _initdb(unfinished, account, binaries, sync=sync, timeout=timeout)
    unfinished.rename(directory / "data")
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_version(data: Path) -> None:
    marker = data / "PG_VERSION"
    if not marker.exists():
        raise StoreError(f"{data} is not a Postgres data directory", hint="move it away or choose another directory")
    version = marker.read_text().strip()
    if version != MAJOR_VERSION:
        raise SchemaMismatch(
            f"{data} was made by Postgres {version}, and this program carries Postgres {MAJOR_VERSION}",
            hint="export the memories with the release that made it, and import them into a new directory",
            version=version,
        )


def _initdb(target: Path, account: Account | None, binaries: Path, *, sync: bool, timeout: float) -> None:
    command = [str(binaries / "initdb"), "-D", str(target), "-U", ROLE, "--auth=trust", "--encoding=UTF8"]
    # The same order of text on every machine, and upper case beyond ASCII, without the system's locales.
    command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    try:
        made = subprocess.run(  # noqa: S603 - our own binary, arguments as a list
            command if sync else [*command, "--no-sync"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max(timeout, 0.0),
            cwd="/",
            env=SERVER_ENVIRONMENT,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    except subprocess.TimeoutExpired as error:
        raise StoreTimeout("creating the database took too long", hint="raise start_timeout") from error
    if made.returncode != 0:
        raise failure("the embedded database could not be created", made.stdout)


def failure(message: str, output: bytes) -> StoreError:
    """An error that carries the end of what Postgres said, and what to do about it where that is known."""
    log = last_lines(output)
    hint = next((hint for symptom, hint in HINTS.items() if symptom in log), "read the field `log`")
    kind = StoreFull if "No space left on device" in log else StoreUnavailable
    return kind(message, hint=hint, log=log)


def last_lines(output: bytes) -> str:
    """The end of what Postgres said."""
    return "\n".join(output.decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def choose_socket_directory(directory: Path) -> Path:
    """The directory for the socket: beside the data if a client can name it, else a temporary one."""
    own = directory / "socket"
    if _fits(own):
        return own
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    temporary = Path(tempfile.gettempdir()).resolve() / f"nightingale-{os.geteuid()}-{digest}"
    if not _fits(temporary):
        raise ConfigError(
            f"no directory is short enough for a Unix socket: neither {own} nor {temporary}",
            hint="choose a shorter data directory",
        )
    return temporary


def _fits(directory: Path) -> bool:
    """Whether libpq can connect to a socket there: short, UTF-8, and a comma would mean several hosts."""
    path = os.fsencode(directory / f".s.PGSQL.{PORT}")
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return len(path) <= LONGEST_SOCKET_PATH and b"," not in path


def make_private(directory: Path, account: Account | None) -> None:
    """Create the directory of the socket, or refuse what somebody else has put there."""
    owner = account.uid if account else os.geteuid()
    directory.mkdir(0o700, exist_ok=True)
    if account is not None and directory.lstat().st_uid == 0:
        os.chown(directory, account.uid, account.gid, follow_symlinks=False)
    if not is_private(directory, owner):
        raise Refused(
            f"{directory} is not a private directory of the user that runs Postgres",
            hint="remove it, or choose a shorter data directory",
        )


def is_private(directory: Path, owner: int) -> bool:
    """Whether only this user can put anything into the directory: there the server needs no password."""
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner and found.st_mode & 0o077 == 0


def checked_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The caller's settings, unless one would open the server or move it."""
    fixed = _fixed_settings(Path())
    result = {name.strip().lower().replace("-", "_"): value for name, value in settings.items()}
    for name in result:
        if name in fixed or name.endswith(("_directory", "_file")):
            raise InvalidValue("settings", f"{name} is not the caller's to set", hint="leave it out")
    return result


def command(binaries: Path, data: Path, sockets: Path, settings: Mapping[str, str]) -> list[str]:
    """The command line of the server: no shell and no edited file, so any path will do."""
    chosen = {**DEFAULT_SETTINGS, **_shared_memory(), **settings, **_fixed_settings(sockets)}
    options = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
    return [str(binaries / "postgres"), "-D", str(data), *options]


def _fixed_settings(sockets: Path) -> dict[str, str]:
    quoted = str(sockets).replace('"', '""')
    return {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": f'"{quoted}"',  # a list, hence the quotes
        "unix_socket_permissions": "0700",
        "logging_collector": "off",
        "log_destination": "stderr",
    }


def _shared_memory() -> dict[str, str]:
    if sys.platform != "linux":
        return {}
    try:
        usage = os.statvfs("/dev/shm")  # noqa: S108 - measured, not written to
    except OSError:
        return {"dynamic_shared_memory_type": "mmap"}
    small = usage.f_blocks * usage.f_frsize < ENOUGH_SHARED_MEMORY_BYTES
    return {"dynamic_shared_memory_type": "mmap"} if small else {}
