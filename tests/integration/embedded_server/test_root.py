"""The embedded server as root starts it."""

from __future__ import annotations

import pwd
import shutil
import stat
import sys
from pathlib import Path

import psycopg
import pytest

from memory.core.errors import (
    ConfigError,
    Refused,
    StoreError,
)
from memory.postgres import installation
from memory.postgres.embedded import EmbeddedServer
from tests.integration.embedded_server.processes import (
    FAST,
    open_server,
    root_only,
)


def modes(*paths: Path) -> dict[Path, int]:
    return {place: place.stat().st_mode for path in paths for place in (path, *path.parents)}


@root_only
def test_root_runs_the_server_as_somebody_else_and_opens_no_directory(directory: Path) -> None:
    package = installation.package_directory()
    before = modes(package, directory.parent, Path.home(), Path(sys.executable).resolve())
    with open_server(directory) as server:
        uid = Path(f"/proc/{server.pid}").stat().st_uid
        assert uid != 0
        assert (directory / "data").stat().st_uid == uid
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n" in status
        assert "Groups:\t \n" in status
        assert b"HOME=" not in Path(f"/proc/{server.pid}/environ").read_bytes()
        assert modes(package, directory.parent, Path.home(), Path(sys.executable).resolve()) == before


@root_only
def test_root_runs_the_server_as_the_account_it_is_given_and_stays_with_it(fresh: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    with EmbeddedServer(fresh, run_as="nobody", settings=FAST):
        assert (fresh / "data").stat().st_uid == nobody.pw_uid
    with open_server(fresh):  # the data decide when nothing is said
        pass
    with pytest.raises(Refused, match="nobody"):
        EmbeddedServer(fresh, run_as="daemon").start()
    with pytest.raises(ConfigError, match="root"):
        EmbeddedServer(fresh, run_as="root").start()


@root_only
def test_binaries_below_a_closed_directory_are_copied_and_the_directory_stays_closed(
    base: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = base / "closed"
    closed.mkdir(0o700)
    installed = installation.package_directory()
    for part in (installed, installed.parent / f"{installed.name}.libs"):
        (closed / part.name).symlink_to(part)
    monkeypatch.setattr(installation, "package_directory", lambda: closed / installed.name)
    for _ in range(2):
        with open_server(fresh) as server, psycopg.connect(server.url()) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            program = Path(f"/proc/{server.pid}/exe").readlink()
    assert program.parts[: len(fresh.parts)] == fresh.parts
    assert len(list(fresh.glob("binaries-*"))) == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@root_only
def test_a_parent_that_the_server_cannot_enter_is_named_and_left_alone(base: Path) -> None:
    closed = base / "closed"
    closed.mkdir(0o700)
    with pytest.raises(Refused, match="cannot enter") as caught:
        open_server(closed / "postgres").start()
    assert caught.value.barrier == str(closed)
    assert "/var/lib" in caught.value.hint
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@root_only
def test_a_system_without_a_suitable_account_gets_the_way_out(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PREFERRED_ACCOUNT", "no-such-account")
    monkeypatch.setattr(installation, "OWN_ACCOUNT", "no-such-account-either")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(StoreError, match="useradd") as caught:
        open_server(fresh).start()
    assert "run_as" in caught.value.hint
