"""The schema of a user's file: equal to the models, upgraded at open with a copy kept, never half."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

import memory
from edge import revisions
from edge.directory import folder_name
from edge.sqlite.migrations import Schema
from edge.sqlite.tables import edge
from memory.engine.provider import StorageProvider
from memory.postgres.tables import central
from memory.schema.scripts import Branch, script_location
from memory.testing.base import everything
from tests.integration.edge.others import elsewhere, holding
from tests.plain_index import plain_index
from tests.replicas import findings, open_replica

ROOT = Path(__file__).resolve().parents[3]
NEXT = """
import os
from alembic import op

revision = "edge_0003"
down_revision = "edge_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE memories ADD COLUMN mood TEXT")
    op.execute("CREATE TABLE moods (name TEXT PRIMARY KEY)")
    op.execute("INSERT INTO moods SELECT DISTINCT content FROM memories")
    {then}
"""
GOOD, FAILS, DIES = "", 'op.execute("INSERT INTO nowhere VALUES (1)")', "os._exit(9)"
Row = tuple[Any, ...]


def sql(path: Path, statement: str) -> list[Row]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def described(path: Path) -> dict[str, Any]:
    """What SQLite says about the tables of a file; the order of columns is the migration's business."""
    tables = [row[0] for row in sql(path, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")]
    ours = [name for name in tables if not name.startswith(("alembic", "memory_terms", "sqlite"))]
    return {name: described_table(path, name) for name in ours}


def described_table(path: Path, name: str) -> dict[str, Any]:
    [(statement,)] = sql(path, f"SELECT sql FROM sqlite_schema WHERE name = '{name}'")
    indexes = {}
    for _, index, unique, origin, partial in sql(path, f"PRAGMA index_list({name})"):
        columns = [row[2:6] for row in sql(path, f"PRAGMA index_xinfo({index})")]
        [(made,)] = sql(path, f"SELECT sql FROM sqlite_schema WHERE name = '{index}'") or [(None,)]
        condition = made.partition(" WHERE ")[2].strip() if made else ""
        key = index if origin == "c" else origin
        indexes[key] = (unique, partial, condition, columns if origin != "pk" else sorted(columns, key=str))
    return {
        "columns": sorted(row[1:4] for row in sql(path, f"PRAGMA table_info({name})")),
        "defaults": {row[1]: row[4] for row in sql(path, f"PRAGMA table_info({name})") if row[4] is not None},
        "key": [row[1] for row in sorted(sql(path, f"PRAGMA table_info({name})"), key=lambda row: row[5]) if row[5]],
        "foreign keys": sorted(row[2:] for row in sql(path, f"PRAGMA foreign_key_list({name})")),
        "indexes": indexes,
        "without rowid": "WITHOUT ROWID" in statement,
    }


def alembic(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "alembic", "-x", f"url={url}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def blank(tmp_path: Path) -> Path:
    file = tmp_path / "blank.db"
    file.write_bytes(Schema().blank)
    return file


def test_a_migrated_file_equals_the_models(blank: Path, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/modelled.db")
    edge.create_all(engine)
    engine.dispose()
    modelled = described(tmp_path / "modelled.db")
    assert set(modelled) == set(edge.tables)
    assert described(blank) == modelled


def test_the_index_of_words_follows_the_terms_and_keeps_no_copy_of_them(blank: Path) -> None:
    [(statement,)] = sql(blank, "SELECT sql FROM sqlite_schema WHERE name = 'memory_terms'")
    for option in ("content = 'memories'", "content_rowid = 'number'", "detail = none", "columnsize = 0"):
        assert option in statement
    shadows = {name for (name,) in sql(blank, "SELECT name FROM sqlite_schema WHERE name LIKE 'memory_terms_%'")}
    assert shadows == {"memory_terms_config", "memory_terms_data", "memory_terms_idx"}


def test_the_file_of_a_new_user_is_what_alembics_own_command_makes(blank: Path, tmp_path: Path) -> None:
    file = tmp_path / "command.db"
    done = alembic(f"sqlite:///{file}", "upgrade", "edge@head")
    assert done.returncode == 0, done.stderr
    everything_in_it = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2"
    assert sql(file, everything_in_it) == sql(blank, everything_in_it)
    assert sql(file, "SELECT version_num FROM alembic_version") == [(Schema().branch.head,)]
    done = alembic(f"sqlite:///{file}", "downgrade", "edge@base")
    assert done.returncode == 0, done.stderr
    assert sql(file, "SELECT name FROM sqlite_schema WHERE type = 'table'") == [("alembic_version",)]


@pytest.mark.parametrize("target", ["central@head", "heads"])
def test_a_file_takes_no_table_of_the_centre(tmp_path: Path, target: str) -> None:
    file = tmp_path / "edge.db"
    assert alembic(f"sqlite:///{file}", "upgrade", target).returncode != 0
    made = {name for (name,) in sql(file, "SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert not made & (set(central.tables) - set(edge.tables))
    assert "central" not in str(sql(file, "SELECT * FROM alembic_version"))


def test_the_centre_takes_no_table_of_a_file(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    for target in ("edge@head", "heads"):
        assert alembic(empty_database_url, "upgrade", target).returncode != 0
    with psycopg.connect(empty_database_url) as connection:
        tables = {row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    assert not tables & (set(edge.tables) - set(central.tables))


def test_each_branch_has_one_head() -> None:
    scripts = ScriptDirectory.from_config(Branch("edge", script_location()).config())
    heads = scripts.get_revisions("heads")
    assert sorted(label for head in heads for label in head.branch_labels) == ["central", "edge"]


# Upgrades


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """A replica at the ordinary revision with two users."""
    path = tmp_path / "replica"
    with open_replica(path, index=plain_index()) as store:
        for user in ("u", "v"):
            store.add_memory(f"green tea of {user}", user_id=user, tags=["茶"], metadata={"k": [1, None]})
            store.add_memory("second", user_id=user)
    return path


@pytest.fixture
def schema_then(tmp_path: Path) -> Callable[[str], Schema]:
    """A schema with one more migration, that ends with a statement of the test's."""

    def make(then: str) -> Schema:
        scripts = tmp_path / f"scripts {abs(hash(then))} %"
        if not scripts.exists():
            shutil.copytree(script_location(), scripts, ignore=shutil.ignore_patterns("__pycache__"))
            (scripts / "versions" / "edge_0003_moods.py").write_text(NEXT.format(then=then))
        return Schema(scripts)

    return make


def file_of(path: Path, user_id: str = "u") -> Path:
    return path / "users" / folder_name(user_id) / "memory.db"


def revision(file: Path) -> str:
    [(found,)] = sql(file, "SELECT version_num FROM alembic_version")
    return str(found)


def contents(store: StorageProvider, user_id: str = "u") -> list[str]:
    return sorted(item.content for item in everything(store, user_id))


def test_an_older_file_is_upgraded_when_its_user_is_opened(replica: Path, schema_then: Callable[[str], Schema]) -> None:
    with open_replica(replica, index=plain_index()) as store:
        before = everything(store, "u")
    with open_replica(replica, index=plain_index(), schema=schema_then(GOOD)) as store:
        assert everything(store, "u") == before
        store.add_memory("after the upgrade", user_id="u")
        assert len(store.recall("green tea", user_id="u", filters={"tags_all": ["茶"]})) == 1
        assert len(store.recall("green tea", user_id="w")) == 0
        store.add_memory("a user that is new", user_id="w")
    assert revision(file_of(replica)) == revision(file_of(replica, "w")) == "edge_0003"
    assert sql(file_of(replica), "SELECT count(*) FROM moods") == [(2,)]
    assert sql(file_of(replica, "w"), "SELECT count(*) FROM moods") == [(0,)]


def test_a_copy_from_before_the_upgrade_is_kept_whole(replica: Path, schema_then: Callable[[str], Schema]) -> None:
    with open_replica(replica, index=plain_index(), schema=schema_then(GOOD)) as store:
        gone = everything(store, "u")[0]
        store.delete_memory(gone.memory_id, user_id="u")
    kept = file_of(replica).with_name("memory.db.edge_0002")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert sorted(entry.name for entry in kept.parent.glob("memory.db*")) == ["memory.db", "memory.db.edge_0002"]
    assert sql(kept, "PRAGMA integrity_check") == [("ok",)]
    assert revision(kept) == "edge_0002"
    file = file_of(replica)
    kept.replace(file)
    with open_replica(replica, index=plain_index()) as store:
        assert contents(store) == ["green tea of u", "second"]


def test_what_is_only_in_the_log_is_in_the_copy_and_in_the_upgraded_file(
    tmp_path: Path, schema_then: Callable[[str], Schema]
) -> None:
    path = tmp_path / "killed"
    with holding(path) as holder:
        holder.kill()
    file = file_of(path)
    assert file.with_name("memory.db-wal").stat().st_size > 0
    with open_replica(path, index=plain_index(), schema=schema_then(GOOD)) as store:
        assert contents(store) == ["of the other process"]
    kept = file.with_name("memory.db.edge_0002")
    assert sql(kept, "SELECT content FROM memories") == [("of the other process",)]


def test_a_migration_that_fails_half_way_leaves_the_file_as_it_was(
    replica: Path, schema_then: Callable[[str], Schema]
) -> None:
    with open_replica(replica, index=plain_index(), schema=schema_then(FAILS)) as store:
        for _ in range(2):
            with pytest.raises(memory.StoreError, match="nowhere"):
                store.list_memories(user_id="u")
    assert revision(file_of(replica)) == "edge_0002"
    assert sql(file_of(replica), "SELECT name FROM sqlite_schema WHERE name = 'moods'") == []
    with open_replica(replica, index=plain_index()) as store:
        assert contents(store) == ["green tea of u", "second"]
        store.add_memory("by the old program", user_id="u")
    with open_replica(replica, index=plain_index(), schema=schema_then(GOOD)) as store:
        assert contents(store) == ["by the old program", "green tea of u", "second"]
    assert sql(file_of(replica).with_name("memory.db.edge_0002"), "SELECT count(*) FROM memories") == [(3,)]


def list_with(path: Path, scripts: Path) -> None:
    with open_replica(path, index=plain_index(), schema=Schema(scripts)) as store:
        store.list_memories(user_id="u")


def test_a_program_that_dies_in_the_middle_of_an_upgrade_leaves_it_to_the_next(
    replica: Path, schema_then: Callable[[str], Schema]
) -> None:
    for _ in range(2):
        with pytest.raises(AssertionError, match="with 9"):
            elsewhere(list_with, replica, schema_then(DIES).branch.location)
        assert revision(file_of(replica)) == "edge_0002"
    (file_of(replica).parent / "memory.db.edge_0002.partial").write_bytes(b"cut short")
    with open_replica(replica, index=plain_index(), schema=schema_then(GOOD)) as store:
        assert contents(store) == ["green tea of u", "second"]
    assert revision(file_of(replica)) == "edge_0003"
    assert not (file_of(replica).parent / "memory.db.edge_0002.partial").exists()
    assert revision(file_of(replica).with_name("memory.db.edge_0002")) == "edge_0002"


def test_a_file_newer_than_the_program_is_refused_and_not_touched(
    replica: Path, schema_then: Callable[[str], Schema]
) -> None:
    with open_replica(replica, index=plain_index(), schema=schema_then(GOOD)) as store:
        store.list_memories(user_id="u")
    before = file_of(replica).read_bytes()
    with open_replica(replica, index=plain_index()) as store:
        with pytest.raises(memory.SchemaMismatch, match="newer") as caught:
            store.recall("tea", user_id="u")
        assert caught.value.current == "edge_0003"
        assert "upgrade nightingale-memory" in caught.value.hint
    with pytest.raises(memory.SchemaMismatch, match="newer"):
        revisions.upgrade(replica)
    assert findings(replica, index=plain_index(), repair=True)["folders"] >= 1
    assert file_of(replica).read_bytes() == before
    assert "edge_0003" in revisions.revisions(replica)[0]


def test_all_users_are_upgraded_on_demand(
    replica: Path, schema_then: Callable[[str], Schema], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert revisions.revisions(replica) == (["edge_0002"], "edge_0002")
    monkeypatch.setattr(revisions, "Schema", lambda: schema_then(GOOD))
    assert revisions.revisions(replica) == (["edge_0002"], "edge_0003")
    revisions.upgrade(replica)
    assert revisions.revisions(replica) == (["edge_0003"], "edge_0003")
    assert revision(file_of(replica, "u")) == revision(file_of(replica, "v")) == "edge_0003"


def test_copies_are_dropped_after_thirty_days(replica: Path, schema_then: Callable[[str], Schema]) -> None:
    with open_replica(replica, index=plain_index(), schema=schema_then(GOOD)) as store:
        store.list_memories(user_id="u")
        store.list_memories(user_id="v")
    kept = {user: file_of(replica, user).with_name("memory.db.edge_0002") for user in ("u", "v")}
    for user, days in (("u", 29), ("v", 31)):
        then = time.time() - days * 86_400
        os.utime(kept[user], (then, then))
    with open_replica(replica, index=plain_index(), schema=schema_then(GOOD)) as store:
        store.list_memories(user_id="u")
        store.list_memories(user_id="v")
    assert [kept[user].exists() for user in ("u", "v")] == [True, False]
