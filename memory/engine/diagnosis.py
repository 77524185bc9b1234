"""What a doctor of a store reports, whatever the store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    name: str
    meaning: str
    """What such rows are, and what follows from them."""
    rows: int
    """How many there are."""
    remedy: str
    """What a repair does; if there is none, what else to do."""
    repairable: bool
    informational: bool = False
    """Worth knowing, but not a fault."""

    @property
    def is_problem(self) -> bool:
        """Whether something has to be done."""
        return self.rows > 0 and not self.informational


@dataclass(frozen=True, slots=True)
class Repaired:
    """How many rows a repair changed."""

    name: str
    rows: int
