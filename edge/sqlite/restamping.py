"""A clock that ran ahead: stamps that the centre would never accept are given anew, in their old order.

The new ones begin where the centre's patience ends, not at its time: an earlier version of the same register may have
been accepted up to there without this replica knowing, and must not win over the later one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edge.sqlite import todo
from edge.sqlite.database import Db
from edge.sqlite.rows import SELECT_STATE, Author, encode_json, read_state
from memory.core.clock import MAX_SKEW_MS, Stamp, Tick, next_tick, parse_stamp
from memory.core.record import encode_stamps
from memory.core.state import Register, State


def restamp(connection: Db, author: Author, *, now: int) -> int:
    """Give each stamp too far after ``now`` (ms, the centre's time) a new one.

    Equal stamps stay equal, and the order stays. Last accesses later than ``now`` become ``now``. Returns the number of
    stamps that were changed.
    """
    limit = now + MAX_SKEW_MS
    late = dict(_unaccepted(connection, limit))
    connection.execute("UPDATE memory_access SET last_access_at = ? WHERE last_access_at > ?", (now, now))
    tick = max(Tick(limit, 0), _accepted_tick(connection, limit))
    renewed: dict[Stamp, Stamp] = {}
    for stamp in sorted({stamp for stamps in late.values() for stamp in stamps}):
        tick = next_tick(tick, limit)
        renewed[stamp] = Stamp(*tick, author.writer)
    connection.execute("UPDATE replica SET hlc_ms = ?, hlc_counter = ?", tick)
    for memory_id in late:
        _rewrite(connection, author, memory_id, renewed)
    return len(renewed)


def _unaccepted(connection: Db, limit: int) -> Iterator[tuple[str, set[Stamp]]]:
    """Of each memory that has them, the stamps to be renewed."""
    for row in connection.execute(f"{SELECT_STATE} WHERE m.dirty OR m.base_rev IS NULL"):
        accepted = _shadow_stamps(connection, row[0])
        stamps = {stamp for stamp in read_state(row).state.stamps() if stamp.ms > limit and str(stamp) not in accepted}
        if stamps:
            yield row[0], stamps
    for memory_id, text in connection.execute("SELECT memory_id, stamp FROM memory_tombstones WHERE dirty"):
        if (stamp := parse_stamp(text)).ms > limit:
            yield memory_id, {stamp}


def _shadow_stamps(connection: Db, memory_id: str) -> set[str]:
    row = connection.execute("SELECT shadow FROM memories WHERE memory_id = ?", (memory_id,)).fetchone()
    return set() if row is None or row[0] is None else set(_strings(json.loads(row[0])))


def _strings(value: Any) -> Iterator[str]:
    for item in value.values():
        if isinstance(item, dict):
            yield from _strings(item)
        else:
            yield item


def _accepted_tick(connection: Db, limit: int) -> Tick:
    """The largest tick that remains: the clock must go on above it."""
    latest = Tick()
    for (text,) in connection.execute("SELECT coalesce(shadow, stamps) FROM memories WHERE base_rev IS NOT NULL"):
        latest = max(latest, *(parse_stamp(stamp).tick for stamp in _strings(json.loads(text))))
    rows = connection.execute("SELECT stamps FROM memories WHERE base_rev IS NULL")
    ticks = [parse_stamp(stamp).tick for (text,) in rows for stamp in _strings(json.loads(text))]
    rows = connection.execute("SELECT stamp FROM memory_tombstones")
    ticks += [parse_stamp(text).tick for (text,) in rows]
    return max([latest, *(tick for tick in ticks if tick.ms <= limit)])


def _rewrite(connection: Db, author: Author, memory_id: str, renewed: dict[Stamp, Stamp]) -> None:
    rev = _draw_rev(connection, author)
    row = connection.execute(f"{SELECT_STATE} WHERE m.memory_id = ?", (memory_id,)).fetchone()
    if row is None:
        stamp = parse_stamp(
            connection.execute("SELECT stamp FROM memory_tombstones WHERE memory_id = ?", (memory_id,)).fetchone()[0]
        )
        connection.execute(
            "UPDATE memory_tombstones SET stamp = ?, rev = ? WHERE memory_id = ?",
            (str(renewed.get(stamp, stamp)), rev, memory_id),
        )
        return
    accepted = _shadow_stamps(connection, memory_id)
    state = _renewed(read_state(row).state, {old: new for old, new in renewed.items() if str(old) not in accepted})
    connection.execute(
        "UPDATE memories SET stamps = ?, updated_at = ?, rev = ?, version = ?, edited = 1, dirty = 1"
        " WHERE memory_id = ?",
        (encode_json(encode_stamps(state)), state.updated_at(), rev, f"{rev}.{author.writer}", memory_id),
    )
    todo.queue_point(connection, memory_id)


def _renewed(state: State, renewed: dict[Stamp, Stamp]) -> State:
    def one(register: Register) -> Register:
        return Register(renewed.get(register.stamp, register.stamp), register.value)

    return replace(
        state,
        scalars={name: one(register) for name, register in state.scalars.items()},
        tags={name: one(register) for name, register in state.tags.items()},
        metadata={name: one(register) for name, register in state.metadata.items()},
    )


def _draw_rev(connection: Db, author: Author) -> int:
    """One revision, and no stamp."""
    row = connection.execute("UPDATE replica SET rev = max(rev, ?) + 1 RETURNING rev", (author.floor,)).fetchone()
    return int(row[0])
