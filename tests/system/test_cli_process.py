"""The command as a process: how it is started, piped, interrupted, and what a terminal sees."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.cells import cell_len

from memory.version import __version__
from tests.system.command import PROGRAM, Command

VOLATILE = Command("memory://")
MODULE = (sys.executable, "-m", "memory.cli")
CLOSED_PIPE = 141


@pytest.fixture
def memory(database_url: str) -> Command:
    return Command(database_url)


@pytest.mark.parametrize("program", [(str(Path(sys.executable).parent / "memory"),), MODULE])
def test_it_starts_as_a_script_and_as_a_module(program: tuple[str, ...]) -> None:
    if program is not MODULE and not Path(program[0]).exists():
        program = (shutil.which("memory") or program[0],)
    with VOLATILE.open("--version", program=program) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert out.decode() == f"nightingale-memory {__version__}\n"
    assert VOLATILE.json("--version") == {"version": __version__}


def test_a_whole_life_through_real_processes(memory: Command) -> None:
    def run(*arguments: str, data: bytes = b"") -> bytes:
        with memory.open(*arguments) as process:
            out, err = process.communicate(data, timeout=60)
        assert process.returncode == 0, err
        return out

    added = json.loads(run("add", "-", "--user", "u", "--json", data="项目代号叫夜莺\n".encode()))
    assert added["content"] == "项目代号叫夜莺"
    assert "夜莺".encode() in run("recall", "项目代号", "--user", "u")
    run("delete", added["memory_id"], "--user", "u")
    assert run("list", "--user", "u") == b"No memories.\n"


def test_chinese_survives_a_terminal_that_knows_only_ascii(memory: Command) -> None:
    narrow = Command(memory.url, environment={"PYTHONIOENCODING": "ascii"})
    with narrow.open("add", "夜莺", "--user", "u", "--json") as process:
        out, _ = process.communicate(timeout=60)
    assert json.loads(out.decode("utf-8"))["content"] == "夜莺"
    with narrow.open("list", "--user", "u") as process:
        out, _ = process.communicate(timeout=60)
    assert b"\\u591c\\u83ba" in out
    assert process.returncode == 0


@pytest.mark.parametrize("arguments", [["list", "--user", "u"], ["export", "-"], ["--json", "list", "--user", "u"]])
def test_a_reader_that_goes_away_ends_it_without_a_word(memory: Command, arguments: list[str]) -> None:
    memory("add", "夜莺", "--user", "u")
    with memory.open(*arguments) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (CLOSED_PIPE, b"")


def test_help_can_be_piped_into_head() -> None:
    with VOLATILE.open("--help") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == CLOSED_PIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_output_that_cannot_be_written_is_exit_7(memory: Command) -> None:
    memory("add", "夜莺", "--user", "u")
    for arguments in (["list", "--user", "u"], ["--json", "list", "--user", "u"], ["export", "-"]):
        with Path("/dev/full").open("wb") as full:
            line = [*PROGRAM, *memory.prefix(), *arguments]
            done = subprocess.run(line, env=memory.env(), stdout=full, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 7, done.stderr
        assert b"No space left on device" in done.stderr
        assert b"Traceback" not in done.stderr


def test_closed_streams_are_no_trouble() -> None:
    for closing, code in (("<&-", 2), (">&-", 0), ("2>&-", 0)):
        arguments = ["add", "-", "--user", "u"] if closing == "<&-" else ["stats"]
        line = shlex.join([*PROGRAM, *VOLATILE.prefix(), *arguments])
        done = subprocess.run(["sh", "-c", f"{line} {closing}"], env=VOLATILE.env(), capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr


def test_an_interrupt_is_exit_130_without_a_traceback() -> None:
    with VOLATILE.open("add", "-", "--user", "u") as process:
        assert process.stdin is not None
        # More than a pipe holds: once it is written, the command is reading, and waits for the rest.
        process.stdin.write(b"x" * 4_000_000)
        process.stdin.flush()
        # One signal may fall between two reads, where Python notices it only at the next.
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.returncode, process.stdout.read()) == (130, b"")
        assert b"Traceback" not in process.stderr.read()


def on_a_terminal(memory: Command, *arguments: str, width: int) -> str:
    """What a terminal of that width shows, its escape sequences included."""
    leader, follower = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # how Linux tells that the other side is closed
            while chunk := os.read(leader, 65_536):
                shown.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    line = [sys.executable, "-m", "memory.cli", *memory.prefix(), *arguments]
    environment = {**memory.env(), "COLUMNS": str(width), "TERM": "xterm-256color"}
    done = subprocess.run(line, env=environment, stdin=follower, stdout=follower, stderr=follower, check=False)
    os.close(follower)
    reader.join(10)
    os.close(leader)
    assert done.returncode == 0
    return b"".join(shown).decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_aligned_columns(memory: Command) -> None:
    ids = []
    for tag, content in (("项目", "项目代号叫夜莺"), ("plan", "Prefers green tea"), ("", "看电影")):
        options = ["--tag", tag] if tag else []
        ids.append(memory.json("add", content, "--user", "u", *options)["memory_id"])
    shown = on_a_terminal(memory, "list", "--user", "u", width=140)
    assert "\x1b[1m" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    columns = {cell_len(line[: line.index(word)]) for line, word in zip(lines, COLUMN_WORDS, strict=False)}
    assert len(columns) == 1
    narrow = on_a_terminal(memory, "list", "--user", "u", width=60)
    assert all(memory_id in narrow for memory_id in ids)
    assert "score" in on_a_terminal(memory, "recall", "夜莺", "--user", "u", width=80)


COLUMN_WORDS = ("content", "看电影", "Prefers", "项目代号")


def test_an_import_shows_its_progress_on_a_terminal_only(memory: Command, tmp_path: Path) -> None:
    path = tmp_path / "memories.jsonl"
    memory("add", "夜莺", "--user", "u")
    memory("export", str(path))
    shown = on_a_terminal(memory, "import", str(path), width=100)
    assert "importing" in shown
    assert "1 unchanged" in shown
    assert memory("import", str(path)).err == ""
