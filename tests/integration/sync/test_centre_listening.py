"""Changes at the centre are heard of, and a lost connection is not the end of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from memory.core.sync import user_name
from memory.postgres import listening
from memory.postgres.centre import PostgresCentre
from tests.integration.sync.at_centre import USER, Hand, Ticking, made, new_id, open_centre, record_line

Heard = queue.Queue[str]


@pytest.fixture
def centre(database_url: str) -> Iterator[PostgresCentre]:
    opened = open_centre(database_url, Ticking())
    yield opened
    opened.close()


@pytest.fixture
def heard() -> Heard:
    return queue.Queue()


@pytest.fixture
def end(centre: PostgresCentre, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    monkeypatch.setattr(listening, "FIRST_PAUSE", 0.01)
    end = centre.listen(heard.put)
    assert end is not None
    yield end
    end()


def notify(url: str, payload: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", [listening.CHANNEL, payload])


def listener_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "memory-listener"]


def test_a_change_of_who_listens_is_heard(centre: PostgresCentre, heard: Heard, end: Callable[[], None]) -> None:
    hand = Hand(centre)
    hand.hello(listens=True)
    hand.push(record_line(new_id(1), made("one")))
    assert heard.get(timeout=20) == user_name(USER)


def test_after_a_lost_connection_anything_may_have_changed(
    database_url: str, heard: Heard, end: Callable[[], None]
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        killed = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name = 'nightingale-memory-listener' AND datname = current_database()"
        ).fetchone()
    assert killed == (1,)
    assert heard.get(timeout=20) == ""
    notify(database_url, "again")
    assert heard.get(timeout=20) == "again"


def test_it_ends_at_once_and_twice(database_url: str, heard: Heard, end: Callable[[], None]) -> None:
    assert len(listener_threads()) == 1
    end()
    end()
    assert listener_threads() == []
    notify(database_url, "too late")
    assert heard.empty()


def test_a_failing_listener_hears_the_next_change(
    centre: PostgresCentre, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: Heard = queue.Queue()

    def fail_once(name: str) -> None:
        heard.put(name)
        if name == "first":
            raise ValueError("a fault of the caller's")

    end = centre.listen(fail_once)
    assert end is not None
    try:
        notify(database_url, "first")
        notify(database_url, "second")
        assert [heard.get(timeout=20), heard.get(timeout=20)] == ["first", "second"]
    finally:
        end()
    assert "what listens for changes" in caplog.text
