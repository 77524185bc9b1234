"""Users of a replica: a folder each, opened when needed, few at a time, never mixed up."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import memory
from edge.directory import folder_name
from edge.opening import EdgeSettings
from edge.replica import Replica
from memory.core.errors import NotFound
from memory.engine.provider import StorageProvider
from memory.engine.storage import Scope
from memory.testing.base import everything
from tests.plain_index import plain_index
from tests.replicas import findings, open_replica, storage_of

ONE_AT_A_TIME = EdgeSettings(max_open_users=1)
QUIET = 3_600.0
"""Seconds until the maintenance looks at the open users."""


@contextmanager
def undisturbed(path: Path, *, max_open: int) -> Iterator[StorageProvider]:
    """A replica without work in the background, which opens users too."""
    settings = EdgeSettings(max_open_users=max_open, drain_interval=QUIET)
    with open_replica(path, index=plain_index(), edge_settings=settings) as store:
        store._backlog.stop()
        yield store


def now_open(store: StorageProvider) -> list[str]:
    return storage_of(store).users.now_open()


def test_threads_of_many_users_with_one_open_at_a_time_lose_and_mix_nothing(tmp_path: Path) -> None:
    users = ("a", "b", "用户")
    index = plain_index()
    with open_replica(tmp_path, index=index, edge_settings=ONE_AT_A_TIME, track_access=False) as store:

        def work(thread: int) -> None:
            chance = random.Random(thread)
            for number in range(40):
                user = chance.choice(users)
                store.add_memory(f"note {thread} {number} of {user}", user_id=user)
                asked = chance.choice(users)
                for hit in store.recall("note", user_id=asked, top_k=5):
                    assert hit.memory.content.endswith(f" of {asked}")

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        assert len(now_open(store)) <= 1
        found = {user: everything(store, user) for user in users}
    assert sum(map(len, found.values())) == 6 * 40
    for user, mine in found.items():
        assert {item.user_id for item in mine} == {user}
        assert all(item.content.endswith(f" of {user}") for item in mine)
    assert findings(tmp_path, index=index) == {}


def test_no_more_users_are_open_than_allowed_and_the_latest_stay(tmp_path: Path) -> None:
    with undisturbed(tmp_path, max_open=2) as store:
        for user in ("a", "b", "c"):
            store.add_memory("green tea", user_id=user)
            assert len(now_open(store)) <= 2
        assert set(now_open(store)) == {"b", "c"}
        store.list_memories(user_id="b")
        store.list_memories(user_id="a")
        assert set(now_open(store)) == {"a", "b"}


def test_a_user_that_is_being_read_stays_open_whoever_comes(tmp_path: Path) -> None:
    with undisturbed(tmp_path, max_open=1) as store:
        for number in range(3):
            store.add_memory(f"note {number}", user_id="a")
        with storage_of(store).snapshot(Scope(user_id="a")) as snapshot:
            first = next(snapshot.records)
            store.add_memory("green tea", user_id="b")
            assert now_open(store) == ["a"]
            store.add_memory("note 3", user_id="a")
            rest = list(snapshot.records)
        assert {first["user_id"], *(record["user_id"] for record in rest)} == {"a"}
        assert len(rest) == 2
        store.list_memories(user_id="b")
        assert now_open(store) == ["b"]


def test_trouble_with_closing_one_user_is_not_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_replica: Replica) -> None:
        raise memory.StoreFull

    with undisturbed(tmp_path, max_open=1) as store:
        gone = store.add_memory("green tea", user_id="a")
        store.delete_memory(gone.memory_id, user_id="a")
        with monkeypatch.context() as patched:
            patched.setattr(Replica, "_remove_traces", full)
            store.add_memory("black tea", user_id="b")
            assert [item.content for item in everything(store, "b")] == ["black tea"]
        assert "words of deleted memories stay" in caplog.text
        assert now_open(store) == ["b"]
        store.add_memory("white tea", user_id="a")
        assert [item.content for item in everything(store, "a")] == ["white tea"]


def test_words_that_could_not_be_removed_are_removed_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(_connection: object) -> None:
        raise memory.StoreBusy

    def held() -> bool:
        return b"zqxjkvwp" in b"".join(file.read_bytes() for file in tmp_path.rglob("memory.db*"))

    with monkeypatch.context() as patched:
        patched.setattr("edge.sqlite.todo.remove_traces_of_words", busy)
        with open_replica(tmp_path, index=plain_index()) as store:
            secret = store.add_memory("zqxjkvwp", user_id="u")
            store.add_memory("green tea", user_id="u")
            storage_of(store).drain()
            store.delete_memory(secret.memory_id, user_id="u")
            storage_of(store).tidy()
    assert held()
    with open_replica(tmp_path, index=plain_index()) as store:
        store.list_memories(user_id="u")
        storage_of(store).tidy()
        assert not held()


def test_asking_for_an_unknown_user_makes_nothing(tmp_path: Path) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    with open_replica(tmp_path) as store:
        assert store.recall("tea", user_id="u") == []
        assert store.list_memories(user_id="u").items == ()
        assert store.stats(user_id="u").memories_by_status == {}
        for call in (
            lambda: store.get_memory(unknown, user_id="u"),
            lambda: store.update_memory(unknown, user_id="u", content="x"),
            lambda: store.delete_memory(unknown, user_id="u"),
        ):
            with pytest.raises(NotFound):
                call()
        assert store.add_many([], user_id="u") == []
        with pytest.raises(memory.InvalidValue):
            store.add_memory(" ", user_id="u")
        assert list((tmp_path / "users").iterdir()) == []


IDS = ("u", "U", "u ", "用户", "../u", "/etc/passwd", ".", "..", "CON", "u\n", "a" * 200, "🐦", "e\u0301", "\u00e9")


def test_any_id_of_a_user_has_a_folder_of_its_own(tmp_path: Path) -> None:
    with open_replica(tmp_path, index=plain_index()) as store:
        for user in IDS:
            store.add_memory(f"of {user}", user_id=user)
    with open_replica(tmp_path, index=plain_index()) as store:
        for user in IDS:
            assert [(item.content, item.user_id) for item in everything(store, user)] == [(f"of {user}", user)]
        assert store.stats().users == len(IDS)
    folders = sorted(entry.name for entry in (tmp_path / "users").iterdir())
    assert folders == sorted(map(folder_name, IDS))
    assert all(len(name) == 32 for name in folders)
    assert {(tmp_path / "users" / folder_name(user) / "user.txt").read_text() for user in IDS} == set(IDS)


def test_a_removed_folder_is_a_removed_user(tmp_path: Path) -> None:
    index = plain_index()
    with open_replica(tmp_path, index=index) as store:
        for user in ("u", "v"):
            store.add_memory("green tea", user_id=user)
    shutil.rmtree(tmp_path / "users" / folder_name("u"))
    with open_replica(tmp_path, index=index) as store:
        assert store.recall("tea", user_id="u") == []
        assert store.stats().users == 1
        assert len(store.recall("tea", user_id="v")) == 1
        store.add_memory("anew", user_id="u")
        assert [item.content for item in everything(store, "u")] == ["anew"]
    assert findings(tmp_path, index=index) == {}


def test_folders_whose_making_was_cut_short_are_removed_at_open(tmp_path: Path) -> None:
    with open_replica(tmp_path, index=plain_index()) as store:
        store.add_memory("green tea", user_id="u")
    unfinished = tmp_path / "users" / f".{folder_name('v')}.0a1b2c3d"
    shutil.copytree(tmp_path / "users" / folder_name("u"), unfinished)
    with open_replica(tmp_path, index=plain_index()) as store:
        assert not unfinished.exists()
        assert store.stats().users == 1
        assert len(store.recall("tea", user_id="u")) == 1
