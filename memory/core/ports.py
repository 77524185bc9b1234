"""The protocols that adapters implement, besides :class:`~memory.core.provider.MemoryProvider`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""One embedding: shape ``(dimension,)``, float32, Euclidean length 1."""

Vectors = NDArray[np.float32]
"""Several embeddings: shape ``(n, dimension)``, float32, each row of Euclidean length 1."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors. Safe to call from several threads at once."""

    @property
    def name(self) -> str:
        """Identifies model and weights. Two embedders with equal names give comparable vectors."""

    @property
    def dimension(self) -> int:
        """Length of every vector. May call the service once when it is not known in advance.

        Raises:
            EmbeddingError: the dimension is unknown and the service does not answer.
        """

    @property
    def similarity_floor(self) -> float:
        """Cosine that unrelated texts reach with this model, in [0, 1); relevance starts above it."""

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed texts that will be stored. Row i belongs to ``texts[i]``; no text gives shape (0, dimension).

        Raises:
            EmbeddingUnavailable: try again later.
            EmbeddingRejected: the service will not embed this; ``index`` names the item where known.
            EmbeddingInvalid: NaN, a zero vector or a wrong dimension came back; ``index`` names the item.
        """

    def embed_query(self, text: str) -> Vector:
        """Embed a question, in the same space as the documents. Raises as ``embed_documents``."""

    def close(self) -> None:
        """Give back threads and connections; calling it twice is harmless."""


class Clock(Protocol):
    """Where time comes from; tests and repeatable runs pass a fixed one."""

    def now(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
