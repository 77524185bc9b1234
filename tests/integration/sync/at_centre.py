"""A replica by hand: says hello, pulls and pushes at a centre, and keeps what it got in dictionaries."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import Any

import psycopg
from psycopg.rows import TupleRow

import memory
from memory.core.centre import SyncCentre
from memory.core.clock import Stamp
from memory.core.framing import encode_line
from memory.core.merge import merge
from memory.core.record import KIND, Record, decode_record, encode_record
from memory.core.rowhash import row_hash
from memory.core.state import Changes, State, created_state
from memory.core.sync import (
    ANSWER,
    PULL,
    PUSH,
    Hello,
    Mark,
    Page,
    PullRequest,
    Received,
    Verdict,
    Welcome,
    access_line,
    read_page,
    verdicts,
    write_page,
)
from memory.engine.provider import StorageProvider
from memory.postgres.centre import PostgresCentre
from memory.postgres.database import Database

Connection = psycopg.Connection[TupleRow]
NOW = 1_800_000_000_000
USER = "u-1"


class Ticking:
    """A clock that is set by hand."""

    def __init__(self, now: int = NOW) -> None:
        self.time = now

    def now(self) -> int:
        return self.time


def open_centre(url: str, clock: Ticking) -> PostgresCentre:
    return PostgresCentre(Database(url, pool_size=4, timeout=10), clock)


def open_provider(url: str, *, now: int | None = NOW) -> StorageProvider:
    return memory.connect(url, embedding_model="hashing", now=now)


@dataclass
class Hand:
    """One device of one user."""

    centre: SyncCentre
    device: str = "d-1"
    user_id: str = USER
    epoch: str | None = None
    cursor: int = 0
    marks: list[Mark] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)
    records: int = 0
    """Records received so far, tombstones included."""
    accesses: int = 0
    """Access lines likewise."""
    model: str = ""
    dimension: int = 0

    def hello(self, **changes: Any) -> Welcome:
        welcome = self.centre.hello(
            Hello(
                **{
                    "device": self.device,
                    "user_id": self.user_id,
                    "epoch": self.epoch,
                    "cursor": self.cursor,
                    "marks": tuple(self.marks[-10:]),
                    "model": self.model,
                    "dimension": self.dimension,
                    "schema": "edge_0002",
                    **changes,
                }
            )
        )
        self.epoch = welcome.epoch
        return welcome

    def request(self, **changes: Any) -> PullRequest:
        values = {"device": self.device, "user_id": self.user_id, "epoch": self.epoch, "after": self.cursor}
        return PullRequest(**{**values, **changes})

    def pull(self, **changes: Any) -> Received:
        """One page, applied."""
        received = read_page(self.centre.pull(self.request(**changes)), PULL)
        for line in received.lines:
            self._apply(line)
        self.cursor = received.page.to
        if received.page.mark is not None:
            self.marks.append(Mark(received.page.mark, received.page.to))
        return received

    def pull_all(self, **changes: Any) -> Page:
        """Pages to the head; the last one."""
        while (page := self.pull(**changes).page).more:
            pass
        return page

    def _apply(self, line: Mapping[str, Any]) -> None:
        memory_id = line["memory_id"]
        if line["kind"] == KIND:
            self.records += 1
            self.states[memory_id] = merge(self.states.get(memory_id, State()), decode_record(line).state)
        else:
            self.accesses += 1
            sent = State(accesses=line["accesses"], last_access=line["last_access_at"])
            self.states[memory_id] = merge(self.states[memory_id], sent)

    def push(self, *lines: Mapping[str, Any], **changes: Any) -> list[Verdict]:
        answer = self.answer(*lines, **changes)
        if answer.page.mark is not None:
            self.marks.append(Mark(answer.page.mark, answer.page.to))
        return verdicts(answer)

    def answer(self, *lines: Mapping[str, Any], **changes: Any) -> Received:
        return read_page(self.centre.push(self.stream(*lines, **changes)), ANSWER)

    def stream(self, *lines: Mapping[str, Any], **changes: Any) -> list[bytes]:
        values = {"stream": PUSH, "device": self.device, "user_id": self.user_id, "epoch": self.epoch}
        page = Page(**{**values, "model": self.model, "dimension": self.dimension, **changes})
        return list(write_page(page, map(encode_line, lines)))

    def live(self) -> dict[str, State]:
        return {memory_id: state for memory_id, state in self.states.items() if state.deleted is None}

    def digest(self) -> int:
        return digest_of(self.states)


def digest_of(states: Mapping[str, State]) -> int:
    return reduce(xor, (row_hash(i, state) for i, state in states.items() if state.deleted is None), 0)


def new_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def made(content: str, *, at: int = NOW, writer: str = "w1", tags: Iterable[str] = (), **scalars: Any) -> State:
    """The state of a memory as a replica writes it."""
    values = {
        "content": content,
        "memory_type": "fact",
        "importance": 0.5,
        "status": "active",
        "source_session": None,
        "created_at": at,
        **scalars,
    }
    return created_state(Stamp(at, 0, writer), Changes(scalars=values, tags=frozenset(tags)))


def record_line(
    memory_id: str,
    state: State,
    *,
    seq: int = 1,
    base: tuple[str, int] | None = None,
    seen: str | None = None,
    user_id: str = USER,
    **record: Any,
) -> dict[str, Any]:
    line = encode_record(Record(memory_id=memory_id, user_id=user_id, state=state, **record))
    return {**line, "sync": {"seq": seq, "base": None if base is None else list(base), "seen": seen}}


def count_line(memory_id: str, accesses: Mapping[str, int], last: int | None, *, seq: int = 1) -> dict[str, Any]:
    return {**access_line(memory_id, USER, accesses, last), "sync": {"seq": seq}}


def wait_until_blocked(connection: Connection) -> None:
    """Until another session of this database waits for a lock."""
    blocked = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline = time.monotonic() + 20
    while connection.execute(blocked).fetchone() is None:
        assert time.monotonic() < deadline, "nobody waits"
