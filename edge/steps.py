"""Names of durable steps, told to whoever watches: tests end the process there, to see that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

Step = Callable[[str], None]


def no_step(_name: str) -> None:
    """Nobody watches."""
