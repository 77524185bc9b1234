"""Devices at the centre: who may sync, what each is told to have lost, and how it is turned away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from memory.core.errors import DeviceRevoked, EpochChanged
from memory.core.sync import Head
from memory.postgres.database import Database, Db


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A replica that has said hello."""

    device_id: str
    schema: str
    model: str
    registered_at: int
    last_seen_at: int
    """At most ten minutes behind while it syncs."""
    revoked_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostText:
    """A text that lost to a concurrent edit of the same memory."""

    memory_id: str
    stamp: str
    """When and by whom it was written; with the memory it identifies the entry."""
    content: str
    winner: str
    """Stamp of the text that won."""
    device_id: str
    """Whose push brought the two together."""
    logged_at: int


class CurrentModel(NamedTuple):
    """The model of the centre's vectors."""

    model_id: int
    name: str
    dimension: int


NO_MODEL: Final = CurrentModel(0, "", 0)


class Entered(NamedTuple):
    """What a request finds."""

    epoch: str
    head: Head
    hashed_rev: int
    model: CurrentModel


_ENTER: Final = """
SELECT u.epoch, u.rev, u.digest, u.live_count, u.access_total, u.hashed_rev, d.revoked_at,
    e.model_id, e.name, e.dimension
FROM sync_user u
CROSS JOIN sync_meta s
LEFT JOIN embedding_models e ON e.model_id = s.model_id
LEFT JOIN sync_device d ON d.user_id = u.user_id AND d.device_id = %(device)s
WHERE u.user_id = %(user)s
"""


def enter(connection: Db, user_id: str, device: str, epoch: str, *, lock: bool = False) -> Entered:
    """Look at the user's head on behalf of a device; ``lock``: and let nobody else write until the end.

    Raises:
        DeviceRevoked. EpochChanged: the request counts in another history.
    """
    lines = f"{_ENTER} FOR UPDATE OF u" if lock else _ENTER
    row = connection.execute(lines, {"user": user_id, "device": device}).fetchone()
    if row is None:
        raise EpochChanged
    if row[6] is not None:
        raise DeviceRevoked
    if row[0] != epoch:
        raise EpochChanged
    model = NO_MODEL if row[7] is None else CurrentModel(*row[7:10])
    return Entered(row[0], head_of(*row[1:6]), row[5], model)


def head_of(rev: int, digest: int, live: int, accesses: int, hashed_rev: int) -> Head:
    """A user's head; without a digest unless it is of this very revision."""
    return Head(rev=rev, digest=digest if hashed_rev == rev else None, live=live, accesses=accesses)


def note_mark(connection: Db, user_id: str, device: str, mark: str, rev: int) -> None:
    """Note a mark; old ones are removed at the next hello, so that no page waits for another one of the device."""
    connection.execute(
        "INSERT INTO sync_mark (user_id, device_id, mark, rev) VALUES (%s, %s, %s, %s)", [user_id, device, mark, rev]
    )


def devices(database: Database, user_id: str) -> list[Device]:
    """A user's devices, the one last seen first."""
    with database.connection() as connection, connection.cursor(row_factory=class_row(Device)) as cursor:
        return cursor.execute(
            "SELECT device_id, schema, model, registered_at, last_seen_at, revoked_at FROM sync_device"
            " WHERE user_id = %s ORDER BY last_seen_at DESC, device_id",
            [user_id],
        ).fetchall()


def revoke(database: Database, user_id: str, device_id: str, now: int) -> bool:
    """Turn a device away from now on; it then removes what it has of the user. False: there is no such device."""
    with database.connection() as connection:
        done = connection.execute(
            "UPDATE sync_device SET revoked_at = coalesce(revoked_at, %s) WHERE user_id = %s AND device_id = %s",
            [now, user_id, device_id],
        )
    return done.rowcount > 0


def conflicts(database: Database, user_id: str) -> list[LostText]:
    """Texts of a user that lost to concurrent edits, the newest first."""
    with database.connection() as connection, connection.cursor(row_factory=class_row(LostText)) as cursor:
        return cursor.execute(
            "SELECT memory_id::text, stamp, content, winner, device_id, logged_at FROM memory_conflicts"
            " WHERE user_id = %s ORDER BY logged_at DESC, memory_id, stamp",
            [user_id],
        ).fetchall()


def dismiss_conflict(database: Database, user_id: str, memory_id: str, stamp: str) -> bool:
    """Remove a text from the log. False: it is not there."""
    with database.connection() as connection:
        done = connection.execute(
            "DELETE FROM memory_conflicts WHERE user_id = %s AND memory_id = %s AND stamp = %s",
            [user_id, UUID(memory_id), stamp],
        )
    return done.rowcount > 0
