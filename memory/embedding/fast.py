"""Models that the optional package ``fastembed`` downloads and runs on this machine's processor."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from memory.core.errors import ConfigError, EmbeddingInvalid, EmbeddingUnavailable, Unsupported
from memory.core.ports import Vector, Vectors
from memory.embedding.checked import clean, floor_of, name_of, unit_rows


class FastembedEmbedder:
    """A fastembed model, downloaded and loaded at first use.

    Safe to call from any number of threads: calls take turns, since fastembed promises nothing about
    threads and its runtime already spreads one call over the cores.
    """

    def __init__(
        self,
        model: str,
        *,
        cache_dir: str | None = None,
        batch_size: int = 64,
        query_prefix: str = "",
        document_prefix: str = "",
        similarity_floor: float = 0.0,
        name: str | None = None,
    ) -> None:
        """Check that fastembed is installed and knows the model; nothing is downloaded yet.

        Args:
            model: a name from ``TextEmbedding.list_supported_models()``.
            cache_dir: folder for downloaded models; None leaves it to fastembed.
            batch_size: texts run through the model at once.
            query_prefix: put before questions; fastembed adds none itself, though its list says which
                models need one (E5: ``"query: "``).
            document_prefix: put before stored texts (E5: ``"passage: "``).
            similarity_floor: cosine of unrelated texts with this model, in [0, 1).
            name: identifies the weights; None makes one from model and document prefix.

        Raises:
            Unsupported: fastembed is not installed or does not run here.
            ConfigError: it does not know the model, or a setting is impossible.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size: {batch_size} is not positive")
        self._similarity_floor = floor_of(similarity_floor)
        self._text_embedding = _text_embedding()
        self._dimension = _dimension(self._text_embedding, model)
        self._model = model
        self._cache_dir = cache_dir
        self._batch_size = batch_size
        self._prefixes = (query_prefix, document_prefix)
        self._name = name or name_of(f"{model}@fastembed", document_prefix=document_prefix)
        self._lock = threading.Lock()
        self._loaded: Any = None

    @property
    def name(self) -> str:
        """Model and engine: fastembed often runs a quantised file, so the model's name is not enough."""
        return self._name

    @property
    def dimension(self) -> int:
        """Length of every vector, known from fastembed's list without a download."""
        return self._dimension

    @property
    def similarity_floor(self) -> float:
        """Cosine that unrelated texts reach with this model, as configured."""
        return self._similarity_floor

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed texts as passages; longer ones than the model reads are cut by fastembed.

        Returns:
            Shape ``(len(texts), dimension)``.

        Raises:
            EmbeddingUnavailable: the model could not be downloaded or loaded.
            EmbeddingInvalid: unusable vector; ``index`` names the item.
        """
        if not texts:
            return np.zeros((0, self._dimension), dtype=np.float32)
        prepared = [self._prefixes[1] + clean(text) for text in texts]
        with self._lock:
            rows = list(self._ready().passage_embed(prepared, batch_size=self._batch_size))
        return self._checked(rows, len(texts))

    def embed_query(self, text: str) -> Vector:
        """Embed a question; shape ``(dimension,)``. Raises as ``embed_documents``."""
        with self._lock:
            rows = list(self._ready().query_embed([self._prefixes[0] + clean(text)]))
        return np.asarray(self._checked(rows, 1)[0], dtype=np.float32)

    def close(self) -> None:
        """Forget the loaded model; calling it twice is harmless, a later call loads it again."""
        with self._lock:
            self._loaded = None

    def _ready(self) -> Any:
        """Return the loaded model; the lock is held."""
        if self._loaded is None:
            try:
                self._loaded = self._text_embedding(self._model, cache_dir=self._cache_dir)
            except (OSError, ValueError) as exc:  # ValueError: "could not load from any source"
                raise EmbeddingUnavailable(
                    f"fastembed cannot load {self._model}",
                    hint="the first use downloads the model: check the network and the free space",
                ) from exc
        return self._loaded

    def _checked(self, rows: list[Any], count: int) -> Vectors:
        if len(rows) != count:
            raise EmbeddingInvalid(f"fastembed returned {len(rows)} vectors for {count} texts")
        return unit_rows(rows, dimension=self._dimension)


def _text_embedding() -> Any:
    """Return fastembed's class, or say how to get it."""
    try:
        return importlib.import_module("fastembed").TextEmbedding
    except (ImportError, OSError) as exc:  # OSError: a shared library of its runtime does not load
        raise Unsupported(
            "fastembed is not installed or does not run here",
            hint='pip install "nightingale-memory[fastembed]"',
        ) from exc


def _dimension(text_embedding: Any, model: str) -> int:
    """Look the model up; fastembed ignores case in names."""
    for entry in text_embedding.list_supported_models():
        if entry["model"].lower() == model.lower():
            return int(entry["dim"])
    raise ConfigError(
        f"fastembed has no model {model!r}",
        hint="fastembed.TextEmbedding.list_supported_models() lists them",
    )
