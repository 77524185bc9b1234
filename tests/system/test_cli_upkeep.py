"""Schema, model and doctor at the command line. What the doctor knows is tested in ``test_doctor``."""

from __future__ import annotations

import psycopg
import pytest

from memory.postgres import migrations
from tests.system.command import Command


@pytest.fixture
def memory(database_url: str) -> Command:
    return Command(database_url)


def test_the_schema_is_shown_and_upgraded(empty_database_url: str) -> None:
    memory, head = Command(empty_database_url), migrations.head()
    assert memory.json("db", "current") == {"revision": None, "head": head, "up_to_date": False}
    assert "no schema yet" in memory("db", "current").out
    assert memory("db", "upgrade").out == f"Upgraded from an empty database to {head}.\n"
    assert memory.json("db", "upgrade") == {"from_revision": head, "revision": head, "changed": False}
    assert memory("db", "upgrade").out == f"Already at {head}.\n"
    assert memory.json("db", "current") == {"revision": head, "head": head, "up_to_date": True}


def test_check_tells_what_the_database_is_ready_for(memory: Command) -> None:
    head = migrations.head()
    assert memory.json("db", "check") == {
        "revision": head,
        "head": head,
        "up_to_date": True,
        "embedding_model": "hashing-v1-64",
        "embedding_dimension": 64,
    }
    assert memory("db", "check").out == f"Ready: schema {head}, vectors of hashing-v1-64 (64 dimensions).\n"


def test_check_upgrades_nothing_whatever_the_settings(empty_database_url: str) -> None:
    memory = Command(empty_database_url)
    memory("db", "check", code=6, MEMORY_AUTO_MIGRATE="true")
    assert memory.json("db", "current")["revision"] is None


def test_a_schema_that_is_too_new_is_exit_6(memory: Command, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'central_9999'")
    for verb in ("check", "upgrade"):
        assert "newer than this program" in memory.error("db", verb, code=6)["message"]
    assert memory("doctor", code=11).out.startswith("problem  schema")


def test_reembedding_changes_the_model_of_the_database(memory: Command, database_url: str) -> None:
    memory("add", "项目代号叫夜莺", "--user", "u")
    memory("add", "the cat sleeps", "--user", "u")
    other = Command(database_url, ("--embedding-model", "hashing:32"))
    other("stats", code=6)
    said = {"embedded": 2, "embedding_model": "hashing-v1-32", "embedding_dimension": 32}
    assert other.json("db", "reembed") == said
    assert other("db", "reembed").out == "Embedded 0 memories; all vectors are now of hashing-v1-32.\n"
    assert other.json("recall", "夜莺", "--user", "u")["hits"][0]["memory"]["content"] == "项目代号叫夜莺"
    memory("stats", code=6)


def test_the_doctor_finds_a_sound_database_sound(memory: Command) -> None:
    memory("add", "项目代号叫夜莺", "--user", "u")
    answer = memory.json("doctor")
    assert (answer["healthy"], answer["checked"], answer["repaired"]) == (True, True, [])
    assert all(finding["rows"] == 0 for finding in answer["findings"])
    assert answer["findings"][0].keys() == {
        "name",
        "meaning",
        "rows",
        "remedy",
        "repairable",
        "informational",
    }
    assert memory("doctor").out.endswith("The database is sound.\n")
    assert memory("doctor", "--repair").out.endswith("The database is sound.\n")


def test_the_doctor_mends_only_when_told_to(memory: Command, database_url: str) -> None:
    memory("add", "项目代号叫夜莺", "--user", "u")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DELETE FROM memory_vectors")
        connection.execute("UPDATE sync_user SET rev = 0")
    said = memory("doctor", code=11).out
    assert "problem  vector_missing: 1 " in said
    assert "Run `memory doctor --repair`" in said
    found = {f["name"] for f in memory.json("doctor", code=11)["findings"] if f["rows"]}
    assert found == {"revision_behind", "vector_missing"}
    answer = memory.json("doctor", "--repair")
    assert answer["healthy"] is True
    assert answer["repaired"] == [{"name": "revision_behind", "rows": 1}, {"name": "vector_missing", "rows": 1}]
    assert [f["name"] for f in answer["findings"] if f["rows"]] == ["embedding_pending"]
    assert "note     embedding_pending: 1 " in memory("doctor").out


def test_what_cannot_be_mended_is_still_a_problem_after_repair(memory: Command) -> None:
    memory("add", "x", "--user", "u")
    answer = memory.json("doctor", "--repair", "--now", "2000-01-01", code=11)
    assert {f["name"] for f in answer["findings"] if f["rows"]} == {"stamp_ahead"}


def test_a_volatile_store_has_nothing_to_check() -> None:
    memory = Command("memory://")
    assert memory.json("doctor") == {"healthy": True, "checked": False, "findings": [], "repaired": []}
    assert "nothing to check" in memory("doctor").out
