"""Quickstart: a newcomer's first command, on the embedded server and with the bundled model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.system.command import Command

STEPS = ["database", "store", "recall", "recall", "update", "archive", "delete", "export and import"]


@pytest.fixture
def directory(reachable: Path) -> Path:
    """A place for the data of an embedded server."""
    return reachable / "postgres"


def test_it_starts_a_database_and_shows_every_verb(directory: Path) -> None:
    memory = Command(None, ("--data-directory", str(directory)))
    with memory.open("quickstart") as process:
        raw, err = process.communicate(timeout=120)
    said = raw.decode()
    assert (process.returncode, err) == (0, b""), said
    assert said.count("✓") == len(STEPS)
    assert "我的项目叫什么？ → 夜莺" in said
    assert "Where does the staging server run? → Frankfurt" in said
    assert "relevance" in said
    assert str(directory) in said
    assert f'memory.connect(data_directory="{directory}")' in said
    stats = memory.json("stats")
    assert stats["memories_by_status"] == {}
    assert stats["embedding_model"].startswith("multilingual-e5-small")


def test_the_embedded_database_is_there_for_every_command(directory: Path) -> None:
    memory = Command(None, ("--data-directory", str(directory), "--embedding-model", "hashing"))
    assert memory.json("db", "current")["revision"] is None
    assert memory("db", "upgrade").out.startswith("Upgraded from an empty database")
    memory("add", "夜莺", "--user", "u", MEMORY_DATABASE_URL="postgresql://elsewhere.invalid/x")
    assert "夜莺" in memory("recall", "夜莺", "--user", "u").out
    assert memory("doctor").out.endswith("The database is sound.\n")


def test_the_lines_it_prints_for_python_work(empty_database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = Command(empty_database_url, ())("quickstart").out
    program = said.split("Next, in Python:\n")[1].splitlines()[:3]
    names: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in program), names)
    names["store"].close()
    assert capsys.readouterr().out == "项目代号叫夜莺\n"


@pytest.mark.parametrize("more", [[], ["--keep"]])
def test_it_leaves_nothing_unless_asked_to(empty_database_url: str, more: list[str]) -> None:
    memory = Command(empty_database_url)
    answer = memory.json("quickstart", *more)
    assert answer.keys() == {"ok", "user_id", "where", "seconds", "steps"}
    assert answer["ok"] is True
    assert [step["name"] for step in answer["steps"]] == STEPS
    assert all(step["ok"] and step["detail"] for step in answer["steps"])
    left = memory.json("stats")["memories_by_status"]
    assert left == ({"active": 4, "archived": 1} if more else {})
    assert memory.json("doctor")["healthy"] is True


def test_it_works_beside_other_memories_and_twice(database_url: str) -> None:
    memory = Command(database_url)
    memory("add", "项目代号叫夜莺，下周五交付第一版", "--user", "u")
    assert memory.json("quickstart")["user_id"] != memory.json("quickstart")["user_id"]
    assert memory.json("stats")["memories_by_status"] == {"active": 1}


def test_a_step_that_comes_out_wrong_is_exit_1_and_still_cleaned_up(database_url: str) -> None:
    memory = Command(database_url)
    memory("stats")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION swap() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN IF NEW.content LIKE '%Frankfurt%' THEN NEW.content := 'something else'; END IF;"
            " RETURN NEW; END $$"
        )
        connection.execute("CREATE TRIGGER swap BEFORE INSERT ON memories FOR EACH ROW EXECUTE FUNCTION swap()")
    said = memory("quickstart", code=1).out
    assert "✗ store" in said
    assert "something else" in said
    answer = memory.json("quickstart", code=1)
    assert (answer["ok"], answer["steps"][-1]["ok"]) == (False, False)
    assert memory.json("stats")["memories_by_status"] == {}


def test_it_never_shows_the_password_of_the_database() -> None:
    ran = Command("postgresql://me:hunter2@127.0.0.1:1/db")("quickstart", code=5)
    assert "hunter2" not in ran.out + ran.err


def test_it_works_in_memory_too() -> None:
    assert Command("memory://").json("quickstart")["where"] == "memory://"
