"""One process owns a replica's directory: a lock that the kernel takes back however the process ends."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from pathlib import Path
from typing import Final

from memory.core.errors import StoreInUse, Unsupported

if sys.platform != "win32":
    import fcntl

LOCK_FILE: Final = "owner.lock"


class Owner:
    """Holds the lock of a directory until released."""

    def __init__(self, root: Path) -> None:
        """Take the lock.

        Raises:
            StoreInUse: another process, or another provider of this one, has it; ``pid`` names the process.
        """
        if sys.platform == "win32":
            raise Unsupported("edge replicas do not run on Windows yet", hint="use Linux, macOS or WSL")
        self._descriptor: int | None = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        except BlockingIOError as error:
            raise _in_use(root, self._descriptor) from error
        except BaseException:
            self.release()
            raise
        _forget_in_children(self)

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _in_use(root: Path, descriptor: int) -> StoreInUse:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    os.close(descriptor)
    pid = int(text) if text.isdigit() else None
    if pid == os.getpid():
        return StoreInUse(
            f"{root} is open in this process already",
            hint="share one provider between threads, or close it first",
            pid=pid,
        )
    who = "another process" if pid is None else f"process {pid}"
    return StoreInUse(f"{root} is in use by {who}: a replica has one owner at a time", pid=pid)


def _forget_in_children(owner: Owner) -> None:
    """A forked child inherits the descriptor, and with it would hold the lock beyond its parent's end."""
    reference = weakref.ref(owner)

    def forget() -> None:
        held = reference()
        if held is not None:
            with contextlib.suppress(OSError):
                held.release()

    os.register_at_fork(after_in_child=forget)
