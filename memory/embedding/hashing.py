"""A model-free embedder for tests: similar spelling gives similar vectors, on every machine alike."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from memory.core.errors import ConfigError
from memory.core.ports import Vector, Vectors
from memory.embedding.checked import clean

_WORD = re.compile(r"\w+")
# Scripts written without spaces start about here; there a "word" is a whole clause, so pairs of
# characters carry what words carry elsewhere.
_FIRST_UNSPACED = "\u2e80"
_WORD_WEIGHT = 1.0
_GRAM_WEIGHT = 0.5

NAME_PREFIX = "hashing-v1-"


class HashingEmbedder:
    """Feature hashing over words and character n-grams: no model, no state, bit-identical everywhere.

    It knows spelling, not meaning. Safe to call from any number of threads.
    """

    def __init__(self, dimension: int = 64, name: str | None = None) -> None:
        """Choose the size of the vectors.

        Args:
            dimension: length of every vector, at least 1; below 32 unrelated texts collide often.
            name: replaces the default name, for tests that need two "models".

        Raises:
            ConfigError: the dimension is not positive.
        """
        if dimension < 1:
            raise ConfigError(f"dimension: {dimension} is not positive")
        self._dimension = dimension
        # "v1" is the recipe below: whoever changes a weight or a feature must change it too.
        self._name = name or f"{NAME_PREFIX}{dimension}"

    @property
    def name(self) -> str:
        """Names recipe and dimension."""
        return self._name

    @property
    def dimension(self) -> int:
        """Length of every vector."""
        return self._dimension

    @property
    def similarity_floor(self) -> float:
        """Zero: texts that share nothing are orthogonal up to hash collisions."""
        return 0.0

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Embed texts; shape ``(len(texts), dimension)``. Never fails."""
        if not texts:
            return np.zeros((0, self._dimension), dtype=np.float32)
        return np.stack([self._embed(text) for text in texts])

    def embed_query(self, text: str) -> Vector:
        """Embed a question exactly as a document; shape ``(dimension,)``. Never fails."""
        return self._embed(text)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def _embed(self, text: str) -> Vector:
        folded = unicodedata.normalize("NFKC", clean(text)).casefold()
        sums = [0.0] * self._dimension
        for feature, count in Counter(_features(folded)).items():
            slot, sign = self._slot(feature)
            weight = _WORD_WEIGHT if feature.startswith("w") else _GRAM_WEIGHT
            sums[slot] += sign * weight * math.sqrt(count)
        # fsum rounds once, whatever the processor: numpy's own sum depends on its vector width.
        length = math.sqrt(math.fsum(value * value for value in sums))
        if length == 0.0:  # two features met in one slot with opposite signs, and there were no others
            sums[self._slot(folded)[0]] = length = 1.0
        return np.array([value / length for value in sums], dtype=np.float32)

    def _slot(self, feature: str) -> tuple[int, float]:
        digest = hashlib.blake2b(feature.encode("utf-8"), digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        return (number >> 1) % self._dimension, 1.0 if number & 1 else -1.0


def _features(folded: str) -> Iterator[str]:
    """Yield ``w…`` for words and ``g…`` for n-grams; at least one feature for every text."""
    words: list[str] = _WORD.findall(folded)
    for word in words:
        if any(character >= _FIRST_UNSPACED for character in word):
            yield from (f"w{pair}" for pair in _grams(word, 2))
            yield from (f"g{character}" for character in word)
        else:
            yield f"w{word}"
            yield from (f"g{gram}" for gram in _grams(f" {word} ", 3))
    if not words:  # punctuation, emoji, blanks or nothing: the raw characters are all there is
        yield from (f"w{gram}" for gram in _grams(folded.strip(), 2))


def _grams(text: str, size: int) -> Iterator[str]:
    """Yield every run of ``size`` characters, or the text itself when it is shorter."""
    for start in range(max(1, len(text) - size + 1)):
        yield text[start : start + size]
