"""A real Postgres for every test: one embedded server a run, one database copied from a template a test.

If the server cannot start, the run fails; no test is skipped for want of a database.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from pytest_postgresql import factories
from pytest_postgresql.janitor import DatabaseJanitor

from memory.postgres import migrations
from memory.postgres.embedded import EmbeddedServer

pytest.register_assert_rewrite("memory.testing")

SERVER = pytest.StashKey[EmbeddedServer]()
FOLDER = pytest.StashKey[Path]()

settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("long", max_examples=2_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(tempfile.mkdtemp(prefix="memory-tests-"))
    folder.chmod(0o755)  # the account that runs the server must get through; its own directory is closed
    server = EmbeddedServer(folder / "postgres", settings={"fsync": "off", "max_connections": "200"})
    server.start()
    config.stash[FOLDER], config.stash[SERVER] = folder, server
    config.option.postgresql_host = str(server.socket_directory)
    config.option.postgresql_user = "postgres"


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(SERVER, None)
    if server is not None:
        server.stop()
        shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


def _url(host: str, port: Any, dbname: str) -> str:
    return f"postgresql://postgres@/{quote(dbname)}?host={quote(host, safe='')}&port={port}"


def _migrate(*, host: str, port: Any, dbname: str, **_: Any) -> None:
    migrations.upgrade(_url(host, port, dbname))


central_server = factories.postgresql_noproc(load=[_migrate])
central = factories.postgresql("central_server")


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that every account can get to, such as the one that runs a server; pytest's are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="memory-tests-")).resolve()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> EmbeddedServer:
    """The run's Postgres server."""
    return pytestconfig.stash[SERVER]


@pytest.fixture
def database_url(central: psycopg.Connection[Any]) -> str:
    """A migrated database of this test's own."""
    url = _url(central.info.host, central.info.port, central.info.dbname)
    central.close()
    return url


@pytest.fixture
def new_database(central_server: Any) -> Iterator[Callable[..., str]]:
    """Makes further databases: ``new_database()`` migrated, ``new_database(empty=True)`` without a schema."""
    janitors: list[DatabaseJanitor] = []

    def make(*, empty: bool = False) -> str:
        name = f"further_{len(janitors)}"
        janitor = DatabaseJanitor(
            user=central_server.user,
            host=central_server.host,
            port=central_server.port,
            dbname=name,
            template_dbname=None if empty else central_server.template_dbname,
        )
        janitor.init()
        janitors.append(janitor)
        return _url(central_server.host, central_server.port, name)

    yield make
    for janitor in janitors:
        janitor.drop()


@pytest.fixture
def empty_database_url(new_database: Callable[..., str]) -> str:
    """A database of this test's own, without any schema."""
    return new_database(empty=True)
