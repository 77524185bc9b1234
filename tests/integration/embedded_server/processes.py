"""What the tests of the embedded server share: real processes that hold it, and questions about them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from memory.core.errors import (
    StoreTimeout,
)
from memory.postgres import cluster
from memory.postgres.embedded import EmbeddedServer

REPOSITORY = Path(__file__).resolve().parents[3]
FAST = {"fsync": "off", "shared_buffers": "16MB"}
IS_ROOT = os.geteuid() == 0
root_only = pytest.mark.skipif(not IS_ROOT, reason="about running as root")

# Another process that holds the server until its standard input ends.
HOLDER = """
import sys
from pathlib import Path
from memory.postgres.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), settings={"fsync": "off", "shared_buffers": "16MB"})
print(server.start(), server.pid, flush=True)
sys.stdin.read()
server.stop()
print("stopped", flush=True)
"""

# A holder that forks a child and ends without a word; the child ends with its standard input.
FORKING_HOLDER = """
import os, sys
from pathlib import Path
from memory.postgres.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), settings={"fsync": "off", "shared_buffers": "16MB"})
line = f"{server.start()} {server.pid}"
if os.fork():
    os._exit(0)
print(line, flush=True)
sys.stdin.read()
os._exit(0)
"""


@contextlib.contextmanager
def cluster_from(stock: Path, directory: Path) -> Iterator[Path]:
    """Lend the cluster in stock to a directory; it comes back if the test has left it in order."""
    if not (stock / "data").exists():
        with open_server(stock):
            pass
    cluster.claim(directory)
    (stock / "data").rename(directory / "data")
    yield directory
    with contextlib.suppress(StoreTimeout):
        eventually(lambda: not processes_below(directory), "no process is left behind")
        if (directory / "data" / "PG_VERSION").exists() and not (directory / "data" / "postmaster.pid").exists():
            (directory / "data").rename(stock / "data")


def open_server(directory: Path) -> EmbeddedServer:
    return EmbeddedServer(directory, settings=FAST)


def spawn(
    holders: list[subprocess.Popen[str]],
    directory: Path,
    script: str = HOLDER,
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(directory)],
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    holders.append(process)
    return process


def answer(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The URL and the postmaster's process id that a holder reports."""
    assert process.stdout is not None
    url, pid = process.stdout.readline().split()
    return url, int(pid)


def leave(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=30)
    assert output == "stopped\n"
    assert process.returncode == 0


def eventually(condition: Callable[[], object], what: str, timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise StoreTimeout(f"waited in vain: {what}")
        time.sleep(0.02)


def ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], check=False, capture_output=True, text=True).stdout.strip()


def processes_below(path: Path) -> list[int]:
    """Keepers and postmasters whose command line names the path."""
    lines = [line.split(maxsplit=1) for line in ps("-A", "-ww", "-o", "pid=,args=").splitlines()]
    return [
        int(pid)
        for pid, command in lines
        if str(path) in command and ("keeper.py" in command or "bin/postgres" in command)
    ]


def is_gone(pid: int) -> bool:
    state = ps("-o", "stat=", "-p", str(pid))
    return not state or state.startswith("Z")


def parent_of(pid: int) -> int:
    return int(ps("-o", "ppid=", "-p", str(pid)))


@contextlib.contextmanager
def as_server_account(command: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to the owner of the data."""
    owner = (directory / "data").stat()
    with subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        cwd="/",
        user=owner.st_uid if IS_ROOT else None,
        group=owner.st_gid if IS_ROOT else None,
        extra_groups=[] if IS_ROOT else None,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def keep_note(url: str, note: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS notes")
        connection.execute("CREATE TABLE notes (note text)")
        connection.execute("INSERT INTO notes VALUES (%s)", [note])


def notes(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT note FROM notes ORDER BY note")]


def log_of(directory: Path) -> str:
    return (directory / "control" / "server.log").read_text()
