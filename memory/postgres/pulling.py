"""What the centre gives out: pages of changes, manifests, records. Each from one view of the database.

The view is closed before the first line is handed on, so a slow reader holds nothing here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from uuid import UUID

from memory.core.framing import encode_line
from memory.core.record import tombstone_record
from memory.core.rowhash import tombstone_hash
from memory.core.sync import (
    MAX_PAGE_BYTES,
    Entry,
    FetchRequest,
    ManifestRequest,
    PullRequest,
    access_line,
    encode_entry,
)
from memory.postgres.database import Database, Db
from memory.postgres.devices import CurrentModel, Entered, enter, note_mark
from memory.postgres.snapshot import RECORDS, record_of

_AT_A_TIME: Final = 100
"""Records read at once: a page of long ones ends long before its last line, at MAX_PAGE_BYTES."""
_RECORD, _TOMBSTONE, _ACCESS = 0, 1, 2
# A few rows by their keys: without fresh statistics the planner would rather read all of the user's vectors.
_VIEW: Final = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL enable_material = off;
SET LOCAL enable_bitmapscan = off
"""

# Everything that has a revision, in its order. Access counts are not looked at beyond the page's last record, and not
# sent with a memory whose record is, or will be: the record carries them.
_POSITIONS: Final = f"""
WITH own AS MATERIALIZED (
    SELECT * FROM (
        (SELECT rev, {_RECORD} AS kind, memory_id, NULL AS stamp FROM memories
            WHERE user_id = %(user)s AND rev > %(after)s ORDER BY rev FETCH FIRST (%(size)s) ROWS WITH TIES)
        UNION ALL
        (SELECT rev, {_TOMBSTONE}, memory_id, stamp FROM memory_tombstones
            WHERE user_id = %(user)s AND rev > %(after)s ORDER BY rev FETCH FIRST (%(size)s) ROWS WITH TIES)
    ) o ORDER BY rev FETCH FIRST (%(size)s) ROWS WITH TIES
), slots AS MATERIALIZED (
    SELECT a.rev, {_ACCESS}, a.memory_id, NULL FROM memory_access a
    WHERE a.user_id = %(user)s AND a.rev > %(after)s AND a.rev > 0
        AND a.rev <= (SELECT CASE WHEN count(*) < %(size)s THEN {2**63 - 1} ELSE max(rev) END FROM own)
        AND (SELECT m.rev FROM memories m WHERE m.user_id = a.user_id AND m.memory_id = a.memory_id) <= %(after)s
    ORDER BY a.rev FETCH FIRST (%(size)s) ROWS WITH TIES
)
SELECT rev, kind, memory_id::text, stamp FROM (SELECT * FROM own UNION ALL SELECT * FROM slots) p
ORDER BY rev FETCH FIRST (%(size)s) ROWS WITH TIES
"""
_SLOTS: Final = """
SELECT memory_id::text, array_agg(writer) FILTER (WHERE rev > %(after)s AND count > 0),
    array_agg(count) FILTER (WHERE rev > %(after)s AND count > 0), nullif(max(last_access_at), 0)
FROM memory_access WHERE user_id = %(user)s AND memory_id = ANY(%(ids)s) GROUP BY memory_id
"""
_MANIFEST: Final = """
SELECT memory_id::text, rev, row_hash, stamp FROM (
    (SELECT m.memory_id, m.rev, NULL AS stamp, (SELECT h.row_hash FROM memory_hashes h
            WHERE h.user_id = m.user_id AND h.memory_id = m.memory_id AND m.rev <= %(hashed)s) AS row_hash
        FROM memories m WHERE m.user_id = %(user)s {above} ORDER BY m.memory_id LIMIT %(size)s)
    UNION ALL
    (SELECT memory_id, rev, stamp, NULL FROM memory_tombstones
        WHERE user_id = %(user)s {above} ORDER BY memory_id LIMIT %(size)s)
) e ORDER BY memory_id LIMIT %(size)s
"""


class Given(NamedTuple):
    """Lines to give out, and what there is to say about them."""

    entered: Entered
    lines: list[bytes]
    to: int
    more: bool = False
    mark: str | None = None


class _Position(NamedTuple):
    rev: int
    kind: int
    memory_id: str
    stamp: str | None


def pull(database: Database, request: PullRequest) -> Given:
    """One page of changes; notes a mark with it if it has lines."""
    with _view(database) as connection:
        entered = enter(connection, request.user_id, request.device, request.epoch)
        page = _Changes(connection, request, entered.model)
        page.fill()
        to = page.to if page.more else entered.head.rev
        mark = secrets.token_hex(8) if page.lines else None
        if mark is not None:
            note_mark(connection, request.user_id, request.device, mark, to)
    return Given(entered, page.lines, to, page.more, mark)


@contextmanager
def _view(database: Database) -> Iterator[Db]:
    with database.transaction() as connection:
        connection.execute(_VIEW)
        yield connection


