"""What the centre takes in: one page of a replica's changes, merged in one transaction.

Everything that needs no database (decoding, admission, words) is done before the user's row is locked.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from memory.core.clock import MAX_SKEW_MS
from memory.core.errors import ClockAhead, FormatError, InvalidValue
from memory.core.record import ACCESS_KIND, KIND, Record, decode_counts, decode_record
from memory.core.state import UNCOUNTED, State, same_value
from memory.core.sync import GONE, OK, REJECTED, UNKNOWN, Page, Received, Verdict
from memory.core.text import DocumentTerms, document_terms
from memory.engine.importing import usable_vector
from memory.engine.storage import Incoming
from memory.policies.records import admit_record
from memory.postgres.database import Database, Db
from memory.postgres.devices import CurrentModel, Entered, enter, note_mark
from memory.postgres.merging import UserPage
from memory.postgres.pulling import parsed_id

Base = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """One pushed line."""

    memory_id: str
    seq: int
    state: State = field(default_factory=State)
    record: Record | None = None
    """None: access counts alone."""
    terms: DocumentTerms | None = None
    base: Base | None = None
    seen: str | None = None
    latest: int = 0
    """The latest time that it speaks of."""
    problem: str = ""
    """Why it is rejected."""


class _Loser(NamedTuple):
    """A text that lost to a concurrent edit."""

    memory_id: str
    stamp: str
    content: str
    winner: str


class Taken(NamedTuple):
    """What became of a page."""

    verdicts: list[Verdict]
    before: int
    to: int
    mark: str
    model: CurrentModel


def push(database: Database, received: Received, *, now: int) -> Taken:
    """Merge a page; see ``SyncCentre.push``."""
    page = received.page
    sent = [_admit(line, page.user_id, now) for line in received.lines]
    with database.transaction() as connection:
        entered = enter(connection, page.user_id, page.device, page.epoch, lock=True)
        if any(item.latest > now + MAX_SKEW_MS for item in sent):
            raise ClockAhead(now=now)
        model = _adopt_model(connection, page) or entered.model
        merged = _Merge(connection, page, entered, model, now=now)
        verdicts = merged.run(sent)
        note_mark(connection, page.user_id, page.device, mark := secrets.token_hex(8), merged.rev)
    return Taken(verdicts, entered.head.rev, merged.rev, mark, model)


def _admit(line: Mapping[str, Any], user_id: str, now: int) -> _Sent:
    """Read a line. What breaks a rule is rejected alone; what is no line of a push damages the stream.

    Raises:
        FormatError.
    """
    base, seen, seq = _origin(line)
    memory_id, latest = str(line.get("memory_id")), 0
    try:
        if line.get("kind") == ACCESS_KIND:
            state = _access_state(line, user_id)
            latest = state.last_access or 0
            if parsed_id(memory_id) is None or str(parsed_id(memory_id)) != memory_id:
                raise InvalidValue("memory_id", "is not in the form in which it would be kept")
            return _Sent(memory_id=memory_id, seq=seq, state=state, latest=latest)
        record = decode_record(line)
        latest = max((*(stamp.ms for stamp in record.state.stamps()), record.state.last_access or 0))
        state = _admitted(record, user_id, now)
    except (FormatError, InvalidValue) as error:
        return _Sent(memory_id=memory_id, seq=seq, latest=latest, problem=error.message)
    terms = None if state.deleted is not None else document_terms(state.value("content"))
    return _Sent(
        memory_id=memory_id, seq=seq, state=state, record=record, terms=terms, base=base, seen=seen, latest=latest
    )


def _origin(line: Mapping[str, Any]) -> tuple[Base | None, str | None, int]:
    """What the replica says about a line."""
    sync = line.get("sync")
    if line.get("kind") not in (KIND, ACCESS_KIND) or not isinstance(sync, Mapping):
        raise FormatError(f"not a line of a push: kind {line.get('kind')!r:.40}")
    match sync.get("base"):
        case None:
            base = None
        case [str(epoch), int(rev)]:
            base = (epoch, rev)
        case other:
            raise FormatError(f"sync.base: {other!r:.80} is not an epoch and a revision")
    seen, seq = sync.get("seen"), sync.get("seq")
    if type(seq) is not int or not isinstance(seen, str | None):
        raise FormatError("sync: seq must be a number, seen a stamp or null")
    if not str(line.get("memory_id")).isprintable():
        raise FormatError("memory_id: cannot be repeated in an answer")
    return base, seen, seq


def _access_state(line: Mapping[str, Any], user_id: str) -> State:
    accesses, last = line.get("accesses"), line.get("last_access_at")
    if not isinstance(accesses, Mapping):
        raise FormatError("accesses: must be an object")
    if last is not None and (type(last) is not int or not 0 <= last < 2**53):
        raise FormatError("last_access_at: must be a time in ms or null")
    if line.get("user_id") != user_id:
        raise InvalidValue("user_id", "is not the user of this page")
    counted = decode_counts({writer: count for writer, count in accesses.items() if writer != UNCOUNTED})
    return State(accesses=counted, last_access=last)


def _admitted(record: Record, user_id: str, now: int) -> State:
    """The state of a record that needs no change: a value must not change without its stamp."""
    admitted = admit_record(record, now=now)
    if admitted.user_id != user_id:
        raise InvalidValue("user_id", "is not the user of this page")
    if admitted.memory_id != record.memory_id or not _is_same(admitted.state, record.state):
        raise InvalidValue("record", "is not in the form in which it would be kept")
    return admitted.state


def _is_same(a: State, b: State) -> bool:
    return a == b and all(
        same_value(register.value, theirs[name].value)
        for ours, theirs in ((a.scalars, b.scalars), (a.metadata, b.metadata))
        for name, register in ours.items()
    )


# Not read before: whoever is the first waits for nobody, and all others find it done.
_ADOPT: Final = """
WITH fresh AS (
    INSERT INTO embedding_models (name, dimension) VALUES (%(name)s, %(dimension)s)
    ON CONFLICT (name, dimension) DO UPDATE SET name = excluded.name RETURNING model_id
)
UPDATE sync_meta SET model_id = (SELECT model_id FROM fresh) WHERE model_id IS NULL
"""


def _adopt_model(connection: Db, page: Page) -> CurrentModel | None:
    """Make the replica's model the centre's if it has none; returns the model that was found then."""
    none = connection.execute("SELECT FROM sync_meta WHERE model_id IS NULL").fetchone() is not None
    if not none or not page.model or not 0 < page.dimension < 2**15:
        return None
    connection.execute(_ADOPT, {"name": page.model, "dimension": page.dimension})
    row = connection.execute(
        "SELECT e.model_id, e.name, e.dimension FROM sync_meta s JOIN embedding_models e USING (model_id)"
    ).fetchone()
    return None if row is None else CurrentModel(*row)


class _Merge:
    """The lines of one page on their way in."""

    def __init__(self, connection: Db, page: Page, entered: Entered, model: CurrentModel, *, now: int) -> None:
        self._db, self._sync, self._entered, self._model, self._now = connection, page, entered, model, now
        self._page = UserPage(connection, page.user_id, now=now, model_id=model.model_id)
        self._losers: dict[tuple[str, str], _Loser] = {}
        rows = connection.execute(
            "SELECT epoch, bound_rev FROM sync_lineage WHERE user_id = %s", [page.user_id]
        ).fetchall()
        self._lineage: dict[str, int] = dict(rows)

    @property
    def rev(self) -> int:
        """The user's revision with what has been taken."""
        return self._page.rev

    def run(self, sent: Sequence[_Sent]) -> list[Verdict]:
        """Take all lines; verdicts in their order."""
        fit = [item for item in sent if not item.problem]
        self._page.load(item.memory_id for item in fit)
        verdicts: dict[int, Verdict] = {}
        # Like every page: memories in ascending order, lines of the same one in theirs.
        for i, item in sorted(enumerate(sent), key=lambda pair: pair[1].memory_id):
            verdicts[i] = self._take(item)
        self._page.finish()
        self._log(list(self._losers.values()))
        return [verdicts[i] for i in range(len(sent))]

    def _take(self, item: _Sent) -> Verdict:
        if item.problem:
            return Verdict(memory_id=item.memory_id, seq=item.seq, code=REJECTED, problem=item.problem)
        held = self._page.held.get(item.memory_id)
        if held is None and item.record is None:
            return Verdict(memory_id=item.memory_id, seq=item.seq, code=UNKNOWN)
        if held is None and item.base is not None and item.base[1] <= self._bound(item.base[0]):
            return Verdict(memory_id=item.memory_id, seq=item.seq, code=GONE)
        if held is not None:
            self._compare(item, held.state)
        self._page.join(self._incoming(item))
        now = self._page.held[item.memory_id]
        equal = _has_slots(now.state, item.state) and (
            item.record is None or now.state.without_accesses() == item.state.without_accesses()
        )
        return Verdict(memory_id=item.memory_id, seq=item.seq, code=OK, rev=now.rev, equal=equal)

    def _bound(self, epoch: str) -> int:
        return self.rev if epoch == self._entered.epoch else self._lineage.get(epoch, 0)

    def _incoming(self, item: _Sent) -> Incoming:
        vector = None
        if item.record is not None and item.state.deleted is None:
            vector = usable_vector(item.record, self._model.name, self._model.dimension)
        return Incoming(
            memory_id=item.memory_id, user_id=self._sync.user_id, state=item.state, terms=item.terms, vector=vector
        )

    def _compare(self, item: _Sent, held: State) -> None:
        """Note the text that loses if neither side had seen the other's."""
        if item.record is None or held.deleted is not None or item.state.deleted is not None:
            return
        a, b = held.scalars["content"], item.state.scalars["content"]
        if a.value == b.value or a.stamp == b.stamp or item.seen in (str(a.stamp), str(b.stamp)):
            return
        loser, winner = sorted((a, b), key=lambda register: register.stamp)
        entry = _Loser(item.memory_id, str(loser.stamp), loser.value, str(winner.stamp))
        self._losers[entry.memory_id, entry.stamp] = entry

    def _log(self, losers: Sequence[_Loser]) -> None:
        """Keep lost texts of memories that the page has left alive."""
        if not losers:
            return
        self._db.execute(
            "INSERT INTO memory_conflicts (user_id, memory_id, stamp, content, winner, device_id, logged_at)"
            " SELECT %(user)s, t.id, t.stamp, t.content, t.winner, %(device)s, %(now)s"
            " FROM unnest(%(ids)s::uuid[], %(stamps)s::text[], %(contents)s::text[], %(winners)s::text[])"
            "   AS t(id, stamp, content, winner)"
            " WHERE EXISTS (SELECT FROM memories m WHERE m.user_id = %(user)s AND m.memory_id = t.id)"
            " ON CONFLICT (user_id, memory_id, stamp) DO NOTHING",
            {
                "user": self._sync.user_id,
                "device": self._sync.device,
                "now": self._now,
                "ids": [parsed_id(loser.memory_id) for loser in losers],
                "stamps": [loser.stamp for loser in losers],
                "contents": [loser.content for loser in losers],
                "winners": [loser.winner for loser in losers],
            },
        )


def _has_slots(state: State, sent: State) -> bool:
    return all(state.accesses.get(writer) == count for writer, count in sent.accesses.items())
