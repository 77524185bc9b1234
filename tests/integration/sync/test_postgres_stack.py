"""Real replicas and a real Postgres, driven at random over a network that breaks: all end equal, no write is lost.

Longer: ``HYPOTHESIS_PROFILE=long``. A seed repeats what is done, not the moment at which
a connection breaks.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.sync.machine import run
from tests.sync.postgres_stack import postgres_stack

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
RUNS, STEPS = (200, 60) if LONG else (25, 40)


@pytest.fixture
def silent() -> Iterator[None]:
    """What is logged about crashes and broken networks is what a run is about."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("silent")
@pytest.mark.timeout(7_200 if LONG else 300)
def test_random_runs_with_a_real_centre_end_equal_with_nothing_lost(database_url: str) -> None:
    stats: Counter[str] = Counter()
    for seed in range(RUNS):
        stats += run(seed, postgres_stack(database_url), steps=STEPS).stats
    assert stats["crashed"] > 0
    assert stats["carrier failed"] > 0
