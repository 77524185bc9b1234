"""A carrier that fails: whatever a network does to a request and its answer, at a rate, from a seed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from memory.core.centre import SyncCentre
from memory.core.errors import Error, StoreUnavailable
from memory.core.sync import FetchRequest, Hello, ManifestRequest, Page, PullRequest, Welcome, read_page, write_page

T = TypeVar("T")


class FaultyCarrier:
    """Stands between a replica and any centre.

    At ``rate`` a call goes wrong: its request is lost, or late (``deliver_late``); its answer is lost, or cut; or all
    goes well and the request comes a second time, late. What is lost raises StoreUnavailable. ``dropping`` is the
    rate of a worse fault, of the centre itself: a line is missing from a pull page that is otherwise valid.
    """

    def __init__(
        self, centre: SyncCentre, rng: random.Random | None = None, *, rate: float = 0.0, dropping: float = 0.0
    ) -> None:
        self.centre = centre
        self.rate = rate
        self.dropping = dropping
        self.round_trips = 0
        """Calls that reached the centre."""
        self.records_sent = 0
        """Lines in pushes that reached it."""
        self.records_read = 0
        """Lines in answers to pulls and fetches, as they left it."""
        self.after_push: Callable[[], None] | None = None
        """Called once, between the next push's commit and its answer."""
        self._rng = rng or random.Random()
        self._late: list[Callable[[], Any]] = []

    def hello(self, hello: Hello) -> Welcome:
        return self._call(lambda: self.centre.hello(hello))

    def push(self, lines: Sequence[bytes]) -> Iterable[bytes]:
        sent = list(lines)
        if self._happens(0.1):
            sent = sent[: self._rng.randrange(len(sent))]  # the centre refuses it
        return self._answer(lambda: self._push(sent))

    def _push(self, lines: Sequence[bytes]) -> list[bytes]:
        self.records_sent += max(0, len(lines) - 2)
        answer = list(self.centre.push(lines))
        during, self.after_push = self.after_push, None
        if during is not None:
            during()
        return answer

    def pull(self, request: PullRequest) -> Iterable[bytes]:
        return self._answer(lambda: self._read(self._thinned(list(self.centre.pull(request)))))

    def manifest(self, request: ManifestRequest) -> Iterable[bytes]:
        return self._answer(lambda: list(self.centre.manifest(request)))

    def fetch(self, request: FetchRequest) -> Iterable[bytes]:
        return self._answer(lambda: self._read(list(self.centre.fetch(request))))

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None] | None:
        return self.centre.listen(changed)

    def close(self) -> None:
        self.centre.close()

    @property
    def late(self) -> int:
        """How many requests are under way."""
        return len(self._late)

    def deliver_late(self) -> None:
        """Let one of the requests that are under way arrive; nobody reads its answer."""
        if self._late:
            request = self._late.pop(self._rng.randrange(len(self._late)))
            during, self.after_push = self.after_push, None
            with contextlib.suppress(Error):  # the centre refuses much that comes late
                request()
            self.after_push = during

    def deliver_all(self) -> None:
        """Let all of them arrive, in any order."""
        while self._late:
            self.deliver_late()

    def _happens(self, share: float) -> bool:
        return self.rate > 0 and self._rng.random() < self.rate * share

    def _call(self, request: Callable[[], T]) -> T:
        if self._happens(0.3):
            raise StoreUnavailable("the request is lost")
        if self._happens(0.1):
            self._late.append(request)
            raise StoreUnavailable("the request is late")
        self.round_trips += 1
        answer = request()
        if self._happens(0.3):
            raise StoreUnavailable("the answer is lost")
        if self._happens(0.15):
            self._late.append(request)
        return answer

    def _answer(self, request: Callable[[], list[bytes]]) -> list[bytes]:
        lines = self._call(request)
        return lines[: self._rng.randrange(len(lines))] if self._happens(0.2) else lines

    def _read(self, lines: list[bytes]) -> list[bytes]:
        self.records_read += len(lines) - 2
        return lines

    def _thinned(self, lines: list[bytes]) -> list[bytes]:
        if len(lines) < 3 or not self.dropping or self._rng.random() >= self.dropping:
            return lines
        page: Page = read_page(lines, "pull").page
        missing = self._rng.randrange(1, len(lines) - 1)
        return list(write_page(page, lines[1:missing] + lines[missing + 1 : -1]))
