"""``MemoryConfig``: every setting, and the only reader of the environment."""

from __future__ import annotations

import difflib
import logging
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from memory.core.errors import ConfigError
from memory.engine.provider import EngineSettings
from memory.policies import limits
from memory.policies.ranking import RankingWeights

logger = logging.getLogger(__name__)
PREFIX = "MEMORY_"
Weight = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Days = Annotated[float, Field(gt=0.0, le=100_000.0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0.0, le=86_400.0, allow_inf_nan=False)]


def _not_empty(path: Path) -> Path:
    if path == Path():
        raise ValueError("must not be empty: that would be the working directory")
    return path


class MemoryConfig(BaseSettings):
    """Settings; each may be given as an argument or in the environment under ``MEMORY_`` and its name.

    For example ``MEMORY_DATABASE_URL`` or ``MEMORY_RECALL_TOP_K``.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    database_url: SecretStr | None = None
    """Where the memories are, in the forms that ``memory.connect`` takes. None: the embedded Postgres."""
    data_directory: Annotated[Path, AfterValidator(_not_empty)] | None = None
    """Of the embedded Postgres. None: the platform's place for application data."""
    embedded_user: str | None = None
    """Account that runs the embedded Postgres when the program itself runs as root."""
    auto_migrate: bool | None = None
    """Upgrade the schema at open. None: only that of the embedded Postgres."""
    pool_size: Annotated[int, Field(ge=1, le=1_000)] = 10
    """Most connections to Postgres at a time."""
    connect_timeout: Seconds = 30.0
    """Seconds to wait for a connection, at open and later."""

    sqlite_synchronous: Annotated[str, Field(pattern="^(full|normal)$")] = "full"
    """Of a replica: with ``normal`` a write does not wait for the disk, and may be lost when the power fails."""
    vector_index: Annotated[str, Field(pattern="^(edge|local)$")] = "edge"
    """Of a replica without ``qdrant_url``: Qdrant's engine in this process, or the local mode of its client."""
    qdrant_url: str | None = None
    """A Qdrant server to keep a replica's vectors in."""
    qdrant_api_key: SecretStr | None = None
    checkpoint_interval: Seconds = 300.0
    """Seconds between check-points, which cut the logs of a replica's files."""
    centre_url: SecretStr | None = None
    """Of a replica: the central database to sync with."""
    sync_background: bool = True
    """Of a replica with a centre: sync at intervals, after writes, and when the centre tells of changes."""
    sync_interval: Seconds = 60.0
    """Seconds between syncs while nothing happens."""
    max_open_users: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Users of a replica whose files are kept open."""

    embedding_model: str = "local"
    """``local`` (bundled), ``fastembed:NAME``, ``openai:NAME`` (any compatible endpoint), ``hashing`` (tests)."""
    embedding_dim: Annotated[int, Field(ge=1, le=16_000)] | None = None
    """Dimension of an HTTP model, if the endpoint should not be asked."""
    embedding_api_key: SecretStr | None = None
    embedding_base_url: str | None = None
    """Of an OpenAI-compatible endpoint, e.g. ``http://localhost:11434/v1``."""
    embedding_timeout: Seconds = 30.0
    embedding_batch_size: Annotated[int, Field(ge=1, le=2_048)] = 64
    similarity_floor: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Cosine that unrelated texts reach with the model. None: the model's own figure."""
    defer_embedding: bool = False
    """Return from a write before embedding; a new memory is found by its words until the vector is there."""

    recall_top_k: Annotated[int, Field(ge=1, le=limits.MAX_TOP_K)] = 10
    rerank_alpha: Weight = 0.6
    """Weight of relevance."""
    rerank_beta: Weight = 0.25
    """Weight of importance."""
    rerank_gamma: Weight = 0.15
    """Weight of recency."""
    semantic_share: Weight = 0.4
    """Share of meaning in relevance; the rest is words."""
    recency_days: Days = 30.0
    """Time constant of recency."""
    importance_days: Days = 90.0
    """Time constant with which importance fades for ranking."""
    rank_by: Annotated[str, Field(pattern="^(effective|stored)$")] = "effective"
    """Rank by importance faded with time (``effective``) or as ``stored``."""
    track_access: bool = True
    """Count which memories recalls return."""
    flush_interval: Seconds = 1.0
    """Seconds between writes of access counts."""
    retry_interval: Seconds = 30.0
    """Seconds between attempts to embed what could not be embedded."""

    now: int | None = Field(default=None, ge=limits.EARLIEST_MS, le=limits.LATEST_MS)
    """A fixed time in ms UTC instead of the clock, for repeatable runs."""

    def engine_settings(self) -> EngineSettings:
        """What the verbs need of this."""
        weights = RankingWeights(
            relevance=self.rerank_alpha,
            importance=self.rerank_beta,
            recency=self.rerank_gamma,
            semantic_share=self.semantic_share,
            recency_days=self.recency_days,
            importance_days=self.importance_days,
            effective_importance=self.rank_by == "effective",
        )
        return EngineSettings(
            weights=weights,
            top_k=self.recall_top_k,
            track_access=self.track_access,
            defer_embedding=self.defer_embedding,
            flush_interval=self.flush_interval,
            retry_interval=self.retry_interval,
        )


def _near(name: str) -> str:
    close = difflib.get_close_matches(name, MemoryConfig.model_fields, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(MemoryConfig.model_fields))}"


def load_config(**settings: Any) -> MemoryConfig:
    """A config from arguments and the environment.

    Raises:
        ConfigError: a setting is unknown or has an unusable value; ``setting`` names it.
    """
    known = {f"{PREFIX}{name.upper()}" for name in MemoryConfig.model_fields}
    for name in sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known):
        logger.warning("%s in the environment is no setting: %s", name, _near(name.removeprefix(PREFIX).lower()))
    try:
        return MemoryConfig(**settings)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{name}: no such setting", hint=_near(name), setting=name) from None
        raise ConfigError(
            f"{name}: {first['msg']}",
            hint=f"set it in code, or as {PREFIX}{name.upper()} in the environment",
            setting=name,
        ) from None
