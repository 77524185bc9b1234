"""Several holders of one embedded server."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from tests.integration.embedded_server.processes import (
    FORKING_HOLDER,
    answer,
    eventually,
    is_gone,
    keep_note,
    leave,
    log_of,
    notes,
    open_server,
    processes_below,
    spawn,
)


def test_two_processes_share_a_server_that_stops_after_the_second_has_left(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    first, second = spawn(holders, directory), spawn(holders, directory)
    url, pid = answer(first)
    assert answer(second) == (url, pid)
    leave(first)
    keep_note(url, "after the first has left")
    leave(second)
    assert is_gone(pid)


def test_six_processes_at_once_on_an_empty_directory_get_one_postmaster(
    fresh: Path, holders: list[subprocess.Popen[str]]
) -> None:
    started = [spawn(holders, fresh) for _ in range(6)]
    assert len({answer(process) for process in started}) == 1
    for process in started:
        leave(process)
    assert not processes_below(fresh)
    assert log_of(fresh).count("ready to accept connections") == 1


def test_objects_and_threads_of_one_process_hold_the_server_independently(fresh: Path) -> None:
    servers = [open_server(fresh) for _ in range(4)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({server.pid for server in servers}) == 1
    for server in servers[1:]:
        server.stop()
    keep_note(servers[0].url(), "still there")
    threads = [threading.Thread(target=servers[0].stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert servers[0].pid is None


def test_opening_and_leaving_in_turns_never_loses_the_server(directory: Path) -> None:
    problems: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(4):
                with open_server(directory) as server:
                    notes(server.url())
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            problems.append(error)

    with open_server(directory) as server:
        keep_note(server.url(), "x")
    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_forked_child_keeps_the_server_until_it_ends(directory: Path, holders: list[subprocess.Popen[str]]) -> None:
    holder = spawn(holders, directory, FORKING_HOLDER)
    url, pid = answer(holder)
    assert holder.wait(timeout=10) == 0
    keep_note(url, "kept by the child")
    assert holder.stdin is not None
    holder.stdin.close()
    eventually(lambda: is_gone(pid), "the server stops after the child")
