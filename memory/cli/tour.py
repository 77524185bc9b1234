"""The tour of ``quickstart``: every verb once, on a demo user, every result checked."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memory.core.errors import Error, NotFound
from memory.core.model import Memory, NewMemory, Recalled, RecallFilter, Status
from memory.core.provider import MemoryProvider

PROJECT: Final = "项目代号叫夜莺，下周五交付第一版"
PROJECT_LATER: Final = "项目代号叫夜莺，第一版推迟到月底交付"
COFFEE: Final = "周三在上海和李雷喝了咖啡"
SERVER: Final = "The staging server runs in Frankfurt and restarts every Sunday night"
ANSWERS: Final = "Prefers short answers without bullet points"
FLIGHT: Final = "Flight to Berlin is booked, seat 14C"
TEA: Final = "喜欢喝龙井茶，不加糖"

DEMO: Final = (
    NewMemory(content=PROJECT, tags=["project"]),
    NewMemory(content=COFFEE, memory_type="event"),
    NewMemory(content=TEA, memory_type="preference"),
    NewMemory(content=SERVER, tags=["project", "ops"]),
    NewMemory(content=ANSWERS, memory_type="preference"),
    NewMemory(content=FLIGHT, memory_type="event"),
)
QUESTIONS: Final = (
    ("我的项目叫什么？", "夜莺", PROJECT),
    ("Where does the staging server run?", "Frankfurt", SERVER),
)


class Surprise(Exception):
    """A step came out differently from what it must."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the tour and how it went."""

    name: str
    ok: bool
    detail: str
    hits: tuple[Recalled, ...] = ()


Emptied = Callable[[], AbstractContextManager[MemoryProvider]]
"""Opens an empty store in memory."""


class Tour:
    """One walk through the verbs."""

    def __init__(self, store: MemoryProvider, user_id: str, empty_store: Emptied) -> None:
        self._store, self._user_id, self._empty_store = store, user_id, empty_store
        self._ids: dict[str, str] = {}

    def steps(self) -> Iterator[Step]:
        """Walk; ends after the first step that fails."""
        walk = (
            ("store", self._add),
            ("recall", lambda: self._recall(*QUESTIONS[0])),
            ("recall", lambda: self._recall(*QUESTIONS[1])),
            ("update", self._update),
            ("archive", self._archive),
            ("delete", self._delete),
            ("export and import", self._move),
        )
        for name, act in walk:
            try:
                detail, hits = act()
            except Surprise as surprise:
                yield Step(name, ok=False, detail=str(surprise))
                return
            except Error as error:
                yield Step(name, ok=False, detail=str(error))
                return
            yield Step(name, ok=True, detail=detail, hits=hits)

    def clean_up(self) -> None:
        """Delete what is left of the demo user."""
        every = RecallFilter(statuses=tuple(Status))
        while items := self._store.list_memories(user_id=self._user_id, filters=every).items:
            for memory in items:
                self._store.delete_memory(memory.memory_id, user_id=self._user_id)

    def _add(self) -> tuple[str, tuple[Recalled, ...]]:
        added = self._store.add_many(DEMO, user_id=self._user_id)
        self._ids = {memory.content: memory.memory_id for memory in added}
        for memory in added:
            read = self._get(memory.content)
            _expect(read.content == memory.content, f"{memory.content!r} was read back as {read.content!r}")
            _expect(not memory.notices, "; ".join(notice.message for notice in memory.notices))
        return f"{len(added)} memories in Chinese and English, in one transaction", ()

    def _recall(self, question: str, answer: str, expected: str) -> tuple[str, tuple[Recalled, ...]]:
        hits = self._store.recall(question, user_id=self._user_id, top_k=3)
        _expect(bool(hits), f"{question!r} found nothing")
        best = hits[0].memory.content
        _expect(best == expected, f"{question!r} found {best!r} first, not {expected!r}")
        return f"{question} → {answer}", tuple(hits[:1])

    def _update(self) -> tuple[str, tuple[Recalled, ...]]:
        before = self._get(PROJECT)
        after = self._store.update_memory(
            before.memory_id, user_id=self._user_id, content=PROJECT_LATER, expected_version=before.version
        )
        _expect(after.version != before.version, "the version did not change")
        hits = self._store.recall("项目什么时候交付？", user_id=self._user_id, top_k=1)
        best = hits[0].memory.content if hits else ""
        _expect(best == PROJECT_LATER, f"after the update recall found {best!r}")
        self._ids[PROJECT_LATER] = self._ids.pop(PROJECT)
        return f"{PROJECT} → {PROJECT_LATER}", ()

    def _archive(self) -> tuple[str, tuple[Recalled, ...]]:
        self._store.archive_memory(self._ids[COFFEE], user_id=self._user_id)
        _expect(self._get(COFFEE).status == Status.ARCHIVED, "the memory is not archived")
        _expect(not self._finds(COFFEE, Status.ACTIVE), "recall still finds the archived memory")
        _expect(self._finds(COFFEE, Status.ARCHIVED), "recall does not find it in the archive either")
        return f"{COFFEE}: out of recall, still there when asked for", ()

    def _delete(self) -> tuple[str, tuple[Recalled, ...]]:
        self._store.delete_memory(self._ids[FLIGHT], user_id=self._user_id)
        try:
            self._get(FLIGHT)
        except NotFound:
            return f"{FLIGHT}: gone for good", ()
        raise Surprise("the deleted memory can still be read")

    def _move(self) -> tuple[str, tuple[Recalled, ...]]:
        left = len(DEMO) - 1
        with tempfile.TemporaryDirectory(prefix="memory-quickstart-") as directory:
            path = Path(directory) / "memories.jsonl.gz"
            exported = self._store.export_memories(path, user_id=self._user_id)
            _expect(exported.memories == left, f"{exported.memories} memories were exported, not {left}")
            again = self._store.import_memories(path)
            same = again.unchanged == left + exported.deletions and not again.rejected_count
            _expect(same, f"importing it back changed something: {again}")
            with self._empty_store() as other:
                other.import_memories(path)
                every = RecallFilter(statuses=tuple(Status))
                arrived = other.list_memories(user_id=self._user_id, filters=every).items
        texts = {memory.content for memory in arrived}
        _expect(texts == self._ids.keys() - {FLIGHT}, f"another store got {sorted(texts)}")
        size = f"{exported.memories} memories and {exported.deletions} deletion"
        return f"{size} to a file; back again nothing changed, and an empty store got them all", ()

    def _get(self, content: str) -> Memory:
        return self._store.get_memory(self._ids[content], user_id=self._user_id)

    def _finds(self, content: str, status: Status) -> bool:
        hits = self._store.recall(content, user_id=self._user_id, filters=RecallFilter(statuses=(status,)))
        return any(hit.memory.content == content for hit in hits)


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Surprise(otherwise)
