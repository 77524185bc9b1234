"""The stack of pure Python: model edges, and the plain centre behind the driver's verbs."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from memory.core.centre import SyncCentre
from memory.core.clock import Stamp
from memory.core.state import State
from memory.core.sync import Hello, Mark
from tests.sync.model import USER
from tests.sync.model_sync import ModelEdge
from tests.sync.plain_centre import Backup, PlainCentre
from tests.sync.plain_user import User
from tests.sync.ports import Centre, Fact, MakeStack, Position, written_at


class CarelessCentre(PlainCentre):
    """A centre with rules switched off."""

    def __init__(self, clock: Callable[[], int], rng: random.Random, without: Collection[str]) -> None:
        super().__init__(clock, rng)
        self._without = without

    def _judge(self, user: User, hello: Hello) -> tuple[Mapping[str, int], bool]:
        if "epochs" in self._without or "marks" in self._without:
            return dict(user.lineage), False
        lineage, reconcile = super()._judge(user, hello)
        if "adopt" in self._without:
            reconcile = reconcile and hello.epoch == user.epoch
        return (dict(user.lineage) if "trust" in self._without else lineage), reconcile

    def _note(self, user: User, device: str, rev: int, asked: str | None) -> str:
        if "draw" not in self._without or asked is None:
            return super()._note(user, device, rev, asked)
        user.note(device, Mark(asked, rev))
        return asked

    def restore(self, backup: Backup, *, known: bool) -> None:
        super().restore(backup, known=known and "epochs" not in self._without)


class ModelCentre:
    """``ports.Centre`` on a plain one."""

    def __init__(self, port: PlainCentre) -> None:
        self.port: SyncCentre = port
        self._plain = port
        self.backup = port.backup
        self.restore = port.restore

    def create(self, content: str, metadata: Mapping[str, Any]) -> list[Fact]:
        memory_id = self._plain.add(USER, content, metadata=metadata)
        return self._facts(memory_id, self.states()[memory_id].scalars["content"].stamp)

    def edit(self, memory_id: str, scalars: Mapping[str, Any]) -> list[Fact]:
        return self._facts(memory_id, self._plain.edit(USER, memory_id, **scalars))

    def raw_edit(self, memory_id: str, scalars: Mapping[str, Any]) -> list[Fact]:
        return self._facts(memory_id, self._plain.raw_edit(USER, memory_id, **scalars))

    def tag(self, memory_id: str, tag: str, *, present: bool) -> list[Fact]:
        changes = {"add": [tag]} if present else {"remove": [tag]}
        return self._facts(memory_id, self._plain.tag(USER, memory_id, **changes))

    def set_metadata(self, memory_id: str, key: str, value: Any) -> list[Fact]:
        return self._facts(memory_id, self._plain.set_metadata(USER, memory_id, **{key: value}))

    def delete(self, memory_id: str) -> list[Fact]:
        return self._facts(memory_id, self._plain.delete(USER, memory_id))

    def access(self, memory_id: str) -> tuple[str, int]:
        return self._plain.touch(USER, memory_id)

    def _facts(self, memory_id: str, stamp: Stamp) -> list[Fact]:
        return [Fact(memory_id, name, stamp) for name in written_at(self.states()[memory_id], stamp)]

    def states(self) -> Mapping[str, State]:
        return self._plain.state(USER)

    def position(self) -> Position:
        user = self._plain.user(USER)
        return Position(user.epoch, user.rev)

    def digest(self) -> int:
        return self._plain.digest(USER)

    def close(self) -> None:
        self._plain.close()


class ModelStack:
    """``ports.Stack`` in plain Python."""

    def __init__(self, now: Callable[[], int], rng: random.Random, *, without: Collection[str] = ()) -> None:
        self._now, self._rng, self._without = now, rng, without
        self.centre: Centre = ModelCentre(CarelessCentre(now, rng, without) if without else PlainCentre(now, rng))

    def new_edge(self, name: str, carrier: SyncCentre) -> ModelEdge:
        return ModelEdge(name, carrier, self._now, self._rng, self._without)

    def close(self) -> None:
        self.centre.close()


def model_stack(without: Iterable[str] = ()) -> MakeStack:
    """Makes model stacks with some rules switched off."""
    return partial(ModelStack, without=frozenset(without))
