"""The command as a process of its own: started anew, or forked from one that has its modules loaded already.

Loading takes nearly all the time of a run. The forked one is the same otherwise: its own process with its own
streams, environment and exit code.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory.cli.main import main
from tests.forks import LOADED

PROGRAM = (sys.executable, "-m", "memory.cli.main")
PATIENCE_S = 120
STREAMS = ("stdin", "stdout", "stderr")


@dataclass(frozen=True)
class Ran:
    """What a run left behind."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode("utf-8")

    @property
    def json(self) -> Any:
        """The one JSON value on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error, told as JSON on stderr."""
        error: dict[str, Any] = json.loads(self.err)["error"]
        return error


@dataclass(frozen=True)
class Command:
    """Runs ``memory`` with global options of the test's."""

    url: str | None = None
    options: tuple[str, ...] = ("--embedding-model", "hashing")
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, code: int = 0, stdin: str | bytes = b"", **more: str) -> Ran:
        """Run it to its end; ``code`` is how it must end. Never is there a traceback."""
        ran = self.unchecked(*arguments, stdin=stdin, **more)
        assert "Traceback" not in ran.err + ran.raw.decode("utf-8", "replace"), ran.err
        assert ran.code == code, f"{arguments}: {ran.code}\n{ran.raw.decode('utf-8', 'replace')}\n{ran.err}"
        return ran

    def unchecked(self, *arguments: str, stdin: str | bytes = b"", **more: str) -> Ran:
        """Run it to its end, whatever that is."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        return _forked([*self.prefix(), *arguments], self.env(**more), data)

    def json(self, *arguments: str, **how: Any) -> Any:
        """Run it with ``--json``; what it answers."""
        return self("--json", *arguments, **how).json

    def error(self, *arguments: str, code: int, **how: Any) -> dict[str, Any]:
        """Run it with ``--json`` into an error; stdout stays empty."""
        ran = self("--json", *arguments, code=code, **how)
        assert ran.raw == b""
        assert ran.error["exit_code"] == code
        return ran.error

    def open(self, *arguments: str, program: Sequence[str] = PROGRAM) -> subprocess.Popen[bytes]:
        """Start it anew, with pipes."""
        line = [*program, *self.prefix(), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(line, env=self.env(), stdin=pipe, stdout=pipe, stderr=pipe)

    def prefix(self) -> list[str]:
        """The global options."""
        return [*([] if self.url is None else ["--url", self.url]), *self.options]

    def env(self, **more: str) -> dict[str, str]:
        """The environment, without settings of the machine."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_")}
        return {**kept, "COLUMNS": "100", **self.environment, **more}


def _forked(arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes) -> Ran:
    with tempfile.TemporaryDirectory(prefix="memory-command-") as name:
        paths = {stream: Path(name) / stream for stream in STREAMS}
        paths["stdin"].write_bytes(stdin)
        process = LOADED.Process(target=_child, args=(arguments, environment, paths))
        process.start()
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = -1 if process.exitcode is None else process.exitcode
        process.close()
        return Ran(code, paths["stdout"].read_bytes(), paths["stderr"].read_text("utf-8"))


def _child(arguments: Sequence[str], environment: Mapping[str, str], paths: Mapping[str, Path]) -> None:
    for number, stream in enumerate(STREAMS):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(paths[stream], flags, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), encoding="utf-8", line_buffering=True)
    sys.exit(main(list(arguments)))
