"""Finds contradictions in a replica, and mends those that have one right answer.

It owns the directory meanwhile, so it does not run beside a program that has the replica open. Like every opening,
``examine`` may upgrade files and bring the indexes up to date; it changes no memory.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from edge.directory import Description, folder_name
from edge.home import Home
from edge.replica import Kit, Replica, model_of, owner_of, user_folders
from edge.sqlite.checks import CHECKS, Check, Rule
from edge.sqlite.points import right_vectors
from edge.users import Users
from edge.vectors.port import IndexFactory
from memory.core.errors import IntegrityFailure, StoreError
from memory.core.ports import Vector
from memory.engine.diagnosis import Finding, Repaired

logger = logging.getLogger(__name__)
TOLERANCE: Final = 1e-5
"""What a vector may differ from the stored one: the index scales it to length 1 again."""
_FOLDERS: Final = Rule(
    name="folders",
    meaning="folders of users that cannot be opened",
    remedy="see the log (--debug); copy them again whole, or remove them and import an export or sync",
)
_POINTS: Final = Rule(
    name="points",
    meaning="points of the vector index that are missing, stale or left over",
    remedy="make them anew from the stored vectors",
)
_SILENT: Final = Rule(
    name="index_silent",
    meaning="users whose vector index does not answer; recall compares their vectors one by one",
    remedy="start the Qdrant server, or check qdrant_url",
    informational=True,
)


@dataclass
class Diagnosis:
    """Breaches by check, and users by check, added up over a replica."""

    rows: Counter[str] = field(default_factory=Counter)
    users: dict[str, list[str]] = field(default_factory=dict)

    def note(self, check: Rule, user_id: str, rows: int) -> None:
        """Add a user's."""
        if rows:
            self.rows[check.name] += rows
            self.users.setdefault(check.name, []).append(user_id)


class Doctor:
    """Owns a replica's directory until closed."""

    def __init__(self, path: Path, index: Callable[[str], IndexFactory], *, repair: bool) -> None:
        """Open the directory, whatever model it is of. A lost description is made anew if ``repair``.

        Raises:
            StoreInUse: a program has it open. IntegrityFailure: it holds no replica, or its description is lost.
            ConfigError, SchemaMismatch, StoreError: it cannot be used.
        """
        self._home = Home(path)
        self._restored = False
        try:
            description = self._described(repair=repair)
            kit = Kit(factory=index(description.replica), copied=self._home.renew_identity)
            self._users = Users(self._home.users, kit, description, max_open=1)
        except BaseException:
            self._home.close()
            raise

    def examine(self, *, now: int) -> list[Finding]:
        """Run every check over every user; ``now`` is true time in ms UTC."""
        diagnosis = self._diagnosis(now)
        return [
            Finding(
                name=check.name,
                meaning=check.meaning,
                rows=diagnosis.rows[check.name],
                remedy=check.remedy,
                repairable=_is_repairable(check),
                informational=check.informational,
            )
            for check in (_FOLDERS, *CHECKS, _POINTS, _SILENT)
        ]

    def repair(self, *, now: int) -> list[Repaired]:
        """Mend what can be mended, and tell what was."""
        diagnosis = self._diagnosis(now)
        done = [Repaired("description", 1)] if self._restored else []
        done += [
            self._mended(check, diagnosis) for check in CHECKS if check.mend is not None and diagnosis.rows[check.name]
        ]
        for user_id in diagnosis.users.get(_POINTS.name, []):
            with self._users.lease(user_id) as replica:
                if replica is not None:
                    replica.indexer.rebuild()
                    replica.drain()
        if diagnosis.rows[_POINTS.name]:
            done.append(Repaired(_POINTS.name, diagnosis.rows[_POINTS.name]))
        return done

    def _mended(self, check: Check, diagnosis: Diagnosis) -> Repaired:
        for user_id in diagnosis.users[check.name]:
            with self._users.lease(user_id) as replica:
                if replica is not None and check.mend is not None:
                    with replica.database.write() as connection:
                        check.mend(connection)
        return Repaired(check.name, diagnosis.rows[check.name])

    def _described(self, *, repair: bool) -> Description:
        try:
            return self._home.describe_as_it_is()
        except IntegrityFailure:
            models = Counter(self._models()) if repair else Counter()
            if not models:
                raise
            self._restored = True
            [(most_common, _)] = models.most_common(1)
            return self._home.describe_anew(*most_common)

    def _models(self) -> Iterator[tuple[str, int]]:
        for folder in user_folders(self._home.users):
            try:
                yield model_of(folder)
            except StoreError as error:
                logger.warning("%s", error)

    def close(self) -> None:
        """Give the directory back. Idempotent."""
        try:
            self._users.close()
        finally:
            self._home.close()

    # -- steps

    def _diagnosis(self, now: int) -> Diagnosis:
        found = Diagnosis()
        for folder in user_folders(self._home.users):
            try:
                user_id = owner_of(folder)
                if folder.name != folder_name(user_id):
                    raise IntegrityFailure(f"{folder}: says it is of {user_id!r:.80}, and has another's name")
                self._examine_user(user_id, found, now)
            except StoreError as error:
                logger.warning("%s", error)
                found.note(_FOLDERS, folder.name, 1)
        return found

    def _examine_user(self, user_id: str, found: Diagnosis, now: int) -> None:
        with self._users.lease(user_id) as replica:
            if replica is None:  # removed this moment
                return
            for check in CHECKS:
                with replica.database.inspect() as connection:
                    found.note(check, user_id, check.count(connection, now))
            wrong = _wrong_points(replica)
            found.note(_POINTS, user_id, wrong or 0)
            found.note(_SILENT, user_id, wrong is None)


def _is_repairable(rule: Rule) -> bool:
    return rule is _POINTS or (isinstance(rule, Check) and rule.mend is not None)


def _wrong_points(replica: Replica) -> int | None:
    """Points that are not as the file says, after what waits has been carried out; None if nobody can tell."""
    wrong = replica.indexer.wrong_points()
    if wrong is None:
        return None
    replica.drain()
    with replica.database.read() as connection:
        for page in right_vectors(connection):
            held = replica.indexer.held_vectors(list(page))
            wrong += sum(not _same(held.get(memory_id), vector) for memory_id, vector in page.items())
    return wrong


def _same(held: Vector | None, right: Vector) -> bool:
    return held is not None and held.shape == right.shape and np.allclose(held, right, atol=TOLERANCE)
