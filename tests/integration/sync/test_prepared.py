"""A transaction that somebody prepared and forgot, or left open elsewhere, hides no commit from a replica."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import memory
from memory.postgres import migrations
from memory.postgres.embedded import EmbeddedServer


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A server of this test's own, that can prepare transactions."""
    base = Path(tempfile.mkdtemp(prefix="memory-tests-"))
    base.chmod(0o755)
    with EmbeddedServer(base / "postgres", settings={"fsync": "off", "max_prepared_transactions": "2"}) as started:
        yield started
    shutil.rmtree(base)


def test_a_prepared_and_an_open_transaction_hide_no_commit(server: EmbeddedServer, tmp_path: Path) -> None:
    url = server.url()
    migrations.upgrade(url)
    with (
        psycopg.connect(server.url("postgres")) as elsewhere,
        psycopg.connect(url, autocommit=True) as here,
        memory.connect(url, embedding_model="hashing") as centre,
        memory.connect(
            f"edge://{tmp_path / 'device'}", centre=url, embedding_model="hashing", sync_background=False
        ) as device,
    ):
        elsewhere.execute("CREATE TABLE open_since_long (n int)")
        here.execute("CREATE TABLE prepared_since_long (n int)")
        here.execute("BEGIN")
        here.execute("INSERT INTO prepared_since_long VALUES (1)")
        here.execute("PREPARE TRANSACTION 'forgotten'")
        for text in ("first", "second"):
            centre.add_memory(text, user_id="u")
            [report] = device.sync_now("u")
            assert (report.pulled, report.equal) == (1, True)
        here.execute("ROLLBACK PREPARED 'forgotten'")
