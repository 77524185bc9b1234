"""Directories for embedded servers, and the processes that hold them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.core.errors import (
    StoreError,
)
from tests.integration.embedded_server.processes import (
    cluster_from,
    eventually,
    processes_below,
)


@pytest.fixture
def base(reachable: Path) -> Iterator[Path]:
    """A directory that every account can reach, and in which no process may be left behind."""
    yield reachable
    with contextlib.suppress(StoreError):
        eventually(lambda: not processes_below(reachable), "no process is left behind")
    left = processes_below(reachable)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def fresh(base: Path) -> Path:
    """A directory that does not exist yet."""
    return base / "postgres"


@pytest.fixture(scope="session")
def stock() -> Iterator[Path]:
    """Where a cluster waits between two tests: making one takes far longer than most of the tests."""
    path = Path(tempfile.mkdtemp(prefix="nightingale-test-")).resolve()
    path.chmod(0o755)
    yield path / "postgres"
    shutil.rmtree(path)


@pytest.fixture
def directory(stock: Path, base: Path) -> Iterator[Path]:
    """A directory with a cluster that a first start has made."""
    with cluster_from(stock, base / "postgres") as path:
        yield path


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        with process:
            process.kill()
