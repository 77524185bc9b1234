"""How long to wait between two attempts, and when to stop trying."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

_FIRST_WAIT = 0.5
_LONGEST_WAIT = 8.0


class Patience:
    """The attempts and the waiting time that one call may still spend. Belongs to one call in one thread."""

    def __init__(self, *, max_attempts: int, max_wait: float, sleep: Callable[[float], None]) -> None:
        """Start with everything unspent.

        Args:
            max_attempts: attempts for each request, the first included.
            max_wait: seconds that all waits of the call may add up to.
            sleep: waits the given number of seconds.
        """
        self._max_attempts = max_attempts
        self._left = max_wait
        self._sleep = sleep

    def pause(self, attempt: int, asked: float | None) -> bool:
        """Wait before the next attempt, or say that there is to be none.

        The wait doubles from attempt to attempt, with jitter so that many clients do not return together,
        and is never shorter than the service asked for: if that exceeds what is left of the waiting time,
        coming back early would only fail again, so the call gives up at once.

        Args:
            attempt: how many attempts of this request have failed, from 1.
            asked: seconds the service wants to be left alone; None when it did not say.

        Returns:
            True after the wait, False without waiting when attempts or time are used up.
        """
        if attempt >= self._max_attempts:
            return False
        longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1))
        wait = max(asked or 0.0, longest * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
        if wait > self._left:
            return False
        self._left -= wait
        self._sleep(wait)
        return True


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how long a service wants to be left alone.

    Args:
        headers: of the answer, looked up with lower-case names.

    Returns:
        Seconds, not negative; None when the service did not say, or not in a way that can be read. A date
        is compared with the service's own clock where it tells the time, since ours may be off.
    """
    milliseconds = _number(headers.get("retry-after-ms"))  # sent by OpenAI besides the standard header
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return seconds
    until = _timestamp(value)
    if until is None:
        return None
    now = _timestamp(headers.get("date"))
    return max(0.0, until - (time.time() if now is None else now))


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def _timestamp(value: str | None) -> float | None:
    """Read an HTTP date as seconds since 1970."""
    try:
        moment = parsedate_to_datetime(value or "")
    except (TypeError, ValueError, IndexError):
        return None
    # "-0000" and a missing zone give a naive moment; HTTP dates are always UTC.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
