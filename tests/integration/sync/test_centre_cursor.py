"""A cursor never skips: revision order is commit order, whatever else goes on."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from memory.core.clock import Stamp
from memory.core.state import Changes, State
from memory.core.text import document_terms
from memory.engine.storage import Incoming
from memory.postgres.centre import PostgresCentre
from memory.postgres.merging import merge_page
from tests.integration.sync.at_centre import (
    NOW,
    USER,
    Connection,
    Hand,
    Ticking,
    made,
    new_id,
    open_centre,
    record_line,
    wait_until_blocked,
)


@pytest.fixture
def centre(database_url: str) -> Iterator[PostgresCentre]:
    opened = open_centre(database_url, Ticking())
    yield opened
    opened.close()


@pytest.fixture
def hand(centre: PostgresCentre) -> Hand:
    made = Hand(centre)
    made.hello()
    return made


def put(connection: Connection, *items: tuple[str, State], user_id: str = USER) -> None:
    """Write at the centre, inside the caller's transaction."""
    incoming = [
        Incoming(memory_id=i, user_id=user_id, state=state, terms=document_terms("x"), vector=None)
        for i, state in items
    ]
    merge_page(connection, incoming, now=NOW, model_id=0)


def fill(hand: Hand, count: int) -> None:
    for start in range(0, count, 1_000):
        numbers = range(start, min(count, start + 1_000))
        hand.push(*(record_line(new_id(i), made(f"m {i}")) for i in numbers))


def test_what_commits_late_is_not_skipped(hand: Hand, database_url: str) -> None:
    """Scenario 1, in both ways: A begins and writes nothing yet, and A has written when B begins."""
    with psycopg.connect(database_url) as a, psycopg.connect(database_url) as b:
        a.execute("SELECT count(*) FROM memories")  # A's view of the database is older than B's commit
        put(b, (new_id(1), made("b")))
        b.commit()
        hand.pull_all()
        assert set(hand.states) == {new_id(1)}
        put(a, (new_id(2), made("a")))
        with ThreadPoolExecutor(1) as pool, psycopg.connect(database_url, autocommit=True) as watcher:
            late = pool.submit(put, b, (new_id(3), made("b again")))
            wait_until_blocked(watcher)
            hand.pull_all()
            assert set(hand.states) == {new_id(1)}
            a.commit()
            late.result(20)
        # Nobody waits for b's open transaction; only the digest has to.
        head = hand.pull_all().head
        assert set(hand.states) == {new_id(1), new_id(2)}
        assert head is not None
        assert (head.rev, head.digest) == (2, None)
        b.commit()
        head = hand.pull_all().head
        assert set(hand.states) == {new_id(1), new_id(2), new_id(3)}
        assert head is not None
        assert head.digest == hand.digest()


def test_eight_writers_and_a_reader(hand: Hand, database_url: str) -> None:
    """Scenario 2."""
    committed: set[str] = set()
    begin = threading.Barrier(9)

    def write(number: int) -> None:
        rng = random.Random(number)
        with psycopg.connect(database_url) as connection:
            begin.wait()
            for turn in range(40):
                ids = [new_id(10_000 * (number + 1) + 10 * turn + i) for i in range(rng.randint(1, 3))]
                put(connection, *((i, made("x")) for i in ids))
                time.sleep(rng.random() * 0.004)  # the pause is what is tried
                if rng.random() < 0.05:
                    connection.rollback()
                    continue
                connection.commit()
                committed.update(ids)

    revs: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write, number) for number in range(8)]
        begin.wait()
        pages = 0
        while not all(writer.done() for writer in writers):
            revs += [line["rev"] for line in hand.pull(limit=7).lines]
            pages += 1
        for writer in writers:
            writer.result()
    while (received := hand.pull(limit=7)).page.more or received.lines:
        revs += [line["rev"] for line in received.lines]
    assert set(hand.states) == committed
    assert revs == list(range(1, len(committed) + 1))
    assert pages > 20
    head = hand.hello().head
    assert (head.digest, head.live) == (hand.digest(), len(committed))


def test_rows_that_change_while_they_are_paged(hand: Hand, database_url: str) -> None:
    """Scenario 3: rows that were given out, and rows that were not, change, are deleted and appear after every page."""
    count, rng = 3_000, random.Random(3)
    fill(hand, count)
    reader = Hand(hand.centre, device="d-2")
    reader.hello()
    turn = 0
    with psycopg.connect(database_url) as connection:
        while reader.pull(limit=100).page.more:
            turn += 1
            if turn > 30:
                continue
            stamp = Stamp(NOW + turn, 0, "w9")
            changed = [(new_id(i), made(f"m {i}").written(stamp, Changes(scalars={"content": f"{turn}"})))
                       for i in rng.sample(range(count), 20)]  # fmt: skip
            dead = [(new_id(i), State(deleted=stamp)) for i in rng.sample(range(count), 2)]
            put(connection, *changed, *dead, (new_id(count + turn), made("new")))
            connection.commit()
    fresh = Hand(hand.centre, device="d-3")
    fresh.hello()
    fresh.pull_all()
    assert reader.states == fresh.states
    assert len(fresh.states) == count + 30
    assert turn > 30


def test_a_transaction_in_another_database_hides_nothing(hand: Hand, new_database: Callable[..., str]) -> None:
    """Scenario 5: an open transaction anywhere in the cluster holds back whoever waits for all older ones."""
    with psycopg.connect(new_database()) as elsewhere:
        elsewhere.execute("CREATE TABLE held (n int)")
        assert elsewhere.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() != (None,)
        hand.push(record_line(new_id(1), made("one")))
        hand.pull_all()
        assert set(hand.states) == {new_id(1)}
        elsewhere.rollback()


def test_two_users_in_both_orders_do_not_deadlock(hand: Hand, database_url: str) -> None:
    """Scenario 6."""
    begin = threading.Barrier(2)

    def write(users: tuple[str, str], first: int) -> None:
        with psycopg.connect(database_url) as connection:
            for turn in range(40):
                begin.wait(20)
                incoming = [
                    Incoming(
                        memory_id=new_id(first + turn),
                        user_id=user_id,
                        state=made("x"),
                        terms=document_terms("x"),
                        vector=None,
                    )
                    for user_id in users
                ]
                merge_page(connection, incoming, now=NOW, model_id=0)
                connection.commit()

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(write, ("u-1", "u-2"), 1_000), pool.submit(write, ("u-2", "u-1"), 2_000)]
        for one in both:
            one.result()
    hand.pull_all()
    assert len(hand.states) == 80


def test_a_new_column_changes_no_revision(hand: Hand, database_url: str) -> None:
    """Scenario 36: adding a column that rewrites every row is no change of a memory."""
    fill(hand, 2_000)
    hand.pull_all()
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER TABLE memories ADD COLUMN later text DEFAULT md5(random()::text)")
    received = hand.pull()
    assert (received.lines, received.page.more) == ((), False)
    assert hand.hello().head.digest == hand.digest()
