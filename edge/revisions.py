"""The schema of a replica's files, and bringing them up to date before anybody needs them."""

from __future__ import annotations

from pathlib import Path

from edge.home import Home
from edge.replica import DATABASE_FILE, revision_of, user_folders
from edge.sqlite.migrations import Schema


def revisions(path: Path) -> tuple[list[str], str]:
    """The revisions that the users' files are at, oldest first without repetition, and this program's.

    Raises:
        StoreInUse: a program has the replica open. ConfigError: it is none.
    """
    home, schema = Home(path), Schema()
    try:
        return sorted({revision_of(folder, schema) for folder in user_folders(home.users)}), schema.branch.head
    finally:
        home.close()


def upgrade(path: Path) -> None:
    """Upgrade the files of all users; each is copied first. Opening a user does the same.

    Raises:
        SchemaMismatch: a file is newer than this program; those before it are upgraded.
    """
    home, schema = Home(path), Schema()
    try:
        for folder in user_folders(home.users):
            revision_of(folder, schema)
            schema.prepare(folder / DATABASE_FILE)
    finally:
        home.close()
