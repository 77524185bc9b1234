"""Drives any stack at random: edges that write, sync, crash and are put back; a centre with a life of its own.

A machine is made of a seed, so a run that fails can be run again. ``heal`` lets everything come to rest, ``check`` says
which promises do not hold then (I1 to I9 of the protocol's invariants).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable

from memory.core.errors import FormatError, StoreUnavailable, SyncIncomplete
from memory.core.state import ABSENT
from tests.sync.faults import FaultyCarrier
from tests.sync.oracle import Oracle, States, difference, held_slots, live, too_late
from tests.sync.ports import Centre, Crash, Edge, MakeStack, Position, Writer

START: Final = 1_700_000_000_000
CLOCKS: Final = (0, 0, -(10**9), -86_400_000, -5_000, 2_000, 120_000, 600_000, 10**8, 10**10)
TAGS: Final = ("a", "b", "c")
KEYS: Final = ("k", "l")
MOST_EDGES: Final = 5
RESTORE_TAKES: Final = 600_000
OPERATIONS: Final = tuple(
    "create edit tag metadata access sync sync delete edit_during_push crash clock centre_edit centre_access late"
    " create edit tag metadata access sync sync delete edit_during_push crash clock centre_edit late drain drain"
    " create edit tag metadata access sync sync create edit_during_push crash edit centre_edit create access edit sync"
    " create edit tag access edit sync sync crash edit access sync sync sync centre_create centre_tag centre_delete"
    " backup_edge restore_edge clone backup_centre backup_centre restore_centre restore_centre".split()
)
"""What may happen; as often as it is named."""


class Violation(Exception):
    """A promise does not hold."""


@runtime_checkable
class Breaking(Protocol):
    """A stack that has faults of its own."""

    def calm(self) -> None:
        """No more of them."""


class Machine:
    """One world: the true time, a stack, an oracle."""

    def __init__(
        self, rng: random.Random, make: MakeStack, *, rate: float = 0.3, dropping: float = 0.0, edges: int = 3
    ) -> None:
        self.rng = rng
        self.now = START
        self.stats: Counter[str] = Counter()
        self.oracle = Oracle()
        self.stack = make(lambda: self.now, rng)
        self.now = getattr(self.stack, "began", START)
        self.carrier = FaultyCarrier(self.centre.port, rng, rate=rate, dropping=dropping)
        self.edges: list[Edge] = [self.stack.new_edge(f"d{i}", self.carrier) for i in range(edges)]
        self._edge_backups: dict[str, Any] = {}
        self._centre_backups: list[Any] = []
        self._rewound: set[str | None] = set()
        """Epochs in which the centre was put back unnoticed, and may count twice under one name until it is told."""
        self._seen: States = {}
        """The watched edge, before what it is doing now."""
        self._values = 0

    @property
    def centre(self) -> Centre:
        return self.stack.centre

    def step(self, operation: str, edge: Edge) -> None:
        """One operation; a crash ends an edge's process, and a new one begins."""
        self.stats[operation] += 1
        self.now += self.rng.choice((0, 1, 5, 1_000, 60_000))
        before, centre_before = edge.position(), self.centre.position()
        try:
            getattr(self, f"do_{operation}")(edge)
        except Crash:
            self.stats["crashed"] += 1
            edge.reopen()
        except (StoreUnavailable, FormatError):
            self.stats["carrier failed"] += 1
        except SyncIncomplete:
            self.stats["incomplete"] += 1
        if not operation.startswith("restore"):
            _advanced(f"the cursor of {edge.name}", before, edge.position())
            _advanced("the centre", centre_before, self.centre.position())

    # -- local work

    def do_create(self, where: Writer) -> None:
        self.oracle.wrote(where.create(self._value(), {"k": self._value()} if self.rng.random() < 0.3 else {}))

    def do_edit(self, where: Writer) -> None:
        self._at_one(where, lambda i: where.edit(i, self._scalars()))

    def do_tag(self, where: Writer) -> None:
        tag, present = self.rng.choice(TAGS), self.rng.random() < 0.7
        self._at_one(where, lambda i: where.tag(i, tag, present=present))

    def do_metadata(self, where: Writer) -> None:
        key, value = self.rng.choice(KEYS), self._value() if self.rng.random() < 0.8 else ABSENT
        self._at_one(where, lambda i: where.set_metadata(i, key, value))

    def do_delete(self, where: Writer) -> None:
        self._at_one(where, where.delete)

    def do_access(self, where: Writer) -> None:
        memory_id = self._one(where)
        if memory_id is not None:
            self.oracle.tried[memory_id] += 1
            if not self.oracle.counted(memory_id, *where.access(memory_id)):
                self.stats["counted twice"] += 1
                if where is not self.centre or self.centre.position().epoch not in self._rewound:
                    raise Violation(f"I4: two accesses of {memory_id} are one")

    def _at_one(self, where: Writer, verb: Callable[[str], Any]) -> None:
        memory_id = self._one(where)
        if memory_id is not None:
            self.oracle.wrote(verb(memory_id))

    def _one(self, where: Writer) -> str | None:
        ids = sorted(live(where.states()))
        return self.rng.choice(ids) if ids else None

    def _value(self) -> str:
        self._values += 1
        return f"v{self._values}"

    def _scalars(self) -> dict[str, Any]:
        name = self.rng.choice(("content", "content", "importance", "memory_type", "status", "source_session"))
        values = {
            "importance": self.rng.randrange(101) / 100,
            "memory_type": self.rng.choice(("fact", "event", "summary")),
            "status": self.rng.choice(("active", "archived")),
        }
        return {name: values.get(name) if name in values else self._value()}

    # -- sync

    def do_sync(self, edge: Edge) -> None:
        self._seen = edge.states()
        try:
            edge.sync(self.rng.choice((1, 2, 5)))
        finally:
            self.oracle.restamped(self._seen, edge.states(), self.now)
            self._check_stamps()

    def do_edit_during_push(self, edge: Edge) -> None:
        """Local writes land between the commit of a push at the centre and its acknowledgement."""

        def during() -> None:
            self.oracle.restamped(self._seen, edge.states(), self.now)
            self.do_edit(edge)
            self.do_access(edge)
            self._seen = edge.states()

        self.carrier.after_push = during
        try:
            self.do_sync(edge)
        finally:
            self.carrier.after_push = None

    def do_late(self, _edge: Edge) -> None:
        self.carrier.deliver_late()
        self._check_stamps()

    def _check_stamps(self) -> None:
        if late := too_late(self.centre.states(), self.now):
            raise Violation(f"I7: stamps out of the future were accepted: {late[0]}")

    def do_drain(self, edge: Edge) -> None:
        edge.drain()

    # -- accidents

    def do_crash(self, edge: Edge) -> None:
        edge.crash_after(self.rng.randrange(1, 25))

    def do_clock(self, edge: Edge) -> None:
        edge.set_clock(self.rng.choice(CLOCKS))

    def do_backup_edge(self, edge: Edge) -> None:
        self._edge_backups[edge.name] = edge.backup()

    def do_restore_edge(self, edge: Edge) -> None:
        if edge.name in self._edge_backups:
            edge.restore(self._edge_backups[edge.name])
            self._forget_lost()

    def do_clone(self, edge: Edge) -> None:
        if len(self.edges) < MOST_EDGES:
            self.edges.append(edge.clone(f"d{len(self.edges)}"))

    def do_backup_centre(self, _edge: Edge) -> None:
        self._centre_backups.append(self.centre.backup())

    def do_restore_centre(self, _edge: Edge) -> None:
        if self._centre_backups:
            self.now += RESTORE_TAKES
            known = self.rng.random() < 0.5
            self.stats["restored " + ("known" if known else "silent")] += 1
            self.centre.restore(self.rng.choice(self._centre_backups), known=known)
            if not known:
                self._rewound.add(self.centre.position().epoch)
            self._forget_lost()

    def _forget_lost(self) -> None:
        self.oracle.forget_lost(self._replicas(), self.now)

    def _replicas(self) -> list[States]:
        return [self.centre.states(), *(edge.states() for edge in self.edges)]

    # -- the centre's own life

    def do_centre_create(self, _edge: Edge) -> None:
        self.do_create(self.centre)

    def do_centre_edit(self, _edge: Edge) -> None:
        raw = self.rng.random() < 0.5
        verb = self.centre.raw_edit if raw else self.centre.edit
        self._at_one(self.centre, lambda i: verb(i, self._scalars()))

    def do_centre_tag(self, _edge: Edge) -> None:
        self.do_tag(self.centre)

    def do_centre_delete(self, _edge: Edge) -> None:
        self.do_delete(self.centre)

    def do_centre_access(self, _edge: Edge) -> None:
        self.do_access(self.centre)

    # -- the end

    def heal(self, rounds: int = 4) -> None:
        """No more faults, clocks right, what is late arrives, every edge syncs until all is quiet; then ``check``."""
        self.carrier.rate = self.carrier.dropping = 0.0
        if isinstance(self.stack, Breaking):
            self.stack.calm()
        for edge in self.edges:
            edge.crash_after(None)
            edge.set_clock(0)
        self.carrier.deliver_all()
        self.now += 10**6
        held = held_slots(self._replicas())
        for _ in range(rounds):
            for edge in self.edges:
                self._sync_healthy(edge)
        self._check(held)

    def _sync_healthy(self, edge: Edge) -> None:
        edge.reopen()
        before = edge.states()
        try:
            edge.sync(50)
        except SyncIncomplete:
            raise Violation(f"I6: {edge.name} does not become equal") from None
        self.oracle.restamped(before, edge.states(), self.now)

    def _check(self, held: dict[tuple[str, str], int]) -> None:
        centre = self.centre.states()
        for edge in self.edges:
            edge.drain()
            if different := difference(live(edge.states()), live(centre)):
                raise Violation(f"I1: {edge.name} has diverged: {different}")
            if edge.digest() != self.centre.digest():
                raise Violation(f"I6: the digest of {edge.name} differs")
            if faults := edge.index_faults():
                raise Violation(f"I5: the index of {edge.name} is not its rows: {faults[0]}")
        set_aside = set().union(*(edge.set_aside() for edge in self.edges))
        if lost := self.oracle.lost_writes(centre, set_aside):
            raise Violation(f"I2: lost {lost[0]}")
        if back := self.oracle.deleted & live(centre).keys():
            raise Violation(f"I3: deleted and there again: {sorted(back)[0]}")
        if wrong := self.oracle.wrong_counts(centre, held):
            raise Violation(f"I4: counts of {wrong[0]}")
        self._check_stamps()
        self._check_quiet()

    def _check_quiet(self) -> None:
        """A sync without any writes takes no revision, moves no record, and is one call."""
        rev = self.centre.position()
        calls, sent, read = self.carrier.round_trips, self.carrier.records_sent, self.carrier.records_read
        for edge in self.edges:
            edge.sync(50)
        moved = (self.carrier.records_sent - sent, self.carrier.records_read - read)
        if self.centre.position() != rev or moved != (0, 0) or self.carrier.round_trips - calls != len(self.edges):
            raise Violation(f"I9: an idle sync moved {moved} lines")

    def close(self) -> None:
        for edge in self.edges:
            edge.close()
        self.stack.close()


def _advanced(name: str, before: Position, after: Position) -> None:
    if before.epoch == after.epoch and after.rev < before.rev:
        raise Violation(f"I8: {name} went back from {before.rev} to {after.rev}")


def run(seed: int, make: MakeStack, *, steps: int = 60) -> Machine:
    """A random run to its end; raises Violation."""
    rng = random.Random(seed)
    dropping = rng.choice((0.0, 0.0, 0.0, 0.1))
    machine = Machine(rng, make, rate=rng.choice((0.0, 0.1, 0.3, 0.6)), dropping=dropping)
    try:
        for _ in range(steps):
            machine.step(rng.choice(OPERATIONS), rng.choice(machine.edges))
        machine.heal()
    finally:
        machine.close()
    return machine
