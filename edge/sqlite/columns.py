"""A user's live memories as columns in memory: what filters and the statistics of words ask for.

SQLite reads a row to learn its status; of fifty thousand rows that takes longer than the whole search may. So
the few fields that every search needs are held as arrays, indexed by a memory's ``number``. They follow the
file by its revision: before each use, whatever has changed above the revision seen last is read.
"""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.sqlite.database import Db
from edge.sqlite.filters import Where, wide
from memory.core.model import MemoryType, Status
from memory.policies.admission import Filter

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
_STATUS: Final = {status.value: code for code, status in enumerate(Status, start=1)}
_TYPE: Final = {kind.value: code for code, kind in enumerate(MemoryType, start=1)}
_GROWTH: Final = 1.5


class View(NamedTuple):
    """The columns at one time or a little later: position n is the memory with number n, status 0 none."""

    status: NDArray[np.int8]
    memory_type: NDArray[np.int8]
    created_at: Numbers
    length: NDArray[np.int32]


class Columns:
    """The arrays and the revision they are at. Safe to use from several threads.

    A reader may find them ahead of its own view of the file. Then it misses what has just gone and finds nothing
    that has just come, for its own view holds no more of it: as if the call had come a moment later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rev = -1
        self._top = 0
        self._view = _empty(1_024)

    def current(self, connection: Db) -> View:
        """The columns, at least as new as the connection's view of the file."""
        rev = connection.execute("SELECT rev FROM replica").fetchone()[0]
        with self._lock:
            if rev > self._rev:
                self._follow(connection, rev)
            return self._view

    def _follow(self, connection: Db, rev: int) -> None:
        gone = connection.execute(
            "SELECT number FROM memory_tombstones WHERE rev > ? AND number IS NOT NULL", (self._rev,)
        ).fetchall()
        self._view.status[[number for (number,) in gone if number < len(self._view.status)]] = 0
        columns = "number, status, memory_type, created_at, length FROM memories"
        rows = connection.execute(
            f"SELECT {columns} WHERE edited AND rev > ? UNION ALL SELECT {columns} WHERE number > ?",
            (self._rev, self._top),
        ).fetchall()
        if rows:
            self._write(rows)
        self._rev = rev

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        number, status, memory_type, created_at, length = zip(*rows, strict=True)
        at = np.array(number, dtype=np.int64)
        self._top = max(self._top, int(at.max()))
        if self._top >= len(self._view.status):
            self._view = _grown(self._view, int(self._top * _GROWTH) + 1)
        view = self._view
        view.created_at[at] = created_at
        view.length[at] = length
        view.memory_type[at] = [_TYPE[name] for name in memory_type]
        view.status[at] = [_STATUS[name] for name in status]  # last: with it a memory is there


def _empty(size: int) -> View:
    return View(
        status=np.zeros(size, np.int8),
        memory_type=np.zeros(size, np.int8),
        created_at=np.zeros(size, np.int64),
        length=np.zeros(size, np.int32),
    )


def _grown(view: View, size: int) -> View:
    grown = _empty(size)
    for name in View._fields:
        old = getattr(view, name)
        getattr(grown, name)[: len(old)] = old
    return grown


def selected(connection: Db, view: View, given: Filter) -> Mask:
    """Which memories satisfy a filter (``min_relevance`` aside), as a mask over numbers."""
    mask = _among(view.status, [_STATUS[status.value] for status in given.statuses], len(_STATUS))
    if given.types:
        mask &= _among(view.memory_type, [_TYPE[kind.value] for kind in given.types], len(_TYPE))
    if given.created_from is not None:
        mask &= view.created_at >= given.created_from
    if given.created_to is not None:
        mask &= view.created_at < given.created_to
    if not given.is_narrow:
        where = Where()
        wide(where, given)
        statement = f"SELECT group_concat(m.number, ' ') FROM memories m WHERE {where}"
        numbers = parsed_numbers(connection.execute(statement, where.params).fetchone()[0])
        answer = np.zeros_like(mask)
        answer[numbers[numbers < len(answer)]] = True
        mask &= answer
    return mask


def _among(column: NDArray[np.int8], codes: list[int], highest: int) -> Mask:
    wanted = np.zeros(highest + 1, np.bool_)
    wanted[codes] = True
    return wanted[column]


def parsed_numbers(text: str | None) -> Numbers:
    """Numbers that SQLite has joined by blanks: many rows come out several times faster as one text."""
    return np.fromstring(text or "", dtype=np.int64, sep=" ")
