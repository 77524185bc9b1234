"""Sync of all users of a replica: one session of a user at a time, and what is told of it."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from edge.replica import Replica
from edge.sqlite import outbox, syncing
from edge.sqlite.conflicts import count_conflicts
from edge.sync.link import Link
from edge.sync.records import Model
from edge.sync.report import SyncCondition, SyncReport, SyncStatus, condition_of
from edge.sync.session import Session
from edge.sync.talk import Progress, no_progress
from edge.users import Users
from memory.core.errors import DeviceRevoked, Error, NotFound, StoreUnavailable
from memory.core.ports import Clock

logger = logging.getLogger(__name__)


class SyncService:
    """Methods may be called from any thread."""

    def __init__(
        self,
        users: Users,
        link: Link,
        model: Callable[[], Model],
        clock: Clock,
        *,
        schema: str,
        received: Callable[[str], None],
    ) -> None:
        """Nothing is connected yet.

        Args:
            users: Of the replica.
            link: To the centre.
            model: The replica's embedding model.
            clock: This device's.
            schema: Revision of the users' files.
            received: Called with a user's id when memories have come from the centre.
        """
        self._users, self._link, self._model, self._clock, self._schema = users, link, model, clock, schema
        self._received = received
        self._ending = threading.Event()
        self._sessions: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def sync(
        self,
        user_id: str,
        *,
        create: bool = True,
        page_lines: int | None = None,
        verify: bool = False,
        listens: bool = False,
        progress: Progress = no_progress,
    ) -> SyncReport | None:
        """Bring one user's replica and the centre together.

        ``create``: it is made if there is none; otherwise nothing happens then, and None is returned: who was removed
        from this device since its users were listed must not come back.

        What goes wrong is noted for ``status`` and raised. If the centre has revoked the device, the user's memories
        are removed from it: the error's ``unsent`` then says how many changes went with them.
        """
        with self._sessions[user_id]:
            try:
                with self._lent(user_id, create=create) as replica:
                    if replica is None:
                        return None
                    try:
                        return self._met(replica, page_lines, verify, listens, progress)
                    except Error as error:
                        self._note(replica, error)
                        raise
            except DeviceRevoked as error:
                error.fields.setdefault("unsent", 0)
                self._users.wipe(user_id)
                logger.error("the centre has revoked this device for a user, whose memories are removed: %s", error)  # noqa: TRY400
                raise

    def _lent(self, user_id: str, *, create: bool) -> AbstractContextManager[Replica | None]:
        return self._users.writing(user_id) if create else self._users.lease(user_id)

    def _met(
        self, replica: Replica, page_lines: int | None, verify: bool, listens: bool, progress: Progress
    ) -> SyncReport:
        """One session; begun once more if the connections turn out to be left over from before a restart."""
        limits = {} if page_lines is None else {"page_lines": page_lines}
        may_be_stale = self._link.is_up
        while True:
            centre = self._link.centre()
            session = Session(
                replica,
                centre,
                self._model(),
                self._clock,
                schema=self._schema,
                verify=verify,
                listens=listens,
                progress=progress,
                ending=self._ending,
                **limits,
            )
            try:
                return session.run()
            except StoreUnavailable:
                self._link.lost(centre)
                if not may_be_stale or session.is_greeted:
                    raise
                may_be_stale = False
            finally:
                if session.report.pulled:
                    self._received(replica.user_id)

    def _note(self, replica: Replica, error: Error) -> None:
        with replica.database.write() as connection:
            syncing.set_sync(
                connection,
                state=condition_of(error).value,
                problem=error.message,
                hint=error.hint,
                tried_at=self._clock.now(),
            )
            if isinstance(error, DeviceRevoked):
                error.fields["unsent"] = outbox.pending(connection)[0]

    def status(self, user_id: str) -> SyncStatus:
        """How a user's replica stands to the centre, as far as is known here.

        Raises:
            NotFound: the user has no replica here.
        """
        with self._users.lease(user_id) as replica:
            if replica is None:
                raise NotFound("this user has no replica here", hint="`memory edge init` makes one", user_id=user_id)
            with replica.database.read() as connection:
                state = syncing.read_sync(connection)
                pending, accesses = outbox.pending(connection)
                conflicts = count_conflicts(connection)
        return SyncStatus(
            user_id=user_id,
            condition=SyncCondition(state.state),
            problem=state.problem,
            hint=state.hint,
            device=state.device,
            epoch=state.epoch,
            cursor=state.cursor,
            head=state.centre_rev,
            pending=pending,
            pending_accesses=accesses,
            equal=state.equal,
            conflicts=conflicts,
            synced_at=state.synced_at,
            tried_at=state.tried_at,
            clock_offset=state.clock_offset,
        )

    def suspect(self, user_id: str) -> None:
        """Make the next session compare everything."""
        with self._opened(user_id) as replica, replica.database.write() as connection:
            syncing.set_sync(connection, suspicious=True)

    def wipe(self, user_id: str) -> int:
        """Remove a user from this device; returns how many changes had not been sent."""
        with self._sessions[user_id]:
            with self._opened(user_id) as replica, replica.database.read() as connection:
                unsent = outbox.pending(connection)[0]
            self._users.wipe(user_id)
        return unsent

    @contextmanager
    def _opened(self, user_id: str) -> Iterator[Replica]:
        with self._users.lease(user_id) as replica:
            if replica is None:
                raise NotFound("this user has no replica here", user_id=user_id)
            yield replica

    def end(self) -> None:
        """Let sessions end after the page under way, and begin none any more."""
        self._ending.set()
