"""The users of a replica: opened when first asked for, lent to threads, closed when too many are open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edge.directory import Description, folder_name
from edge.replica import Kit, Replica, create_folder, owner_of, remove_unfinished, user_folders


class _Lent:
    """An open replica and how many use it now."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.leases = 0


class Users:
    """Methods may be called from any thread."""

    def __init__(self, folders: Path, kit: Kit, description: Description, *, max_open: int) -> None:
        self._folders, self._kit, self._description, self._max_open = folders, kit, description, max_open
        self._open: dict[str, _Lent] = {}  # in order of use, the latest last
        self._lock = threading.RLock()
        remove_unfinished(folders)

    @contextmanager
    def lease(self, user_id: str, *, create: bool = False) -> Iterator[Replica | None]:
        """A user's replica, kept open for the block; None if there is none and none should be made."""
        lent = self._take(user_id, create=create)
        if lent is None:
            yield None
            return
        try:
            yield lent.replica
        finally:
            self._give_back(lent)

    @contextmanager
    def writing(self, user_id: str) -> Iterator[Replica]:
        """A user's replica, made if there is none."""
        lent = self._take(user_id, create=True)
        if lent is None:
            raise AssertionError("a lease that creates has a replica")
        try:
            yield lent.replica
        finally:
            self._give_back(lent)

    def known(self) -> list[str]:
        """Ids of all users that have a folder, in code-point order."""
        return sorted(map(owner_of, user_folders(self._folders)))

    def now_open(self) -> list[str]:
        """Ids of the users that are open."""
        with self._lock:
            return list(self._open)

    def close(self) -> None:
        """Close all. Idempotent."""
        with self._lock:
            lent, self._open = list(self._open.values()), {}
        with ExitStack() as stack:  # each is closed, whatever becomes of the others
            stack.callback(self._kit.factory.close)
            for one in lent:
                stack.callback(one.replica.close)

    def _take(self, user_id: str, *, create: bool) -> _Lent | None:
        with self._lock:
            lent = self._open.pop(user_id, None)
            if lent is None:
                folder = self._folders / folder_name(user_id)
                if not folder.exists():
                    if not create:
                        return None
                    create_folder(self._folders, user_id, self._kit, self._description)
                lent = _Lent(Replica(folder, user_id, self._kit, self._description))
            self._open[user_id] = lent
            lent.leases += 1
            return lent

    def _give_back(self, lent: _Lent) -> None:
        with self._lock:
            lent.leases -= 1
            if len(self._open) <= self._max_open:
                return
            idle = [user_id for user_id, one in self._open.items() if not one.leases]
            for user_id in idle[: len(self._open) - self._max_open]:
                self._open.pop(user_id).replica.close()
