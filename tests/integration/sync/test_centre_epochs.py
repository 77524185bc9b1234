"""Which history a database takes for its own, and what it notes of those that came before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import memory
from memory.postgres.database import Database
from memory.postgres.epoch import adopt_epoch
from tests.integration.sync.at_centre import wait_until_blocked


def histories(url: str) -> tuple[Any, ...]:
    """The database's epoch and origin, its users' epochs, and what is noted of former ones."""
    with psycopg.connect(url) as psql:
        return (
            psql.execute("SELECT epoch, origin FROM sync_meta").fetchone(),
            psql.execute("SELECT user_id, epoch FROM sync_user ORDER BY user_id").fetchall(),
            psql.execute("SELECT user_id, epoch, bound_rev FROM sync_lineage ORDER BY user_id").fetchall(),
        )


@pytest.fixture
def two_users(database_url: str) -> str:
    """A database with two users, at revisions 2 and 1."""
    with memory.connect(database_url, embedding_model="hashing") as store:
        for user_id, text in (("u-1", "one"), ("u-1", "two"), ("u-2", "three")):
            store.add_memory(text, user_id=user_id)
    return database_url


def move(url: str, origin: str) -> None:
    """Let the database have been written at another place, and open it."""
    with psycopg.connect(url, autocommit=True) as psql:
        psql.execute(f"UPDATE sync_meta SET origin = {origin}")
    memory.connect(url, embedding_model="hashing").close()


def test_an_origin_noted_before_timelines_were_is_not_taken_for_another_place(two_users: str) -> None:
    before = histories(two_users)
    move(two_users, "regexp_replace(origin, '/[^/]*$', '')")
    assert histories(two_users) == before


@pytest.mark.parametrize("part", [1, 2, 3], ids=["cluster", "database", "timeline"])
def test_another_place_is_one_new_history_for_all_users_bound_by_what_each_had(two_users: str, part: int) -> None:
    (old, origin), _, _ = histories(two_users)
    move(two_users, f"regexp_replace(origin, '[^/]+', '7', 1, {part})")
    (new, now), users, lineage = histories(two_users)
    assert (new != old, now) == (True, origin)
    assert users == [("u-1", new), ("u-2", new)]
    assert lineage == [("u-1", old, 2), ("u-2", old, 1)]


def test_a_history_begins_after_who_holds_a_user_and_writes_to_the_database(two_users: str, database: Database) -> None:
    (old, origin), _, _ = histories(two_users)
    with psycopg.connect(two_users) as holder, psycopg.connect(two_users, autocommit=True) as psql:
        psql.execute("UPDATE sync_meta SET origin = '7/7/7'")
        holder.execute("SELECT FROM sync_user WHERE user_id = 'u-1' FOR UPDATE")
        with ThreadPoolExecutor(1) as aside:
            adopting = aside.submit(adopt_epoch, database)
            wait_until_blocked(psql)
            holder.execute("UPDATE sync_meta SET epoch = 'rewound'")  # as a hello that notices a silent restore
            holder.commit()
            adopting.result()
    (new, now), users, lineage = histories(two_users)
    assert (new not in (old, "rewound"), now) == (True, origin)
    assert [epoch for _, epoch in users] == [new, new]
    assert lineage == [("u-1", old, 2), ("u-2", old, 1)]
