"""The way in: drive a stack at random, one run or thousands, with all rules of the protocol or without some.

    python -m tests.sync.driving --runs 4000 --steps 60
    python -m tests.sync.driving --runs 400 --without push-back
    python -m tests.sync.driving --stack postgres --runs 200

A stack is what ``ports`` describes (``Edge``, ``Centre``, ``Stack``); the machine is in ``machine``. Other stacks run
the same one: ``run(seed, make_stack)``, or a ``Machine`` of their own, ``step`` by ``step``, then ``heal``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from memory.postgres import migrations
from memory.postgres.embedded import EmbeddedServer
from tests.sync.machine import OPERATIONS, Machine, Violation, run
from tests.sync.model_stack import model_stack
from tests.sync.ports import Centre, Crash, Edge, Fact, MakeStack, Stack, Writer
from tests.sync.postgres_stack import postgres_stack
from tests.sync.real_stack import real_stack

__all__ = [
    "OPERATIONS",
    "RULES",
    "Centre",
    "Crash",
    "Edge",
    "Fact",
    "Machine",
    "MakeStack",
    "Outcome",
    "Stack",
    "Violation",
    "Writer",
    "many",
    "run",
]

STACKS = ("model", "real", "engine", "postgres")
RULES = {
    "clock": "stamps come from a hybrid logical clock, not from the wall clock",
    "writer": "a writer is drawn at every opening, not kept on disk",
    "push-back": "what is above the version received is sent again",
    "epochs": "a restored centre begins a new epoch, noticed or found by marks",
    "marks": "an unnoticed rewind is found by marks",
    "draw": "the centre draws the marks, not the replica",
    "trust": "bounds of epochs are limited to the last mark that both sides know",
    "forget": "a reconcile into another epoch forgets the marks of the old one",
    "cursor": "a reconcile does not move the cursor forward",
    "adopt": "an epoch is adopted unseen only if the last mark is known",
    "queue": "the queue of the vector index is written in the commit of the rows",
    "seq": "an edit during a push is not acknowledged by its answer",
    "digest": "digest, number and access total are compared at every head",
    "slots": "if only access counts differ, all records are fetched",
    "offer": "after a reconcile all access counts are offered again",
    "ahead": "new stamps instead of future ones are above all that can have been accepted",
    "restamp": "stamps out of the future get new ones",
    "gone": "what the centre has purged is not sent to it again",
}
"""What can be switched off: the rules of the protocol, each of which is there for a reason."""


@dataclass(slots=True)
class Outcome:
    """Of many runs."""

    runs: int = 0
    seconds: float = 0.0
    violations: dict[int, str] = field(default_factory=dict)
    """By seed."""
    stats: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        kinds = Counter(text.split(":")[0] for text in self.violations.values())
        return f"{self.runs} runs, {self.seconds:.0f} s, {len(self.violations)} violations {dict(kinds)}"


def many(seeds: range, make: MakeStack, *, steps: int = 60) -> Outcome:
    """Many runs; anything that ends one is a violation."""
    outcome, began = Outcome(), time.monotonic()
    for seed in seeds:
        outcome.runs += 1
        try:
            outcome.stats += run(seed, make, steps=steps).stats
        except Violation as violation:
            outcome.violations[seed] = str(violation)
        except Exception as error:  # noqa: BLE001 - a bug of the stack must not end the other runs
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome.violations[seed] = f"{type(error).__name__}: {error} at {where.name}:{where.lineno}"
    outcome.seconds = time.monotonic() - began
    return outcome


@contextmanager
def made(stack: str, without: Iterable[str]) -> Iterator[MakeStack]:
    """What makes the stacks of a name; the postgres one has a server of its own for as long."""
    if stack == "model":
        yield model_stack(without)
    elif stack != "postgres":
        yield real_stack(engine=stack == "engine")
    else:
        with tempfile.TemporaryDirectory(prefix="memory-driving-") as folder:
            Path(folder).chmod(0o755)  # the account that runs the server must get through
            with EmbeddedServer(Path(folder) / "postgres", settings={"fsync": "off"}) as server:
                migrations.upgrade(server.url())
                yield postgres_stack(server.url())


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--stack", choices=STACKS, default="model")
    parser.add_argument("--without", action="append", default=[], choices=[*RULES, "each"], metavar="RULE")
    arguments = parser.parse_args(argv)
    if arguments.without and arguments.stack != "model":
        parser.error("only the model can do without a rule")
    seeds = range(arguments.first, arguments.first + arguments.runs)
    chosen = [[rule] for rule in RULES] if "each" in arguments.without else [arguments.without]
    failed = False
    for without in chosen:
        with made(arguments.stack, without) as make:
            outcome = many(seeds, make, steps=arguments.steps)
        lines = [f"without {', '.join(without)}: {outcome}" if without else str(outcome)]
        lines += [f"    seed {seed}: {text}" for seed, text in list(outcome.violations.items())[:3]]
        lines += [] if without else [f"    {dict(sorted(outcome.stats.items()))}"]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        failed = failed or bool(outcome.violations)
    return int(failed)


if __name__ == "__main__":
    logging.disable()
    sys.exit(main())
