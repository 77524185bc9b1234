"""The doctor of a replica: each breach is found under its name, and mended where there is one right answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import memory
from edge.directory import folder_name
from edge.doctor import Doctor
from memory.testing.base import everything
from tests.integration.edge.examined import EN, FIRST, TEA, ZH, Sql, doctor, files, found, now, repaired
from tests.plain_index import PlainFactory, plain_index
from tests.replicas import findings, open_replica, settle


def test_a_replica_in_use_is_sound_and_neither_examining_nor_repairing_changes_it(
    path: Path, factory: PlainFactory
) -> None:
    before = files(path)
    assert found(path, factory) == {}
    assert repaired(path, factory) == {}
    assert files(path) == before


def test_the_default_index_is_sound_too_and_what_it_lost_is_found(tmp_path: Path) -> None:
    with open_replica(tmp_path) as store:
        for text in (ZH, EN, TEA):
            store.add_memory(text, user_id="u")
        settle(store)
    assert findings(tmp_path) == {}
    (tmp_path / "users" / folder_name("u") / "index").rename(tmp_path / "users" / folder_name("u") / "gone")
    assert findings(tmp_path) == {"points": 3}
    assert findings(tmp_path, repair=True) == {}


def test_every_check_says_what_it_means(path: Path, factory: PlainFactory) -> None:
    with doctor(path, factory) as opened:
        all_of_them = opened.examine(now=now())
    assert len({finding.name for finding in all_of_them}) == len(all_of_them)
    assert all(finding.meaning and finding.remedy for finding in all_of_them)
    covered = {name for names in BREACHES.values() for name in names[1]}
    beyond = {"file", "folders", "points", "alive_and_deleted", "clock_ahead", "embedding_pending", "index_silent"}
    assert {finding.name for finding in all_of_them} == covered | beyond | {"vectors"}, "a check without a test"


BREACHES: dict[str, tuple[list[str], dict[str, int]]] = {
    "revisions below those given out": (["UPDATE replica SET rev = 1"], {"counters": 1}),
    "revisions below that of an access": (
        ["UPDATE memory_access SET rev = (SELECT rev + 1 FROM replica)"],
        {"counters": 1},
    ),
    "revisions below that of a deletion": (
        ["UPDATE memory_tombstones SET rev = (SELECT rev + 1 FROM replica)"],
        {"counters": 1},
    ),
    "numbers below those given out": (["UPDATE replica SET numbers = 1, words_upto = 1"], {"counters": 2, "words": 2}),
    "a number below that of the deleted": (
        ["UPDATE memory_tombstones SET number = 50"],
        {"counters": 1},
    ),
    "a clock behind its stamps": (["UPDATE replica SET hlc_ms = 5"], {"counters": 1}),
    "an index of words that is ahead": (["UPDATE replica SET words_upto = numbers + 5"], {"counters": 1}),
    "an index of vectors that is ahead": (["UPDATE replica SET points_upto = numbers + 5"], {"counters": 1}),
    "all at once": (
        ["UPDATE replica SET rev = 0, numbers = 0, hlc_ms = 0, words_upto = 9, points_upto = 9"],
        {"counters": 5},
    ),
    "a tag that filters miss": (["DELETE FROM memory_tags WHERE tag = 'ops'"], {"tags": 1}),
    "a tag that nobody has": (["INSERT INTO memory_tags VALUES ('x', 'nobody', 'u')"], {"tags": 1}),
    "tags of all wrong": (["UPDATE memory_tags SET tag = tag || '?'"], {"tags": 14}),
    "wrong words": ([f"UPDATE memories SET terms = 'wrong' WHERE number = {FIRST}"], {"terms": 1, "words": 1}),
    "a wrong length": ([f"UPDATE memories SET length = length + 1 WHERE number = {FIRST}"], {"terms": 1}),
    "words that the index lacks": (
        [
            "INSERT INTO memory_terms (memory_terms, rowid, terms)"
            f" SELECT 'delete', number, terms FROM memories WHERE number = {FIRST}"
        ],
        {"words": 1},
    ),
    "words of nobody": (["INSERT INTO memory_terms (rowid, terms) VALUES (999, 'ghost')"], {"words": 1}),
    "a word too many": ([f"INSERT INTO memory_terms (rowid, terms) VALUES ({FIRST}, 'ghost')"], {"words": 1}),
    "words that are said to wait and are there": (
        [f"INSERT INTO index_todo SELECT memory_id, 1, 1, 0 FROM memories WHERE number = {FIRST}"],
        {"words": 1},
    ),
    "a digest that is no memory's": (["UPDATE sync_state SET digest = digest + 1"], {"shadows": 1}),
    "a digest and a number of what the centre has without a memory": (
        ["UPDATE sync_state SET digest = -5, live = 7"],
        {"shadows": 2},
    ),
    "a note of what the centre has that is not counted": (
        [f"UPDATE memories SET shadow_hash = 77 WHERE number = {FIRST}"],
        {"shadows": 2},
    ),
    "a lost index of words": (["INSERT INTO memory_terms (memory_terms) VALUES ('delete-all')"], {"words": 3}),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_found_under_its_name(
    path: Path, factory: PlainFactory, sql: Sql, own_fields: Callable[[], list[Any]], breach: str
) -> None:
    statements, expected = BREACHES[breach]
    for statement in statements:
        sql(statement)
    before = own_fields()
    assert found(path, factory) == expected
    assert own_fields() == before


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_mended_without_touching_the_memories(
    path: Path, factory: PlainFactory, sql: Sql, own_fields: Callable[[], list[Any]], breach: str
) -> None:
    statements, expected = BREACHES[breach]
    for statement in statements:
        sql(statement)
    before = own_fields()
    assert repaired(path, factory) == expected
    assert found(path, factory) == {}
    assert repaired(path, factory) == {}
    assert own_fields() == before
    with open_replica(path, index=plain_index(factory)) as store:
        assert store.recall("夜莺", user_id="u", top_k=1)[0].memory.content == ZH
        assert [item.content for item in store.list_memories(user_id="u", filters={"tags_all": ["ops"]}).items] == [EN]
        latest = max(int(item.version) for item in everything(store, "u"))
        assert int(store.add_memory("more", user_id="u").version) > latest


def test_examining_is_not_mending(path: Path, factory: PlainFactory, sql: Sql) -> None:
    sql("UPDATE memory_tags SET tag = 'wrong' WHERE tag = 'ops'")
    sql("UPDATE memories SET length = length + 1")
    before = files(path)
    assert [found(path, factory) for _ in range(2)] == [{"tags": 2, "terms": 3}] * 2
    assert files(path) == before


# What only concerns some users


def test_counters_are_checked_where_all_memories_are_gone(path: Path, factory: PlainFactory, sql: Sql) -> None:
    with open_replica(path, index=plain_index(factory)) as store:
        for item in everything(store, "u"):
            store.delete_memory(item.memory_id, user_id="u")
        settle(store)
    sql("UPDATE replica SET rev = 1, numbers = 0, words_upto = 9, points_upto = 9")
    assert found(path, factory) == {"counters": 4}
    assert repaired(path, factory) == {"counters": 4}
    assert found(path, factory) == {}
    with open_replica(path, index=plain_index(factory)) as store:
        store.add_memory("anew", user_id="u")
        assert [hit.memory.content for hit in store.recall("anew", user_id="u")] == ["anew"]


def test_stamps_ahead_of_time_are_worth_knowing_and_left_alone(path: Path, factory: PlainFactory, sql: Sql) -> None:
    with open_replica(path, index=plain_index(factory), now=now() + 3_600_000) as store:
        store.add_memory("from a fast clock", user_id="v")
        settle(store)
    assert found(path, factory) == {"clock_ahead": 1}
    assert found(path, factory, at=now() + 3_600_000) == {}
    assert found(path, factory, at=now() - 3_600_000) == {"clock_ahead": 2}
    assert repaired(path, factory) == {}


def test_faults_inside_the_file_are_told_and_not_made_worse(path: Path, factory: PlainFactory, sql: Sql) -> None:
    file = path / "users" / folder_name("u") / "memory.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        # A row that an index does not know of: the index is out of sight while the row changes.
        [index] = connection.execute("SELECT * FROM sqlite_schema WHERE name = 'memories_edits'").fetchall()
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'memories_edits'")
    sql(f"UPDATE memories SET edited = NOT edited WHERE number = {FIRST}")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", index)
    assert found(path, factory).keys() == {"file"}
    assert repaired(path, factory) == {}
    assert findings(path, index=plain_index(factory)).keys() == {"file"}


def test_a_folder_that_cannot_be_opened_keeps_no_other_from_being_examined_and_mended(
    path: Path, factory: PlainFactory, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    (path / "users" / folder_name("u") / "memory.db").write_bytes(b"not a database" * 1_000)
    (path / "users" / "0123456789abcdef").mkdir()
    sql("DELETE FROM memory_tags", user_id="v")
    assert found(path, factory) == {"folders": 2, "tags": 1}
    assert repaired(path, factory) == {"tags": 1}
    assert found(path, factory) == {"folders": 2}
    assert folder_name("u") in caplog.text
    assert "0123456789abcdef" in caplog.text


def test_several_breaches_of_several_users_are_mended_in_one_go(path: Path, factory: PlainFactory, sql: Sql) -> None:
    for user in ("u", "v"):
        sql("DELETE FROM memory_tags", user_id=user)
        sql("DELETE FROM memory_vectors", user_id=user)
        sql("UPDATE replica SET rev = 0, hlc_ms = 0", user_id=user)
        sql("UPDATE memories SET terms = ''", user_id=user)
    told = {"counters": 4, "tags": 8, "terms": 4, "words": 4, "vectors": 4, "points": 4}
    assert repaired(path, factory) == told
    assert found(path, factory) == {"embedding_pending": 4}


@pytest.mark.parametrize("make", [False, True])
def test_where_no_replica_is_nothing_is_made(tmp_path: Path, make: bool) -> None:
    place = tmp_path / "place"
    if make:
        place.mkdir()
        (place / "notes.txt").write_text("precious")
    for repair in (False, True):
        with pytest.raises(memory.ConfigError, match="holds no replica"):
            Doctor(place, plain_index(), repair=repair)
    assert [entry.name for entry in tmp_path.rglob("*")] == (["place", "notes.txt"] if make else [])
