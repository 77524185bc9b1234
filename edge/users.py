"""The users of a replica: opened when first asked for, lent to threads, closed when too many are open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edge.directory import Description, folder_name
from edge.replica import Kit, Replica, create_folder, owner_of, remove_unfinished, user_folders
from edge.wiping import finish_wipes, wipe_folder
from memory.core.errors import StoreBusy, StoreError, UsageError

WIPE_TIMEOUT_SECONDS = 30.0
"""How long a removal waits for calls that are under way."""


class _Lent:
    """An open replica and how many use it now."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.leases = 0


class Users:
    """Methods may be called from any thread."""

    def __init__(self, folders: Path, kit: Kit, description: Description, *, max_open: int) -> None:
        self._folders, self._kit, self._description, self.max_open = folders, kit, description, max_open
        self._open: dict[str, _Lent] = {}  # in order of use, the latest last
        self._lock = threading.RLock()
        self._returned = threading.Condition(self._lock)
        self._leaving: set[str] = set()
        self._closed = False
        finish_wipes(folders, kit.factory, description)
        remove_unfinished(folders)

    @contextmanager
    def lease(self, user_id: str) -> Iterator[Replica | None]:
        """A user's replica, kept open for the block; None if there is none."""
        with self._lent(self._take(user_id, create=False)) as replica:
            yield replica

    @contextmanager
    def lease_open(self, user_id: str) -> Iterator[Replica | None]:
        """A user's replica if it is open anyway."""
        with self._lock:
            lent = self._take(user_id, create=False) if user_id in self._open else None
        with self._lent(lent) as replica:
            yield replica

    @contextmanager
    def writing(self, user_id: str) -> Iterator[Replica]:
        """A user's replica, made if there is none."""
        lent = self._take(user_id, create=True)
        if lent is None:
            raise AssertionError("what is made if it is not there, is there")
        try:
            yield lent.replica
        finally:
            self._give_back(lent)

    @contextmanager
    def _lent(self, lent: _Lent | None) -> Iterator[Replica | None]:
        if lent is None:
            yield None
            return
        try:
            yield lent.replica
        finally:
            self._give_back(lent)

    def known(self, *, damaged: Callable[[StoreError], None] | None = None) -> list[str]:
        """Ids of all users that have a folder, in code-point order.

        Raises:
            IntegrityFailure: a folder does not say whose it is, and nobody wants to hear of ``damaged`` ones.
        """
        found = set()
        for folder in user_folders(self._folders):
            try:
                found.add(owner_of(folder))
            except StoreError as error:
                if damaged is None:
                    raise
                damaged(error)
        return sorted(found)

    def exists(self, user_id: str) -> bool:
        """Whether a user has a folder here."""
        return (self._folders / folder_name(user_id)).exists()

    def wipe(self, user_id: str) -> None:
        """Remove everything of a user from this device, after the calls that are under way. Repeated: no effect.

        From the moment its folder has another name the user is gone; a crash after that is finished at the next open.

        Raises:
            StoreBusy: calls take too long; nothing is removed.
        """
        with self._returned:
            self._leaving.add(user_id)
            try:
                lent = self._open.get(user_id)
                if lent is not None:
                    idle = self._returned.wait_for(lambda: lent.leases == 0, WIPE_TIMEOUT_SECONDS)
                    if not idle:
                        raise StoreBusy("calls for this user are under way", hint="end them, then repeat")
                    self._open.pop(user_id).replica.close()
                wipe_folder(self._folders / folder_name(user_id), self._kit, self._description)
            finally:
                self._leaving.discard(user_id)
                self._returned.notify_all()

    def now_open(self) -> list[str]:
        """Ids of the users that are open."""
        with self._lock:
            return list(self._open)

    def close(self) -> None:
        """Close all, and open none any more: the directory may be somebody else's soon. Idempotent."""
        with self._lock:
            self._closed = True
            lent, self._open = list(self._open.values()), {}
        with ExitStack() as stack:  # each is closed, whatever becomes of the others
            stack.callback(self._kit.factory.close)
            for one in lent:
                stack.callback(one.replica.close)

    def _take(self, user_id: str, *, create: bool) -> _Lent | None:
        with self._returned:
            self._returned.wait_for(lambda: user_id not in self._leaving)
            if self._closed:
                raise UsageError("the provider is closed", hint="open a new one with memory.connect()")
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
            self._returned.notify_all()
            if len(self._open) <= self.max_open:
                return
            idle = [user_id for user_id, one in self._open.items() if not one.leases]
            for user_id in idle[: len(self._open) - self.max_open]:
                self._open.pop(user_id).replica.close()
