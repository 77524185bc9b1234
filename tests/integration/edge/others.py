"""Other processes beside the test's own: they answer a question, or hold a replica open until told or killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.forks import LOADED
from tests.plain_index import plain_index
from tests.replicas import open_replica

PATIENCE_S = 60


def elsewhere(function: Callable[..., Any], *arguments: Any, uid: int | None = None) -> Any:
    """Call a function in another process, as another account if asked; its answer, or what it raised."""
    ours, theirs = LOADED.Pipe()
    process = LOADED.Process(target=_answer, args=(theirs, function, arguments, uid))
    process.start()
    theirs.close()
    try:
        if not ours.poll(PATIENCE_S):
            raise TimeoutError(f"{function.__name__} does not answer")
        raised, answer = ours.recv()
    except EOFError:
        process.join(PATIENCE_S)
        raise AssertionError(f"{function.__name__} ended its process with {process.exitcode}") from None
    finally:
        ours.close()
        if process.is_alive():
            process.join(PATIENCE_S)
    process.close()
    if raised:
        raise answer
    return answer


def _answer(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    try:
        answer = (False, function(*arguments))
    except BaseException as error:  # noqa: BLE001  it is raised again where it was asked
        answer = (True, error)
    pipe.send(answer)
    pipe.close()


class Holder:
    """A process that has a replica open."""

    def __init__(self, path: Path, work: Callable[..., Any]) -> None:
        self._pipe, theirs = LOADED.Pipe()
        self._process = LOADED.Process(target=work, args=(theirs, path))
        self._process.start()
        theirs.close()
        assert self._pipe.poll(PATIENCE_S), "it does not come up"
        self.said = self._pipe.recv()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.join(PATIENCE_S)

    def close(self) -> None:
        """Let it close the replica and end."""
        if self._process.is_alive():
            with contextlib.suppress(BrokenPipeError):
                self._pipe.send("close")
            self._process.join(PATIENCE_S)
        self._pipe.close()
        self._process.close()


@contextlib.contextmanager
def holding(path: Path) -> Iterator[Holder]:
    """A process that has added one memory of user ``u`` and keeps the replica open."""
    holder = Holder(path, hold)
    try:
        yield holder
    finally:
        holder.close()


def hold(pipe: Connection, path: Path) -> None:
    """Open, add, and wait for a word."""
    with open_replica(path, index=plain_index()) as store:
        pipe.send(store.add_memory("of the other process", user_id="u").memory_id)
        with contextlib.suppress(EOFError):
            pipe.recv()
