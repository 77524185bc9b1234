"""Effective importance: stored importance fades with time since the memory was last of use."""

from __future__ import annotations

import math
from typing import Final

DAY_MS: Final = 86_400_000


def effective_importance(
    importance: float, *, created_at: int, last_access_at: int | None, now: int, time_constant_days: float
) -> float:
    """``importance · exp(-days since max(last access, created) / time constant)``, in [0, importance].

    Computed when read and never written back: running it twice or not at all changes nothing, and two sides
    of a sync agree without traffic. (After the Hermes memory architecture, §9.2, whose "half-life" of 90 days
    is a time constant: 0.37 remains after it.)
    """
    anchor = max(created_at, last_access_at or created_at)
    return importance * decay(now - anchor, time_constant_days)


def decay(age_ms: int, time_constant_days: float) -> float:
    """``exp(-age / time constant)``; a time in the future counts as now."""
    return math.exp(-max(age_ms, 0) / DAY_MS / time_constant_days)
