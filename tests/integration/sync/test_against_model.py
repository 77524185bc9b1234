"""Real replicas, driven at random like the model: whatever happens, all end equal, and no write is lost.

Longer: ``HYPOTHESIS_PROFILE=long``. A run that fails is run again by its seed.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.sync.machine import run
from tests.sync.real_stack import real_stack

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
RUNS, STEPS = (1_000, 60) if LONG else (12, 40)
ENGINE_RUNS = 100 if LONG else 4


@pytest.fixture
def silent() -> Iterator[None]:
    """What is logged about crashes and broken networks is what a run is about."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("silent")
@pytest.mark.timeout(7_200 if LONG else 300)
def test_random_runs_of_real_replicas_end_equal_with_nothing_lost() -> None:
    stats: Counter[str] = Counter()
    for seed in range(RUNS):
        stats += run(seed, real_stack(engine=False), steps=STEPS).stats
    for happened in ("crashed", "carrier failed", "edit_during_push", "clone", "restore_edge"):
        assert stats[happened] > 0, happened
    assert stats["restored known"] + stats["restored silent"] > 0


@pytest.mark.usefixtures("silent")
@pytest.mark.timeout(7_200 if LONG else 300)
def test_random_runs_with_an_index_in_files_end_with_the_index_as_the_memories_are() -> None:
    for seed in range(10_000, 10_000 + ENGINE_RUNS):
        run(seed, real_stack(engine=True), steps=STEPS)
