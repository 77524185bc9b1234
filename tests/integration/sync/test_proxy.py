"""The proxy that other tests cut the network with: it passes everything on, and breaks when told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from memory.postgres.embedded import EmbeddedServer
from tests.sync.proxy import TcpProxy


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[TcpProxy]:
    with TcpProxy.before_postgres(server.socket_directory) as opened:
        yield opened


@pytest.fixture
def url(proxy: TcpProxy, central: psycopg.Connection[Any]) -> str:
    return proxy.url(central.info.dbname)


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True)


def ask(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT 6 * 7").fetchone()
    assert row is not None
    return int(row[0])


def test_a_query_passes(url: str) -> None:
    with connect(url) as connection:
        assert ask(connection) == 42


def test_much_passes_unchanged(url: str) -> None:
    with connect(url) as connection:
        row = connection.execute("SELECT md5(%(text)s), repeat(%(text)s, 300)", {"text": "夜莺" * 10_000}).fetchone()
        assert row is not None
        assert len(row[1]) == 300 * 20_000


def test_a_cut_connection_fails_and_a_new_one_does_not(url: str, proxy: TcpProxy) -> None:
    with connect(url) as connection:
        assert ask(connection) == 42
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            ask(connection)
    with connect(url) as connection:
        assert ask(connection) == 42


def test_a_query_that_waits_is_woken_by_a_cut(url: str, proxy: TcpProxy) -> None:
    with connect(url) as connection:
        assert ask(connection) == 42
        timer = threading.Timer(0.2, proxy.cut)
        timer.start()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_sleep(60)")
        timer.join()


def test_an_answer_is_cut_in_the_middle(url: str, proxy: TcpProxy) -> None:
    with connect(url) as connection:
        assert ask(connection) == 42
        proxy.cut_after(1_000)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT repeat('x', 100000)")
    with connect(url) as connection:
        assert ask(connection) == 42


def test_connections_are_refused_until_they_are_not(url: str, proxy: TcpProxy) -> None:
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        connect(url)
    proxy.refuse(False)
    with connect(url) as connection:
        assert ask(connection) == 42


def test_without_a_server_behind_it_connections_are_refused(server: EmbeddedServer) -> None:
    with TcpProxy(server.socket_directory / "nobody") as proxy, pytest.raises(psycopg.OperationalError):
        connect(proxy.url("postgres"))


def test_it_leaves_no_thread_and_no_connection_behind(url: str, proxy: TcpProxy) -> None:
    opened = [connect(url) for _ in range(3)]
    assert proxy.connections == 3
    opened[0].close()
    deadline = time.monotonic() + 10
    while proxy.connections > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert proxy.connections == 2
    proxy.close()
    proxy.close()
    assert proxy.connections == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("proxy")]
    for connection in opened[1:]:
        with pytest.raises(psycopg.OperationalError):
            ask(connection)
        connection.close()
