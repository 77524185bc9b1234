"""The first command of a newcomer: starts the database, walks through every verb, says where things are."""

from __future__ import annotations

import time
import uuid
from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer

from memory.cli.commanding import command
from memory.cli.exits import ExitCode
from memory.cli.failures import redacted
from memory.cli.memories import view_hit
from memory.cli.screen import Screen
from memory.cli.session import Session, url_of
from memory.cli.tour import Step, Tour
from memory.config import MemoryConfig
from memory.connect import connect, embedded_server
from memory.core.provider import MemoryProvider
from memory.version import __version__


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "quickstart", panel="Start here")(quickstart)


def quickstart(
    session: Session,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the demo memories in the store.")] = False,
) -> int:
    """Start the database and try everything once, in a few seconds.

    Stores, recalls, updates, archives, deletes, exports and imports memories of a demo user, checks every
    result, and cleans up after itself. Exit code 1 if anything came out wrong.
    """
    started = time.monotonic()
    config = session.config(auto_migrate=True)
    where = _where(config)
    user_id = f"quickstart-{uuid.uuid4().hex[:8]}"
    guide = _Guide(session)
    guide.say(f"nightingale-memory {__version__}: a tour of the memory store, on a demo user\n")
    with connect(config=config) as store:
        model = store.stats().embedding_model
        guide.tell(Step("database", ok=True, detail=f"{where}; embedding model {model}"))
        tour = Tour(store, user_id, lambda: _empty_store(config))
        try:
            for step in tour.steps():
                guide.tell(step)
        finally:
            if not keep:
                tour.clean_up()
    seconds = round(time.monotonic() - started, 1)
    guide.end(config, user_id, where, keep=keep, seconds=seconds)
    return ExitCode.OK if guide.ok else ExitCode.UNEXPECTED


class _Guide:
    """Tells of each step as it happens, or in JSON of all at the end."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._screen = Screen(session.out)
        self._steps: list[Step] = []

    @property
    def ok(self) -> bool:
        """Whether every step went well."""
        return all(step.ok for step in self._steps)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Print a line."""
        if not self._session.as_json:
            self._screen.line(*parts)

    def tell(self, step: Step) -> None:
        """Note a step and print it."""
        self._steps.append(step)
        mark = ("✓ ", "bold green") if step.ok else ("✗ ", "bold red")
        self.say(mark, (f"{step.name:<18}", "bold"), step.detail)
        if not self._session.as_json:
            for number, hit in enumerate(step.hits, start=1):
                view_hit(self._screen, hit, number)

    def end(self, config: MemoryConfig, user_id: str, where: str, *, keep: bool, seconds: float) -> None:
        """Say how it went, where the data are and how to go on."""
        if self._session.as_json:
            self._session.show(self._shape(user_id, where, seconds), lambda _screen: None)
            return
        if not self.ok:
            self.say("\nThat went wrong; please report what is printed above.")
            return
        demo = f"They are still there: memory list --user {user_id}" if keep else "The demo memories are deleted again."
        self.say(f"\nAll of it worked, in {seconds} s. {demo}")
        self.say(("Where your data live: ", "bold"), where)
        self.say(("Next, in Python:", "bold"))
        for line in _program(config):
            self.say(f"    {line}")
        self.say(
            ("And in the shell: ", "bold"),
            'memory add "…" --user me    memory recall "…" --user me    memory --help',
        )

    def _shape(self, user_id: str, where: str, seconds: float) -> dict[str, Any]:
        steps = [{"name": step.name, "ok": step.ok, "detail": step.detail} for step in self._steps]
        return {"ok": self.ok, "user_id": user_id, "where": where, "seconds": seconds, "steps": steps}


def _empty_store(config: MemoryConfig) -> AbstractContextManager[MemoryProvider]:
    return connect("memory://", config=config)


def _where(config: MemoryConfig) -> str:
    url = url_of(config)
    if url is None:
        return f"the bundled Postgres, in {embedded_server(config).directory}"
    return redacted(url, url)


def _program(config: MemoryConfig) -> list[str]:
    """Three lines that work as they stand, but for a password, which is never shown."""
    url = url_of(config)
    argument = "" if url is None else f'"{redacted(url, url)}"'
    if url is None and config.data_directory is not None:
        argument = f'data_directory="{embedded_server(config).directory}"'
    return [
        f"import memory; store = memory.connect({argument})",
        'store.add_memory("项目代号叫夜莺", user_id="me")',
        'print(store.recall("我的项目叫什么？", user_id="me")[0].memory.content)',
    ]
