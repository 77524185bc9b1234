"""The asynchronous façade: same verbs, no blocked loop, nothing half-written."""

from __future__ import annotations

import asyncio
import inspect
import io
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import memory
from memory.core.ports import Vectors
from memory.embedding.hashing import HashingEmbedder


class BlockingEmbedder(HashingEmbedder):
    """Computes for 200 ms without giving anything else a turn, as a model does."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        time.sleep(0.2)
        return super().embed_documents(texts)


def test_every_verb_can_be_awaited(database_url: str) -> None:
    async def work() -> None:
        async with await memory.connect_async(database_url, embedding_model="hashing") as store:
            added = await store.add_memory("喜欢喝咖啡", user_id="u", tags=["a"])
            await store.add_many([memory.NewMemory(content="tea")], user_id="u")
            assert await store.get_memory(added.memory_id, user_id="u") == added
            assert (await store.recall("咖啡", user_id="u", top_k=1))[0].memory == added
            changed = await store.update_memory(added.memory_id, user_id="u", content="喜欢喝茶")
            assert changed.content == "喜欢喝茶"
            await store.archive_memory(added.memory_id, user_id="u")
            assert len((await store.list_memories(user_id="u")).items) == 1
            target = io.BytesIO()
            assert (await store.export_memories(target)).memories == 2
            report = await store.import_memories(io.BytesIO(target.getvalue()))
            assert report.unchanged == 2
            await store.flush()
            await store.delete_memory(added.memory_id, user_id="u")
            assert (await store.stats()).deletions == 1
            with pytest.raises(memory.NotFound):
                await store.get_memory(added.memory_id, user_id="u")

    asyncio.run(work())


def test_the_facade_has_the_providers_verbs_with_their_signatures() -> None:
    for name, verb in inspect.getmembers(memory.MemoryProvider, inspect.isfunction):
        if name.startswith("_") or name == "close":
            continue
        twin = getattr(memory.AsyncMemoryProvider, name)
        assert inspect.iscoroutinefunction(twin), name
        assert inspect.signature(twin).parameters.keys() == inspect.signature(verb).parameters.keys()
        assert twin.__doc__ == verb.__doc__


def test_the_event_loop_is_not_blocked_by_a_computing_model() -> None:
    async def work() -> float:
        longest = 0.0
        async with await memory.connect_async("memory://", embedder=BlockingEmbedder()) as store:
            tasks = [asyncio.create_task(store.add_memory(f"note {i}", user_id="u")) for i in range(8)]
            while not all(task.done() for task in tasks):
                before = time.perf_counter()
                await asyncio.sleep(0.01)
                longest = max(longest, time.perf_counter() - before)
        return longest

    assert asyncio.run(work()) < 0.15  # one blocked call alone would be 0.2 s


def test_one_facade_serves_two_event_loops_one_after_the_other(database_url: str) -> None:
    store = asyncio.run(memory.connect_async(database_url, embedding_model="hashing"))
    first = asyncio.run(store.add_memory("from the first loop", user_id="u"))
    hits = asyncio.run(store.recall("first loop", user_id="u"))
    assert [hit.memory for hit in hits] == [first]
    asyncio.run(store.close())


def test_a_cancelled_add_is_whole_or_not_there(database_url: str) -> None:
    async def work() -> list[Any]:
        async with await memory.connect_async(database_url, embedder=BlockingEmbedder()) as store:
            task = asyncio.create_task(store.add_memory("cancelled", user_id="u", tags=["t"], metadata={"k": 1}))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.4)
            return list((await store.list_memories(user_id="u")).items)

    found = asyncio.run(work())
    assert [(m.content, m.tags, m.metadata) for m in found] in ([], [("cancelled", ("t",), {"k": 1})])


def test_a_cancelled_opening_leaves_no_provider_behind(database_url: str) -> None:
    before = set(threading.enumerate())  # a pool that another test has closed may still be ending its threads

    def ours() -> set[str]:
        begun = set(threading.enumerate()) - before
        return {thread.name for thread in begun if thread.name.startswith(("pool-", "memory "))}

    async def work() -> None:
        for _ in range(3):
            opening = asyncio.create_task(memory.connect_async(database_url, embedding_model="hashing"))
            await asyncio.sleep(0.01)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        for _ in range(300):
            await asyncio.sleep(0.02)
            if not ours():
                break

    asyncio.run(work())
    assert ours() == set()


def test_a_verb_after_closing_is_a_usage_error() -> None:
    async def work() -> None:
        store = await memory.connect_async("memory://", embedding_model="hashing")
        await store.close()
        await store.close()
        with pytest.raises(memory.UsageError, match="closed"):
            await store.recall("x", user_id="u")

    asyncio.run(work())
