"""Schema upgrades: safe on many hosts, equal to the models, reversible, refused with the remedy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, inspect

import memory
from memory.postgres import migrations
from memory.postgres.tables import central
from memory.schema.scripts import script_location

STARTER = """
import sys, memory
with memory.connect(sys.argv[1], embedding_model="hashing", auto_migrate=True) as store:
    store.add_memory(f"note of process {sys.argv[2]}", user_id="u")
"""


def described(url: str) -> dict[str, Any]:
    """What the catalogue says about our tables."""
    with psycopg.connect(url) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name, data_type, udt_name, is_nullable, collation_name, column_default,"
            " is_identity FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, ordinal_position"
        ).fetchall()
        indexes = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
        ).fetchall()
        constraints = connection.execute(
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE connamespace = 'public'::regnamespace AND contype IN ('p', 'f', 'u', 'c') ORDER BY 1, 3"
        ).fetchall()
    return {"columns": columns, "indexes": indexes, "constraints": constraints}


def without_alembic(described_database: dict[str, Any]) -> dict[str, Any]:
    return {kind: [row for row in rows if "alembic" not in str(row)] for kind, rows in described_database.items()}


def test_a_migrated_database_equals_the_models(database_url: str, empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(empty_database_url))
    central.create_all(engine)
    engine.dispose()
    migrated, modelled = without_alembic(described(database_url)), without_alembic(described(empty_database_url))

    def defaults(rows: list[Any]) -> list[Any]:
        # Only the migration gives sync_meta.singleton its default; the application never inserts there.
        return [(*row[:6], None, *row[7:]) if row[1] == "singleton" else row for row in rows]

    assert defaults(migrated["columns"]) == defaults(sorted_like(migrated["columns"], modelled["columns"]))
    assert migrated["indexes"] == modelled["indexes"]
    assert migrated["constraints"] == modelled["constraints"]


def sorted_like(model: list[Any], rows: list[Any]) -> list[Any]:
    """Column order within a table is the migration's business."""
    order = {(row[0], row[1]): position for position, row in enumerate(model)}
    assert {(row[0], row[1]) for row in rows} == set(order)
    return sorted(rows, key=lambda row: order[row[0], row[1]])


def test_every_index_and_key_leads_with_the_user(database_url: str) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url))
    inspector = inspect(engine)
    exempt = {"embedding_models", "sync_meta", "alembic_version"}
    for table in set(inspector.get_table_names()) - exempt:
        assert inspector.get_pk_constraint(table)["constrained_columns"][0] == "user_id", table
        for index in inspector.get_indexes(table):
            # The lexemes of the text index carry a mark of the user (memory.postgres.terms).
            assert index["column_names"][0] in ("user_id", "terms"), index["name"]
    engine.dispose()


def test_memories_survive_upgrade_downgrade_and_upgrade(database_url: str) -> None:
    assert migrations.current(database_url) == migrations.head()
    with memory.connect(database_url, embedding_model="hashing") as store:
        store.add_memory("项目代号叫夜莺", user_id="u", tags=["项目"], metadata={"k": [1, None]})
        archived = store.add_memory("archived", user_id="u")
        store.archive_memory(archived.memory_id, user_id="u")
        before = store.list_memories(user_id="u", filters={"statuses": ["active", "archived"]}).items
    migrations.upgrade(database_url)
    with memory.connect(database_url, embedding_model="hashing") as store:
        assert store.list_memories(user_id="u", filters={"statuses": ["active", "archived"]}).items == before
    migrations.downgrade(database_url, "central@base")
    assert migrations.current(database_url) is None
    assert migrations.upgrade(database_url) == migrations.head()
    with memory.connect(database_url, embedding_model="hashing") as store:
        assert store.stats().memories_by_status == {}


def test_rows_of_the_first_revision_are_kept_and_can_be_synced(database_url: str, tmp_path: Path) -> None:
    with memory.connect(database_url, embedding_model="hashing") as store:
        made = store.add_memory("项目代号叫夜莺", user_id="u", tags=["项目"], metadata={"k": [1, None]})
        store.delete_memory(store.add_memory("deleted", user_id="u").memory_id, user_id="u")
        store.recall("夜莺", user_id="u")
        store.flush()
        before = store.get_memory(made.memory_id, user_id="u")
    migrations.downgrade(database_url, "central_0001")
    assert migrations.current(database_url) == "central_0001"
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert connection.execute("SELECT to_regclass('sync_device')").fetchone() == (None,)
        connection.execute("UPDATE memories SET importance = importance")  # no trigger is left
    migrations.upgrade(database_url)
    with memory.connect(database_url, embedding_model="hashing") as store:
        assert store.get_memory(made.memory_id, user_id="u") == before
    settings: dict[str, Any] = {"embedding_model": "hashing", "sync_background": False}
    with memory.connect(f"edge://{tmp_path / 'device'}", centre=database_url, **settings) as device:
        [report] = device.sync_now("u")
        assert (report.pulled, report.equal) == (2, True)
        assert device.get_memory(made.memory_id, user_id="u").access_count == before.access_count


