"""Random work on a replica and on the plain store side by side: they must answer alike, whatever its indexes do."""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from memory.engine.provider import StorageProvider
from memory.testing.base import NOW
from tests.integration.test_against_model import Pair
from tests.replicas import open_replica, settle, storage_of


def test_a_replica_answers_like_the_plain_store(tmp_path: Path) -> None:
    folder = tmp_path / "replica"

    class OnEdge(Pair):
        @staticmethod
        def open_real() -> StorageProvider:
            shutil.rmtree(folder, ignore_errors=True)
            return open_replica(folder, now=NOW, track_access=False)

        @rule()
        def settle(self) -> None:
            settle(self.real)

        @rule()
        def tidy(self) -> None:
            storage_of(self.real).tidy()

        @rule()
        def open_again(self) -> None:
            self.real.close()
            self.real = open_replica(folder, now=NOW, track_access=False)

        @rule()
        def lose_the_index(self) -> None:
            self.real.close()
            for index in folder.glob("users/*/index"):
                shutil.rmtree(index)
            self.real = open_replica(folder, now=NOW, track_access=False)

    run_state_machine_as_test(
        OnEdge,
        settings=settings(
            max_examples=settings().max_examples,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert OnEdge.recalled > 50, "the random work hardly recalled anything, so it compared hardly anything"
