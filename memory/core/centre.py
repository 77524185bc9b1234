"""The port to the centre, as a replica sees it: what each carrier of sync implements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from memory.core.sync import FetchRequest, Hello, ManifestRequest, PullRequest, Welcome


class SyncCentre(Protocol):
    """The centre as a replica reaches it: one adapter for each carrier. Every call is one request and its answer.

    Streams are lines as of ``core.sync``, read to their end before anything is done with them. Any call may be
    repeated: it then changes nothing. All raise, besides what is named: StoreUnavailable (not reached; says nothing
    about what was sent), DeviceRevoked, ProtocolMismatch, SchemaMismatch.
    """

    def hello(self, hello: Hello) -> Welcome:
        """Begin a session: register the device, find out whether the histories fit together."""

    def push(self, lines: Sequence[bytes]) -> Iterable[bytes]:
        """Merge one page of changes, in one transaction; the answer, after its commit, has a verdict for each line.

        Raises:
            EpochChanged: nothing of it was taken. ClockAhead: a stamp is too far in the future; likewise.
            FormatError: the stream is damaged; likewise.
        """

    def pull(self, request: PullRequest) -> Iterable[bytes]:
        """One page of what has changed after a cursor, in the order of revisions.

        Raises:
            EpochChanged.
        """

    def manifest(self, request: ManifestRequest) -> Iterable[bytes]:
        """One page of ids, hashes and revisions, by id. Raises EpochChanged."""

    def fetch(self, request: FetchRequest) -> Iterable[bytes]:
        """Records of some memories. Raises EpochChanged."""

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None] | None:
        """Call ``changed`` with a user's name (``core.sync.user_name``) soon after each change of one who listens.

        Returns what ends it, or None where a carrier cannot tell. Changes may be missed while it reconnects.
        """

    def close(self) -> None:
        """Let go of connections. Idempotent."""