class _Changes:
    """A page of changes being filled."""

    def __init__(self, connection: Db, request: PullRequest, model: CurrentModel) -> None:
        self._db, self._request, self._model = connection, request, model
        self.lines: list[bytes] = []
        self.to = request.after
        """Revision of the last line."""
        self.more = False
        self._size = 0
        self._counted: set[str] = set()

    def fill(self) -> None:
        """Take what is due until there are enough lines or bytes, and never part of a revision."""
        limit = max(1, self._request.limit)
        found = self._positions(limit + 1)
        last = found[min(limit, len(found)) - 1].rev if found else 0
        due = [position for position in found if position.rev <= last]
        # If equal revisions filled all that was asked for, only the next page can tell.
        self.more = len(found) > limit
        for start in range(0, len(due), _AT_A_TIME):
            if not self._take(due[start : start + _AT_A_TIME]):
                self.more = True
                return

    def _positions(self, size: int) -> list[_Position]:
        params = {"user": self._request.user_id, "after": self._request.after, "size": size}
        return [_Position(*row) for row in self._db.execute(_POSITIONS, params).fetchall()]

    def _take(self, some: Sequence[_Position]) -> bool:
        """Add lines; False if the page is full before the last of them."""
        records = read_records(self._db, self._request.user_id, _ids(some, _RECORD), self._model)
        accesses = self._accesses(_ids(some, _ACCESS))
        for position in some:
            if self._size > MAX_PAGE_BYTES and position.rev > self.to:
                return False
            self.to = position.rev
            line = self._line(position, records, accesses)
            if line is not None:
                self.lines.append(encoded := encode_line(line))
                self._size += len(encoded)
        return True

    def _line(
        self, position: _Position, records: dict[str, dict[str, Any]], accesses: dict[str, dict[str, Any]]
    ) -> dict[str, Any] | None:
        memory_id = position.memory_id
        if position.kind == _RECORD:
            return records[memory_id]
        if position.kind == _TOMBSTONE:
            return _tombstone(self._request.user_id, memory_id, position.stamp, position.rev)
        if memory_id in self._counted:
            return None  # its first slot on this page has brought all of them
        self._counted.add(memory_id)
        return {**accesses[memory_id], "rev": position.rev}

    def _accesses(self, memory_ids: Sequence[UUID]) -> dict[str, dict[str, Any]]:
        if not memory_ids:
            return {}
        user_id = self._request.user_id
        rows = self._db.execute(_SLOTS, {"user": user_id, "ids": memory_ids, "after": self._request.after}).fetchall()
        return {
            memory_id: access_line(memory_id, user_id, dict(zip(writers or (), counts or (), strict=True)), last_access)
            for memory_id, writers, counts, last_access in rows
        }


def _ids(positions: Sequence[_Position], kind: int) -> list[UUID]:
    return [UUID(memory_id) for _, found, memory_id, _ in positions if found == kind]


def _tombstone(user_id: str, memory_id: str, stamp: str | None, rev: int) -> dict[str, Any]:
    return {**tombstone_record(memory_id, user_id, str(stamp)), "rev": rev}


def read_records(
    connection: Db, user_id: str, memory_ids: Sequence[UUID], model: CurrentModel
) -> dict[str, dict[str, Any]]:
    """Records of live memories, with vectors of the centre's current model."""
    if not memory_ids:
        return {}
    rows = connection.execute(
        f"{RECORDS} WHERE m.user_id = %(user)s AND m.memory_id = ANY(%(ids)s)",
        {"user": user_id, "ids": memory_ids, "model": model.model_id},
        binary=True,
    ).fetchall()
    return {row[0]: record_of(row, model.name) for row in rows}


def manifest(database: Database, request: ManifestRequest) -> Given:
    """One page of ids, hashes and revisions, of the living and the dead."""
    above = parsed_id(request.above)
    statement = _MANIFEST.format(above="" if above is None else "AND memory_id > %(above)s")
    limit = max(1, request.limit)
    with _view(database) as connection:
        entered = enter(connection, request.user_id, request.device, request.epoch)
        params = {"user": request.user_id, "above": above, "size": limit + 1, "hashed": entered.hashed_rev}
        rows = connection.execute(statement, params).fetchall()
    lines = [
        encode_entry(
            Entry(
                memory_id=memory_id,
                hash=known if stamp is None else tombstone_hash(memory_id, stamp),
                rev=rev,
                deleted=stamp is not None,
            )
        )
        for memory_id, rev, known, stamp in rows[:limit]
    ]
    return Given(entered, lines, entered.head.rev, more=len(rows) > limit)


def fetch(database: Database, request: FetchRequest) -> Given:
    """Some memories' records, in the order in which they were asked for."""
    wanted = dict.fromkeys(known for memory_id in request.memory_ids if (known := parsed_id(memory_id)) is not None)
    with _view(database) as connection:
        entered = enter(connection, request.user_id, request.device, request.epoch)
        found = read_records(connection, request.user_id, list(wanted), entered.model)
        dead = connection.execute(
            "SELECT memory_id::text, stamp, rev FROM memory_tombstones WHERE user_id = %s AND memory_id = ANY(%s)",
            [request.user_id, list(wanted)],
        ).fetchall()
    found |= {memory_id: _tombstone(request.user_id, memory_id, stamp, rev) for memory_id, stamp, rev in dead}
    lines = [encode_line(found[str(known)]) for known in wanted if str(known) in found]
    return Given(entered, lines, entered.head.rev)


def parsed_id(text: object) -> UUID | None:
    """The id, or None for what can be nobody's."""
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
