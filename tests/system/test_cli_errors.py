"""Errors at the command line: the exit code, one or two lines, the same as JSON, and never a password."""

from __future__ import annotations

import uuid
from pathlib import Path

import psycopg
import pytest

from memory.cli.exits import MEANINGS, ExitCode
from tests.system.command import Command

NOWHERE = "postgresql://me:{password}@127.0.0.1:1/db"
VOLATILE = Command("memory://")


@pytest.fixture
def memory(database_url: str) -> Command:
    return Command(database_url)


def test_the_help_explains_every_exit_code() -> None:
    said = VOLATILE("--help").out
    assert set(MEANINGS) == set(ExitCode)
    for code, meaning in MEANINGS.items():
        assert f"{code:4}  {meaning}" in said


def test_without_a_command_there_is_help() -> None:
    said = Command(options=())().out
    assert said == Command(options=())("--help").out
    assert all(f" {name} " in said for name in ("quickstart", "recall", "import", "doctor", "db"))
    assert " reembed " in VOLATILE("db").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "x"], "--user"),
        (["bogus"], "bogus"),
        (["add", "x", "--user", "u", "--nope"], "--nope"),
        (["add", "x", "--user", "u", "--importance", "much"], "--importance"),
        (["add", "x", "--user", "u", "--type", "idea"], "--type"),
        (["add", " ", "--user", "u"], "content"),
        (["add", "x", "--user", " "], "user_id"),
        (["add", "x", "--user", "u", "--importance", "nan"], "importance"),
        (["add", "x", "--user", "u", "--importance", "7"], "importance"),
        (["add", "x", "--user", "u", "--metadata", "{"], "metadata"),
        (["add", "x", "--user", "u", "--metadata", "[1]"], "metadata"),
        (["add", "x", "--user", "u", "--metadata", '{"a":' * 5000 + "1" + "}" * 5000], "metadata"),
        (["add", "x", "--user", "u", "--metadata", '{"a": NaN}'], "metadata.a"),
        (["add", "x", "--user", "u", "--created-at", "yesterday"], "created_at"),
        (["add", "x", "--user", "u", "--created-at", "inf"], "created_at"),
        (["add", "x", "--user", "u", "--id", "7"], "memory_id"),
        (["add", "x", "--user", "u", "--now", "soon"], "now"),
        (["add", "x", "--user", "u", "--now", "-5"], "now"),
        (["recall", "x", "--user", "u", "--top-k", "0"], "top_k"),
        (["recall", "x", "--user", "u", "--min-relevance", "2"], "min_relevance"),
        (["recall", "x", "--user", "u", "--where", '{"k": {"$gt": 1}}'], "$gt"),
        (["list", "--user", "u", "--limit", "100000"], "limit"),
        (["list", "--user", "u", "--cursor", "no"], "cursor"),
        (["update", str(uuid.UUID(int=1)), "--user", "u"], "nothing to change"),
        (["update", "x", "--user", "u", "--tag", "a", "--no-tags"], "exclude each other"),
        (["stats", "--data-directory", "/tmp/x"], "--data-directory"),
        (["stats", "--embedding-model", "magic"], "magic"),
        (["stats", "--url", "mysql://u:secret@h/d"], "mysql"),
        (["stats", "--url", "u:secret@h/d"], "scheme"),
        (["stats", "--url", "postgresql://u:secret@[h/d"], "URL"),
        (["stats", "--url", ""], "URL"),
    ],
)
def test_wrong_use_is_exit_2_and_names_what_is_wrong(arguments: list[str], told: str) -> None:
    said = VOLATILE(*arguments, code=2)
    assert said.raw == b""
    assert told in said.err
    assert said.err.startswith("Error: ")
    assert len(said.err.splitlines()) <= 2
    assert "secret" not in said.err
    error = VOLATILE.error(*arguments, code=2)
    assert error["type"] in ("UsageError", "InvalidValue", "ConfigError")
    assert error["retryable"] is False
    assert told in error["message"]


def test_an_empty_data_directory_is_not_the_current_one() -> None:
    assert Command().error("stats", "--data-directory", "", code=2)["field"] == "data_directory"


def test_errors_carry_their_fields() -> None:
    error = VOLATILE.error("add", "x", "--user", "u", "--importance", "7", code=2)
    assert error["field"] == "importance"
    assert error.keys() >= {"type", "message", "hint", "retryable", "exit_code", "field", "problem"}


def test_a_setting_in_the_environment_can_be_wrong_too() -> None:
    error = VOLATILE.error("stats", code=2, MEMORY_POOL_SIZE="none")
    assert (error["type"], error["setting"]) == ("ConfigError", "pool_size")
    assert "MEMORY_POOL_SIZE" in error["hint"]


def test_content_that_is_not_utf_8_is_refused() -> None:
    assert VOLATILE.error("add", "-", "--user", "u", stdin=b"\xff\xfe", code=2)["field"] == "content"


def test_what_does_not_exist_is_exit_3(memory: Command) -> None:
    for memory_id in (str(uuid.uuid4()), "7"):
        for verb in (["get"], ["archive"], ["delete"], ["update", "--content", "x"]):
            error = memory.error(verb[0], memory_id, "--user", "u", *verb[1:], code=3)
            assert (error["type"], error["memory_id"]) == ("NotFound", memory_id)


def test_another_users_memory_does_not_exist(memory: Command) -> None:
    added = memory.json("add", "x", "--user", "u")
    assert memory("get", added["memory_id"], "--user", "v", code=3).err.startswith("Error: ")


