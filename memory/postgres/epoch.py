"""The identity of a database's history.

Revisions and access counts are only comparable within one history. A database that was copied or restored
goes on with a history of its own, so it must stop writing under the old name.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

from memory.postgres.database import Database

logger = logging.getLogger(__name__)

_ORIGIN: Final = """(SELECT system_identifier FROM pg_control_system())::text || '/' ||
    (SELECT oid FROM pg_database WHERE datname = current_database())::text"""


def adopt_epoch(database: Database) -> None:
    """Draw a new epoch if this database is not the one that the recorded epoch was drawn in."""
    with database.connection() as connection:
        same = connection.execute(f"SELECT origin = {_ORIGIN} FROM sync_meta").fetchone()
    if same is not None and same[0]:
        return
    with database.transaction() as connection:
        row = connection.execute(f"SELECT origin, {_ORIGIN} FROM sync_meta FOR UPDATE").fetchone()
        recorded, actual = row or (None, None)
        if recorded == actual:
            return  # another process was faster
        if recorded is not None:
            logger.warning("this database is a copy of another one: it gets an epoch of its own")
        connection.execute("UPDATE sync_meta SET epoch = %s, origin = %s", [secrets.token_hex(8), actual])
