"""The columns in memory are the table, whatever was done; and texts come back as every store keeps them."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import memory
from edge.opening import EdgeSettings
from edge.sqlite import columns
from edge.sqlite.columns import View
from memory.core.errors import NotFound
from memory.engine.provider import StorageProvider
from memory.testing.base import ALL_STATUSES, everything
from tests.plain_index import plain_index
from tests.replicas import findings, open_replica, storage_of

FAST = EdgeSettings(synchronous="normal", drain_interval=0.05)
STATUS = {code: name for name, code in columns._STATUS.items()}
TYPE = {code: name for name, code in columns._TYPE.items()}
Row = tuple[str, str, int, int]


def current(store: StorageProvider, user_id: str = "u") -> dict[int, Row]:
    """The columns as a search would see them now, by number."""
    with storage_of(store).users.lease(user_id) as replica:
        assert replica is not None
        with replica.database.read() as connection:
            view = replica.columns.current(connection)
    return {int(number): row_of(view, int(number)) for number in np.flatnonzero(view.status)}


def row_of(view: View, number: int) -> Row:
    status, kind = STATUS[int(view.status[number])], TYPE[int(view.memory_type[number])]
    return status, kind, int(view.created_at[number]), int(view.length[number])


def in_the_file(store: StorageProvider, user_id: str = "u") -> dict[int, Row]:
    with storage_of(store).users.lease(user_id) as replica:
        assert replica is not None
        with replica.database.read() as connection:
            rows = connection.execute("SELECT number, status, memory_type, created_at, length FROM memories")
            return {row[0]: row[1:] for row in rows}


class Worker:
    """Does random things to its own memories, and looks at all of them now and then."""

    def __init__(self, store: StorageProvider, seed: int) -> None:
        self._store, self._chance, self._seed = store, random.Random(seed), seed
        self._mine: list[str] = []

    def __call__(self, calls: int) -> None:
        for number in range(calls):
            self._one(number)

    def _one(self, number: int) -> None:
        chance, store = self._chance, self._store
        kind = chance.choice(["add", "add", "many", "update", "update", "archive", "delete", "look"])
        text = f"note {self._seed} {number} " + "word " * chance.randrange(5)
        if kind == "add" or not self._mine:
            made = store.add_memory(text, user_id="u", memory_type=chance.choice(["fact", "event"]))
            self._mine.append(made.memory_id)
        elif kind == "many":
            batch = [memory.NewMemory(content=f"{text} {i}", created_at=1_700_000_000_000 + i) for i in range(40)]
            self._mine += [made.memory_id for made in store.add_many(batch, user_id="u")]
        elif kind == "update":
            changes: dict[str, Any] = chance.choice(
                [{"content": text}, {"memory_type": "summary"}, {"importance": 0.1}]
            )
            store.update_memory(chance.choice(self._mine), user_id="u", **changes)
        elif kind == "archive":
            store.archive_memory(chance.choice(self._mine), user_id="u")
        elif kind == "delete":
            store.delete_memory(self._mine.pop(chance.randrange(len(self._mine))), user_id="u")
        else:
            self._look()

    def _look(self) -> None:
        """What this thread has done is seen by it at once."""
        listed = everything(self._store, "u")
        assert {item.memory_id for item in listed} >= set(self._mine)
        self._store.recall("note word", user_id="u", top_k=3, filters={"statuses": ALL_STATUSES})
        gone = self._mine.pop()
        self._store.delete_memory(gone, user_id="u")
        assert gone not in {item.memory_id for item in everything(self._store, "u")}


def test_the_columns_are_the_table_after_random_work_of_several_threads(tmp_path: Path) -> None:
    index = plain_index()
    with open_replica(tmp_path, index=index, edge_settings=FAST, track_access=False) as store:
        store.add_memory("the first", user_id="u")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda seed: Worker(store, seed)(60), range(4)))
        found = current(store)
        assert found == in_the_file(store)
        assert len(found) > 500
        assert max(found) > 1_024, "the arrays should have grown"
    with open_replica(tmp_path, index=index) as store:
        assert current(store) == found == in_the_file(store)
    assert findings(tmp_path, index=index) == {}


def test_readers_never_see_a_memory_before_it_is_whole_or_after_it_has_gone(tmp_path: Path) -> None:
    """While one thread adds and deletes, what another lists is always of some one moment, or a little later."""
    stop = threading.Event()
    with open_replica(tmp_path, index=plain_index(), edge_settings=FAST, track_access=False) as store:
        kept = [store.add_memory(f"kept {n}", user_id="u").memory_id for n in range(20)]

        def look() -> int:
            looks = 0
            while not stop.is_set():
                listed = store.list_memories(user_id="u", limit=100).items
                assert {item.memory_id for item in listed} >= set(kept)
                assert all(item.content and item.created_at for item in listed)
                recalled = store.recall("kept", user_id="u", top_k=20)
                assert {hit.memory.memory_id for hit in recalled} == set(kept)
                looks += 1
            return looks

        with ThreadPoolExecutor(3) as pool:
            looking = [pool.submit(look) for _ in range(2)]
            for number in range(150):
                made = store.add_memory(f"passing {number}", user_id="u")
                store.delete_memory(made.memory_id, user_id="u")
            stop.set()
            assert all(one.result() for one in looking)


TEXTS = (
    "with \0 in it",
    "a lone \ud83d surrogate",
    "🐦👩‍👩‍👧🇨🇳 夜莺 e\u0301 \u00e9 \ufeff",
    "quotes ' \" and \\ back \u2028 slashes % _ ; --",
    "trailing blank \t\n",
    "\U0010ffff",
    "x" * 30_000,
)


def odd_memory(text: str) -> memory.NewMemory:
    return memory.NewMemory(
        content=text,
        tags=["a\0b", "🐦", "\udc00"],
        metadata={"k": "v\0\ud800", "list\0": [text, None, 1.5]},
        source_session=f"session {text[:20]!r}",
    )


def test_texts_come_back_as_from_every_other_store(tmp_path: Path) -> None:
    user = "用户 '\"\\ 🐦"
    with memory.connect("memory://", embedding_model="hashing") as plain:
        wanted = plain.add_many(map(odd_memory, TEXTS), user_id=user)
    with open_replica(tmp_path, index=plain_index()) as store:
        made = store.add_many(map(odd_memory, TEXTS), user_id=user)
    with open_replica(tmp_path, index=plain_index()) as store:
        for item, right in zip(made, wanted, strict=True):
            found = store.get_memory(item.memory_id, user_id=user)
            for name in ("content", "tags", "metadata", "source_session"):
                assert getattr(found, name) == getattr(right, name)
            where = {"tags_all": ["🐦"], "metadata": {"k": "v\ufffd"}, "source_session": right.source_session}
            assert store.list_memories(user_id=user, filters=where).items == (found,)


def test_an_edit_of_what_another_thread_deletes_is_not_found_or_done(tmp_path: Path) -> None:
    with open_replica(tmp_path, index=plain_index(), edge_settings=FAST) as store:
        for number in range(30):
            made = store.add_memory(f"note {number}", user_id="u")
            with ThreadPoolExecutor(2) as pool:
                edit = pool.submit(store.update_memory, made.memory_id, user_id="u", content="changed")
                pool.submit(store.delete_memory, made.memory_id, user_id="u").result()
            assert edit.exception() is None or isinstance(edit.exception(), NotFound)
        assert everything(store, "u") == []
        assert current(store) == {}
    assert set(findings(tmp_path, index=plain_index())) <= {"points"}
