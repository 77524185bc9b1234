"""The sync protocol at random, in pure Python: whatever happens, all replicas end equal and no write is lost.

Longer: ``HYPOTHESIS_PROFILE=long``, or ``python -m tests.sync.driving --runs 4000``.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.sync.driving import RULES, main, many
from tests.sync.machine import OPERATIONS, Machine, run
from tests.sync.model_stack import model_stack


class Replicas(RuleBasedStateMachine):
    """Any sequence of operations on any edge; a failing one is made short."""

    machine: Machine

    @initialize(
        seed=st.integers(0, 2**32), rate=st.sampled_from([0.0, 0.1, 0.3, 0.6]), dropping=st.sampled_from([0.0, 0.1])
    )
    def begin(self, seed: int, rate: float, dropping: float) -> None:
        self.machine = Machine(random.Random(seed), model_stack(), rate=rate, dropping=dropping)

    @rule(operation=st.sampled_from(OPERATIONS), edge=st.integers(0, 4))
    def step(self, operation: str, edge: int) -> None:
        self.machine.step(operation, self.machine.edges[edge % len(self.machine.edges)])

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            self.machine.heal()


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(stateful_step_count=60, suppress_health_check=list(HealthCheck))


def test_random_runs_end_equal_with_nothing_lost() -> None:
    outcome = many(range(400), model_stack())
    assert outcome.violations == {}
    for happened in ("crashed", "carrier failed", "restored known", "restored silent", "clone", "restore_edge"):
        assert outcome.stats[happened] > 20, happened


def test_a_run_can_be_run_again() -> None:
    one, other = (run(7, model_stack()) for _ in range(2))
    assert one.centre.states() == other.centre.states()
    assert one.stats == other.stats


OFTEN = {"clock", "writer", "push-back", "epochs", "marks", "queue", "digest", "offer", "restamp"}
"""Rules whose absence some run in a hundred or two meets; ``test_sync_rules`` has a path to each of the others."""


@pytest.mark.parametrize("without", sorted(OFTEN))
def test_the_machine_finds_a_rule_missing(without: str) -> None:
    found: dict[int, Any] = {}
    for first in range(0, 1_000, 50):
        found |= many(range(first, first + 50), model_stack([without])).violations
        if found:
            return
    pytest.fail(f"1,000 runs without the rule: {RULES[without]}")


def test_the_command_counts_and_names_what_it_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "20"]) == 0
    assert capsys.readouterr().out.startswith("20 runs, ")
    assert main(["--runs", "100", "--without", "restamp"]) == 1
    assert "seed " in capsys.readouterr().out
