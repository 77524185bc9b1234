"""Removing a user from a device: first the name of the folder goes, in one step, then everything in it.

A folder under such a name is nobody's any more. Whatever is left of it after a crash, or since a Qdrant server did not
answer, goes when the directory is opened next.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from pathlib import Path
from typing import Final

from edge.directory import Description, directory_errors, sync_directory
from edge.replica import OWNER_FILE, Kit, owner_of
from edge.vectors.port import IndexFactory, Place
from memory.core.errors import IntegrityFailure, VectorIndexUnavailable

logger = logging.getLogger(__name__)
_PREFIX: Final = ".wiped-"


def wipe_folder(folder: Path, kit: Kit, description: Description) -> None:
    """Remove a user's folder, which nobody has open. No effect if there is none."""
    if not folder.exists():
        return
    with directory_errors(folder):
        going = folder.with_name(f"{_PREFIX}{folder.name}-{secrets.token_hex(4)}")
        folder.rename(going)
        sync_directory(folder.parent)
    kit.step("wipe begun")
    _finish(going, kit.factory, description)
    kit.step("wiped")


def finish_wipes(users: Path, factory: IndexFactory, description: Description) -> None:
    """Finish removals that were cut short."""
    with directory_errors(users):
        left = sorted(users.glob(f"{_PREFIX}*"))
    for folder in left:
        _finish(folder, factory, description)


def _finish(folder: Path, factory: IndexFactory, description: Description) -> None:
    """The files first; the name of the owner last, for a Qdrant server is asked by it."""
    with directory_errors(folder):
        for entry in folder.iterdir():
            if entry.name == OWNER_FILE:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    try:
        user_id = owner_of(folder)
        place = Place(user_id=user_id, folder=folder, model=description.model, dimension=description.dimension)
        factory.discard(place)
    except IntegrityFailure:
        pass  # it was being removed when the name had gone already: nothing else was left
    except VectorIndexUnavailable as error:
        logger.warning("vectors of a removed user are still on the Qdrant server, until the next open: %s", error)
        return
    with directory_errors(folder):
        shutil.rmtree(folder)
        sync_directory(folder.parent)
