"""Hybrid logical clock: stamps that order writes across machines whose clocks disagree.

After Kulkarni et al., "Logical Physical Clocks" (2014): the wall clock where it moves forward, a counter
where it does not. A stamp is never reused, and one drawn after seeing another is larger than it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from memory.core.errors import FormatError

MAX_SKEW_MS = 5 * 60 * 1000
"""A stamp further ahead of true time than this is refused: it would win against every later edit."""

MAX_COUNTER = 999_999_999
"""What the written form of a stamp has room for."""

_WRITER = "[0-9a-z]{1,32}"
_ENCODED = re.compile(rf"(\d{{1,15}})\.(\d{{1,9}})\.({_WRITER})", re.ASCII)


class Tick(NamedTuple):
    """The clock's state: the largest (milliseconds, counter) drawn or seen so far."""

    ms: int = 0
    counter: int = 0


class Stamp(NamedTuple):
    """When and by whom a register was written; compares by milliseconds, counter, writer."""

    ms: int
    counter: int
    writer: str

    @property
    def tick(self) -> Tick:
        """The clock's part of the stamp."""
        return Tick(self.ms, self.counter)

    def __str__(self) -> str:
        return f"{self.ms}.{self.counter}.{self.writer}"


def parse_stamp(text: object) -> Stamp:
    """Read what ``str(stamp)`` wrote.

    Raises:
        FormatError: not a stamp.
    """
    match = _ENCODED.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise FormatError(f"stamps: {text!r:.80} is not of the form milliseconds.counter.writer")
    return Stamp(int(match[1]), int(match[2]), match[3])


def is_writer(text: object) -> bool:
    """Whether ``text`` can be the writer of a stamp or of access counts."""
    return isinstance(text, str) and re.fullmatch(_WRITER, text) is not None


def next_tick(last: Tick, now: int) -> Tick:
    """The tick after ``last``: ``now`` if the wall clock has moved on, else the counter plus one."""
    if now > last.ms:
        return Tick(now, 0)
    # Only a forged stamp comes with a full counter; the next one must still be readable.
    return Tick(last.ms, last.counter + 1) if last.counter < MAX_COUNTER else Tick(last.ms + 1, 0)
