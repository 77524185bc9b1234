"""Embedding on the way into a store: what fails is kept for later, by item, and reported."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory.core.errors import EmbeddingError, EmbeddingInvalid, EmbeddingUnavailable, ModelMismatch
from memory.core.model import Notice
from memory.core.ports import Embedder, Vector
from memory.engine.storage import Pending, Storage
from memory.engine.worker import PeriodicWorker

logger = logging.getLogger(__name__)
BATCH = 64
REEMBED_COMMAND = "memory db reembed"
RETRY_HINT = "nothing to do: it is found by its words now, and embedded as soon as the model answers"


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector, or why there is none yet."""

    vector: Vector | None
    notice: Notice | None = None


def deferred(reason: str) -> Embedded:
    """No vector yet."""
    return Embedded(None, Notice("embedding_deferred", f"stored, but not yet embedded: {reason}", RETRY_HINT))


def embed_documents(embedder: Embedder, texts: Sequence[str], dimension: int) -> list[Embedded]:
    """Embed texts; item i of the result belongs to ``texts[i]``. Never raises an EmbeddingError."""
    out: list[Embedded] = []
    for start in range(0, len(texts), BATCH):
        out.extend(_embed_batch(embedder, texts[start : start + BATCH], dimension))
    return out


def known_dimension(embedder: Embedder, recorded: tuple[str, int] | None) -> int:
    """Ask the embedder for its dimension; while its service is down, trust what the same model had before.

    Raises:
        EmbeddingUnavailable: nothing is ``recorded`` of this model (name, dimension).
    """
    try:
        return embedder.dimension
    except EmbeddingUnavailable as error:
        if recorded is None or recorded[0] != embedder.name:
            error.hint = error.hint or "start the service, or set embedding_dim to open without asking it"
            raise
        logger.warning("the embedding service does not answer; opening with the dimension on record")
        return recorded[1]


def other_model(holder: str, stored: tuple[str, int], configured: tuple[str, int]) -> ModelMismatch:
    """The error for a store whose vectors are of another model than the configured one (names and dimensions)."""
    return ModelMismatch(
        f"the {holder} holds vectors of {stored[0]!r} ({stored[1]} dimensions),"
        f" the configured model is {configured[0]!r} ({configured[1]} dimensions)",
        hint=f"configure {stored[0]!r} again, or run `{REEMBED_COMMAND}` to embed everything with the new model",
        stored=stored[0],
        stored_dimension=stored[1],
        configured=configured[0],
        configured_dimension=configured[1],
    )


def checked(vectors: object, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Vectors as they must be to be stored or compared, whoever wrote the embedder.

    Raises:
        EmbeddingInvalid: another shape, or not finite.
    """
    try:
        found = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise EmbeddingInvalid(f"the embedding model returned no vectors ({error})") from error
    if found.shape != shape:
        raise EmbeddingInvalid(f"the embedding model returned the shape {found.shape} instead of {shape}")
    flat = found.ravel()
    # The product tells of NaN and infinity at once; it may also be too large itself, so look again before refusing.
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not math.isfinite(float(flat @ flat))
    if suspicious and not np.isfinite(found).all():
        raise EmbeddingInvalid("the embedding model returned a vector with NaN or infinity")
    return found


def _embed_batch(embedder: Embedder, texts: Sequence[str], dimension: int) -> list[Embedded]:
    try:
        vectors = checked(embedder.embed_documents(texts), (len(texts), dimension))
        return [Embedded(vector) for vector in vectors]
    except EmbeddingError as error:
        if len(texts) == 1 or error.retryable:
            # An outage concerns all of them: asking again item by item would only hammer the service.
            return [deferred(error.message)] * len(texts)
    half = len(texts) // 2
    return _embed_batch(embedder, texts[:half], dimension) + _embed_batch(embedder, texts[half:], dimension)


class PendingEmbedder:
    """Embeds, in the background, what was stored without a vector."""

    def __init__(
        self,
        storage: Storage,
        embedder: Embedder,
        *,
        interval: float,
    ) -> None:
        self._storage, self._embedder = storage, embedder
        self._worker = PeriodicWorker("memory embedding backlog", interval, self._run)
        self._stopping = False

    def wake(self, *, at_once: bool = True) -> None:
        """Look for work, now or at the next interval."""
        self._worker.wake(at_once=at_once)

    def stop(self) -> None:
        """End after the batch under way."""
        self._stopping = True
        self._worker.stop()

    def _run(self) -> None:
        self.drain()

    def drain(self) -> int:
        """Embed everything that waits and can be embedded; returns how many vectors were stored."""
        stored, position = 0, None
        while not self._stopping:
            batch = self._storage.pending(BATCH, after=position)
            if not batch:
                break
            position = (batch[-1].user_id, batch[-1].memory_id)
            stored += self._embed(batch)
        return stored

    def _embed(self, batch: Sequence[Pending]) -> int:
        results = embed_documents(self._embedder, [item.content for item in batch], self._storage.dimension)
        ready = [
            (item, result.vector) for item, result in zip(batch, results, strict=True) if result.vector is not None
        ]
        if len(ready) < len(batch):
            reason = next(r.notice.message for r in results if r.notice is not None)
            logger.warning("%d memories still wait for a vector: %s", len(batch) - len(ready), reason)
        return self._storage.put_vectors(ready) if ready else 0
