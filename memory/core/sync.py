"""What a replica and the centre say to each other, the same over every carrier.

A session is a few calls (see ``core.centre.SyncCentre``): hello, push pages, pull pages, and where histories do not fit
together a manifest and the records that differ. Hello and welcome are JSON objects. Everything else is a framed stream
as of ``core.framing``, whose begin line holds a :class:`Page` under ``sync``; its lines are

- ``memory``: a record (``core.record``). A pushed one has ``sync``: ``seq``, the replica's own sequence number of the
  change; ``base``, the epoch and revision it last received, or null; ``seen``, the stamp of the content it received.
- ``access``: access counts of a memory whose record has not changed.
- ``verdict``: what became of a pushed line.
- ``entry``: id, row hash, revision of one memory, for comparison.

So a stream that was cut, altered or reordered is refused whole, and every line may be applied any number of times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from memory.core.errors import FormatError, ProtocolMismatch
from memory.core.framing import Begin, decode_line, encode_line, frame, verify
from memory.core.record import ACCESS_KIND

PROTOCOL: Final = 1
OLDEST_PROTOCOL: Final = 1
"""What this program still speaks with an older partner."""
VERDICT_KIND: Final = "verdict"
ENTRY_KIND: Final = "entry"
PUSH: Final = "push"
ANSWER: Final = "answer"
PULL: Final = "pull"
MANIFEST: Final = "manifest"
RECORDS: Final = "records"
MAX_PAGE_LINES: Final = 1_000
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Where a page ends: after the line that goes over it, so one longer line still travels."""
MARKS_SENT: Final = 10

OK: Final = "ok"
GONE: Final = "gone"
REJECTED: Final = "rejected"
UNKNOWN: Final = "unknown"


class Mark(NamedTuple):
    """A random name that the centre drew, and both sides noted in the transaction that brought them to a revision.

    Drawn by the centre: a request that arrives a second time, at a centre that was restored meanwhile, must not plant
    there what the replica takes for proof that nothing has been lost.
    """

    name: str
    rev: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A user's state at the centre."""

    rev: int
    digest: int | None
    """XOR of the row hashes of the live memories; None while writers are faster than the one who hashes."""
    live: int
    """Live memories."""
    accesses: int
    """Sum of all access counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a replica says first."""

    device: str
    user_id: str
    epoch: str | None
    """The history that ``cursor`` counts in; None before the first sync."""
    cursor: int
    """The largest revision up to which everything has been received."""
    marks: tuple[Mark, ...]
    """The last ``MARKS_SENT``, oldest first."""
    model: str
    dimension: int
    schema: str
    listens: bool = False
    """It will listen for changes."""
    compare: bool = False
    """It is going to compare everything; by file it cannot ask for what that takes later on."""
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The centre's answer."""

    epoch: str
    lineage: Mapping[str, int]
    """Epochs of this user, with the revision up to which the centre still holds what they gave this replica."""
    head: Head
    reconcile: bool
    """The replica may have seen what the centre cannot tell: compare everything before going on."""
    now: int
    """The centre's time, ms UTC."""
    model: str | None
    """Of the centre's vectors."""
    dimension: int | None
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the begin line says of a stream."""

    stream: str
    """``push``, ``answer``, ``pull``, ``manifest`` or ``records``."""
    device: str
    user_id: str
    epoch: str
    after: int = 0
    """Pull: the cursor it continues. Answer: the centre's revision before the push."""
    to: int = 0
    """Pull: the cursor after it. Answer, manifest, records: the centre's revision."""
    more: bool = False
    mark: str | None = None
    """Of an answer, and of a pull with lines: what the centre has noted with ``to``, for the replica to note, too."""
    head: Head | None = None
    """On the last page of a pull: what the replica must now be equal to."""
    model: str = ""
    dimension: int = 0
    now: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """Ask for what has changed since a cursor."""

    device: str
    user_id: str
    epoch: str
    after: int
    limit: int = MAX_PAGE_LINES


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRequest:
    """Ask for ids and hashes of all memories, live and deleted, above an id."""

    device: str
    user_id: str
    epoch: str
    above: str = ""
    limit: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Ask for some memories' records, tombstones included; those that are not there are left out."""

    device: str
    user_id: str
    epoch: str
    memory_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a pushed line."""

    memory_id: str
    seq: int
    code: str
    """``ok``: it is in what the centre has committed. ``gone``: the centre had this memory and has purged it.
    ``rejected``: it breaks a rule, see ``problem``. ``unknown``: access counts of a memory that is not there."""
    rev: int = 0
    equal: bool = False
    """The centre now has exactly what was sent, so it need not be sent back."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A memory in a manifest."""

    memory_id: str
    hash: int | None
    """None if it has not been computed: it then counts as different."""
    rev: int
    deleted: bool


