"""One process owns a replica, however others come and go."""

from __future__ import annotations

import gc
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import memory
from edge import reembedding, revisions
from edge.doctor import Doctor
from memory.embedding.hashing import HashingEmbedder
from memory.testing.base import everything
from tests.integration.edge.others import Holder, elsewhere, holding
from tests.plain_index import plain_index
from tests.replicas import findings, open_replica, settle


def contents(path: Path, user_id: str = "u") -> list[str]:
    with open_replica(path, index=plain_index(), track_access=False) as store:
        return sorted(found.content for found in everything(store, user_id))


def test_a_second_provider_of_this_process_is_told_so(tmp_path: Path) -> None:
    with open_replica(tmp_path) as store:
        with pytest.raises(memory.StoreInUse, match="in this process already") as caught:
            memory.connect(f"edge://{tmp_path}", embedding_model="hashing")
        assert caught.value.pid == os.getpid()
        assert "share one provider" in caught.value.hint
        store.add_memory("the first goes on", user_id="u")
    assert contents(tmp_path) == ["the first goes on"]


def test_a_second_process_is_told_whose_the_replica_is(tmp_path: Path) -> None:
    with holding(tmp_path) as holder:
        with pytest.raises(memory.StoreInUse, match=f"process {holder.pid}") as caught:
            open_replica(tmp_path)
        assert caught.value.pid == holder.pid != os.getpid()
        assert caught.value.retryable
        assert "end that process" in caught.value.hint
    assert contents(tmp_path) == ["of the other process"]


def test_what_works_below_the_verbs_waits_for_the_owner_too(tmp_path: Path) -> None:
    with open_replica(tmp_path, index=plain_index()) as store:
        store.add_memory("green tea", user_id="u")
        for call in (
            lambda: Doctor(tmp_path, plain_index(), repair=True),
            lambda: revisions.revisions(tmp_path),
            lambda: revisions.upgrade(tmp_path),
            lambda: reembedding.reembed(tmp_path, HashingEmbedder(32), plain_index(), lambda *_: None),
        ):
            with pytest.raises(memory.StoreInUse) as caught:
                call()
            assert caught.value.pid == os.getpid()
    assert contents(tmp_path) == ["green tea"]


def test_a_killed_owner_leaves_nothing_locked(tmp_path: Path) -> None:
    for times in (1, 2, 3):
        with holding(tmp_path) as holder:
            with pytest.raises(memory.StoreInUse):
                open_replica(tmp_path)
            holder.kill()
            assert contents(tmp_path) == ["of the other process"] * times
    assert findings(tmp_path) == {}


def test_a_pid_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    with open_replica(tmp_path):
        (tmp_path / "owner.lock").write_bytes(b"\xff what")
        with pytest.raises(memory.StoreInUse, match="another process") as caught:
            open_replica(tmp_path)
        assert caught.value.pid is None


def test_closing_gives_the_directory_back(tmp_path: Path) -> None:
    store = open_replica(tmp_path)
    store.close()
    store.close()
    assert elsewhere(contents, tmp_path) == []


def test_an_open_that_fails_gives_the_directory_back(tmp_path: Path) -> None:
    with open_replica(tmp_path, embedding_model="hashing:32") as store:
        store.add_memory("green tea", user_id="u")
    with pytest.raises(memory.ModelMismatch):
        memory.connect(f"edge://{tmp_path}", embedding_model="hashing")

    def broken(_replica: str) -> Any:
        raise memory.ConfigError("no such index")

    with pytest.raises(memory.ConfigError):
        open_replica(tmp_path, index=broken, embedding_model="hashing:32")
    assert elsewhere(add_with_32, tmp_path).content == "by another process"


def add_with_32(path: Path) -> memory.Memory:
    with open_replica(path, index=plain_index(), embedding_model="hashing:32") as store:
        return store.add_memory("by another process", user_id="u")


# Forks


def fork_and_wait(pipe: Connection, path: Path) -> None:
    """Open a replica, leave a child behind that sleeps, and wait to be killed."""
    store = open_replica(path, index=plain_index())
    store.add_memory("of the parent", user_id="u")
    child = os.fork()
    if child == 0:
        pipe.close()
        time.sleep(600)
        os._exit(0)
    pipe.send(child)
    pipe.recv()


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_replica(tmp_path: Path) -> None:
    holder = Holder(tmp_path, fork_and_wait)
    child = holder.said
    try:
        holder.kill()
        os.kill(child, 0)  # it is alive
        assert contents(tmp_path) == ["of the parent"]
    finally:
        os.kill(child, signal.SIGKILL)
        holder.close()


def use_in_a_child(path: Path) -> dict[str, Any]:
    """Use a parent's provider in its child, close it there, and go on in the parent."""
    store = open_replica(path)
    first = store.add_memory("of the parent", user_id="u")
    settle(store)
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for use in (
                lambda: store.add_memory("of the child", user_id="u"),
                lambda: store.recall("parent", user_id="u"),
                lambda: store.delete_memory(first.memory_id, user_id="u"),
                store.stats,
            ):
                try:
                    use()
                except memory.UsageError as error:
                    os.write(say, f"{error.hint}\n".encode())
            try:
                open_replica(path)
            except memory.StoreInUse as error:
                os.write(say, f"{error.pid}\n".encode())
            store.close()
            del store
            gc.collect()
        finally:
            os._exit(0)
    os.close(say)
    os.waitpid(child, 0)
    with os.fdopen(said) as stream:
        answers = stream.read().splitlines()
    try:
        open_replica(path)
        locked = False
    except memory.StoreInUse:
        locked = True
    store.add_memory("of the parent, later", user_id="u")
    store.close()
    return {"answers": answers, "locked": locked, "pid": os.getpid()}


def test_a_provider_is_of_no_use_in_a_child_and_closing_it_there_harms_nothing(tmp_path: Path) -> None:
    answer = elsewhere(use_in_a_child, tmp_path)
    assert answer["answers"] == ["call memory.connect() in each process"] * 4 + [str(answer["pid"])]
    assert answer["locked"]
    assert contents(tmp_path) == ["of the parent", "of the parent, later"]
    assert findings(tmp_path) == {}


def open_in_a_child(path: Path) -> bool:
    """A child opens the replica that its parent has closed before it."""
    with open_replica(path, index=plain_index()) as store:
        store.add_memory("of the parent", user_id="u")
    child = os.fork()
    if child == 0:
        try:
            with open_replica(path, index=plain_index()) as store:
                store.add_memory("of the child", user_id="u")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return contents(path) == ["of the child", "of the parent"]


def test_a_child_may_open_what_its_parent_has_closed(tmp_path: Path) -> None:
    assert elsewhere(open_in_a_child, tmp_path)


def test_a_provider_that_was_closed_while_it_was_used_touches_nothing_any_more(tmp_path: Path) -> None:
    """A thread that is inside a verb when another closes the provider must not open files it no longer owns."""
    store = open_replica(tmp_path, index=plain_index())
    store.add_memory("green tea", user_id="u")
    storage = store._storage
    store.close()
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    with pytest.raises(memory.UsageError, match="closed"):
        storage.fetch("u", [])
    with pytest.raises(memory.UsageError, match="closed"):
        storage.insert("v", [], fresh_ids=True)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
