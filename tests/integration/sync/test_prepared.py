"""A transaction that somebody prepared and forgot, or left open elsewhere, hides no commit from a replica."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import memory
from memory.postgres import migrations
from memory.postgres.embedded import EmbeddedServer
from tests.integration.sync.devices import OpenDevice


@pytest.fixture
def server(reachable: Path) -> Iterator[EmbeddedServer]:
    """A server of this test's own, that can prepare transactions."""
    settings = {"fsync": "off", "max_prepared_transactions": "2"}
    with EmbeddedServer(reachable / "postgres", settings=settings) as started:
        yield started


def test_a_prepared_and_an_open_transaction_hide_no_commit(server: EmbeddedServer, device: OpenDevice) -> None:
    url = server.url()
    migrations.upgrade(url)
    with (
        psycopg.connect(server.url("postgres")) as elsewhere,
        psycopg.connect(url, autocommit=True) as here,
        memory.connect(url, embedding_model="hashing") as centre,
        device("a", url) as a,
    ):
        elsewhere.execute("CREATE TABLE open_since_long (n int)")
        here.execute("CREATE TABLE prepared_since_long (n int)")
        here.execute("BEGIN")
        here.execute("INSERT INTO prepared_since_long VALUES (1)")
        here.execute("PREPARE TRANSACTION 'forgotten'")
        for text in ("first", "second"):
            centre.add_memory(text, user_id="u")
            [report] = a.sync_now("u")
            assert (report.pulled, report.equal) == (1, True)
        here.execute("ROLLBACK PREPARED 'forgotten'")
