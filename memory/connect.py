"""The composition root: from a URL or a config to a ready provider. The one place that picks adapters."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload
from urllib.parse import unquote

from memory.config import MemoryConfig, load_config
from memory.core.centre import SyncCentre
from memory.core.errors import ConfigError, ModelMismatch, Unsupported
from memory.core.ports import Clock, Embedder
from memory.embedding.factory import embedder_from, spec_of
from memory.engine.embedding import REEMBED_COMMAND
from memory.engine.provider import StorageProvider
from memory.postgres import migrations
from memory.postgres.centre import dial_centre
from memory.postgres.database import Database
from memory.postgres.embedded import EmbeddedServer, default_directory
from memory.postgres.epoch import adopt_epoch
from memory.postgres.models import adopt_model
from memory.postgres.storage import PostgresStorage
from memory.volatile.storage import VolatileStorage

if TYPE_CHECKING:
    from edge.provider import EdgeMemory
    from edge.storage import EdgeStorage
    from edge.vectors.port import IndexFactory

POSTGRES_SCHEMES = ("postgresql", "postgres")
EDGE_SCHEME = "edge"
CENTRE_CONNECTIONS: Final = 2
"""A device talks to its centre one request at a time; another may be closing."""
URL_FORMS = "use postgresql://…, edge:///directory, memory:// or no URL"


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000


class FixedClock:
    """A clock that stands still."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now(self) -> int:
        """Always the same time."""
        return self._now


@overload
def connect(
    url: str,
    *,
    centre: str,
    config: MemoryConfig | None = None,
    embedder: Embedder | None = None,
    **settings: Any,
) -> EdgeMemory: ...


@overload
def connect(
    url: str | None = None,
    *,
    centre: None = None,
    config: MemoryConfig | None = None,
    embedder: Embedder | None = None,
    **settings: Any,
) -> StorageProvider: ...


def connect(
    url: str | None = None,
    *,
    centre: str | None = None,
    config: MemoryConfig | None = None,
    embedder: Embedder | None = None,
    **settings: Any,
) -> StorageProvider:
    """Open a memory provider.

    Args:
        url: ``postgresql://…`` (a server of yours), ``edge:///directory`` (a replica on this device),
            ``memory://`` (in this process only), or None: ``MEMORY_DATABASE_URL``, and without that a Postgres
            server that comes with this package and is started, shared and stopped by the processes that use it.
        centre: Of a replica: the ``postgresql://…`` URL of the database that it syncs with. It need not be reachable.
            None: ``MEMORY_CENTRE_URL``, and without that the replica has no centre.
        config: Ready-made settings instead of ``settings``.
        embedder: An embedder of your own instead of the configured model; it is closed with the provider.
        **settings: Fields of ``MemoryConfig``.

    Raises:
        ConfigError: an unusable URL or setting. StoreUnavailable: no connection. StoreInUse: another process has
        the replica open.
        SchemaMismatch: the schema is not at this program's revision. ModelMismatch: another embedding model's
        vectors are there. EmbeddingError: the model cannot be used.
    """
    if url is not None and not isinstance(url, str):
        raise ConfigError(f"database URL: must be a string, not {type(url).__name__}")
    if centre is not None:
        settings["centre_url"] = centre
    config = _configured(config, settings)
    if url is None and config.database_url is not None:
        url = config.database_url.get_secret_value()
    clock: Clock = SystemClock() if config.now is None else FixedClock(config.now)
    scheme = None if url is None else _scheme(url)
    ready = embedder or make_embedder(config)
    try:
        if scheme == "memory":
            return _volatile(config, clock, ready)
        if url is not None and scheme == EDGE_SCHEME:
            return _edge(edge_path(url), config, clock, ready)
        if centre is not None:
            raise ConfigError("centre: only a replica has one", hint="use it with edge:///directory")
        return _central(url, config, clock, ready)
    except BaseException as error:
        if embedder is None:  # the caller's own stays the caller's until there is a provider
            ready.close()
            if isinstance(error, ModelMismatch):
                error.hint = _model_hint(error.stored, config)
        raise


def _configured(config: MemoryConfig | None, settings: dict[str, Any]) -> MemoryConfig:
    if config is None:
        return load_config(**settings)
    if not isinstance(config, MemoryConfig):
        raise ConfigError(f"config: must be a MemoryConfig, not {type(config).__name__}")
    if settings:
        raise ConfigError("give either `config` or single settings, not both")
    return config


def make_embedder(config: MemoryConfig) -> Embedder:
    """The configured embedding model."""
    key = config.embedding_api_key
    return embedder_from(
        config.embedding_model,
        api_key=None if key is None else key.get_secret_value(),
        base_url=config.embedding_base_url,
        dimension=config.embedding_dim,
        similarity_floor=config.similarity_floor,
        timeout=config.embedding_timeout,
        batch_size=config.embedding_batch_size,
    )


def embedded_server(config: MemoryConfig) -> EmbeddedServer:
    """The embedded server of a config, not started yet."""
    return EmbeddedServer(config.data_directory or default_directory(), run_as=config.embedded_user)


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition(":" if url.startswith(f"{EDGE_SCHEME}:") else "://")
    if not separator:
        # What stands there is not repeated: it may hold a password.
        raise ConfigError("database URL: it has no scheme", hint=URL_FORMS)
    if scheme in (*POSTGRES_SCHEMES, EDGE_SCHEME, "memory"):
        return scheme
    if scheme in ("http", "https"):
        raise Unsupported(f"{scheme}: is not in this release", hint=URL_FORMS)
    raise ConfigError(f"database URL: the scheme {scheme!r:.40} is not known", hint=URL_FORMS)