def test_conflicts_are_exit_4(memory: Command) -> None:
    added = memory.json("add", "x", "--user", "u", "--id", str(uuid.uuid4()))
    again = memory.error("add", "x", "--user", "u", "--id", added["memory_id"], code=4)
    assert (again["type"], again["memory_id"]) == ("Conflict", added["memory_id"])
    change = ("update", added["memory_id"], "--user", "u", "--content", "y", "--expected-version", added["version"])
    memory(*change)
    assert memory.error(*change, code=4)["type"] == "Conflict"


@pytest.mark.parametrize("password", ["hunter2", "hunter2@host", "hunter2:more/and?more", "%zzhunter2"])
@pytest.mark.parametrize("more", [[], ["--json"], ["--debug"]])
def test_an_unreachable_database_never_tells_the_password(password: str, more: list[str]) -> None:
    memory = Command(NOWHERE.format(password=password))
    said = memory.unchecked("stats", *more)
    assert said.code in (2, 5)
    assert "hunter2" not in said.err
    assert said.raw == b""


def test_an_unreachable_database_is_exit_5_and_worth_a_retry() -> None:
    for arguments in (["stats"], ["add", "x", "--user", "u"], ["db", "current"], ["doctor"], ["db", "upgrade"]):
        error = Command(NOWHERE.format(password="secret")).error(*arguments, code=5)
        assert (error["type"], error["retryable"]) == ("StoreUnavailable", True)
        assert error["hint"]


def test_a_database_without_schema_is_exit_6_and_says_what_to_run(empty_database_url: str) -> None:
    memory = Command(empty_database_url)
    for arguments in (["stats"], ["db", "check"], ["db", "reembed"]):
        error = memory.error(*arguments, code=6)
        assert error["type"] == "SchemaMismatch"
        assert "memory db upgrade" in error["hint"]


def test_another_embedding_model_is_exit_6_and_says_what_to_run(memory: Command) -> None:
    memory("add", "x", "--user", "u")
    error = memory.error("stats", "--embedding-model", "hashing:32", code=6)
    assert (error["type"], error["stored"], error["configured"]) == ("ModelMismatch", "hashing-v1-64", "hashing-v1-32")
    assert "memory --embedding-model hashing:32 db reembed" in error["hint"]


def test_files_that_cannot_be_used_are_exit_7(memory: Command, tmp_path: Path) -> None:
    memory("add", "x", "--user", "u")
    whole = memory("export", "-").raw
    broken: dict[str, bytes] = {
        "cut": whole[: len(whole) // 2],
        "altered": whole.replace(b'"x"', b'"y"'),
        "foreign": b"hello\n",
        "empty": b"",
        "gzip": b"\x1f\x8b\x08broken",
        "newer": whole.replace(b'"version":1', b'"version":99', 1),
    }
    for name, content in broken.items():
        assert memory.error("import", "-", stdin=content, code=7)["type"].startswith(("Format", "File")), name
    assert memory.error("import", str(tmp_path / "none"), code=7)["type"] == "FormatError"
    assert memory.error("export", str(tmp_path / "none" / "x"), code=7)["type"] == "TargetError"
    assert memory.error("export", str(tmp_path), code=7)["type"] == "TargetError"
    assert list(tmp_path.iterdir()) == []
    assert memory.json("stats")["memories_by_status"] == {"active": 1}


def test_what_is_refused_or_unsupported_is_exit_8(memory: Command, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.jsonl"
    VOLATILE("export", str(elsewhere))
    assert memory.error("export", "-", "--after", str(elsewhere), code=8)["type"] == "Refused"
    assert memory.error("export", "-", "--after", str(elsewhere), "--tag", "a", code=8)["type"] == "Refused"
    assert VOLATILE.error("db", "upgrade", code=8)["type"] == "Unsupported"
    assert Command("https://memory.example.org").error("stats", code=8)["type"] == "Unsupported"


def test_a_model_that_cannot_be_used_is_exit_9(database_url: str) -> None:
    memory = Command(database_url, ("--embedding-model", "openai:nomic"))
    error = memory.error("stats", code=9, MEMORY_EMBEDDING_BASE_URL="http://127.0.0.1:1/v1")
    assert error["type"].startswith("Embedding")


def test_rejected_records_are_exit_10(memory: Command) -> None:
    record = '{{"memory_id":"{id}","user_id":"u","content":"{content}","created_at":1767323045}}\n'
    lines = record.format(id=uuid.uuid4(), content="good") + record.format(id=uuid.uuid4(), content="")
    answer = memory.json("import", "-", stdin=lines, code=10)
    assert (answer["created"], answer["rejected_count"], answer["rejected"][0]["line"]) == (1, 1, 2)


def test_a_database_that_cannot_be_written_is_exit_12(database_url: str) -> None:
    memory = Command(database_url)
    memory("stats")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET default_transaction_read_only = on')
    error = memory.error("add", "x", "--user", "u", code=12)
    assert (error["type"], error["retryable"]) == ("StoreReadOnly", False)
    assert memory("recall", "x", "--user", "u", "--no-track-access").out == "Nothing found.\n"


def test_debug_shows_where_an_error_came_from(memory: Command) -> None:
    ran = memory.unchecked("get", "7", "--user", "u", "--debug")
    assert ran.code == 3
    assert "Traceback" in ran.err
    assert ran.err.splitlines()[-1].startswith("Error: ")
