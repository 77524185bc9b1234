"""A replica's directory while this process owns it."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

from edge.directory import (
    USERS,
    Description,
    claim,
    directory_errors,
    new_description,
    read_description,
    with_own_identity,
    write_description,
)
from edge.owner import Owner
from edge.replica import holds_memories, user_folders
from memory.core.errors import ConfigError
from memory.core.ports import Embedder
from memory.engine.embedding import known_dimension, other_model

logger = logging.getLogger(__name__)


class Home:
    """Owns the directory from the moment it is made until ``close``."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Claim a directory, made if asked, and lock it.

        Raises:
            StoreInUse: another process has it open. ConfigError, StoreError, Unsupported: it cannot be used.
        """
        self.root = claim(path, create=create)
        with directory_errors(self.root):
            self._owner = Owner(self.root)
        self._lock = threading.Lock()
        self._description: Description | None = None

    @property
    def users(self) -> Path:
        """Where the users' folders are."""
        return self.root / USERS

    @property
    def description(self) -> Description:
        """What the directory holds; after ``describe`` only."""
        if self._description is None:
            raise AssertionError("the directory is not described yet")
        return self._description

    def describe(self, embedder: Embedder) -> Description:
        """Read the description and check that the vectors are of this embedder; an empty replica takes any.

        Raises:
            ModelMismatch: they are of another; says both names. SchemaMismatch: the directory is newer than this
            program. IntegrityFailure: it was copied in part.
        """
        with directory_errors(self.root):
            found = read_description(self.root)
        recorded = None if found is None else (found.model, found.dimension)
        dimension = known_dimension(embedder, recorded)  # its own errors stay what they are
        with directory_errors(self.root):
            if found is None:
                described = new_description(self.root, model=embedder.name, dimension=dimension)
            else:
                if (embedder.name, dimension) != recorded:
                    self._refuse_if_used(found, embedder, dimension)
                described = replace(found, model=embedder.name, dimension=dimension)
                described = with_own_identity(self.root, described)
            if described != found:
                write_description(self.root, described)
            self._description = described
        return described

    def describe_as_it_is(self) -> Description:
        """Read the description, whatever model the vectors are of.

        Raises:
            ConfigError: there is none yet. SchemaMismatch, IntegrityFailure: as ``describe``.
        """
        with directory_errors(self.root):
            found = read_description(self.root)
            if found is None:
                raise ConfigError(f"{self.root}: holds no replica", hint="name the directory of one")
            described = with_own_identity(self.root, found)
            if described != found:  # a copy must not reach for what is the original's, like its collection in Qdrant
                write_description(self.root, described)
        self._description = described
        return described

    def describe_anew(self, model: str, dimension: int) -> Description:
        """Replace a lost description: the directory goes on as a history of its own."""
        fresh = new_description(self.root, model=model, dimension=dimension)
        write_description(self.root, fresh)
        self._description = fresh
        return fresh

    def _refuse_if_used(self, found: Description, embedder: Embedder, dimension: int) -> None:
        if any(holds_memories(folder) for folder in user_folders(self.users)):
            raise other_model("replica", (found.model, found.dimension), (embedder.name, dimension))

    def renew_identity(self) -> None:
        """Begin a new history of revisions: a file of this directory turned out to be a copy of another."""
        with self._lock:
            logger.warning("%s: a user's file is a copy: exports since earlier ones have to begin anew", self.root)
            fresh = new_description(self.root, model=self.description.model, dimension=self.description.dimension)
            write_description(self.root, fresh)
            self._description = fresh

    def change_model(self, model: str, dimension: int) -> None:
        """Make another embedding model the replica's. Users adopt it when they are opened next."""
        with self._lock:
            described = replace(self.description, model=model, dimension=dimension)
            write_description(self.root, described)
            self._description = described

    def close(self) -> None:
        """Give the directory back. Idempotent."""
        self._owner.release()
