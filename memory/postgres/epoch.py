"""The identity of a database's history, and of each user's.

Revisions and access counts are only comparable within one history. A database that was copied or restored
goes on with a history of its own, so it must stop writing under the old name.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

from memory.postgres.database import Database, Db

logger = logging.getLogger(__name__)

# The cluster, the database in it, and the timeline: a standby that was promoted, and a cluster brought back to a point
# in time, keep the first two.
_PLACE: Final = """(SELECT system_identifier FROM pg_control_system())::text || '/' ||
    (SELECT oid FROM pg_database WHERE datname = current_database())::text"""
ORIGIN: Final = f"""{_PLACE} || '/' || CASE WHEN pg_is_in_recovery() THEN ''
    ELSE substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END"""


def adopt_epoch(database: Database) -> None:
    """Draw new epochs if this database is not the one that the recorded ones were drawn in.

    A standby is left alone: it can be read, writes nothing under any name, and draws its own when it is promoted.
    """
    with database.connection() as connection:
        same = connection.execute(f"SELECT pg_is_in_recovery() OR origin = {ORIGIN} FROM sync_meta").fetchone()
    if same is not None and same[0]:
        return
    with database.transaction() as connection:
        # Users before the database, like everybody: who holds a user's row may be about to write here.
        connection.execute("SELECT FROM sync_user ORDER BY user_id FOR UPDATE")
        row = connection.execute(f"SELECT origin, {ORIGIN}, {_PLACE} FROM sync_meta FOR UPDATE").fetchone()
        recorded, actual, place = row or (None, None, None)
        if recorded == actual:
            return  # another process was faster
        if recorded not in (None, place):  # an earlier version recorded the place only
            logger.warning("this database is a copy of another one, or was restored: it gets an epoch of its own")
            _begin_histories(connection, secrets.token_hex(8))
        elif recorded is None:
            _name_history(connection, secrets.token_hex(8))
        connection.execute("UPDATE sync_meta SET origin = %s", [actual])


def _begin_histories(connection: Db, epoch: str) -> None:
    """A new history for every user, all locked, in which everything up to now is contained."""
    connection.execute(
        "INSERT INTO sync_lineage (user_id, epoch, bound_rev) SELECT user_id, epoch, rev FROM sync_user"
        " ON CONFLICT (user_id, epoch) DO UPDATE SET bound_rev = least(sync_lineage.bound_rev, excluded.bound_rev)"
    )
    _name_history(connection, epoch)


def _name_history(connection: Db, epoch: str) -> None:
    connection.execute("UPDATE sync_meta SET epoch = %s", [epoch])
    connection.execute("UPDATE sync_user SET epoch = %s", [epoch])


def rewound(connection: Db, user_id: str, bound: int) -> str:
    """Begin a new history for a user whose device knows of more than this database holds; returns its epoch.

    The database as a whole gets a new name, too, so that no export continues one of the history that is lost.

    Args:
        connection: In a transaction that holds the user's row.
        user_id: Whose history it is.
        bound: The revision up to which the device and this database agree.
    """
    epoch = secrets.token_hex(8)
    connection.execute(
        "INSERT INTO sync_lineage (user_id, epoch, bound_rev) SELECT user_id, epoch, %(bound)s FROM sync_user"
        " WHERE user_id = %(user)s ON CONFLICT (user_id, epoch)"
        " DO UPDATE SET bound_rev = least(sync_lineage.bound_rev, excluded.bound_rev)",
        {"user": user_id, "bound": bound},
    )
    connection.execute("UPDATE sync_user SET epoch = %s WHERE user_id = %s", [epoch, user_id])
    connection.execute("UPDATE sync_meta SET epoch = %s", [secrets.token_hex(8)])
    logger.warning("a device knows of changes that this database has lost: its user gets a new epoch")
    return epoch
