"""What every embedder shares: texts that any engine can carry, and vectors that are fit to be stored."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from memory.core.errors import ConfigError, EmbeddingInvalid
from memory.core.ports import Vector, Vectors

_UNCARRIABLE = re.compile("[\0\ud800-\udfff]")


def clean(text: str) -> str:
    r"""Replace what cannot cross a C string or UTF-8: NUL becomes a space, surrogates become characters.

    Args:
        text: any Python string, also one with NUL or surrogates (from ``surrogateescape`` or broken JSON).

    Returns:
        A string that encodes to UTF-8 and holds no NUL. Two surrogates that form a pair become the
        character they stand for; a lone one becomes U+FFFD.
    """
    if not _UNCARRIABLE.search(text):
        return text
    return text.replace("\0", " ").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def unit(values: ArrayLike, *, index: int, dimension: int | None = None) -> Vector:
    """Check one raw vector and scale it to Euclidean length 1.

    Args:
        values: numbers, as a model or a service returned them.
        index: position of the text it belongs to, for the error.
        dimension: the required length; None accepts any length above zero.

    Returns:
        Shape ``(dimension,)``, float32, length 1.

    Raises:
        EmbeddingInvalid: not a flat list of numbers, wrong length, NaN or infinite, or all zero.
    """
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as exc:
        raise EmbeddingInvalid(f"the vector of item {index} is no list of numbers", index=index) from exc
    if vector.ndim != 1 or vector.size == 0:
        raise EmbeddingInvalid(f"the vector of item {index} is no flat list of numbers", index=index)
    if dimension is not None and vector.size != dimension:
        raise EmbeddingInvalid(
            f"the vector of item {index} has {vector.size} dimensions, not {dimension}",
            index=index,
            dimension=vector.size,
            expected=dimension,
        )
    if not np.isfinite(vector).all():
        raise EmbeddingInvalid(f"the vector of item {index} holds NaN or infinite numbers", index=index)
    largest = np.abs(vector).max()
    if largest == 0.0:
        raise EmbeddingInvalid(f"the vector of item {index} is all zero", index=index)
    # Dividing by the largest first keeps the squares of extreme numbers inside the range of a float.
    scaled = vector / largest
    return np.asarray(scaled / np.sqrt(np.square(scaled).sum()), dtype=np.float32)


def unit_rows(rows: Sequence[ArrayLike], *, start: int = 0, dimension: int | None = None) -> Vectors:
    """Check several raw vectors and scale each to Euclidean length 1.

    Args:
        rows: one vector per text, at least one.
        start: position of the first text in the caller's list.
        dimension: the required length; None takes the length of the first row.

    Returns:
        Shape ``(len(rows), dimension)``, float32, each row of length 1.

    Raises:
        EmbeddingInvalid: a row is unusable or differs in length; ``index`` names it.
    """
    checked: list[Vector] = []
    for offset, row in enumerate(rows):
        checked.append(unit(row, index=start + offset, dimension=dimension))
        dimension = len(checked[0])
    return np.stack(checked)


def name_of(model: str, *, shortened_to: int | None = None, document_prefix: str = "") -> str:
    """Make a name that tells apart everything that makes stored vectors incomparable.

    Args:
        model: what the model is called where it comes from.
        shortened_to: number of dimensions, where a service cuts its vectors to fewer than the model's own.
        document_prefix: what is put before stored texts. What is put before questions changes no stored
            vector, so it has no part in the name.
    """
    shortening = f"@{shortened_to}" if shortened_to else ""
    prefix = f"+{document_prefix.strip()}" if document_prefix else ""
    return model + shortening + prefix


def floor_of(value: float) -> float:
    """Check a similarity floor: a cosine in [0, 1).

    Raises:
        ConfigError: the value lies outside.
    """
    if not 0.0 <= value < 1.0:
        raise ConfigError(f"similarity_floor: {value!r} is not in [0, 1)")
    return value
