"""Importance of a memory whose caller gave none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

BASE: Final = {"fact": 0.7, "preference": 0.8, "event": 0.5, "summary": 0.6}
EXPLICIT_KEY: Final = "explicit_important"
"""A true value under this metadata key says that the caller called the memory important."""


def default_importance(content: str, memory_type: str, metadata: Mapping[str, Any]) -> float:
    """Type prior + up to 0.2 for length (full at 100 characters) + 0.3 if called important, at most 1.

    The formula of the Hermes memory architecture, §4.2. In [0, 1].
    """
    length = min(len(content) / 100.0, 1.0) * 0.2
    explicit = 0.3 if metadata.get(EXPLICIT_KEY) else 0.0
    return min(BASE.get(memory_type, 0.5) + length + explicit, 1.0)
