"""The rare paths: for each rule of the protocol one on which something is lost, or never ends equal, without it.

Random runs meet some of them once in thousands (``tests.sync.driving --without RULE``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from memory.core.errors import StoreUnavailable
from tests.sync.machine import Machine, Violation
from tests.sync.model import USER
from tests.sync.model_stack import model_stack
from tests.sync.model_sync import ModelEdge
from tests.sync.plain_centre import PlainCentre
from tests.sync.ports import Crash, Writer

DAY = 86_400_000
MINUTE = 60_000


class World(Machine):
    """Two replicas, no faults but those that a test makes."""

    def __init__(self, *without: str) -> None:
        super().__init__(random.Random(1), model_stack(without), rate=0.0, edges=2)
        self.a, self.b = (edge for edge in self.edges if isinstance(edge, ModelEdge))

    @property
    def plain(self) -> PlainCentre:
        assert isinstance(self.centre.port, PlainCentre)
        return self.centre.port

    def create(self, where: Writer, content: str = "tea") -> str:
        facts = where.create(content, {})
        self.oracle.wrote(facts)
        return facts[0].memory_id

    def edit(self, where: Writer, memory_id: str, **scalars: Any) -> None:
        self.oracle.wrote(where.edit(memory_id, scalars))

    def access(self, where: Writer, memory_id: str) -> None:
        self.oracle.tried[memory_id] += 1
        self.oracle.counted(memory_id, *where.access(memory_id))

    def sync(self, *edges: ModelEdge, page: int = 50) -> None:
        for edge in edges:
            self._seen = edge.states()
            edge.sync(page)
            self.oracle.restamped(self._seen, edge.states(), self.now)

    def shared(self, content: str = "tea") -> str:
        """A memory that both replicas and the centre have."""
        memory_id = self.create(self.a, content)
        self.sync(self.a, self.b)
        return memory_id

    def restore(self, backup: Any, *, known: bool) -> None:
        self.now += 10 * MINUTE
        self.centre.restore(backup, known=known)
        self._forget_lost()

    def lose_answer(self) -> None:
        """Of the next push."""

        def lost() -> None:
            raise StoreUnavailable("the answer is lost")

        self.carrier.after_push = lost

    def contents(self, memory_id: str) -> list[Any]:
        return [states[memory_id].value("content") for states in self._replicas()]


Scenario = Callable[..., None]


def edit_during_push(*without: str) -> None:
    world = World(*without)
    memory_id = world.create(world.a)
    world.carrier.after_push = lambda: world.edit(world.a, memory_id, content="coffee")
    world.sync(world.a)
    world.heal()
    assert world.contents(memory_id) == ["coffee"] * 3


def lost_line(*without: str) -> None:
    world = World(*without)
    world.create(world.a)
    world.sync(world.a)
    world.carrier.dropping = 1.0
    world.sync(world.b)
    world.heal()


def lost_access_line(*without: str) -> None:
    world = World(*without)
    memory_id = world.shared()
    world.access(world.a, memory_id)
    world.sync(world.a)
    world.carrier.dropping = 1.0
    world.sync(world.b)
    world.heal()


def crash_while_pulling(*without: str) -> None:
    for steps in range(12):
        world = World(*without)
        world.create(world.a)
        world.sync(world.a)
        world.b.crash_after(steps)
        try:
            world.sync(world.b)
        except Crash:
            world.b.reopen()
        world.heal()


def above_a_restored_version(*without: str) -> None:
    world = World(*without)
    memory_id = world.shared()
    backup = world.centre.backup()
    world.edit(world.a, memory_id, content="coffee")
    world.sync(world.a, world.b)
    world.restore(backup, known=True)
    world.heal()
    assert world.contents(memory_id) == ["coffee"] * 3


def silent_rewind(*without: str) -> None:
    """The head has grown past the cursor before the replica returns: only the mark tells."""
    world = World(*without)
    world.shared()
    backup = world.centre.backup()
    memory_id = world.create(world.a, "only here")
    world.sync(world.a)
    world.restore(backup, known=False)
    for number in range(3):
        world.create(world.centre, f"other {number}")
    world.heal()
    assert world.contents(memory_id) == ["only here"] * 3


def replayed_push(*without: str) -> None:
    """A push arrives a second time, after the database was rewound to before it and the one before."""
    world = World(*without)
    world.shared()
    backup = world.centre.backup()
    memory_id = world.create(world.a, "only here")
    world.sync(world.a)
    world.create(world.a)
    pushes: list[Sequence[bytes]] = []
    push = world.plain.push

    def recorded(lines: Sequence[bytes]) -> Any:
        pushes.append(list(lines))
        return push(lines)

    world.plain.push = recorded  # type: ignore[method-assign]
    world.sync(world.a)
    world.restore(backup, known=False)
    for number in range(4):
        world.create(world.centre, f"other {number}")
    list(push(pushes[-1]))
    world.heal()
    assert world.contents(memory_id) == ["only here"] * 3


def noticed_by_another(*without: str) -> None:
    """The rewound history goes on past what one replica had, and ends in an epoch that says so of all."""
    world = World(*without)
    world.shared()
    backup = world.centre.backup()
    memory_id = world.create(world.a, "only here")
    world.sync(world.a)
    world.restore(backup, known=False)
    for number in range(3):
        world.create(world.b, f"other {number}")
    world.sync(world.b)
    world.restore(world.centre.backup(), known=True)
    world.heal()
    assert world.contents(memory_id) == ["only here"] * 3


def acknowledged_and_rewound_to_the_cursor(*without: str) -> None:
    """The rewound centre is exactly what has been received, and lacks what was only acknowledged."""
    for steps in range(2, 14):
        world = World(*without)
        memory_id = world.shared()
        backup = world.centre.backup()
        world.oracle.wrote(world.centre.tag(memory_id, "x", present=True))
        world.edit(world.a, memory_id, content="coffee")
        world.a.crash_after(steps)
        try:
            world.sync(world.a)
        except Crash:
            world.a.reopen()
        world.restore(backup, known=False)
        world.heal()


def mark_of_another_epoch(*without: str) -> None:
    """A mark of an old epoch, at a high revision, is known; what was received since, at low ones, is lost."""
    world = World(*without)
    world.shared()
    early = world.centre.backup()
    for number in range(4):
        world.create(world.centre, f"old {number}")
    world.sync(world.b)
    late = world.centre.backup()
    world.restore(early, known=True)
    memory_id = world.create(world.a, "only here")
    world.sync(world.a, world.b)
    world.edges.remove(world.a)
    world.restore(late, known=False)
    world.heal()
    assert world.contents(memory_id) == ["only here"] * len(world.contents(memory_id))


def cursor_without_a_mark(*without: str) -> None:
    """What a reconcile has brought is lost with the rewind, and no mark would say so."""
    world = World(*without)
    world.shared()
    edge_before = world.a.backup()
    world.restore(world.centre.backup(), known=True)
    backup = world.centre.backup()
    memory_id = world.create(world.a, "only here")
    world.sync(world.a, world.b)
    world.a.restore(edge_before)
    world.restore(backup, known=False)
    for number in range(3):
        world.create(world.centre, f"other {number}")
    world.sync(world.b)
    world.heal()
    assert world.contents(memory_id) == ["only here"] * 3


def counts_above_the_cursor(*without: str) -> None:
    """Hashes are equal in a new epoch, but accesses have been counted that this replica has not seen."""
    world = World("slots", *without)
    memory_id = world.shared()
    world.restore(world.centre.backup(), known=True)
    world.access(world.a, memory_id)
    world.sync(world.a, world.b)
    world.heal()


def counts_of_a_lost_epoch(*without: str) -> None:
    world = World(*without)
    memory_id = world.shared()
    backup = world.centre.backup()
    world.access(world.a, memory_id)
    world.sync(world.a)
    world.restore(backup, known=True)
    world.heal()


def purged(*without: str) -> None:
    world = World(*without)
    memory_id = world.shared()
    world.plain.purge(USER, memory_id)
    world.sync(world.a, world.b)
    if any(memory_id in states for states in world._replicas()):
        raise Violation("it is there again")


def overwritten_before_it_was_restamped(*without: str) -> None:
    """An early version was accepted without anybody here knowing; the later one gets a stamp from a clock put right."""
    world = World(*without)
    memory_id = world.shared()
    world.a.set_clock(4 * MINUTE)
    world.edit(world.a, memory_id, content="early")
    world.lose_answer()
    with pytest.raises(StoreUnavailable):
        world.sync(world.a)
    world.a.set_clock(14 * MINUTE)
    world.edit(world.a, memory_id, content="late")
    world.sync(world.a)
    world.heal()
    if world.contents(memory_id) != ["late"] * 3:
        raise Violation("the later edit has lost")


def clock_set_back(*without: str) -> None:
    world = World(*without)
    memory_id = world.shared()
    world.edit(world.a, memory_id, content="early")
    world.a.set_clock(-DAY)
    world.a.reopen()
    world.edit(world.a, memory_id, content="late")
    world.heal()
    if world.contents(memory_id) != ["late"] * 3:
        raise Violation("the later edit has lost")


def backup_of_an_edge(*without: str) -> None:
    """A replica that was put back counts on where others know its counts already (turso#8129)."""
    world = World(*without)
    memory_id = world.shared()
    backup = world.a.backup()
    for _ in range(2):
        world.access(world.a, memory_id)
    world.sync(world.a)
    world.a.restore(backup)
    world.access(world.a, memory_id)
    world.heal()
    if sum(world.centre.states()[memory_id].accesses.values()) != 3:
        raise Violation("an access is lost")


SCENARIOS: Sequence[tuple[str, Scenario]] = (
    ("seq", edit_during_push),
    ("digest", lost_line),
    ("slots", lost_access_line),
    ("queue", crash_while_pulling),
    ("push-back", above_a_restored_version),
    ("marks", silent_rewind),
    ("epochs", silent_rewind),
    ("draw", replayed_push),
    ("trust", noticed_by_another),
    ("adopt", acknowledged_and_rewound_to_the_cursor),
    ("forget", mark_of_another_epoch),
    ("cursor", counts_above_the_cursor),
    ("cursor", cursor_without_a_mark),
    ("offer", counts_of_a_lost_epoch),
    ("gone", purged),
    ("ahead", overwritten_before_it_was_restamped),
    ("clock", clock_set_back),
    ("writer", backup_of_an_edge),
)
