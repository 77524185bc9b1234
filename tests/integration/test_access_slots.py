"""Access slots at the centre: each count belongs to its writer, whatever way the planner takes to them."""

from __future__ import annotations

import itertools
import uuid

import memory
from memory.postgres.database import Database
from memory.postgres.rows import SELECT_STATE, read_state

WAYS = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan", "enable_seqscan")


def test_counts_are_read_with_their_writers_by_every_plan(database_url: str) -> None:
    with memory.connect(database_url, embedding_model="hashing") as store:
        made = [store.add_memory(f"memory {number}", user_id="u").memory_id for number in range(50)]
    expected = {"a": 1, "b": 22, "c": 333, "d": 4444}
    database = Database(database_url, pool_size=1, timeout=10)
    with database.transaction() as connection:
        for turn, (writer, count) in enumerate(reversed(expected.items())):  # on disk, and by revision, the other way
            for memory_id in made:
                connection.execute(
                    "INSERT INTO memory_access VALUES ('u', %s, %s, %s, 1, %s)",
                    [uuid.UUID(memory_id), writer, count, 100 + turn],
                )
    with database.connection() as connection:
        connection.execute("VACUUM ANALYZE memory_access")
    for on in itertools.product(("on", "off"), repeat=len(WAYS)):
        with database.transaction() as connection:
            for way, given in zip(WAYS, on, strict=True):
                connection.execute(f"SET LOCAL {way} = {given}")
            rows = connection.execute(f"{SELECT_STATE} WHERE m.user_id = 'u'").fetchall()
        assert [read_state(row).state.accesses for row in rows] == [expected] * len(made), on
    database.close()
