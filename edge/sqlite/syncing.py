"""The row about the centre, and marks. Each function works inside a transaction."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from edge.sqlite.database import Db
from edge.sync.plan import Position
from memory.core.sync import MARKS_SENT, Hello, Mark

MARKS_KEPT: Final = MARKS_SENT
_COLUMNS: Final = (
    "device, epoch, cursor, pushed_upto, digest, live, suspicious, clock_offset, centre_rev, equal, state, problem,"
    " hint, synced_at, tried_at, verified_at"
)


@dataclass(frozen=True, slots=True)
class SyncState:
    """What a replica knows of the centre and of its own standing; see the table."""

    device: str
    epoch: str | None
    cursor: int
    pushed_upto: int
    digest: int
    live: int
    suspicious: bool
    clock_offset: int
    centre_rev: int | None
    equal: bool | None
    state: str
    problem: str | None
    hint: str | None
    synced_at: int | None
    tried_at: int | None
    verified_at: int | None

    def position(self) -> Position:
        """Where the replica stands."""
        return Position(
            epoch=self.epoch, cursor=self.cursor, digest=self.digest, live=self.live, suspicious=self.suspicious
        )


def read_sync(connection: Db) -> SyncState:
    """The row as it is; a replica that has never greeted the centre has no device name yet, here ''."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM sync_state").fetchone()
    device, epoch, cursor, upto, digest, live, suspicious, offset, rev, equal, *rest = row
    known = None if equal is None else bool(equal)
    return SyncState(device or "", epoch, cursor, upto, digest, live, bool(suspicious), offset, rev, known, *rest)


def set_sync(connection: Db, **values: Any) -> None:
    """Overwrite columns of the row."""
    names = ", ".join(f"{name} = :{name}" for name in values)
    connection.execute(f"UPDATE sync_state SET {names}", values)


def name_device(connection: Db) -> str:
    """The device's name at the centre, drawn when it is first needed."""
    connection.execute("UPDATE sync_state SET device = ? WHERE device IS NULL", (secrets.token_hex(16),))
    return str(connection.execute("SELECT device FROM sync_state").fetchone()[0])


def greeting(connection: Db, user_id: str, *, model: tuple[str, int], schema: str, listens: bool = False) -> Hello:
    """What a replica says first; names the device if it has no name yet."""
    device = name_device(connection)
    state = read_sync(connection)
    return Hello(
        device=device,
        user_id=user_id,
        epoch=state.epoch,
        cursor=state.cursor,
        marks=marks(connection),
        model=model[0],
        dimension=model[1],
        schema=schema,
        listens=listens,
        compare=state.suspicious,
    )


def marks(connection: Db) -> tuple[Mark, ...]:
    """The last marks, oldest first."""
    rows = connection.execute("SELECT mark, rev FROM sync_marks ORDER BY number").fetchall()
    return tuple(Mark(*row) for row in rows)


def add_mark(connection: Db, mark: Mark) -> None:
    """Note a mark that the centre has noted already."""
    connection.execute("INSERT INTO sync_marks (mark, rev) VALUES (?, ?)", mark)
    connection.execute("DELETE FROM sync_marks WHERE number <= (SELECT max(number) FROM sync_marks) - ?", (MARKS_KEPT,))


def forget_marks(connection: Db) -> None:
    """Marks of a history that has ended."""
    connection.execute("DELETE FROM sync_marks")


def shadow_changed(connection: Db, before: int | None, after: int | None) -> None:
    """Carry a change of what the centre has of one memory into the digest; None: nothing, or deleted."""
    if before != after:
        connection.execute(
            "UPDATE sync_state SET digest = (digest | :change) - (digest & :change), live = live + :count",
            {"change": (before or 0) ^ (after or 0), "count": (after is not None) - (before is not None)},
        )


def count_shadows(connection: Db) -> tuple[int, int]:
    """Digest and number of all shadows, from scratch."""
    digest = live = 0
    for table in ("memories", "memory_tombstones"):
        for (value,) in connection.execute(f"SELECT shadow_hash FROM {table} WHERE shadow_hash IS NOT NULL"):
            digest ^= value
            live += 1
    return digest, live


def recount(connection: Db) -> None:
    """Write digest and number of all shadows down as they are."""
    digest, live = count_shadows(connection)
    set_sync(connection, digest=digest, live=live)
