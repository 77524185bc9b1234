"""The commands on memories, as text and as JSON."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.system.command import Command

PROJECT = "项目代号叫夜莺，下周五交付第一版"
MEMORY_KEYS = {
    "memory_id",
    "user_id",
    "content",
    "memory_type",
    "importance",
    "status",
    "tags",
    "metadata",
    "source_session",
    "created_at",
    "updated_at",
    "last_access_at",
    "access_count",
    "version",
    "notices",
}


@pytest.fixture
def memory(database_url: str) -> Command:
    return Command(database_url)


def add(memory: Command, content: str, *options: str) -> Any:
    return memory.json("add", content, "--user", "u", *options)


def test_a_memory_is_added_with_everything_it_can_have(memory: Command) -> None:
    options = ["--type", "event", "--importance", "0.25", "--tag", "Project ", "--tag", "项目", "--session", "s-1"]
    more = ["--metadata", '{"k": 1, "深": {"a": [null, true]}}', "--created-at", "2026-01-02T03:04:05Z"]
    added = memory.json("add", PROJECT, "--user", "u-42", *options, *more)
    assert added.keys() == MEMORY_KEYS
    assert added | {"memory_id": "", "updated_at": 0, "version": ""} == {
        "memory_id": "",
        "user_id": "u-42",
        "content": PROJECT,
        "memory_type": "event",
        "importance": 0.25,
        "status": "active",
        "tags": ["project", "项目"],
        "metadata": {"k": 1, "深": {"a": [None, True]}},
        "source_session": "s-1",
        "created_at": 1767323045000,
        "updated_at": 0,
        "last_access_at": None,
        "access_count": 0,
        "version": "",
        "notices": [],
    }
    assert memory.json("get", added["memory_id"], "--user", "u-42") == added


def test_adding_says_what_was_added(memory: Command) -> None:
    said = memory("add", PROJECT, "--user", "u", "--tag", "a").out
    assert said.startswith("Added ")
    assert PROJECT in said
    assert "\x1b" not in said


def test_content_comes_from_stdin_without_its_last_line_feed(memory: Command) -> None:
    added = memory.json("add", "-", "--user", "u", stdin=f"{PROJECT}\n第二行\n")
    assert added["content"] == f"{PROJECT}\n第二行"


def test_an_id_of_the_callers_and_a_time_of_the_callers_are_kept(memory: Command) -> None:
    own = str(uuid.uuid4())
    added = add(memory, "x", "--id", own, "--now", "1767323045000")
    assert (added["memory_id"], added["created_at"], added["updated_at"]) == (own, 1767323045000, 1767323045000)


def test_recall_finds_and_says_why(memory: Command) -> None:
    wanted = add(memory, PROJECT)
    add(memory, "The cat sleeps on the sofa")
    answer = memory.json("recall", "项目代号", "--user", "u")
    assert (answer["query"], answer["user_id"]) == ("项目代号", "u")
    best = answer["hits"][0]
    assert best.keys() == {"score", "relevance", "importance", "recency", "memory"}
    assert best["memory"]["memory_id"] == wanted["memory_id"]
    assert best["memory"].keys() == MEMORY_KEYS
    said = memory("recall", "-", "--user", "u", "--top-k", "1", stdin="项目代号\n").out
    assert said.startswith(f" 1. {PROJECT}\n")
    assert all(word in said for word in ("score", "relevance", "importance", "recency", wanted["memory_id"]))
    assert "cat" not in said


def test_recall_of_nothing_says_so(memory: Command) -> None:
    assert memory("recall", "anything", "--user", "nobody").out == "Nothing found.\n"
    assert memory.json("recall", "anything", "--user", "nobody")["hits"] == []


@pytest.fixture
def various(memory: Command) -> dict[str, str]:
    """Name → id, of memories that the filters tell apart."""
    made = {
        "old": ["--created-at", "2020-01-01"],
        "tagged": ["--tag", "a", "--tag", "b"],
        "half": ["--tag", "a", "--importance", "0.1"],
        "event": ["--type", "event", "--session", "s"],
        "counted": ["--metadata", '{"n": 5}'],
    }
    ids = {name: add(memory, f"memory {name}", *options)["memory_id"] for name, options in made.items()}
    ids["gone"] = add(memory, "memory gone")["memory_id"]
    memory("archive", ids["gone"], "--user", "u")
    return ids


@pytest.mark.parametrize("verb", ["list", "recall"])
def test_filters_narrow_lists_and_recalls(memory: Command, various: dict[str, str], verb: str) -> None:
    cases = {
        ("--tag", "a"): {"tagged", "half"},
        ("--all-tags", "a", "--all-tags", "b"): {"tagged"},
        ("--to", "2021-01-01T00:00:00+08:00"): {"old"},
        ("--from", "1609459200", "--max", ""): {"tagged", "half", "event", "counted"},
        ("--type", "event", "--session", "s"): {"event"},
        ("--status", "archived", "--status", "superseded"): {"gone"},
        ("--where", '{"n": {"gt": 4}}', "--min-importance", "0.5"): {"counted"},
    }
    for given, expected in cases.items():
        options = [option for option in given if option not in ("--max", "")]
        command = [verb, "memory"] if verb == "recall" else [verb]
        answer = memory.json(*command, "--user", "u", *options)
        found = answer["memories"] if verb == "list" else [hit["memory"] for hit in answer["hits"]]
        assert {item["memory_id"] for item in found} == {various[name] for name in expected}, options


def test_recall_leaves_out_what_is_less_relevant_than_asked_for(memory: Command) -> None:
    add(memory, "green tea with honey")
    add(memory, "the moon is far away")
    loose = memory.json("recall", "green tea", "--user", "u")["hits"]
    strict = memory.json("recall", "green tea", "--user", "u", "--min-relevance", "0.3")["hits"]
    assert [hit["memory"]["content"] for hit in strict] == ["green tea with honey"]
    assert len(loose) == 2


def test_listings_go_on_where_they_ended(memory: Command) -> None:
    for day in (1, 2, 3):
        add(memory, f"第{day}天", "--created-at", f"2026-01-0{day}")
    first = memory("list", "--user", "u", "--limit", "2")
    assert first.out.splitlines()[0].split("\t") == ["id", "created", "type", "status", "imp.", "tags", "content"]
    assert [line.split("\t")[6] for line in first.out.splitlines()[1:]] == ["第3天", "第2天"]
    cursor = first.err.split("--cursor ")[1].strip()
    rest = memory.json("list", "--user", "u", "--cursor", cursor)
    assert [item["content"] for item in rest["memories"]] == ["第1天"]
    assert rest["next_cursor"] is None
    assert memory("list", "--user", "nobody").out == "No memories.\n"


def test_recalls_are_counted_unless_asked_not_to_be(memory: Command) -> None:
    added = add(memory, PROJECT)
    memory("recall", "项目", "--user", "u", "--no-track-access")
    assert memory.json("get", added["memory_id"], "--user", "u")["access_count"] == 0
    memory("recall", "项目", "--user", "u")
    read = memory.json("get", added["memory_id"], "--user", "u")
    assert read["access_count"] == 1
    assert read["last_access_at"] >= added["created_at"]


def test_update_changes_only_what_is_named(memory: Command) -> None:
    added = add(memory, PROJECT, "--tag", "a", "--session", "s", "--metadata", '{"k": 1, "l": 2}')
    user = (added["memory_id"], "--user", "u")
    changed = memory.json("update", *user, "--content", "-", "--type", "summary", stdin="改到月底\n")
    assert changed["version"] != added["version"]
    assert (changed["content"], changed["memory_type"], changed["tags"]) == ("改到月底", "summary", ["a"])
    changed = memory.json("update", *user, "--add-tag", "b", "--remove-tag", "a", "--no-session")
    assert (changed["tags"], changed["source_session"]) == (["b"], None)
    changed = memory.json("update", *user, "--metadata", '{"m": 3}', "--remove-metadata", "k")
    assert changed["metadata"] == {"l": 2, "m": 3}
    changed = memory.json("update", *user, "--no-tags", "--importance", "0", "--session", "t")
    assert (changed["tags"], changed["importance"], changed["source_session"]) == ([], 0.0, "t")
    said = memory("update", *user, "--tag", "x", "--tag", "y", "--expected-version", changed["version"]).out
    assert said.startswith("Updated ")
    assert "x, y" in said


def test_archived_memories_come_back_and_deleted_ones_do_not(memory: Command) -> None:
    user = (add(memory, PROJECT)["memory_id"], "--user", "u")
    assert memory("archive", *user).out.startswith("Archived ")
    assert memory.json("archive", *user)["status"] == "archived"
    assert memory.json("list", "--user", "u")["memories"] == []
    assert memory.json("update", *user, "--status", "active")["status"] == "active"
    assert memory.json("delete", *user) == {"memory_id": user[0], "user_id": "u", "deleted": True}
    assert memory.error("get", *user, code=3)["type"] == "NotFound"


def test_stored_text_cannot_drive_a_terminal(memory: Command) -> None:
    added = add(memory, "\x1b]0;title\x07 [bold]markup[/bold] \x9b31m", "--tag", "a\x1bb")
    for said in (
        memory("get", added["memory_id"], "--user", "u").out,
        memory("list", "--user", "u").out,
        memory("recall", "markup", "--user", "u").out,
    ):
        assert not {"\x1b", "\x07", "\x9b"} & set(said)
        assert "\\x1b]0;title\\x07 [bold]markup[/bold]" in said
    assert json.loads(memory("--json", "get", added["memory_id"], "--user", "u").out)["content"] == added["content"]


def test_global_options_stand_before_or_after_the_command(database_url: str) -> None:
    memory = Command()
    after = memory("stats", "--url", database_url, "--json").json
    before = memory("--url", database_url, "--json", "stats").json
    from_environment = memory("stats", "--json", MEMORY_DATABASE_URL=database_url).json
    assert after == before == from_environment
    assert after["embedding_model"] == "hashing-v1-64"


def test_stats_are_of_all_or_of_one(memory: Command) -> None:
    add(memory, "x")
    memory("add", "y", "--user", "v")
    every = memory.json("stats")
    assert (every["users"], every["memories_by_status"], every["user_id"]) == (2, {"active": 2}, None)
    assert every["storage_bytes"] > 0
    one = memory.json("stats", "--user", "v")
    assert (one["memories_by_status"], one["user_id"], one["storage_bytes"]) == ({"active": 1}, "v", None)
    said = memory("stats").out
    assert "active memories" in said
    assert "hashing-v1-64 (64 dimensions)" in said
