"""What a replica says of itself, and replicas that were copied, moved, damaged or brought together wrongly."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import memory
from edge.directory import folder_name
from edge.doctor import Doctor
from edge.home import Home
from memory.engine.provider import StorageProvider
from memory.engine.storage import Scope
from memory.testing.base import everything
from tests.plain_index import plain_index
from tests.replicas import findings, open_replica, settle, storage_of

USERS = ("u", "用户", "v")
INDEX = plain_index()


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """A replica of three users with two memories each, one of them deleted, closed."""
    path = tmp_path / "replica"
    with open_replica(path, index=INDEX) as store:
        for user in USERS:
            store.add_memory(f"green tea of {user}", user_id=user, tags=["茶"])
            gone = store.add_memory("to be deleted", user_id=user)
            store.delete_memory(gone.memory_id, user_id=user)
        settle(store)
    return path


def folder_of(path: Path, user_id: str = "u") -> Path:
    return path / "users" / folder_name(user_id)


def contents(path: Path) -> dict[str, list[str]]:
    with open_replica(path, index=INDEX, track_access=False) as store:
        return {
            user: sorted(item.content for item in everything(store, user)) for user in storage_of(store).users.known()
        }


def problems(path: Path, *, repair: bool = False) -> dict[str, int]:
    """What the doctor finds, apart from the index, which a copy of the folder may have or not."""
    return {name: rows for name, rows in findings(path, index=INDEX, repair=repair).items() if name != "points"}


def epoch_of(store: StorageProvider) -> str:
    with storage_of(store).snapshot(Scope()) as snapshot:
        return snapshot.epoch


def epoch_at(path: Path) -> str:
    with open_replica(path, index=INDEX) as store:
        return epoch_of(store)


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.name != "owner.lock" and file.is_file()
    }


# replica.json


def test_a_replica_in_a_newer_format_is_refused_and_not_touched(replica: Path) -> None:
    description = json.loads((replica / "replica.json").read_text())
    (replica / "replica.json").write_text(json.dumps({"format": 2, "replica": "new", "shards": []}))
    before = files(replica)
    for repair in (False, True):
        with pytest.raises(memory.SchemaMismatch, match="newer version") as caught:
            Doctor(replica, INDEX, repair=repair)
    with pytest.raises(memory.SchemaMismatch, match="newer version") as caught:
        open_replica(replica)
    assert caught.value.current == 2
    assert "upgrade nightingale-memory" in caught.value.hint
    assert files(replica) == before
    (replica / "replica.json").write_text(json.dumps(description))
    assert len(contents(replica)) == 3


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "empty": lambda _: "",
    "cut": lambda good: json.dumps(good)[:20],
    "a list": lambda _: [1],
    "a number": lambda _: 7,
    "a key missing": lambda good: {key: value for key, value in good.items() if key != "origin"},
    "a key too many": lambda good: good | {"color": "red"},
    "a format that is text": lambda good: good | {"format": "1"},
    "a format that is a truth": lambda good: good | {"format": True},
    "a model that is a number": lambda good: good | {"model": 7},
    "a dimension that is text": lambda good: good | {"dimension": "64"},
    "an identity that is null": lambda good: good | {"replica": None},
}


@pytest.mark.parametrize("kind", [*BROKEN, "missing", "not UTF-8"])
def test_a_lost_description_is_told_and_the_doctor_makes_a_new_one(replica: Path, kind: str) -> None:
    file = replica / "replica.json"
    before, old = contents(replica), json.loads(file.read_text())
    if kind == "missing":
        file.unlink()
    elif kind == "not UTF-8":
        file.write_bytes(b"\xff\xfe{")
    else:
        written = BROKEN[kind](old)
        file.write_text(written if isinstance(written, str) else json.dumps(written))
    for refused in (lambda: open_replica(replica, index=INDEX), lambda: problems(replica)):
        with pytest.raises(memory.IntegrityFailure, match=r"replica\.json") as caught:
            refused()
        assert "memory doctor --repair" in caught.value.hint
    assert problems(replica, repair=True) == {}
    assert contents(replica) == before
    new = json.loads(file.read_text())
    assert new["replica"] != old["replica"]
    assert {**new, "replica": old["replica"]} == old
    with open_replica(replica, index=INDEX) as store:
        assert store.stats().pending_embeddings == 0
        assert store.recall("green tea", user_id="u")[0].relevance > 0.9


def test_a_description_is_made_anew_from_the_users_that_can_be_read(replica: Path) -> None:
    (replica / "replica.json").unlink()
    (folder_of(replica) / "memory.db").write_bytes(b"x" * 8_192)
    (folder_of(replica, "v") / "memory.db").unlink()
    assert problems(replica, repair=True) == {"folders": 2}
    with open_replica(replica, index=INDEX) as store:
        assert [item.content for item in everything(store, "用户")] == ["green tea of 用户"]


def test_a_description_without_any_user_is_beyond_repair(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "replica.json").write_text("{")
    with pytest.raises(memory.IntegrityFailure):
        problems(tmp_path, repair=True)


# The embedding model


def test_another_model_is_refused_with_both_names_and_nothing_changes(replica: Path) -> None:
    before = files(replica)
    with pytest.raises(memory.ModelMismatch) as caught:
        memory.connect(f"edge://{replica}", embedding_model="hashing:32")
    error = caught.value
    assert (error.stored, error.stored_dimension) == ("hashing-v1-64", 64)
    assert (error.configured, error.configured_dimension) == ("hashing-v1-32", 32)
    assert "'hashing-v1-64'" in error.message
    assert "'hashing-v1-32'" in error.message
    assert "'hashing:64'" in error.hint
    assert "`memory --embedding-model hashing:32 db reembed`" in error.hint
    assert files(replica) == before


def test_a_replica_without_memories_takes_any_model(tmp_path: Path) -> None:
    with open_replica(tmp_path) as store:
        gone = store.add_memory("to be deleted", user_id="u")
        store.delete_memory(gone.memory_id, user_id="u")
    with open_replica(tmp_path, embedding_model="hashing:32") as store:
        store.add_memory("green tea", user_id="u")
        settle(store)
        assert store.recall("tea", user_id="u")[0].memory.content == "green tea"
        assert store.stats().embedding_model == "hashing-v1-32"
    with pytest.raises(memory.ModelMismatch):
        open_replica(tmp_path)
    assert problems(tmp_path) == {}


# Copies


def test_a_copy_made_while_in_use_with_its_logs_is_whole(tmp_path: Path) -> None:
    with open_replica(tmp_path / "replica") as store:
        for number in range(30):
            store.add_memory(f"note {number}", user_id="u")
        settle(store)
        store.add_memory("only in the log", user_id="u")
        assert (folder_of(tmp_path / "replica") / "memory.db-wal").stat().st_size > 0
        shutil.copytree(tmp_path / "replica", tmp_path / "copy")
        first = epoch_of(store)
    assert len(contents(tmp_path / "copy")["u"]) == 31
    assert findings(tmp_path / "copy") == {}
    assert epoch_at(tmp_path / "copy") != first == epoch_at(tmp_path / "replica")


def test_a_copy_without_the_log_is_refused_and_can_be_taken_as_it_is(tmp_path: Path) -> None:
    with open_replica(tmp_path / "replica") as store:
        store.add_memory("cut into the file", user_id="u")
        storage_of(store).tidy()
        store.add_memory("only in the log", user_id="u")
        store.add_memory("only in the log", user_id="v")
        shutil.copytree(tmp_path / "replica", tmp_path / "copy", ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    folder = folder_of(tmp_path / "copy")
    with open_replica(tmp_path / "copy") as store:
        for _ in range(2):
            with pytest.raises(memory.IntegrityFailure, match=r"memory\.db-wal is missing") as caught:
                store.list_memories(user_id="u")
            assert str(folder) in caught.value.message
            assert "'in-use'" in caught.value.hint
    (folder / "in-use").unlink()
    with open_replica(tmp_path / "copy") as store:
        assert [item.content for item in everything(store, "u")] == ["cut into the file"]


def test_a_copy_and_its_original_go_on_independently_and_come_together_again(replica: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(replica, copy)
    with open_replica(replica, index=INDEX) as ours, open_replica(copy) as theirs:
        assert epoch_of(ours) != epoch_of(theirs)
        [item] = everything(ours, "u")
        ours.update_memory(item.memory_id, user_id="u", add_tags=["ours"])
        theirs.update_memory(item.memory_id, user_id="u", importance=0.1)
        ours.add_memory("added here", user_id="u")
        theirs.add_memory("added there", user_id="u")
        for source, target in ((theirs, ours), (ours, theirs)):
            exported = io.BytesIO()
            source.export_memories(exported)
            exported.seek(0)
            assert target.import_memories(exported).rejected_count == 0
        seen = [{(one.content, one.tags, one.importance) for one in everything(store, "u")} for store in (ours, theirs)]
        assert seen[0] == seen[1]
        assert ("green tea of u", ("ours", "茶"), 0.1) in seen[0]
        assert len(seen[0]) == 3


def test_an_export_does_not_continue_one_of_the_original(replica: Path, tmp_path: Path) -> None:
    with open_replica(replica, index=INDEX) as store:
        store.export_memories(tmp_path / "full.jsonl")
    shutil.copytree(replica, tmp_path / "copy")
    with open_replica(tmp_path / "copy") as store, pytest.raises(memory.Refused, match="another history"):
        store.export_memories(tmp_path / "rest.jsonl", after=tmp_path / "full.jsonl")
    with open_replica(replica, index=INDEX) as store:
        assert store.export_memories(tmp_path / "rest.jsonl", after=tmp_path / "full.jsonl").memories == 0


def test_a_copy_of_a_replica_without_users_has_a_history_of_its_own_too(tmp_path: Path) -> None:
    first = epoch_at(tmp_path / "replica")
    shutil.copytree(tmp_path / "replica", tmp_path / "copy")
    assert epoch_at(tmp_path / "copy") != first == epoch_at(tmp_path / "replica")


def test_a_replica_that_was_moved_stays_what_it_is(replica: Path, tmp_path: Path) -> None:
    before = epoch_at(replica)
    replica.rename(tmp_path / "moved")
    assert epoch_at(tmp_path / "moved") == before


@pytest.mark.parametrize("examined", [False, True])
def test_a_user_brought_in_from_elsewhere_begins_a_new_history(replica: Path, tmp_path: Path, examined: bool) -> None:
    before = epoch_at(replica)
    with open_replica(tmp_path / "other") as store:
        store.add_memory("from elsewhere", user_id="w")
    shutil.copytree(folder_of(tmp_path / "other", "w"), folder_of(replica, "w"))
    if examined:
        assert problems(replica) == {}
    renewed = epoch_at(replica)
    assert renewed != before
    assert epoch_at(replica) == renewed
    assert contents(replica)["w"] == ["from elsewhere"]


def test_a_new_history_that_could_not_be_noted_is_begun_at_the_next_opening(
    replica: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = epoch_at(replica)
    folder = folder_of(replica)
    shutil.copytree(folder, tmp_path / "copy")
    folder.rename(tmp_path / "original")
    (tmp_path / "copy").rename(folder)

    def full(_home: Home) -> None:
        raise memory.StoreFull

    with monkeypatch.context() as patched:
        patched.setattr(Home, "renew_identity", full)
        with open_replica(replica, index=INDEX) as store, pytest.raises(memory.StoreFull):
            store.list_memories(user_id="u")
    assert epoch_at(replica) != before


# Damage


def test_a_damaged_file_is_its_users_trouble_alone(replica: Path) -> None:
    file = folder_of(replica) / "memory.db"
    good = file.read_bytes()
    for damaged in (good[:6_000], b"not a database" * 1_000, b"", None):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        with open_replica(replica, index=INDEX) as store:
            with pytest.raises(memory.StoreError) as caught:
                store.recall("green tea", user_id="u")
            with pytest.raises(memory.StoreError):
                store.add_memory("more", user_id="u")
            assert isinstance(caught.value, memory.IntegrityFailure | memory.SchemaMismatch)
            assert str(file.parent) in caught.value.message
            assert store.recall("green tea", user_id="v")[0].memory.content == "green tea of v"
            store.add_memory("more", user_id="v")
    with closing(sqlite3.connect(file.parent / "whole")) as connection:
        connection.execute("CREATE TABLE photos (name)")
    (file.parent / "whole").replace(file)
    with open_replica(replica, index=INDEX) as store, pytest.raises(memory.SchemaMismatch):
        store.recall("green tea", user_id="u")
    file.write_bytes(good)
    assert contents(replica)["u"] == ["green tea of u"]


def test_a_folder_under_another_users_name_is_refused(replica: Path) -> None:
    folder_of(replica).rename(folder_of(replica, "w"))
    with open_replica(replica, index=INDEX) as store:
        with pytest.raises(memory.IntegrityFailure, match="another user"):
            store.list_memories(user_id="w")
        assert everything(store, "u") == []
        store.add_memory("anew", user_id="u")
        assert store.stats(user_id="u").memories_by_status == {"active": 1}
    assert problems(replica) == {"folders": 1}


def test_a_folder_that_does_not_say_whose_it_is_is_found_by_its_name(replica: Path) -> None:
    (folder_of(replica) / "user.txt").unlink()
    with open_replica(replica, index=INDEX) as store:
        assert [item.content for item in everything(store, "u")] == ["green tea of u"]
        with pytest.raises(memory.IntegrityFailure, match=r"user\.txt"):
            store.stats()