@dataclass(frozen=True, slots=True)
class Received:
    """A stream that has been read to its valid end."""

    page: Page
    lines: tuple[dict[str, Any], ...] = field(repr=False)


def write_page(page: Page, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Frame encoded lines."""
    begin = Begin(
        created_at=page.now,
        model=page.model,
        dimension=page.dimension,
        filters={"user_id": page.user_id},
        epoch=page.epoch,
        revisions={page.user_id: page.to},
        after={"epoch": page.epoch, "revisions": {page.user_id: page.after}},
        sync={"protocol": PROTOCOL, **_plain(page)},
    )
    return frame(begin, lines)


def read_page(lines: Iterable[bytes], stream: str) -> Received:
    """Read a stream to its end and check it.

    Raises:
        FileDamaged, FormatError: it is cut, altered, reordered, or another stream. ProtocolMismatch.
    """
    held = list(lines)
    begin, _ = verify(held)
    page = _page(begin)
    if page.stream != stream:
        raise FormatError(f"line 1: a stream {page.stream!r:.40} where {stream!r} is due", line=1)
    return Received(page, tuple(decode_line(line, number) for number, line in enumerate(held[1:-1], start=2)))


def _plain(page: Page) -> dict[str, Any]:
    return {name: value for name, value in asdict(page).items() if name not in _IN_BEGIN}


_IN_BEGIN: Final = frozenset({"epoch", "user_id", "model", "dimension", "after", "to", "now"})


def _page(begin: Begin) -> Page:
    data = dict(begin.sync or {})
    require_protocol(data.pop("protocol", None))
    user_id = begin.filters.get("user_id")
    try:
        head = data.pop("head", None)
        revisions = (begin.after or {}).get("revisions", {})
        return _checked(
            Page(
                **{name: value for name, value in data.items() if name in Page.__dataclass_fields__},
                user_id=user_id if isinstance(user_id, str) else "",
                epoch=begin.epoch,
                after=revisions.get(user_id, 0),
                to=begin.revisions.get(str(user_id), 0),
                head=None if head is None else Head(**head),
                model=begin.model,
                dimension=begin.dimension,
                now=begin.created_at,
            )
        )
    except (TypeError, AttributeError) as error:
        raise FormatError(f"line 1: not the beginning of a stream of sync ({error})", line=1) from None


def _checked(page: Page) -> Page:
    types = {"stream": str, "device": str, "more": bool, "mark": str | None}
    if not all(isinstance(getattr(page, name), kind) for name, kind in types.items()):
        raise TypeError("a field has the wrong type")
    return page


def require_protocol(protocol: object) -> None:
    """Refuse a partner whose protocol this program does not speak.

    Raises:
        ProtocolMismatch: says which of the two has to be upgraded.
    """
    if type(protocol) is int and OLDEST_PROTOCOL <= protocol <= PROTOCOL:
        return
    newer = type(protocol) is int and protocol > PROTOCOL
    raise ProtocolMismatch(
        f"the other side speaks version {protocol!r:.20} of the sync protocol, this program up to {PROTOCOL}",
        hint=f"upgrade nightingale-memory {'here' if newer else 'on the other side'}; nothing is lost meanwhile",
        protocol=protocol,
    )


def encode_verdict(verdict: Verdict) -> bytes:
    """One line."""
    return encode_line({"kind": VERDICT_KIND, **asdict(verdict)})


def encode_entry(entry: Entry) -> bytes:
    """One line."""
    return encode_line({"kind": ENTRY_KIND, **asdict(entry)})


def access_line(memory_id: str, user_id: str, accesses: Mapping[str, int], last_access: int | None) -> dict[str, Any]:
    """Access counts of a memory: the slots that have changed, by writer."""
    return {
        "kind": ACCESS_KIND,
        "memory_id": memory_id,
        "user_id": user_id,
        "accesses": dict(accesses),
        "last_access_at": last_access,
    }


def verdicts(received: Received) -> list[Verdict]:
    """The lines of an answer.

    Raises:
        FormatError: one is no verdict.
    """
    return [_made(Verdict, VERDICT_KIND, line) for line in received.lines]


def entries(received: Received) -> list[Entry]:
    """The lines of a manifest.

    Raises:
        FormatError: one is no entry.
    """
    return [_made(Entry, ENTRY_KIND, line) for line in received.lines]


def _made(kind: type[Any], name: str, line: Mapping[str, Any]) -> Any:
    try:
        if line.get("kind") != name:
            raise TypeError(f"kind {line.get('kind')!r:.40}")
        return kind(**{key: value for key, value in line.items() if key in kind.__dataclass_fields__})
    except TypeError as error:
        raise FormatError(f"not a line of kind {name!r}: {error}") from None


def user_name(user_id: str) -> str:
    """A name for a user that tells nothing about them: the first 32 hexadecimal digits of SHA-256 of the id."""
    return hashlib.sha256(user_id.encode()).hexdigest()[:32]
