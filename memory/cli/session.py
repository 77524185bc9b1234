"""One run of the command: its global options, what it opens, and how it answers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from memory.cli import shapes
from memory.cli.screen import Screen
from memory.config import MemoryConfig, load_config
from memory.connect import EDGE_SCHEME, POSTGRES_SCHEMES, connect, edge_path, embedded_server
from memory.core.errors import Unsupported, UsageError
from memory.core.model import Memory
from memory.core.provider import MemoryProvider
from memory.policies import normalise
from memory.postgres.database import Database


class Session:
    """Made before the command line is read, and told what is found there."""

    def __init__(self) -> None:
        self.as_json = False
        self.debug = False
        self._url: str | None = None
        self._settings: dict[str, Any] = {}

    def settle(self, given: Mapping[str, Any]) -> None:
        """Take global options; those of the command come after, and outdo, those before it."""
        settings = dict(given)
        self.as_json = settings.pop("as_json", self.as_json)
        self.debug = settings.pop("debug", self.debug)
        self._url = settings.pop("url", self._url)
        if "now" in settings:
            now = settings["now"]
            settings["now"] = now if isinstance(now, int) else normalise.timestamp(now, "now")
        if settings.pop("no_track_access", False):
            settings["track_access"] = False
        self._settings |= settings
        logging.basicConfig(level=logging.INFO if self.debug else logging.CRITICAL, force=True)

    # What it works on

    def config(self, **more: Any) -> MemoryConfig:
        """The settings of this run.

        Raises:
            ConfigError: a setting is unusable. UsageError: two options contradict each other.
        """
        settings = {**self._settings, **more}
        if self._url is not None and "data_directory" in settings:
            raise UsageError(
                "--url and --data-directory exclude each other",
                hint="--data-directory is of the bundled Postgres, --url names another",
            )
        if self._url is not None or "data_directory" in settings:
            # A directory on the command line outdoes a URL in the environment.
            settings["database_url"] = self._url
        return load_config(**settings)

    def synced(self, centre: str | None, **more: Any) -> MemoryConfig:
        """The settings of this run, with the centre that a command names, if it names one."""
        if centre is not None:
            self._settings["centre_url"] = centre
        return self.config(**more)

    @contextmanager
    def provider(self, **more: Any) -> Iterator[MemoryProvider]:
        """The memories, open. A single command does not begin to sync besides: `edge sync` does."""
        with connect(config=self.config(**{"sync_background": False, **more})) as store:
            yield store

    def replica(self) -> Path | None:
        """The directory of the replica that the memories are in, if that is where they are."""
        url = url_of(self.config())
        return edge_path(url) if url is not None and url.split(":", 1)[0] == EDGE_SCHEME else None

    @contextmanager
    def centre(self) -> Iterator[str]:
        """The central database as such, for commands that work below the verbs; yields its URL.

        Raises:
            Unsupported: the memories are not in Postgres.
        """
        config = self.config()
        url = url_of(config)
        if url is None:
            with embedded_server(config) as server:
                yield server.url()
        elif is_central(url):
            yield url
        else:
            raise Unsupported(
                f"{urlsplit(url).scheme:.40}: is no Postgres database",
                hint="use --url postgresql://…, or no URL",
            )

    @contextmanager
    def database(self) -> Iterator[Database]:
        """The central database, connected, whatever its schema."""
        config = self.config()
        with self.centre() as url:
            database = Database(url, pool_size=config.pool_size, timeout=config.connect_timeout)
            try:
                yield database
            finally:
                database.close()

    def known_urls(self) -> list[str]:
        """The URLs in use, as far as they can be told; for keeping their passwords out of messages."""
        try:
            config = self.config()
        except UsageError:
            given = (self._url, self._settings.get("centre_url"))
        else:
            centre = config.centre_url
            given = (url_of(config), None if centre is None else centre.get_secret_value())
        return [url for url in given if url is not None]

    # How it answers

    @property
    def out(self) -> IO[str]:
        """Where results go."""
        return sys.stdout

    @property
    def beside(self) -> IO[str]:
        """Where everything goes that is not the result."""
        return sys.stderr

    def show(self, data: object, view: Callable[[Screen], None], *, beside: bool = False) -> None:
        """Print a result, as JSON or by ``view``; ``beside`` the data that stdout carries, on stderr."""
        stream = self.beside if beside else self.out
        if self.as_json:
            stream.write(shapes.encode(data) + "\n")
        else:
            view(Screen(stream))

    def show_notices(self, *memories: Memory) -> None:
        """Print what a caller should know of a call that succeeded; in JSON it is part of the result."""
        if self.as_json:
            return
        screen = Screen(self.beside)
        for notice in dict.fromkeys(notice for memory in memories for notice in memory.notices):
            screen.line(("Note: ", "yellow"), f"{notice.message} ({notice.hint})" if notice.hint else notice.message)


def url_of(config: MemoryConfig) -> str | None:
    """The configured URL; None for the bundled Postgres."""
    return None if config.database_url is None else config.database_url.get_secret_value()


def is_central(url: str) -> bool:
    """Whether a URL is of a Postgres database."""
    return url.split("://", 1)[0] in POSTGRES_SCHEMES
