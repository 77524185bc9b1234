"""Changing the embedding model of a replica: all vectors are made first, then the replica changes at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edge.directory import Description
from edge.home import Home
from edge.replica import Kit, Replica
from edge.sqlite import models
from edge.users import Users
from edge.vectors.port import IndexFactory
from memory.core.ports import Embedder
from memory.engine.embedding import BATCH, checked

Progress = Callable[[int, int], None]


def reembed(path: Path, embedder: Embedder, index: Callable[[str], IndexFactory], progress: Progress) -> int:
    """Embed every memory of a replica with ``embedder`` and make it the replica's model.

    Owns the directory meanwhile. An interrupted run resumes where it was, and until it is done the replica stays
    with the old model. Returns how many memories were embedded.

    Raises:
        StoreInUse: a program has it open. EmbeddingError: the model fails; what was embedded is kept.
        ConfigError: the directory holds no replica.
    """
    home = Home(path)
    try:
        description = home.describe_as_it_is()
        done = 0
        if (description.model, description.dimension) != (embedder.name, embedder.dimension):
            done = _each(home, description, index, _Staging(embedder, progress, _count(home, description, index)))
            description = replace(description, model=embedder.name, dimension=embedder.dimension)
            home.change_model(embedder.name, embedder.dimension)
        # Opened under the new description, each takes over what was staged, and follows with its index.
        _each(home, description, index, _settle)
        return done
    finally:
        home.close()


class _Staging:
    """Embeds what a user has no vector of the new model for."""

    def __init__(self, embedder: Embedder, progress: Progress, total: int) -> None:
        self._embedder, self._progress, self._total = embedder, progress, total
        self._done = 0

    def __call__(self, replica: Replica) -> int:
        position, stored = None, 0
        model = (self._embedder.name, self._embedder.dimension)
        while True:
            with replica.database.read() as connection:
                batch = models.unstaged(connection, replica.user_id, model, BATCH, after=position)
            if not batch:
                return stored
            position = batch[-1].memory_id
            vectors = checked(
                self._embedder.embed_documents([item.content for item in batch]),
                (len(batch), self._embedder.dimension),
            )
            with replica.database.write() as connection:
                stored += models.stage(connection, self._embedder.name, list(zip(batch, vectors, strict=True)))
            self._done += len(batch)
            self._progress(self._done, self._total)


def _settle(replica: Replica) -> int:
    replica.drain()
    return 0


def _count(home: Home, description: Description, index: Callable[[str], IndexFactory]) -> int:
    def count(replica: Replica) -> int:
        with replica.database.read() as connection:
            return int(connection.execute("SELECT count(*) FROM memories").fetchone()[0])

    return _each(home, description, index, count)


def _each(
    home: Home, description: Description, index: Callable[[str], IndexFactory], work: Callable[[Replica], int]
) -> int:
    """Visit every user under a description; returns the sum."""
    kit = Kit(factory=index(home.description.replica), copied=home.renew_identity)
    users = Users(home.users, kit, description, max_open=1)
    total = 0
    try:
        for user_id in users.known():
            with users.lease(user_id) as replica:
                if replica is not None:
                    total += work(replica)
    finally:
        users.close()
    return total
