"""Export and import at the command line: files, pipes, what changed since."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.system.command import Command


@pytest.fixture
def memory(database_url: str) -> Command:
    return Command(database_url)


@pytest.fixture
def other(new_database: Callable[..., str]) -> Command:
    """The command on another, empty database."""
    return Command(new_database())


def everything(memory: Command, user: str = "u") -> dict[str, Any]:
    statuses = [part for status in ("active", "archived", "superseded") for part in ("--status", status)]
    items = memory.json("list", "--user", user, *statuses)["memories"]
    return {item["memory_id"]: {k: v for k, v in item.items() if k != "version"} for item in items}


def fill(memory: Command) -> list[str]:
    contents = {"项目代号叫夜莺": ["--tag", "项目"], "Prefers tea": ["--type", "preference"], "看电影": []}
    ids = [memory.json("add", text, "--user", "u", *more)["memory_id"] for text, more in contents.items()]
    memory("archive", ids[2], "--user", "u")
    memory("add", "of another user", "--user", "v")
    return ids


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_a_file_carries_everything_to_another_database(
    memory: Command, other: Command, tmp_path: Path, suffix: str
) -> None:
    fill(memory)
    path = tmp_path / f"记忆.{suffix}"
    report = memory.json("export", str(path))
    assert (report["memories"], report["deletions"], report["incremental"]) == (4, 0, False)
    assert report["target"] == str(path)
    assert path.stat().st_mode & 0o077 == 0
    answer = other.json("import", str(path))
    assert (answer["created"], answer["rejected"], answer["rejected_count"]) == (4, [], 0)
    assert everything(other) == everything(memory)
    assert everything(other, "v") == everything(memory, "v")


def test_importing_again_changes_nothing(memory: Command, tmp_path: Path) -> None:
    fill(memory)
    path = tmp_path / "memories.jsonl"
    assert memory("export", str(path)).out == f"Exported 4 memories and 0 deletions ({size(path)}) to {path}\n"
    before = everything(memory)
    said = memory("import", str(path))
    assert said.out == "Imported: 0 created, 0 merged, 4 unchanged, 0 rejected\n"
    assert said.err == ""
    assert everything(memory) == before


def size(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.1f} kB"


def test_a_pipe_carries_everything_too(memory: Command, other: Command) -> None:
    fill(memory)
    exported = memory("export", "-", "--user", "u")
    assert exported.err.startswith("Exported 3 memories")
    assert other.json("import", "-", stdin=exported.raw)["created"] == 3
    assert everything(other) == everything(memory)
    report = json.loads(memory("export", "-", "--json").err)
    assert (report["target"], report["memories"]) == ("-", 4)


def test_compressed_input_is_recognised_on_stdin(memory: Command, other: Command) -> None:
    fill(memory)
    assert other.json("import", "-", stdin=gzip.compress(memory("export", "-").raw))["created"] == 4


def test_filters_choose_what_is_exported(memory: Command, tmp_path: Path) -> None:
    fill(memory)
    cases = {
        ("--user", "v"): 1,
        ("--tag", "项目"): 1,
        ("--status", "archived"): 1,
        ("--status", "active", "--user", "u"): 2,
        ("--to", "2020-01-01"): 0,
        ("--from", "2020-01-01", "--status", "active", "--status", "archived"): 4,
    }
    for options, count in cases.items():
        assert memory.json("export", str(tmp_path / "x"), *options)["memories"] == count, options


def test_an_export_after_another_carries_edits_and_deletions(memory: Command, other: Command, tmp_path: Path) -> None:
    ids = fill(memory)
    full, rest = tmp_path / "full.jsonl", tmp_path / "rest.jsonl"
    memory("export", str(full))
    memory("update", ids[0], "--user", "u", "--content", "项目代号改为杜鹃")
    memory("delete", ids[1], "--user", "u")
    memory("add", "new", "--user", "w")
    report = memory.json("export", str(rest), "--after", str(full))
    assert (report["memories"], report["deletions"], report["incremental"]) == (2, 1, True)
    other("import", str(full))
    answer = other.json("import", str(rest))
    assert (answer["created"], answer["merged"]) == (1, 2)
    assert everything(other) == everything(memory)
    assert everything(other, "w") == everything(memory, "w")


def test_an_import_can_be_of_one_user_and_names_the_rejected_lines(memory: Command, other: Command) -> None:
    fill(memory)
    exported = memory("export", "-").raw
    line = 1 + next(i for i, record in enumerate(exported.splitlines()) if b"of another user" in record)
    said = other("import", "-", "--user", "u", stdin=exported, code=10)
    assert said.out.splitlines()[0] == "Imported: 3 created, 0 merged, 0 unchanged, 1 rejected"
    assert f"rejected line {line}: user_id" in said.out
    answer = other.json("import", "-", "--user", "u", stdin=exported, code=10)
    assert [rejected["line"] for rejected in answer["rejected"]] == [line]
    assert answer["rejected"][0].keys() == {"line", "reason", "hint", "memory_id"}


def test_vectors_of_another_model_are_made_anew(memory: Command, new_database: Callable[..., str]) -> None:
    fill(memory)
    other = Command(new_database(), ("--embedding-model", "hashing:32"))
    said = other("import", "-", stdin=memory("export", "-").raw)
    assert "4 were embedded anew" in said.out
    assert other.json("stats")["pending_embeddings"] == 0


def test_a_file_that_exists_is_replaced_only_by_a_complete_one(memory: Command, tmp_path: Path) -> None:
    path = tmp_path / "memories.jsonl"
    path.write_text("precious")
    memory("export", str(path), "--after", str(path), code=7)
    assert path.read_text() == "precious"
    memory("export", str(path))
    assert path.read_bytes().startswith(b'{"kind":"begin"')
    assert [item.name for item in tmp_path.iterdir()] == ["memories.jsonl"]
