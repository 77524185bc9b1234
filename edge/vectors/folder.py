"""The folder of an index that keeps files: what its vectors are, which files it must have, and what a failure means.

Engines open a folder that has lost files without a word and answer from what is left. So what belongs to an index is
written down beside it, and compared before an engine sees the files.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from edge.vectors.port import Place
from memory.core.errors import Error, StoreFull, VectorIndexDamaged, VectorIndexUnavailable

RESERVE: Final = 32 * 1024 * 1024
"""Bytes of the file system that an index leaves free. Engines write through memory maps of sparse files: where no
block is left for a page, the system ends the process (SIGBUS) instead of failing the write."""
_FORMAT: Final = 1
_IDENTITY: Final = "identity.json"
_FILES: Final = "files.json"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WITHHELD: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EROFS, errno.EAGAIN}
)
_OS_ERROR: Final = re.compile(r"\(os error (\d+)\)")


class IndexFolder:
    """One index's files below ``path``, next to ``identity.json`` and ``files.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._recorded: dict[str, int] = {}

    @property
    def data(self) -> Path:
        """Where the engine keeps its own files."""
        return self.path / "data"

    def exists(self) -> bool:
        """Whether there is anything, readable or not."""
        return os.path.lexists(self.path)

    def create(self) -> None:
        """Make the folder, with an empty one for the engine. Until ``claim`` it counts as damaged."""
        self.data.mkdir(parents=True)

    def claim(self, place: Place) -> None:
        """Declare complete what the engine has made: from now on ``check`` accepts it."""
        self.record()
        _write(self.path / _IDENTITY, _identity(place))
        _sync(self.path.parent)

    def check(self, place: Place) -> None:
        """Compare with what should be there.

        Raises:
            VectorIndexDamaged: other vectors, or files that are missing or shorter than they were.
        """
        found, wanted = _read(self.path / _IDENTITY), _identity(place)
        if found != wanted:
            raise VectorIndexDamaged(f"The vector index at {self.path} is of {found}, not of {wanted}")
        recorded, held = _read(self.path / _FILES), self._sizes()
        short = [name for name, size in recorded.items() if not isinstance(size, int) or held.get(name, -1) < size]
        if short:
            raise VectorIndexDamaged(
                f"The vector index at {self.path} has lost {len(short)} files, or parts: {short[0]}"
            )
        self._recorded = recorded

    def record(self) -> None:
        """Write down which files there are now. Call it when they are on disk, and while nothing changes them."""
        held = self._sizes()
        if held != self._recorded:
            _write(self.path / _FILES, held)
            self._recorded = held

    def remove(self) -> None:
        """Delete everything. What an interruption leaves counts as damaged."""
        if self.path.is_symlink() or self.path.is_file():
            self.path.unlink()
        elif self.path.exists():
            (self.path / _IDENTITY).unlink(missing_ok=True)
            shutil.rmtree(self.path)

    def require_space(self, size: int) -> None:
        """Refuse to begin a change of about ``size`` bytes that might not find room.

        Raises:
            StoreFull: it might not. FileNotFoundError: the folder is gone.
        """
        free = shutil.disk_usage(self.data).free
        if free < RESERVE + size:
            raise StoreFull(f"{free:,} bytes are free for the vector index; {RESERVE + size:,} must be", free=free)

    def _sizes(self) -> dict[str, int]:
        """Sizes in bytes by path below the engine's folder."""
        sizes: dict[str, int] = {}
        for top, _, names in os.walk(self.data):
            folder = Path(top)
            sizes.update(
                {(folder / name).relative_to(self.data).as_posix(): (folder / name).stat().st_size for name in names}
            )
        return sizes


def failure(error: BaseException, doing: str, path: Path) -> Error:
    """What an exception of an engine or of the file system means, as one of our own."""
    said = f"{doing} the vector index at {path} failed: {type(error).__name__}: {error}"
    number = _errno(error)
    if number in _FULL or "Not enough space" in str(error) or getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        return StoreFull(said)
    if number in _WITHHELD:
        hint = "see what the system withholds; nothing is lost, the index catches up by itself"
        return VectorIndexUnavailable(said, hint=hint)
    return VectorIndexDamaged(said)


def _errno(error: BaseException) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    stated = _OS_ERROR.search(str(error))
    return int(stated[1]) if stated else None


def _identity(place: Place) -> dict[str, Any]:
    return {"model": place.model, "dimension": place.dimension, "distance": "cosine", "format": _FORMAT}


def _read(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise VectorIndexDamaged(f"{path} is not readable: {error}") from error
    if not isinstance(held, dict):
        raise VectorIndexDamaged(f"{path} is not readable")
    return held


def _write(path: Path, value: dict[str, Any]) -> None:
    """Replace a file as a whole, and for good."""
    whole = path.with_suffix(".tmp")
    with whole.open("wb") as file:
        file.write(json.dumps(value, ensure_ascii=False).encode())
        file.flush()
        os.fsync(file.fileno())
    whole.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make the entries of a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
