"""Fixtures of the tests of the doctor: a replica to be harmed, and a hand to do it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge.directory import folder_name
from tests.integration.edge.examined import EN, OWN_FIELDS, TEA, ZH, Sql
from tests.plain_index import PlainFactory, plain_index
from tests.replicas import open_replica, settle


@pytest.fixture
def factory() -> PlainFactory:
    return PlainFactory()


@pytest.fixture
def path(tmp_path: Path, factory: PlainFactory) -> Path:
    """A closed replica of two users, with a recall, an edit, an archived and a deleted memory; nothing waits."""
    with open_replica(tmp_path / "replica", index=plain_index(factory)) as store:
        made = {text: store.add_memory(text, user_id="u", tags=["t", "项目"]).memory_id for text in (ZH, EN, TEA)}
        gone = store.add_memory("to be deleted", user_id="u")
        store.add_memory("of another user", user_id="v", tags=["t"])
        settle(store)
        store.recall("夜莺", user_id="u")
        store.update_memory(made[EN], user_id="u", add_tags=["ops"], metadata={"k": [1, None]})
        store.archive_memory(made[TEA], user_id="u")
        store.delete_memory(gone.memory_id, user_id="u")
        settle(store)
    return tmp_path / "replica"


@pytest.fixture
def sql(path: Path) -> Sql:
    """Runs a statement on the file of user ``u``, or another's."""

    def run(statement: str, *params: Any, user_id: str = "u") -> list[tuple[Any, ...]]:
        file = path / "users" / folder_name(user_id) / "memory.db"
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            return connection.execute(statement, params).fetchall()

    return run


@pytest.fixture
def own_fields(sql: Sql) -> Callable[[], list[Any]]:
    return lambda: [sql(statement, user_id=user) for statement in OWN_FIELDS for user in ("u", "v")]
