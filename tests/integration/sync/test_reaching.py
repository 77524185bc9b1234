"""A centre that goes away after it was reached: noticed soon, told with its reason, and found again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from edge.sync.link import Link
from memory.core.errors import StoreTimeout, StoreUnavailable
from memory.postgres import migrations
from memory.postgres.database import NETWORK, Database
from memory.postgres.embedded import EmbeddedServer
from tests.integration.sync.devices import OpenDevice
from tests.sync.proxy import TcpProxy

USER = "用户"


@pytest.fixture
def mortal(reachable: Path) -> Iterator[EmbeddedServer]:
    """A server that the test may stop."""
    with EmbeddedServer(reachable / "postgres", settings={"fsync": "off"}) as server:
        migrations.upgrade(server.url())
        yield server


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[TcpProxy]:
    with TcpProxy.before_postgres(server.socket_directory) as opened:
        yield opened


@pytest.fixture
def tcp_url(proxy: TcpProxy, central: psycopg.Connection[Any]) -> str:
    return proxy.url(central.info.dbname)


def test_a_centre_that_stops_is_named_with_its_reason_and_the_device_works_on(
    mortal: EmbeddedServer, device: OpenDevice
) -> None:
    with device("a", mortal.url()) as a:
        a.add_memory("before", user_id=USER)
        a.sync_now(USER)
        mortal.stop()
        a.add_memory("meanwhile", user_id=USER)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="connection to server") as caught:
                a.sync_now(USER)
            # Nobody waited for a pool to fill that could not.
            assert not isinstance(caught.value, StoreTimeout)
        [status] = a.sync_status(USER)
        assert (status.condition, status.pending) == ("centre not reached", 1)
        assert a.recall("meanwhile", user_id=USER)[0].memory.content == "meanwhile"
        mortal.start()
        [report] = a.sync_now(USER)
        assert (report.pushed, report.equal) == (1, True)


def test_connections_left_over_from_before_a_cut_are_not_the_callers_trouble(
    proxy: TcpProxy, tcp_url: str, device: OpenDevice
) -> None:
    with device("a", tcp_url) as a:
        for text in ("one", "two", "three"):
            a.add_memory(text, user_id=USER)
            [report] = a.sync_now(USER)
            assert (report.pushed, report.equal) == (1, True)
            proxy.cut()


class Dialled:
    """Stands for a centre; only whether it was closed matters."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_of_two_that_lose_the_same_centre_only_one_lets_go_of_it() -> None:
    made: list[Any] = []

    def dial() -> Any:
        made.append(Dialled())
        return made[-1]

    link = Link(dial)
    first = link.centre()
    link.lost(first)
    second = link.centre()
    link.lost(first)  # another session notices later
    assert link.centre() is second
    assert [one.closed for one in made] == [1, 0]
    link.close()
    link.close()
    assert [one.closed for one in made] == [1, 1]


def options_of(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """What the system does for a connection, in the units of libpq."""
    with socket.socket(fileno=connection.fileno()) as opened:
        read = {
            "tcp_user_timeout": opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            "keepalives_idle": opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            "keepalives_interval": opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            "keepalives_count": opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        }
        opened.detach()
    return read


def wanted(**others: int) -> dict[str, int]:
    return {name: value for name, value in NETWORK.items() if name != "connect_timeout"} | others


@pytest.mark.parametrize(("more", "expected"), [("", wanted()), ("&keepalives_idle=7", wanted(keepalives_idle=7))])
def test_a_silent_network_is_not_believed_in_for_long_unless_the_url_says_so(
    tcp_url: str, more: str, expected: dict[str, int]
) -> None:
    database = Database(tcp_url + more, pool_size=1, timeout=10)
    try:
        with database.connection() as connection:
            assert options_of(connection) == expected
    finally:
        database.close()
