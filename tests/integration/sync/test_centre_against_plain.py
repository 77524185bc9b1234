"""The centre on Postgres does what the plain one does, operation by operation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest

from memory.core.clock import MAX_SKEW_MS, Stamp
from memory.core.errors import ClockAhead, EpochChanged
from memory.core.merge import merge
from memory.core.state import ABSENT, Changes, State
from memory.core.sync import MANIFEST, ManifestRequest, Welcome, entries, read_page
from memory.postgres.centre import PostgresCentre
from memory.postgres.database import Database
from memory.postgres.devices import conflicts
from tests.integration.sync.at_centre import (
    NOW,
    USER,
    Hand,
    Ticking,
    count_line,
    made,
    new_id,
    open_centre,
    record_line,
)
from tests.sync.plain_centre import PlainCentre

IDS = [new_id(i) for i in range(12)]
DEVICES = ("d-1", "d-2", "d-3")


@dataclass
class Pair:
    """The same devices at both centres."""

    url: str
    real: PostgresCentre
    plain: PlainCentre
    clock: Ticking
    rng: random.Random
    hands: dict[str, tuple[Hand, Hand]] = field(default_factory=dict)
    pushed: list[dict[str, Any]] = field(default_factory=list)
    """Lines of earlier pushes, to be repeated late."""

    def hand(self) -> tuple[Hand, Hand]:
        name = self.rng.choice(DEVICES)
        if name not in self.hands:
            self.hands[name] = Hand(self.real, device=name), Hand(self.plain, device=name)
            for one in self.hands[name]:
                one.hello()
        real, plain = self.hands[name]
        if plain.epoch != self.plain.user(USER).epoch:
            self.compare((real.epoch, plain.epoch), real.hello(), plain.hello())
            self.begin_again(real, plain)
        return real, plain

    @staticmethod
    def begin_again(*hands: Hand) -> None:
        for one in hands:
            one.marks.clear()
            one.cursor = 0

    # -- operations: each does the same to both, and compares what comes back

    def push(self) -> None:
        real, plain = self.hand()
        lines = [self.line(plain, seq) for seq in range(self.rng.randint(1, 4))]
        if self.rng.random() < 0.3 and self.pushed:
            lines.append(self.rng.choice(self.pushed))
        self.pushed = (self.pushed + lines)[-60:]
        try:
            expected = plain.push(*self.based(plain, lines))
        except ClockAhead:
            with pytest.raises(ClockAhead):
                real.push(*self.based(real, lines))
            return
        found = real.push(*self.based(real, lines))
        assert [(v.memory_id, v.seq, v.code, v.equal) for v in found] == [
            (v.memory_id, v.seq, v.code, v.equal) for v in expected
        ]

    def based(self, hand: Hand, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Epochs have other names at each centre; what one calls its own is named by what it last said."""
        return [
            line if not line["sync"].get("base") else {**line, "sync": {**line["sync"], "base": [hand.epoch, 0]}}
            for line in lines
        ]

    def line(self, plain: Hand, seq: int) -> dict[str, Any]:
        memory_id = self.rng.choice(IDS)
        held = plain.states.get(memory_id)
        slots = {f"w{self.rng.randint(1, 3)}": self.rng.randint(1, 9)}
        if self.rng.random() < 0.25:
            last = self.rng.choice([None, self.at()])
            return count_line(memory_id, self.rng.choice([slots, {}]) if last else slots, last, seq=seq)
        state = held if held is not None and held.deleted is None else made("base", at=NOW, writer="w0")
        seen = str(state.scalars["content"].stamp) if self.rng.random() < 0.6 else None
        changed = state.written(Stamp(self.at(), 0, f"w{self.rng.randint(1, 3)}"), self.changes())
        if self.rng.random() < 0.3:
            changed = merge(changed, State(accesses=slots, last_access=self.at()))
        if self.rng.random() < 0.07:
            changed = State(deleted=Stamp(self.at(), 0, "w1"))
        base = ("own", 0) if self.rng.random() < 0.1 else None
        return record_line(memory_id, changed, seq=seq, base=base, seen=seen)

    def at(self) -> int:
        ahead = MAX_SKEW_MS + 1 if self.rng.random() < 0.01 else 0
        return self.clock.time + ahead - self.rng.randint(0, 40)

    def changes(self) -> Changes:
        rng = self.rng
        return rng.choice(
            [
                Changes(scalars={"content": f"text {rng.randint(0, 5)}"}),
                Changes(scalars={"importance": rng.choice([0.1, 0.5, 1.0, 1])}),
                Changes(scalars={"later_field": rng.choice([1, 1.5, "x", None, [True, {}]])}),
                Changes(add_tags=frozenset({rng.choice("abc")})),
                Changes(remove_tags=frozenset({rng.choice("abc")})),
                Changes(metadata={rng.choice("kl"): rng.choice([1, True, "v", {"n": None}])}),
                Changes(metadata={rng.choice("kl"): ABSENT}),
            ]
        )

    def pull(self) -> None:
        limit = self.rng.choice([1, 2, 5, 100])
        for one in self.hand():
            one.pull_all(limit=limit)

    def hello(self) -> None:
        real, plain = self.hand()
        before = real.epoch, plain.epoch
        self.compare(before, real.hello(), plain.hello())

    def forget(self) -> None:
        """A replica whose last marks, or whose cursor, the centre cannot know."""
        real, plain = self.hand()
        before = real.epoch, plain.epoch
        if self.rng.random() < 0.5 and real.marks and plain.marks:
            wrong = [(*one.marks[:-1], one.marks[-1]._replace(name="nobody")) for one in (real, plain)]
            self.compare(before, real.hello(marks=wrong[0]), plain.hello(marks=wrong[1]))
        else:
            self.compare(before, real.hello(cursor=10**9), plain.hello(cursor=10**9))
        self.begin_again(real, plain)

    def compare(self, before: tuple[str | None, str | None], found: Welcome, expected: Welcome) -> None:
        assert (found.epoch == before[0], found.reconcile) == (expected.epoch == before[1], expected.reconcile)
        assert len(found.lineage) == len(expected.lineage)
        zeros = [sum(bound == 0 for bound in welcome.lineage.values()) for welcome in (found, expected)]
        assert zeros[0] == zeros[1]
        heads = [(head.digest, head.live, head.accesses) for head in (found.head, expected.head)]
        assert heads[0] == heads[1]

    def stale(self) -> None:
        """An epoch that is over, or never was."""
        real, plain = self.hand()
        for one in (real, plain):
            with pytest.raises(EpochChanged):
                one.pull(epoch="never")

    def purge(self) -> None:
        """Remove a tombstone, when its memory is out of the digest."""
        memory_id = self.rng.choice(IDS)
        row = self.plain.user(USER).rows.get(memory_id)
        if row is None or row.state.deleted is None:
            return
        Hand(self.real, device="another").hello()
        self.plain.purge(USER, memory_id)
        with psycopg.connect(self.url) as connection:
            connection.execute("DELETE FROM memory_tombstones WHERE memory_id = %s", [memory_id])

    def step(self) -> None:
        self.clock.time += self.rng.randint(0, 30)
        operations = (self.push, self.pull, self.hello, self.forget, self.stale, self.purge)
        self.rng.choices(operations, (60, 20, 10, 2, 2, 3))[0]()

    def check(self) -> None:
        """Everything at both is the same, and so is what a new replica gets."""
        fresh = Hand(self.real, device="fresh"), Hand(self.plain, device="fresh")
        for one in fresh:
            one.hello()
            one.pull_all(limit=3)
        expected = {i: self.kept(state) for i, state in self.plain.state(USER).items()}
        assert {i: self.kept(state) for i, state in fresh[0].states.items()} == expected
        assert {i: self.kept(state) for i, state in fresh[1].states.items()} == expected
        manifests = [
            [(entry.memory_id, entry.hash, entry.deleted) for entry in entries(read_page(one, MANIFEST))]
            for one in (
                hand.centre.manifest(ManifestRequest(device="fresh", user_id=USER, epoch=str(hand.epoch)))
                for hand in fresh
            )
        ]
        assert manifests[0] == manifests[1]

    @staticmethod
    def kept(state: State) -> State:
        return replace(state, accesses={writer: count for writer, count in state.accesses.items() if count})


@pytest.fixture
def clock() -> Ticking:
    return Ticking()


@pytest.fixture
def real(database_url: str, clock: Ticking) -> Iterator[PostgresCentre]:
    opened = open_centre(database_url, clock)
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_give_the_same_at_both(
    seed: int, database_url: str, real: PostgresCentre, clock: Ticking
) -> None:
    pair = Pair(database_url, real, PlainCentre(clock.now, random.Random(seed)), clock, random.Random(seed))
    for _ in range(250):
        pair.step()
    pair.check()
    database = Database(database_url, pool_size=1, timeout=10)
    try:
        logged = sorted((lost.memory_id, lost.content) for lost in conflicts(database, USER))
    finally:
        database.close()
    assert logged == sorted(pair.plain.conflicts(USER))
    assert logged
