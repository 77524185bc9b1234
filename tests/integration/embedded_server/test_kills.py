"""The embedded server when processes are killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from memory.core.errors import (
    StoreUnavailable,
)
from memory.postgres import cluster, installation, keeper
from tests.integration.embedded_server.processes import (
    FAST,
    answer,
    as_server_account,
    eventually,
    is_gone,
    keep_note,
    log_of,
    notes,
    open_server,
    parent_of,
    processes_below,
    spawn,
)


def test_a_killed_holder_leaves_no_server_and_loses_no_commit(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    url, pid = answer(holder)
    keep_note(url, "committed")
    holder.kill()
    eventually(lambda: not processes_below(directory), "the server stops")
    assert is_gone(pid)
    with open_server(directory) as server:
        assert notes(server.url()) == ["committed"]


def test_the_next_opener_adopts_the_server_of_a_killed_keeper(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    url, pid = answer(holder)
    os.kill(parent_of(pid), signal.SIGKILL)
    keep_note(url, "without a keeper")
    with open_server(directory) as server:
        assert server.pid == pid
        holder.kill()
        holder.wait()
        assert notes(server.url()) == ["without a keeper"]
    assert is_gone(pid)
    assert not processes_below(directory)
    assert log_of(directory).rstrip().endswith("database system is shut down")


def test_the_last_to_leave_replaces_a_killed_keeper(directory: Path) -> None:
    server = open_server(directory)
    server.start()
    pid = server.pid
    assert pid is not None
    os.kill(parent_of(pid), signal.SIGKILL)
    server.stop()
    assert is_gone(pid)
    assert not processes_below(directory)


def test_a_holder_and_its_keeper_killed_leave_a_server_that_the_next_opener_takes_over(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    _, pid = answer(holder)
    os.kill(parent_of(pid), signal.SIGKILL)
    holder.kill()
    holder.wait()
    with open_server(directory) as server:
        assert server.pid == pid
    assert is_gone(pid)


def test_a_killed_postmaster_is_started_again_while_somebody_holds_the_server(directory: Path) -> None:
    with open_server(directory) as server:
        keep_note(server.url(), "committed")
        killed = server.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)

        def is_back() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                return notes(server.url()) == ["committed"]
            return False

        eventually(is_back, "the server is back")
        assert server.pid != killed


def test_everything_killed_at_once_does_not_prevent_the_next_start(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    url, pid = answer(holder)
    keep_note(url, "committed")
    keeper_pid = parent_of(pid)
    holder.kill()
    os.kill(keeper_pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    assert (directory / "data" / "postmaster.pid").exists()
    with open_server(directory) as server:
        assert notes(server.url()) == ["committed"]
        assert server.pid != pid


def test_a_stale_process_id_that_another_program_has_now_does_not_prevent_the_next_start(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    _, pid = answer(holder)
    keeper_pid = parent_of(pid)
    for victim in (holder.pid, keeper_pid, pid):
        os.kill(victim, signal.SIGKILL)
    stale = directory / "data" / "postmaster.pid"
    with as_server_account(["sleep", "60"], directory) as sleeper:
        _, rest = stale.read_text().split("\n", 1)
        stale.write_text(f"{sleeper.pid}\n{rest}")
        with open_server(directory) as server:
            assert server.pid not in (None, pid, sleeper.pid)
        assert sleeper.poll() is None


def test_a_server_started_by_hand_is_left_alone(directory: Path) -> None:
    with open_server(directory) as server:
        sockets = server.socket_directory
    data = directory / "data"
    account = installation.server_account(None, data)
    cluster.make_private(sockets, account)
    by_hand = cluster.command(installation.binaries_for(account, directory), data, sockets, FAST)
    with as_server_account(by_hand, directory) as postgres:
        eventually(lambda: (found := keeper.PostmasterFile.read(data)) and found.ready, "it is ready")
        with pytest.raises(StoreUnavailable, match="by hand") as caught:
            open_server(directory).start()
        assert caught.value.pid == postgres.pid
        assert postgres.poll() is None


def test_a_killed_initdb_leaves_no_half_made_cluster(base: Path, holders: list[subprocess.Popen[str]]) -> None:
    for attempt in range(10):
        directory = base / str(attempt)
        holder = spawn(holders, directory)
        eventually(lambda place=directory: list(place.glob("unfinished-*/*")), "initdb is at work")  # type: ignore[misc]
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        if not (directory / "data").exists():
            break
    assert list(directory.glob("unfinished-*"))
    with open_server(directory) as server:
        keep_note(server.url(), "made again")
    assert not list(directory.glob("unfinished-*"))


def test_a_keeper_asked_to_end_shuts_the_server_down(directory: Path) -> None:
    server = open_server(directory)
    server.start()
    pid = server.pid
    assert pid is not None
    os.kill(parent_of(pid), signal.SIGTERM)
    eventually(lambda: server.pid is None, "the server stops")
    assert log_of(directory).rstrip().endswith("database system is shut down")
    server.start()
    assert server.pid not in (None, pid)
    server.stop()


def test_a_directory_removed_under_a_running_server_does_not_keep_it_running(directory: Path) -> None:
    server = open_server(directory)
    server.start()
    pid = server.pid
    assert pid is not None
    shutil.rmtree(directory)
    server.stop()
    eventually(lambda: is_gone(pid), "the server stops")
