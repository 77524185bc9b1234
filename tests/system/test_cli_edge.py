"""The command on a replica: the verbs, moving to the centre and back, upkeep, and what goes wrong."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge.directory import folder_name
from tests.integration.edge.others import holding
from tests.system.command import Command
from tests.system.test_cli_moving import everything, fill

ZH = "项目代号叫夜莺，下周五交付第一版"
HEAD = "edge_0002"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replica"


@pytest.fixture
def memory(path: Path) -> Command:
    return Command(f"edge://{path}")


def file_of(path: Path, user_id: str) -> Path:
    return path / "users" / folder_name(user_id) / "memory.db"


def harm(path: Path, *statements: str, user_id: str = "u") -> None:
    with closing(sqlite3.connect(file_of(path, user_id), isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_the_verbs_work_from_one_run_to_the_next(memory: Command, path: Path) -> None:
    added = memory.json("add", ZH, "--user", "u", "--tag", "项目", "--metadata", '{"k": [1, null]}')
    memory("add", "Prefers green tea", "--user", "u", "--type", "preference")
    assert memory.json("get", added["memory_id"], "--user", "u") == added
    [hit] = memory.json("recall", "夜莺", "--user", "u", "--top-k", "1")["hits"]
    assert hit["memory"]["content"] == ZH
    assert ZH in memory("recall", "夜莺", "--user", "u").out
    changed = memory.json("update", added["memory_id"], "--user", "u", "--content", "代号改为杜鹃", "--importance", "1")
    assert (changed["content"], changed["access_count"]) == ("代号改为杜鹃", 2)
    memory("archive", added["memory_id"], "--user", "u")
    assert [item["content"] for item in memory.json("list", "--user", "u")["memories"]] == ["Prefers green tea"]
    archived = memory.json("list", "--user", "u", "--status", "archived", "--tag", "项目")["memories"]
    assert [item["content"] for item in archived] == ["代号改为杜鹃"]
    memory("delete", added["memory_id"], "--user", "u")
    memory("get", added["memory_id"], "--user", "u", code=3)
    memory("update", added["memory_id"], "--user", "u", "--content", "x", code=3)
    assert memory.json("recall", "杜鹃", "--user", "u")["hits"][0]["memory"]["content"] == "Prefers green tea"
    assert b"\xe6\x9d\x9c\xe9\xb9\x83" not in file_of(path, "u").read_bytes(), "nothing deleted is left after a run"


def test_the_url_may_be_short_relative_and_from_the_environment(tmp_path: Path) -> None:
    memory = Command(options=("--embedding-model", "hashing"))
    memory("-u", "edge:~/replica", "add", "at home", "--user", "u", HOME=str(tmp_path))
    assert memory("-u", f"edge:{tmp_path}/replica", "list", "--user", "u").out.count("at home") == 1
    found = memory("list", "--user", "u", MEMORY_DATABASE_URL=f"edge://{tmp_path}/replica").out
    assert "at home" in found


@pytest.mark.parametrize("pipe", [False, True])
def test_memories_travel_to_the_centre_and_back(
    memory: Command, tmp_path: Path, new_database: Callable[..., str], pipe: bool
) -> None:
    centre, another = Command(new_database()), Command(f"edge://{tmp_path}/another")
    ids = fill(memory)
    memory("recall", "夜莺", "--user", "u")
    gone = memory.json("add", "to be deleted", "--user", "u")
    memory("delete", gone["memory_id"], "--user", "u")
    for source, target in ((memory, centre), (centre, another)):
        if pipe:
            answer = target.json("import", "-", stdin=source("export", "-").raw)
        else:
            file = tmp_path / "memories.jsonl.zst"
            report = source.json("export", str(file))
            assert (report["memories"], report["deletions"]) == (4, 1)
            answer = target.json("import", str(file))
        assert (answer["created"], answer["rejected"]) == (5, [])
    for user in ("u", "v"):
        assert everything(another, user) == everything(centre, user) == everything(memory, user)
    another("update", ids[0], "--user", "u", "--add-tag", "on the device")
    centre("update", ids[0], "--user", "u", "--importance", "0.1")
    for source, target in ((another, centre), (centre, another)):
        assert target.json("import", "-", stdin=source("export", "-").raw)["merged"] == 1
    merged = another.json("get", ids[0], "--user", "u")
    assert (merged["importance"], "on the device" in merged["tags"]) == (0.1, True)
    assert everything(another) == everything(centre)
    assert another.json("doctor")["healthy"]


def test_an_export_continues_an_earlier_one_and_not_that_of_a_copy(memory: Command, path: Path, tmp_path: Path) -> None:
    ids = fill(memory)
    memory("export", str(tmp_path / "full.jsonl"))
    memory("delete", ids[1], "--user", "u")
    memory("add", "new", "--user", "w")
    report = memory.json("export", str(tmp_path / "rest.jsonl"), "--after", str(tmp_path / "full.jsonl"))
    assert (report["memories"], report["deletions"], report["incremental"]) == (1, 1, True)
    shutil.copytree(path, tmp_path / "copy")
    copy = Command(f"edge://{tmp_path}/copy")
    said = copy.error("export", str(tmp_path / "rest.jsonl"), "--after", str(tmp_path / "full.jsonl"), code=8)
    assert "another history" in said["message"]


def test_the_figures_tell_of_the_logs_and_the_indexes(memory: Command) -> None:
    fill(memory)
    figures = memory.json("stats")
    assert (figures["users"], figures["memories_by_status"]) == (2, {"active": 3, "archived": 1})
    assert figures["storage_bytes"] > 100_000
    details = {"index", "index_backlog_words", "index_backlog_vectors", "wal_bytes"}
    assert figures["details"].keys() == details
    assert figures["details"]["index"] == "qdrant-edge"
    assert memory.json("stats", "--user", "v")["memories_by_status"] == {"active": 1}
    said = memory("stats").out
    assert all(name in said for name in details)
    assert "qdrant-edge" in said


# Upkeep


def test_the_doctor_finds_mends_and_says_so(memory: Command, path: Path) -> None:
    fill(memory)
    assert memory.json("doctor")["healthy"]
    assert "ok       tags" in memory("doctor").out
    harm(path, "DELETE FROM memory_tags", "UPDATE replica SET rev = 1")
    said = memory("doctor", code=11).out
    assert "problem  tags: 1 " in said
    assert "Run `memory doctor --repair`" in said
    answer = memory.json("doctor", code=11)
    assert {item["name"]: item["rows"] for item in answer["findings"] if item["rows"]} == {"counters": 1, "tags": 1}
    answer = memory.json("doctor", "--repair")
    assert answer["healthy"]
    assert answer["repaired"] == [{"name": "counters", "rows": 1}, {"name": "tags", "rows": 1}]
    assert memory.json("doctor", "--repair")["repaired"] == []


def test_a_lost_index_is_made_anew(memory: Command, path: Path) -> None:
    fill(memory)
    assert memory.json("doctor")["healthy"]
    shutil.rmtree(file_of(path, "u").parent / "index")
    assert memory.json("recall", "夜莺", "--user", "u")["hits"]
    shutil.rmtree(file_of(path, "v").parent / "index")
    assert memory("doctor", "--repair").out.endswith("The database is sound.\n")


def test_what_cannot_be_mended_stays_a_problem_and_its_folder_is_named(memory: Command, path: Path) -> None:
    fill(memory)
    file_of(path, "u").write_bytes(b"not a database" * 1_000)
    answer = memory.json("doctor", "--repair", code=11)
    assert {item["name"]: item["rows"] for item in answer["findings"] if item["rows"]} == {"folders": 1}
    assert folder_name("u") in memory("--debug", "doctor", code=11).err
    memory("list", "--user", "u", code=12)
    assert "of another user" in memory("list", "--user", "v").out


def test_a_lost_description_is_restored_by_the_doctor(memory: Command, path: Path) -> None:
    fill(memory)
    before = everything(memory)
    (path / "replica.json").unlink()
    for verb in (("list", "--user", "u"), ("doctor",)):
        assert "memory doctor --repair" in memory.error(*verb, code=12)["hint"]
    assert {"name": "description", "rows": 1} in memory.json("doctor", "--repair")["repaired"]
    assert everything(memory) == before


def test_the_schema_is_shown_checked_and_upgraded(memory: Command, path: Path) -> None:
    memory("db", "current", code=2)
    assert memory.json("db", "check")["up_to_date"], "it opens the replica as a program would, and so makes one"
    for _ in range(2):
        assert memory.json("db", "current") == {"revision": HEAD, "head": HEAD, "up_to_date": True}
        assert memory("db", "upgrade").out == f"Already at {HEAD}.\n"
        memory("add", ZH, "--user", "u")
    assert memory.json("db", "check") == {
        "revision": HEAD,
        "head": HEAD,
        "up_to_date": True,
        "embedding_model": "hashing-v1-64",
        "embedding_dimension": 64,
    }
    harm(path, "UPDATE alembic_version SET version_num = 'edge_9999'")
    assert memory.json("db", "current") == {"revision": "edge_9999", "head": HEAD, "up_to_date": False}
    for command in (("db", "upgrade"), ("db", "check"), ("list", "--user", "u")):
        assert "newer than this program" in memory.error(*command, code=6)["message"]


def test_another_model_is_exit_6_until_everything_is_embedded_anew(memory: Command, path: Path) -> None:
    fill(memory)
    other = Command(memory.url, ("--embedding-model", "hashing:32"))
    said = other.error("recall", "夜莺", "--user", "u", code=6)
    assert "'hashing-v1-64'" in said["message"]
    assert "`memory --embedding-model hashing:32 db reembed`" in said["hint"]
    answer = other.json("db", "reembed")
    assert answer == {"embedded": 4, "embedding_model": "hashing-v1-32", "embedding_dimension": 32}
    assert other("db", "reembed").out == "Embedded 0 memories; all vectors are now of hashing-v1-32.\n"
    assert other.json("recall", "夜莺", "--user", "u")["hits"][0]["memory"]["content"] == "项目代号叫夜莺"
    assert other.json("doctor")["healthy"]
    memory("stats", code=6)


# What goes wrong


def test_a_replica_in_use_is_exit_5_and_says_by_whom(memory: Command, path: Path) -> None:
    with holding(path) as holder:
        for command in (
            ("list", "--user", "u"),
            ("stats",),
            ("doctor",),
            ("doctor", "--repair"),
            ("db", "current"),
            ("db", "upgrade"),
            ("db", "reembed"),
        ):
            error = memory.error(*command, code=5)
            assert error["pid"] == holder.pid
            assert error["retryable"] is True
            assert f"process {holder.pid}" in error["message"]
            assert "end that process" in error["hint"]
        assert memory("list", "--user", "u", code=5).err.startswith("Error: ")
    memory("list", "--user", "u")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("edge://host/path", "three slashes"),
        ("edge:", "names no directory"),
        ("edge:///", "names no directory"),
        ("edge:///tmp/a?b=c", "%3F"),
        ("edge:///tmp/a%00b", "not a path"),
        ("edge:///dev/null", "is not a directory"),
        ("edge:///dev/null/x", "Not a directory"),
        ("edge:///etc", "other things"),
    ],
)
def test_a_url_that_cannot_be_a_replica_is_exit_2(url: str, told: str) -> None:
    error = Command(url).error("list", "--user", "u", code=2)
    assert told in f"{error['message']} {error['hint']}"


@pytest.mark.parametrize(
    "command", [("doctor",), ("doctor", "--repair"), ("db", "current"), ("db", "upgrade"), ("db", "reembed")]
)
def test_upkeep_of_a_directory_that_is_no_replica_makes_none(tmp_path: Path, command: tuple[str, ...]) -> None:
    error = Command(f"edge://{tmp_path}/none").error(*command, code=2)
    assert "holds no replica" in error["message"]
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_export_leaves_the_replica_as_it_was(memory: Command, tmp_path: Path) -> None:
    fill(memory)
    before = everything(memory)
    exported = memory("export", "-").raw
    (tmp_path / "cut.jsonl").write_bytes(exported[: len(exported) // 2])
    memory("import", str(tmp_path / "cut.jsonl"), code=7)
    assert everything(memory) == before


def test_quickstart_passes_on_a_replica(memory: Command, path: Path) -> None:
    answer: dict[str, Any] = memory.json("quickstart")
    assert answer["ok"], answer
    assert path.is_dir()
