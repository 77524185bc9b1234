"""Fixtures of the tests of sync: a centre on Postgres with a replica driven by hand, and a world of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import memory
from edge.provider import EdgeMemory
from memory.postgres.centre import PostgresCentre
from memory.postgres.database import Database
from tests.integration.sync.at_centre import Hand, Ticking, open_centre
from tests.integration.sync.devices import OpenDevice, World

Rows = list[tuple[Any, ...]]
Sql = Callable[..., Rows]


@pytest.fixture
def clock() -> Ticking:
    return Ticking()


@pytest.fixture
def centre(database_url: str, clock: Ticking) -> Iterator[PostgresCentre]:
    opened = open_centre(database_url, clock)
    yield opened
    opened.close()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, pool_size=2, timeout=10)
    yield opened
    opened.close()


@pytest.fixture
def hand(centre: PostgresCentre) -> Hand:
    made = Hand(centre)
    made.hello()
    return made


@pytest.fixture
def sql(database_url: str) -> Iterator[Sql]:
    with psycopg.connect(database_url, autocommit=True) as connection:

        def run(statement: str, *params: Any) -> Rows:
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def device(tmp_path: Path) -> Iterator[OpenDevice]:
    """Opens devices by name at the centre of a URL; they are closed with the test."""
    opened: list[EdgeMemory] = []

    def open_(name: str, url: str, **settings: Any) -> EdgeMemory:
        given = {"embedding_model": "hashing", "track_access": False, "sync_background": False, **settings}
        opened.append(memory.connect(f"edge://{tmp_path / name}", centre=url, **given))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made
