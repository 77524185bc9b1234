"""The carrier of sync for devices that reach the central database itself: ``SyncCentre`` on Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from memory.core.ports import Clock
from memory.core.sync import (
    ANSWER,
    MANIFEST,
    PULL,
    PUSH,
    RECORDS,
    FetchRequest,
    Head,
    Hello,
    ManifestRequest,
    Page,
    PullRequest,
    Welcome,
    encode_verdict,
    read_page,
    write_page,
)
from memory.postgres import listening, migrations, pulling, pushing
from memory.postgres.database import Database
from memory.postgres.devices import CurrentModel
from memory.postgres.digest import settle
from memory.postgres.epoch import adopt_epoch
from memory.postgres.greeting import greet
from memory.postgres.server_clock import ServerClock


def dial_centre(conninfo: str, clock: Clock | None, *, pool_size: int, timeout: float) -> PostgresCentre:
    """Reach a central database.

    Args:
        conninfo: libpq URL or key=value string.
        clock: What the centre takes for the time; None: the database server's, not that of whoever asks.
        pool_size: Most connections at a time.
        timeout: Seconds to wait for a connection.

    Raises:
        ConfigError, StoreUnavailable, StoreDenied. SchemaMismatch: it is not at this program's revision.
    """
    migrations.check(conninfo)
    database = Database(conninfo, pool_size=pool_size, timeout=timeout)
    try:
        adopt_epoch(database)
    except BaseException:
        database.close()
        raise
    return PostgresCentre(database, clock or ServerClock(database))


class PostgresCentre:
    """See :class:`~memory.core.centre.SyncCentre`. Safe to call from several threads at once."""

    def __init__(self, database: Database, clock: Clock) -> None:
        """Serve from a database, which is closed with the centre."""
        self._database, self._clock = database, clock

    def hello(self, hello: Hello) -> Welcome:
        """See ``SyncCentre``."""
        return greet(self._database, hello, now=self._clock.now())

    def push(self, lines: Sequence[bytes]) -> Iterable[bytes]:
        """See ``SyncCentre``."""
        received = read_page(lines, PUSH)
        taken = pushing.push(self._database, received, now=self._clock.now())
        page = self._page(ANSWER, received.page, taken.model, after=taken.before, to=taken.to, mark=taken.mark)
        return write_page(page, map(encode_verdict, taken.verdicts))

    def pull(self, request: PullRequest) -> Iterable[bytes]:
        """See ``SyncCentre``."""
        settle(self._database, request.user_id)
        given = pulling.pull(self._database, request)
        page = self._page(
            PULL,
            request,
            given.entered.model,
            after=request.after,
            to=given.to,
            more=given.more,
            mark=given.mark,
            head=None if given.more else given.entered.head,
        )
        return write_page(page, given.lines)

    def manifest(self, request: ManifestRequest) -> Iterable[bytes]:
        """See ``SyncCentre``."""
        settle(self._database, request.user_id)
        given = pulling.manifest(self._database, request)
        page = self._page(MANIFEST, request, given.entered.model, to=given.to, more=given.more)
        return write_page(page, given.lines)

    def fetch(self, request: FetchRequest) -> Iterable[bytes]:
        """See ``SyncCentre``."""
        given = pulling.fetch(self._database, request)
        page = self._page(RECORDS, request, given.entered.model, to=given.to)
        return write_page(page, given.lines)

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None] | None:
        """See ``SyncCentre``; ``changed("")`` after a lost connection: anything may have happened."""
        return listening.listen(self._database, changed)

    def close(self) -> None:
        """See ``SyncCentre``."""
        self._database.close()

    def _page(
        self,
        stream: str,
        asked: Page | PullRequest | ManifestRequest | FetchRequest,
        model: CurrentModel,
        *,
        to: int,
        after: int = 0,
        more: bool = False,
        mark: str | None = None,
        head: Head | None = None,
    ) -> Page:
        return Page(
            stream=stream,
            device=asked.device,
            user_id=asked.user_id,
            epoch=asked.epoch,
            after=after,
            to=to,
            more=more,
            mark=mark,
            head=head,
            model=model.name,
            dimension=model.dimension,
            now=self._clock.now(),
        )
