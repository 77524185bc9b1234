"""What the embedded server refuses, and what it says when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memory.core.errors import (
    ConfigError,
    InvalidValue,
    Refused,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
    Unsupported,
)
from memory.postgres import cluster, installation, keeper
from memory.postgres.embedded import EmbeddedServer
from tests.integration.embedded_server.processes import (
    IS_ROOT,
    open_server,
    processes_below,
)


def test_a_start_that_fails_says_why_and_leaves_nothing_running(directory: Path) -> None:
    server = EmbeddedServer(directory, settings={"no_such_setting": "1"})
    with pytest.raises(StoreUnavailable, match="did not start") as caught:
        server.start()
    assert 'unrecognized configuration parameter "no_such_setting"' in caught.value.log
    assert "settings" in caught.value.hint
    assert not processes_below(directory)
    with open_server(directory) as server:
        assert server.pid is not None


def test_an_initdb_that_fails_says_why(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ROLE", "pg_reserved")
    with pytest.raises(StoreUnavailable, match="could not be created") as caught:
        open_server(fresh).start()
    assert "pg_reserved" in caught.value.log
    assert not (fresh / "data").exists()


def test_a_full_disk_is_told_from_other_failures() -> None:
    error = cluster.failure("it did not start", b'FATAL:  could not write "x": No space left on device\n')
    assert isinstance(error, StoreFull)
    assert "disk space" in error.hint


def test_a_start_that_takes_too_long_is_given_up(fresh: Path, holders: list[subprocess.Popen[str]]) -> None:
    cluster.claim(fresh)
    lock = keeper.open_lock(fresh / "control" / "start.lock")
    assert keeper.try_lock(lock, 2)  # LOCK_EX, as another opener holds it
    try:
        with pytest.raises(StoreTimeout, match=r"start\.lock"):
            EmbeddedServer(fresh, start_timeout=0.2).start()
    finally:
        os.close(lock)


def test_a_cluster_of_another_version_is_refused_with_the_way_out(fresh: Path) -> None:
    cluster.claim(fresh)
    (fresh / "data").mkdir()
    (fresh / "data" / "PG_VERSION").write_text("17\n")
    if IS_ROOT:
        os.chown(fresh / "data", 65534, 65534)
    with pytest.raises(SchemaMismatch, match="Postgres 17") as caught:
        open_server(fresh).start()
    assert "export" in caught.value.hint


def test_a_data_directory_without_a_cluster_is_refused(fresh: Path) -> None:
    cluster.claim(fresh)
    (fresh / "data").mkdir()
    if IS_ROOT:
        os.chown(fresh / "data", 65534, 65534)
    with pytest.raises(StoreError, match="not a Postgres data directory"):
        open_server(fresh).start()


def test_a_directory_of_another_user_is_refused(fresh: Path) -> None:
    if IS_ROOT:
        fresh.mkdir()
        os.chown(fresh, 65534, 65534)
    with pytest.raises(Refused, match="belongs to another user"):
        open_server(fresh if IS_ROOT else Path("/usr")).start()


def test_a_file_in_place_of_the_directory_is_refused(fresh: Path) -> None:
    fresh.write_text("")
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        open_server(fresh).start()


def test_an_unknown_account_is_refused(fresh: Path) -> None:
    with pytest.raises(ConfigError, match="nobody-of-this-name"):
        EmbeddedServer(fresh, run_as="nobody-of-this-name").start()


def test_settings_that_would_open_or_move_the_server_are_refused(fresh: Path) -> None:
    for name in ("listen_addresses", "Unix-Socket-Directories", "hba_file", "data_directory"):
        with pytest.raises(InvalidValue, match="settings"):
            EmbeddedServer(fresh, settings={name: "*"})


def test_control_characters_in_the_path_are_refused(base: Path) -> None:
    with pytest.raises(InvalidValue, match="directory"):
        EmbeddedServer(base / "two\nlines")


def test_missing_binaries_are_reported(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PACKAGE", "no_such_package")
    with pytest.raises(Unsupported, match="binaries") as caught:
        open_server(fresh).start()
    assert "MEMORY_DATABASE_URL" in caught.value.hint


def test_windows_is_refused_with_the_way_out(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Unsupported, match="Windows") as caught:
        EmbeddedServer(fresh)
    assert "MEMORY_DATABASE_URL" in caught.value.hint
