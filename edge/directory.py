"""The directory of a replica: whose it is, what it holds, and the description of the whole beside the users.

Layout::

    owner.lock      held by the process that has the replica open; holds its pid
    replica.json    format, identity, embedding model
    users/          a folder for each user, named by a hash of the user's id
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from edge.owner import LOCK_FILE
from memory.core.errors import (
    ConfigError,
    Error,
    IntegrityFailure,
    SchemaMismatch,
    StoreDenied,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    Unsupported,
)

FORMAT: Final = 1
DESCRIPTION_FILE: Final = "replica.json"
USERS: Final = "users"
MOUNTS: Final = Path("/proc/self/mounts")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "9p.nfs", "ceph", "lustre", "glusterfs", "fuse.sshfs"}
    | {"fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "beegfs", "ocfs2", "gfs2"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What ``replica.json`` says."""

    format: int
    replica: str
    """Names this history of revisions, 16 hex digits; drawn anew when the directory turns out to be a copy."""
    origin: str
    """The directory it was drawn in."""
    model: str
    dimension: int


def claim(path: Path, *, create: bool) -> Path:
    """Check the directory, and make it if asked; returns its absolute path.

    Raises:
        ConfigError: a file is there, or other things than a replica, or nothing to open. StoreDenied,
        StoreReadOnly, StoreFull: it cannot be written to. Unsupported: a network file system, where SQLite's log
        is not safe.
    """
    with directory_errors(path):
        root = _absolute(path)
        if root.exists() and not root.is_dir():
            raise ConfigError(f"{root}: is not a directory", hint=_NAME_ANOTHER)
        if not create and not (root / USERS).is_dir():
            raise ConfigError(f"{root}: holds no replica", hint="name the directory of one")
        _refuse_network(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {LOCK_FILE, DESCRIPTION_FILE, USERS}
        strange = sorted(
            entry.name for entry in root.iterdir() if entry.name not in known and not entry.name.startswith(".")
        )
        if strange and not (root / DESCRIPTION_FILE).exists():
            raise ConfigError(
                f"{root}: holds other things ({strange[0]!r:.80}) and no replica",
                hint="name an empty directory, a new one, or that of a replica",
            )
        (root / USERS).mkdir(mode=0o700, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK) or not os.access(root / USERS, os.W_OK | os.X_OK):
            number = errno.EROFS if os.statvfs(root).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(number, os.strerror(number), str(root))
    return root


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().resolve()
    except (ValueError, RuntimeError) as error:  # a NUL in the path; an unknown account, a loop of links
        raise ConfigError(f"{str(path)!r:.80}: is not a path ({error})", hint=_NAME_ANOTHER) from error


def read_description(root: Path) -> Description | None:
    """What the directory is; None if it is new.

    Raises:
        SchemaMismatch: written by a newer version. IntegrityFailure: it holds users but no readable description.
    """
    file = root / DESCRIPTION_FILE
    try:
        data = json.loads(file.read_bytes())
        if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
            raise SchemaMismatch(
                f"{root}: was written by a newer version (format {data['format']}, this one knows {FORMAT})",
                hint="upgrade nightingale-memory on this device",
                current=data["format"],
            )
        return _parsed(data)
    except FileNotFoundError:
        if any((root / USERS).iterdir()):
            raise _half_copied(root, "replica.json is missing") from None
        return None
    except (ValueError, TypeError) as error:
        raise _half_copied(root, f"replica.json cannot be read ({error})") from error


def _parsed(data: Any) -> Description:
    found = Description(**data)
    for name, value in asdict(found).items():
        if type(value) is not (int if name in ("format", "dimension") else str):
            raise TypeError(f"{name} is {value!r:.40}")
    return found


def _half_copied(root: Path, what: str) -> IntegrityFailure:
    return IntegrityFailure(
        f"{root}: {what}: the directory was copied in part, or damaged",
        hint="copy it again whole while no program has it open, or go on with what is there: `memory doctor --repair`",
    )


def new_description(root: Path, *, model: str, dimension: int) -> Description:
    """A description with an identity of its own, not written yet."""
    return Description(
        format=FORMAT, replica=secrets.token_hex(8), origin=origin_of(root), model=model, dimension=dimension
    )


def with_own_identity(root: Path, description: Description) -> Description:
    """The same, if this is the directory it was drawn in; else with a new identity."""
    if description.origin == origin_of(root):
        return description
    return replace(description, replica=secrets.token_hex(8), origin=origin_of(root))


def origin_of(path: Path) -> str:
    """What a copy of a file or directory differs in."""
    return str(path.stat().st_ino)


def write_description(root: Path, description: Description) -> None:
    """Replace the description, whole or not at all.

    Raises:
        StoreFull, StoreDenied, StoreReadOnly, StoreUnavailable: the old one stays.
    """
    with directory_errors(root):
        write_whole(root / DESCRIPTION_FILE, json.dumps(asdict(description), indent=1, ensure_ascii=False).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, make it durable, and move it into place."""
    partial = path.with_name(f".{path.name}.partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as stream:  # noqa: PTH123
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names in a directory survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def folder_name(user_id: str) -> str:
    """The name of a user's folder: it says nothing about the user, and fits every file system."""
    return hashlib.sha256(user_id.encode()).hexdigest()[:32]


@contextlib.contextmanager
def directory_errors(path: Path) -> Iterator[None]:
    """Raise the operating system's errors as the tree of ``memory.core.errors``."""
    try:
        yield
    except OSError as error:
        kind, hint = _BY_ERRNO.get(error.errno or 0, (StoreUnavailable, "check the disk and the path"))
        raise kind(f"{error.filename or path}: {error.strerror or error}", hint=hint) from error


_NAME_ANOTHER: Final = "name a directory, new or of a replica"
_BY_ERRNO: Final[dict[int, tuple[type[Error], str]]] = {
    errno.EPERM: (StoreDenied, "give this account the right to read and write there, or name another directory"),
    errno.EACCES: (StoreDenied, "give this account the right to read and write there, or name another directory"),
    errno.ENOSPC: (StoreFull, ""),
    errno.EROFS: (StoreReadOnly, "name a directory on a file system that can be written to"),
    errno.EDQUOT: (StoreFull, ""),
    # Somewhere on the way is a file instead of a directory, or the other way round, or nothing that a name can be of.
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG), (ConfigError, _NAME_ANOTHER)
    ),
}


def _refuse_network(root: Path) -> None:
    kind = file_system_of(root)
    if kind in _NETWORK:
        raise Unsupported(
            f"{root}: lies on a network file system ({kind}), where SQLite's write-ahead log is not safe",
            hint="keep it on a local disk; memories travel by export, import and sync",
        )


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system that a path lies on, as Linux lists it; None where nothing is listed."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    best, kind = -1, None
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = Path(_OCTAL.sub(lambda escape: chr(int(escape[1], 8)), fields[1]))
        if (path == place or place in path.parents) and len(place.parts) >= best:
            best, kind = len(place.parts), fields[2]
    return kind
