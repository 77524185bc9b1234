"""From a directory to a ready storage: the order in which a replica is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge.home import Home
from edge.maintenance import Maintenance
from edge.replica import Kit
from edge.sqlite.migrations import Schema
from edge.steps import Step, no_step
from edge.storage import EdgeStorage
from edge.users import Users
from edge.vectors.port import IndexFactory
from memory.core.ports import Clock, Embedder


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSettings:
    """What a replica needs to know of the configuration."""

    synchronous: str = "full"
    max_open_users: int = 64
    drain_interval: float = 1.0
    """Seconds between looks for changes that have not reached the indexes."""
    tidy_interval: float = 300.0
    """Seconds between check-points of the logs."""


def open_storage(
    path: Path,
    embedder: Embedder,
    clock: Clock,
    index: Callable[[str], IndexFactory],
    settings: EdgeSettings,
    *,
    schema: Schema | None = None,
    step: Step = no_step,
) -> EdgeStorage:
    """Open a replica's directory, or make one.

    Args:
        path: The directory.
        embedder: Its vectors must be what the replica holds.
        clock: Of the stamps.
        index: Makes the vector index, from the replica's identity.
        settings: See there.
        schema: Other migrations, for tests.
        step: Called with the name of each durable step when it is done; tests end the process there.

    Raises:
        StoreInUse: another process has it open. ModelMismatch: it holds vectors of another model. SchemaMismatch:
        it is newer than this program. IntegrityFailure: it was copied in part. ConfigError, Unsupported,
        StoreError: the directory cannot be used.
    """
    home = Home(path, create=True)
    try:
        description = home.describe(embedder)
        factory = index(description.replica)
        kit = Kit(
            schema=schema or Schema(),
            factory=factory,
            synchronous=settings.synchronous,
            step=step,
            copied=home.renew_identity,
        )
        users = Users(home.users, kit, description, max_open=settings.max_open_users)
        maintenance = Maintenance(users, drain_interval=settings.drain_interval, tidy_interval=settings.tidy_interval)
        maintenance.start()
        return EdgeStorage(home, users, maintenance, clock, index_name=factory.name)
    except BaseException:
        home.close()
        raise