def edge_path(url: str) -> Path:
    """The directory of an ``edge:`` URL: ``edge:///absolute/path``, or ``edge:path`` from the working directory.

    Raises:
        ConfigError: it names a host, or no path.
    """
    text = url.removeprefix(f"{EDGE_SCHEME}:")
    if text.startswith("//") and not text.startswith("///"):
        raise ConfigError(
            "database URL: edge:// is followed by a host here, and a replica is a directory of this machine",
            hint="write edge:///absolute/path with three slashes, or edge:relative/path",
        )
    text = text.removeprefix("//")
    if "?" in text or "#" in text:
        raise ConfigError("database URL: an edge: URL has no ? or #", hint="write %3F or %23 for one in the path")
    path = unquote(text)
    if not path.strip("/"):
        raise ConfigError("database URL: it names no directory", hint="write edge:///absolute/path")
    return Path(path)


def _volatile(config: MemoryConfig, clock: Clock, embedder: Embedder) -> StorageProvider:
    storage = VolatileStorage(clock, model=embedder.name, dimension=embedder.dimension)
    return StorageProvider(storage, embedder, clock, config.engine_settings())


def _edge(path: Path, config: MemoryConfig, clock: Clock, embedder: Embedder) -> EdgeMemory:
    from edge.provider import EdgeMemory, SyncSettings  # noqa: PLC0415

    dial = centre_dial(config)
    storage = open_replica(path, config, clock, embedder)
    settings = SyncSettings(background=config.sync_background, interval=config.sync_interval)
    return EdgeMemory(storage, embedder, clock, config.engine_settings(), dial=dial, sync=settings)


def centre_dial(config: MemoryConfig) -> Callable[[], SyncCentre] | None:
    """How to reach the configured centre of a replica, when it is needed; None if there is none.

    Raises:
        ConfigError: no carrier knows the URL.
    """
    if config.centre_url is None:
        return None
    url = config.centre_url.get_secret_value()
    scheme = url.split("://", 1)[0]
    if scheme not in POSTGRES_SCHEMES:
        raise ConfigError(
            "centre: is no URL of a central database", hint="use postgresql://user:password@host/database"
        )
    clock = None if config.now is None else FixedClock(config.now)
    return lambda: dial_centre(url, clock, pool_size=CENTRE_CONNECTIONS, timeout=config.connect_timeout)


def open_replica(path: Path, config: MemoryConfig, clock: Clock, embedder: Embedder) -> EdgeStorage:
    """Open the replica in a directory, or make one."""
    # Only who asks for a replica pays for loading it, and what it brings along.
    from edge.opening import EdgeSettings, open_storage  # noqa: PLC0415

    settings = EdgeSettings(
        synchronous=config.sqlite_synchronous,
        max_open_users=config.max_open_users,
        tidy_interval=config.checkpoint_interval,
    )
    return open_storage(path, embedder, clock, index_maker(config), settings)


def index_maker(config: MemoryConfig) -> Callable[[str], IndexFactory]:
    """Makes the configured kind of vector index for the replica of a given identity."""
    if config.qdrant_url is None and config.vector_index == "edge":
        from edge.vectors.engine import EdgeEngineFactory  # noqa: PLC0415

        return lambda _replica: EdgeEngineFactory()
    from edge.vectors.client import QdrantLocalFactory, QdrantServerFactory  # noqa: PLC0415

    url = config.qdrant_url
    if url is None:
        return lambda _replica: QdrantLocalFactory()
    key = config.qdrant_api_key
    return lambda replica: QdrantServerFactory(
        url,
        api_key=None if key is None else key.get_secret_value(),
        collection=f"memory-{replica}",
        timeout=config.connect_timeout,
    )


def _central(url: str | None, config: MemoryConfig, clock: Clock, embedder: Embedder) -> StorageProvider:
    if url is not None:
        return _on_postgres(url, config, clock, embedder, migrate=config.auto_migrate is True)
    server = embedded_server(config)
    own = server.start()
    try:
        migrate = config.auto_migrate is not False
        return _on_postgres(own, config, clock, embedder, migrate=migrate, server=server)
    except BaseException:
        server.stop()
        raise


def _on_postgres(
    conninfo: str,
    config: MemoryConfig,
    clock: Clock,
    embedder: Embedder,
    *,
    migrate: bool,
    server: EmbeddedServer | None = None,
) -> StorageProvider:
    if migrate:
        migrations.upgrade(conninfo)
    migrations.check(conninfo)
    database = Database(conninfo, pool_size=config.pool_size, timeout=config.connect_timeout)
    try:
        adopt_epoch(database)
        model_id, dimension = adopt_model(database, embedder)
        storage = PostgresStorage(database, clock, model_id=model_id, model=embedder.name, dimension=dimension)
        on_close = (lambda: None) if server is None else server.stop
        return StorageProvider(storage, embedder, clock, config.engine_settings(), on_close=on_close)
    except BaseException:
        database.close()
        raise


def _model_hint(stored: str, config: MemoryConfig) -> str:
    """The way out of a ModelMismatch, in terms of settings."""
    reembed = f"memory --embedding-model {config.embedding_model} {REEMBED_COMMAND.removeprefix('memory ')}"
    return (
        f"set embedding_model (MEMORY_EMBEDDING_MODEL) back to {spec_of(stored)!r},"
        f" or embed everything anew with `{reembed}` and the same --url or --data-directory"
    )