def test_eight_processes_that_start_on_an_empty_database_all_succeed(empty_database_url: str) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", STARTER, empty_database_url, str(i)], stderr=subprocess.PIPE, text=True)
        for i in range(8)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, errors
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchall() == [(1,)]
        assert connection.execute("SELECT count(*), max(rev) FROM memories").fetchall() == [(8, 8)]
        assert connection.execute("SELECT count(*) FROM embedding_models").fetchall() == [(1,)]


def test_a_database_without_a_schema_is_refused_with_the_command(empty_database_url: str) -> None:
    with pytest.raises(memory.SchemaMismatch) as caught:
        memory.connect(empty_database_url, embedding_model="hashing")
    assert "memory db upgrade" in caught.value.hint
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchall() == [(0,)]


def test_a_database_newer_than_the_program_is_refused_and_not_touched(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'central_9999'")
    for call in (
        lambda: memory.connect(database_url, embedding_model="hashing"),
        lambda: memory.connect(database_url, embedding_model="hashing", auto_migrate=True),
        lambda: migrations.upgrade(database_url),
    ):
        with pytest.raises(memory.SchemaMismatch) as caught:
            call()
        assert "newer" in caught.value.message
        assert "upgrade nightingale-memory" in caught.value.hint
    assert migrations.current(database_url) == "central_9999"


def test_a_server_without_pgvector_is_named_before_anything_is_created(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The bundled server always has the extension; hiding its name stands for a server without it.
    monkeypatch.setattr(migrations, "VECTOR_EXTENSION", "vector_that_is_not_here")
    monkeypatch.setattr(migrations, "VECTOR_TYPE", "vector_that_is_not_here")
    with pytest.raises(memory.Unsupported) as caught:
        migrations.upgrade(empty_database_url)
    assert "pgvector" in caught.value.message
    assert migrations.current(empty_database_url) is None


def test_a_role_that_may_not_create_the_extension_is_told_so(new_database: Callable[..., str]) -> None:
    url = new_database(empty=True)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS plain")
        admin.execute("CREATE ROLE plain LOGIN")
    plain = url.replace("postgres@", "plain@")
    with pytest.raises(memory.Refused) as caught:
        migrations.upgrade(plain)
    assert "CREATE EXTENSION vector" in caught.value.hint
    assert migrations.current(url) is None
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector")
        admin.execute("GRANT CREATE ON SCHEMA public TO plain")
    assert migrations.upgrade(plain) == migrations.head()
    with memory.connect(plain, embedding_model="hashing") as store:
        store.add_memory("by a plain role", user_id="u")
        assert len(store.recall("plain role", user_id="u")) == 1


def test_the_extension_may_live_in_another_schema(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA extensions")
        admin.execute("CREATE EXTENSION vector SCHEMA extensions")
        admin.execute("ALTER DATABASE " + admin.info.dbname + " SET search_path = public, extensions")
    with memory.connect(empty_database_url, embedding_model="hashing", auto_migrate=True) as store:
        store.add_memory("tea", user_id="u")
        assert len(store.recall("tea", user_id="u")) == 1


def test_migrations_import_nothing_of_ours_and_have_one_head() -> None:
    versions = script_location() / "versions"
    files = sorted(versions.glob("*.py"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "memory." not in text.replace("memory.db", "")
        assert "from memory" not in text
        assert file.name.startswith(("central_", "edge_"))
    assert not (script_location() / "__init__.py").exists()
    assert migrations.head().startswith("central_")


def test_alembics_own_command_reads_its_settings_from_pyproject(empty_database_url: str) -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "alembic", "-x", f"url={empty_database_url}", "upgrade", "central@head"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode != 0, "the extension is missing, and only `memory db upgrade` creates it"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert migrations.current(empty_database_url) == migrations.head()
