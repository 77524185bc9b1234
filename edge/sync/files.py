"""Sync by file, for devices that never reach the centre: a request goes there, a reply comes back.

A file is one framed stream, refused whole if it was cut or altered. A request holds the hello and all that is to be
pushed. A reply holds the welcome, the verdicts, and the pages of a pull, each begun by a line of kind ``page``; if
everything must be compared, the manifest and all records instead. Each may be taken any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from edge.sqlite import outbox, syncing
from edge.sync.records import Model
from edge.sync.report import SyncReport
from edge.sync.session import Session
from edge.users import Users
from memory.core import sync as wire
from memory.core.centre import SyncCentre
from memory.core.errors import FormatError, NotFound
from memory.core.framing import encode_line
from memory.core.ports import Clock
from memory.core.sync import FetchRequest, Head, Hello, ManifestRequest, Mark, Page, PullRequest, Received, Welcome
from memory.engine.files import LineSource, open_target

REQUEST: Final = "request"
REPLY: Final = "reply"
_FETCHED_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Written:
    """What a request carries."""

    changes: int
    bytes: int


def write_request(
    users: Users, user_id: str, target: str | Path, *, model: Model, clock: Clock, schema: str
) -> Written:
    """Write a request."""
    with users.writing(user_id) as replica:
        with replica.database.write() as connection:
            hello = syncing.greeting(connection, user_id, model=(model.name, model.dimension), schema=schema)
        with replica.database.read() as connection:
            batch = outbox.next_batch(connection, model=model.name, limit=outbox.UNLIMITED, max_bytes=outbox.UNLIMITED)
    page = Page(
        stream=REQUEST,
        device=hello.device,
        user_id=user_id,
        epoch=hello.epoch or "",
        after=hello.cursor,
        model=model.name,
        dimension=model.dimension,
        now=clock.now(),
    )
    size = _write(target, page, [encode_line({"kind": "hello", **asdict(hello)}), *batch.lines])
    return Written(len(batch.lines), size)


def answer_request(centre: SyncCentre, source: str | Path, target: str | Path, *, clock: Clock) -> int:
    """At the centre: carry out a request, and write the reply; returns the number of changes that were in it.

    Raises:
        FileDamaged, FormatError: it is no whole request; nothing of it is taken.
    """
    with LineSource(source) as file:
        request = wire.read_page(file.lines(), REQUEST)
    hello = _hello(request)
    welcome = centre.hello(hello)
    reply = replace(request.page, stream=REPLY, epoch=welcome.epoch, to=welcome.head.rev, now=clock.now())
    if hello.epoch not in (None, welcome.epoch) or welcome.reconcile or hello.compare:
        pages = _everything(centre, hello, welcome)
    else:
        pages = _exchange(centre, request, welcome)
    lines = [encode_line({"kind": "welcome", "asked": hello.epoch, **asdict(welcome)})]
    for received in pages:
        lines.append(encode_line({"kind": "page", **asdict(received.page)}))
        lines += map(encode_line, received.lines)
    _write(target, reply, lines)
    return len(request.lines) - 1


def _exchange(centre: SyncCentre, request: Received, welcome: Welcome) -> Iterator[Received]:
    page = replace(request.page, stream=wire.PUSH, epoch=welcome.epoch, after=0)
    changes = [encode_line(line) for line in request.lines[1:]]
    for start in range(0, len(changes), wire.MAX_PAGE_LINES):
        part = changes[start : start + wire.MAX_PAGE_LINES]
        yield wire.read_page(centre.push(list(wire.write_page(page, part))), wire.ANSWER)
    after = request.page.after
    while True:
        asked = PullRequest(device=page.device, user_id=page.user_id, epoch=welcome.epoch, after=after)
        received = wire.read_page(centre.pull(asked), wire.PULL)
        yield received
        if not received.page.more:
            return
        after = received.page.to


def _everything(centre: SyncCentre, hello: Hello, welcome: Welcome) -> Iterator[Received]:
    above = ""
    while True:
        asked = ManifestRequest(device=hello.device, user_id=hello.user_id, epoch=welcome.epoch, above=above)
        received = wire.read_page(centre.manifest(asked), wire.MANIFEST)
        yield received
        ids = [entry.memory_id for entry in wire.entries(received)]
        for start in range(0, len(ids), _FETCHED_AT_ONCE):
            wanted = FetchRequest(
                device=hello.device,
                user_id=hello.user_id,
                epoch=welcome.epoch,
                memory_ids=tuple(ids[start : start + _FETCHED_AT_ONCE]),
            )
            yield wire.read_page(centre.fetch(wanted), wire.RECORDS)
        if not received.page.more:
            return
        above = ids[-1]


def read_answer(
    users: Users, user_id: str, source: str | Path, *, model: Model, clock: Clock, schema: str
) -> SyncReport:
    """Take in a reply; see ``EdgeMemory.read_answer``."""
    with LineSource(source) as file:
        reply = wire.read_page(file.lines(), REPLY)
    if reply.page.user_id != user_id:
        raise FormatError("the file is for another user's replica", hint="name the user it was made for")
    with users.lease(user_id) as replica:
        if replica is None:
            raise NotFound("this user has no replica here", user_id=user_id)
        with replica.database.read() as connection:
            state = syncing.read_sync(connection)
        if reply.page.device != state.device:
            raise FormatError("the file answers another device", hint="take it to the device that wrote the request")
        welcome, pages = _unpacked(reply)
        if state.epoch not in (reply.lines[0].get("asked"), welcome.epoch):
            raise FormatError(
                "the file answers a request of a history that has ended", hint="write a new request, and take that"
            )
        session = Session(replica, _Recorded(welcome, pages), model, clock, schema=schema)
        return session.run_recorded(welcome, pages)


class _Recorded:
    """The centre as a reply has recorded it: enough of it to compare everything."""

    def __init__(self, welcome: Welcome, pages: Sequence[Received]) -> None:
        self._welcome = welcome
        self._manifest = [page for page in pages if page.page.stream == wire.MANIFEST]
        self._records = {
            line["memory_id"]: line for page in pages if page.page.stream == wire.RECORDS for line in page.lines
        }

    def hello(self, _hello: Hello) -> Welcome:
        """As recorded."""
        return self._welcome

    def push(self, _lines: Sequence[bytes]) -> list[bytes]:
        """Not possible: the next request takes it along."""
        raise NotImplementedError

    def pull(self, _request: PullRequest) -> list[bytes]:
        """Not possible."""
        raise NotImplementedError

    def manifest(self, request: ManifestRequest) -> Iterator[bytes]:
        """The page that goes on above an id."""
        for page in self._manifest:
            listed = wire.entries(page)
            if not listed or listed[-1].memory_id > request.above:
                return wire.write_page(page.page, map(wire.encode_entry, listed))
        raise FormatError("the file does not list all memories")

    def fetch(self, request: FetchRequest) -> Iterator[bytes]:
        """Those asked for that were recorded."""
        page = Page(
            stream=wire.RECORDS,
            device=request.device,
            user_id=request.user_id,
            epoch=request.epoch,
            to=self._welcome.head.rev,
            now=self._welcome.now,
        )
        lines = [self._records[memory_id] for memory_id in request.memory_ids if memory_id in self._records]
        return wire.write_page(page, map(encode_line, lines))

    def listen(self, _changed: Callable[[str], None]) -> None:
        """A file cannot tell."""

    def close(self) -> None:
        """Nothing is open."""


def _hello(request: Received) -> Hello:
    data = dict(request.lines[0]) if request.lines else {}
    if data.pop("kind", None) != "hello":
        raise FormatError("line 2: the request does not say who asks", line=2)
    marks = tuple(Mark(*mark) for mark in data.pop("marks"))
    hello: Hello = _built(Hello, {**data, "marks": marks})
    wire.require_protocol(hello.protocol)
    return hello


def _unpacked(reply: Received) -> tuple[Welcome, list[Received]]:
    first, *rest = reply.lines or ({},)
    data = dict(first)
    if data.pop("kind", None) != "welcome":
        raise FormatError("line 2: the reply does not say where the centre stands", line=2)
    welcome: Welcome = _built(Welcome, {**data, "head": _built(Head, data.get("head"))})
    pages: list[tuple[Page, list[dict[str, Any]]]] = []
    for line in rest:
        if line.get("kind") == "page":
            head = line.get("head")
            made = {name: value for name, value in line.items() if name != "kind"}
            pages.append((_built(Page, {**made, "head": head and _built(Head, head)}), []))
        elif pages:
            pages[-1][1].append(line)
        else:
            raise FormatError("the reply has lines that belong to no page")
    return welcome, [Received(page, tuple(lines)) for page, lines in pages]


def _built(kind: type[Any], data: Any) -> Any:
    try:
        return kind(**{name: value for name, value in data.items() if name in kind.__dataclass_fields__})
    except (TypeError, AttributeError) as error:
        raise FormatError(f"not what a {kind.__name__.lower()} has to say ({error})") from None


def _write(target: str | Path, page: Page, lines: Sequence[bytes]) -> int:
    size = 0
    with open_target(target) as stream:
        for line in wire.write_page(page, lines):
            stream.write(line)
            size += len(line)
    return size
