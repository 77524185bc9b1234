"""The asynchronous façade: the same provider, its verbs run in worker threads of its own.

There is no second implementation. A cancelled call is no longer waited for, but the verb itself runs to its
end, so nothing is ever half-written. One façade may be used from several event loops.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from memory.connect import connect
from memory.core.errors import UsageError
from memory.core.provider import MemoryProvider
from memory.engine.provider import StorageProvider

P = ParamSpec("P")
R = TypeVar("R")


def _in_thread(
    verb: Callable[Concatenate[MemoryProvider, P], R],
) -> Callable[Concatenate[AsyncMemoryProvider, P], Coroutine[Any, Any, R]]:
    """The awaitable twin of a verb, with its signature and documentation."""

    @functools.wraps(verb)
    async def call(self: AsyncMemoryProvider, /, *args: P.args, **kwargs: P.kwargs) -> R:
        method = getattr(self.sync, verb.__name__)
        return await self.run(functools.partial(method, *args, **kwargs))

    return call


class AsyncMemoryProvider:
    """``MemoryProvider`` with verbs to await."""

    def __init__(self, provider: MemoryProvider, *, threads: int = 16) -> None:
        """Wrap an open provider, which is closed with the façade.

        Args:
            provider: The provider that does the work.
            threads: Most verbs at a time; more wait their turn.
        """
        self.sync = provider
        self._closed = False
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="memory")

    async def run(self, call: Callable[[], R]) -> R:
        """Run a call in one of the façade's threads."""
        if self._closed:
            raise UsageError("the provider is closed", hint="open a new one with memory.connect_async()")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    add_memory = _in_thread(MemoryProvider.add_memory)
    add_many = _in_thread(MemoryProvider.add_many)
    get_memory = _in_thread(MemoryProvider.get_memory)
    list_memories = _in_thread(MemoryProvider.list_memories)
    recall = _in_thread(MemoryProvider.recall)
    update_memory = _in_thread(MemoryProvider.update_memory)
    archive_memory = _in_thread(MemoryProvider.archive_memory)
    delete_memory = _in_thread(MemoryProvider.delete_memory)
    export_memories = _in_thread(MemoryProvider.export_memories)
    import_memories = _in_thread(MemoryProvider.import_memories)
    stats = _in_thread(MemoryProvider.stats)
    flush = _in_thread(MemoryProvider.flush)

    async def close(self) -> None:
        """Flush, close the provider and end the threads. Idempotent."""
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.shutdown(wait=True)
        self.sync.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


async def connect_async(url: str | None = None, **arguments: Any) -> AsyncMemoryProvider:
    """``memory.connect`` without blocking the event loop."""
    opening = asyncio.create_task(asyncio.to_thread(connect, url, **arguments))
    try:
        return AsyncMemoryProvider(await asyncio.shield(opening))
    except asyncio.CancelledError:
        # The thread opens it all the same; somebody has to close it.
        opening.add_done_callback(_close_unwanted)
        raise


def _close_unwanted(opening: asyncio.Task[StorageProvider]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=opening.result().close, name="memory close").start()
