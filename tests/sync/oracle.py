"""What has been acknowledged, and what must therefore hold when all is quiet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from memory.core.clock import MAX_SKEW_MS, Stamp
from memory.core.state import State
from tests.sync.ports import Fact, registers_of

States = Mapping[str, State]
Slot = tuple[str, str]
"""Memory and writer."""


class Oracle:
    """Knows every acknowledged write, deletion and access; forgets what a restore has destroyed everywhere."""

    def __init__(self) -> None:
        self.writes: dict[tuple[str, str], set[Stamp]] = defaultdict(set)
        """By memory and register."""
        self.deleted: set[str] = set()
        self.counts: dict[Slot, int] = {}
        self._counted: dict[Slot, int] = {}
        """As ``counts``, and nothing is forgotten."""
        self.tried: Counter[str] = Counter()
        """Accesses by memory, acknowledged or not."""

    def wrote(self, facts: Iterable[Fact]) -> None:
        """Note writes and deletions."""
        for fact in facts:
            if fact.register == "deleted":
                self.deleted.add(fact.memory_id)
            else:
                self.writes[fact.memory_id, fact.register].add(fact.stamp)

    def counted(self, memory_id: str, writer: str, count: int) -> bool:
        """Note an access; False if another one has gone by the same name: then one of them is lost."""
        slot = (memory_id, writer)
        known = count <= self._counted.get(slot, 0)
        self._counted[slot] = max(count, self._counted.get(slot, 0))
        self.counts[slot] = max(count, self.counts.get(slot, 0))
        return not known

    def restamped(self, before: States, after: States, now: int) -> None:
        """Follow an edge that gave stamps out of the future new ones: what was at or below them is now below these."""
        limit = now + MAX_SKEW_MS
        for memory_id, state in before.items():
            if memory_id not in after or max((stamp.ms for stamp in state.stamps()), default=0) <= limit:
                continue
            registers = registers_of(after[memory_id])
            for name, register in registers_of(state).items():
                new = registers.get(name)
                if register.stamp.ms > limit and new is not None and new.stamp != register.stamp:
                    stamps = self.writes[memory_id, name]
                    moved = {stamp for stamp in stamps if limit < stamp.ms and stamp <= register.stamp}
                    self.writes[memory_id, name] = (stamps - moved) | ({new.stamp} if moved else set())

    def forget_lost(self, replicas: list[States], now: int) -> None:
        """After a restore: forget what no replica holds any more."""
        limit = now + MAX_SKEW_MS

        def held(memory_id: str, name: str, stamp: Stamp) -> bool:
            for states in replicas:
                state = states.get(memory_id)
                register = None if state is None else registers_of(state).get(name)
                if state is not None and state.deleted is not None:
                    return True
                if (
                    register is not None
                    and register.stamp >= stamp
                    and (register.stamp.ms <= limit or stamp.ms > limit)
                ):
                    return True
            return False

        for (memory_id, name), stamps in self.writes.items():
            self.writes[memory_id, name] = {stamp for stamp in stamps if held(memory_id, name, stamp)}
        dead = {memory_id for states in replicas for memory_id, state in states.items() if state.deleted is not None}
        self.deleted &= dead
        slots = held_slots(replicas)
        self.counts = {slot: min(count, slots[slot]) for slot, count in self.counts.items() if slots.get(slot)}

    def lost_writes(self, centre: States, set_aside: set[str]) -> list[str]:
        """Acknowledged writes that are neither at the centre nor below something later there."""
        lost = []
        for (memory_id, name), stamps in self.writes.items():
            if not stamps or memory_id in self.deleted or memory_id in set_aside:
                continue
            state = centre.get(memory_id)
            if state is None:
                lost.append(f"memory {memory_id}")
            elif state.deleted is None:
                register = registers_of(state).get(name)
                if register is None or register.stamp < max(stamps):
                    lost.append(f"write {memory_id} {name} {max(stamps)}")
        return lost

    def wrong_counts(self, centre: States, held: Mapping[Slot, int]) -> list[str]:
        """Memories at the centre whose count is not the number of accesses that have survived."""
        wrong = []
        for memory_id, state in centre.items():
            if state.deleted is not None:
                continue
            expected = {writer: count for (owner, writer), count in held.items() if owner == memory_id}
            known = {writer: count for (owner, writer), count in self.counts.items() if owner == memory_id}
            low = any(state.accesses.get(writer, 0) < count for writer, count in known.items())
            if dict(state.accesses) != expected or low or sum(state.accesses.values()) > self.tried[memory_id]:
                wrong.append(f"{memory_id}: {dict(state.accesses)}, not {expected}")
        return wrong


def held_slots(replicas: list[States]) -> dict[Slot, int]:
    """The largest count of every access slot anywhere."""
    slots: dict[Slot, int] = {}
    for states in replicas:
        for memory_id, state in states.items():
            for writer, count in state.accesses.items():
                slots[memory_id, writer] = max(count, slots.get((memory_id, writer), 0))
    return slots


def live(states: States) -> dict[str, State]:
    """The memories that are not deleted."""
    return {memory_id: state for memory_id, state in states.items() if state.deleted is None}


def difference(edge: States, centre: States) -> str:
    """Where two replicas differ, in words; empty if they do not."""
    for memory_id in sorted({*edge, *centre}):
        ours, theirs = edge.get(memory_id), centre.get(memory_id)
        if ours is None or theirs is None:
            return f"{memory_id} is only at {'the edge' if theirs is None else 'the centre'}"
        if ours != theirs:
            a, b = registers_of(ours), registers_of(theirs)
            names = sorted(name for name in {*a, *b} if a.get(name) != b.get(name))
            slots = " ".join(f"{dict(state.accesses)}@{state.last_access}" for state in (ours, theirs))
            return f"{memory_id} in {names} {slots}"
    return ""


def too_late(states: States, now: int) -> list[str]:
    """Memories with a stamp that no centre may accept at this time."""
    limit = now + MAX_SKEW_MS
    return [i for i, state in states.items() if any(stamp.ms > limit for stamp in state.stamps())]
