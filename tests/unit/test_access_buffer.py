"""The write-behind buffer of access counts: it coalesces, and loses nothing to a failed write."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from memory.core.errors import StoreUnavailable
from memory.engine import access
from memory.engine.access import AccessBuffer
from memory.engine.storage import Touch

NEVER = 3_600.0
"""Seconds: no test waits for the interval."""


class Ledger:
    """A store of access counts that can be told to fail, or to hold a write until released."""

    def __init__(self) -> None:
        self.pages: list[list[Touch]] = []
        self.failing = False
        self.written = threading.Event()
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def write(self, touches: Sequence[Touch]) -> None:
        self.entered.set()
        assert self.gate.wait(30)
        if self.failing:
            raise StoreUnavailable
        self.pages.append(list(touches))
        self.written.set()

    def counts(self) -> dict[tuple[str, str], int]:
        totals: dict[tuple[str, str], int] = {}
        for touch in (touch for page in self.pages for touch in page):
            key = touch.user_id, touch.memory_id
            totals[key] = totals.get(key, 0) + touch.count
        return totals


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def buffer(ledger: Ledger) -> Iterator[AccessBuffer]:
    made = AccessBuffer(ledger.write, interval=NEVER)
    yield made
    ledger.failing = False
    ledger.gate.set()
    made.stop()


def touch(memory_id: str, count: int, last: int, *, user_id: str = "u") -> Touch:
    return Touch(user_id=user_id, memory_id=memory_id, count=count, last_access_at=last)


def test_accesses_of_one_memory_are_written_as_one(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.note("u", ["a", "b"], 10)
    buffer.note("u", ["a"], 30)
    buffer.note("u", ["a"], 20)
    buffer.flush()
    assert ledger.pages == [[touch("a", 3, 30), touch("b", 1, 10)]]


def test_the_same_id_of_another_user_is_another_memory(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.note("u", ["a"], 10)
    buffer.note("v", ["a"], 20)
    buffer.flush()
    assert ledger.pages == [[touch("a", 1, 10), touch("a", 1, 20, user_id="v")]]


def test_a_memory_named_twice_in_one_call_counts_twice(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.note("u", iter(["a", "a"]), 10)
    buffer.flush()
    assert ledger.pages == [[touch("a", 2, 10)]]


def test_nothing_is_written_when_nothing_waits(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.flush()
    buffer.note("u", [], 10)
    buffer.flush()
    buffer.note("u", ["a"], 10)
    buffer.flush()
    buffer.flush()
    assert len(ledger.pages) == 1


def test_noting_never_writes_by_itself(ledger: Ledger, buffer: AccessBuffer) -> None:
    ledger.failing = True
    for now in range(100):
        buffer.note("u", ["a"], now)
    assert not ledger.entered.is_set()


def test_what_a_failed_write_could_not_take_is_written_by_the_next(ledger: Ledger, buffer: AccessBuffer) -> None:
    ledger.failing = True
    buffer.note("u", ["a", "b"], 10)
    with pytest.raises(StoreUnavailable):
        buffer.flush()
    buffer.note("u", ["a"], 5)
    with pytest.raises(StoreUnavailable):
        buffer.flush()
    ledger.failing = False
    buffer.flush()
    assert ledger.pages == [[touch("a", 2, 10), touch("b", 1, 10)]]


def test_accesses_noted_during_a_failing_write_are_added_to_it(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.note("u", ["a"], 10)
    ledger.failing = True
    ledger.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(buffer.flush)
        assert ledger.entered.wait(30)
        buffer.note("u", ["a", "b"], 20)
        ledger.gate.set()
        with pytest.raises(StoreUnavailable):
            flushing.result()
    ledger.failing = False
    buffer.flush()
    assert ledger.counts() == {("u", "a"): 2, ("u", "b"): 1}
    assert {item.last_access_at for item in ledger.pages[0]} == {20}


def test_a_flush_returns_only_when_one_under_way_is_done(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.note("u", ["a"], 10)
    ledger.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(buffer.flush)
        assert ledger.entered.wait(30)
        second = pool.submit(buffer.flush)
        assert not second.done()
        ledger.gate.set()
        second.result(30)
        assert ledger.counts() == {("u", "a"): 1}
        first.result(30)


def test_stopping_writes_what_waits(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.note("u", ["a"], 10)
    buffer.stop()
    assert ledger.counts() == {("u", "a"): 1}


def test_stopping_twice_is_harmless(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.note("u", ["a"], 10)
    buffer.stop()
    buffer.stop()
    assert len(ledger.pages) == 1


def test_stopping_says_when_the_last_write_fails_and_keeps_the_counts(ledger: Ledger, buffer: AccessBuffer) -> None:
    ledger.failing = True
    buffer.note("u", ["a"], 10)
    with pytest.raises(StoreUnavailable):
        buffer.stop()
    ledger.failing = False
    buffer.stop()
    assert ledger.counts() == {("u", "a"): 1}


def test_stopping_leaves_no_thread_behind(ledger: Ledger) -> None:
    before = set(threading.enumerate())
    buffer = AccessBuffer(ledger.write, interval=NEVER)
    assert set(threading.enumerate()) == before
    buffer.note("u", ["a"], 10)
    assert len(set(threading.enumerate()) - before) == 1
    buffer.stop()
    assert set(threading.enumerate()) <= before


def test_the_interval_writes_behind_the_callers_back(ledger: Ledger) -> None:
    buffer = AccessBuffer(ledger.write, interval=0.01)
    buffer.note("u", ["a"], 10)
    assert ledger.written.wait(30)
    assert ledger.counts() == {("u", "a"): 1}
    buffer.stop()


def test_a_failed_write_in_the_background_is_tried_again(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    ledger.failing = True
    buffer = AccessBuffer(ledger.write, interval=0.01)
    buffer.note("u", ["a"], 10)
    assert ledger.entered.wait(30)
    ledger.failing = False
    assert ledger.written.wait(30)
    buffer.stop()
    assert ledger.counts() == {("u", "a"): 1}
    assert "tried again" in caplog.text


def test_a_full_buffer_does_not_wait_for_the_interval(ledger: Ledger, buffer: AccessBuffer) -> None:
    buffer.note("u", [f"m{i}" for i in range(access.MAX_BUFFERED)], 10)
    assert ledger.written.wait(30)
    assert len(ledger.counts()) == access.MAX_BUFFERED


def test_nothing_is_lost_or_counted_twice_among_threads_while_writes_fail(ledger: Ledger) -> None:
    rounds, threads = 300, 8
    buffer = AccessBuffer(ledger.write, interval=0.001)
    started = threading.Barrier(threads)

    def work(number: int) -> None:
        started.wait()
        for i in range(rounds):
            ledger.failing = i % 3 == 0
            buffer.note("u", ["shared", f"own-{number}"], i)
            if i % 50 == number:
                try:
                    buffer.flush()
                except StoreUnavailable:
                    continue

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    ledger.failing = False
    buffer.stop()
    assert ledger.counts() == {("u", "shared"): rounds * threads} | {
        ("u", f"own-{number}"): rounds for number in range(threads)
    }
