"""The doctor: every corruption is found under its name, and mended where there is one right answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import memory
from memory.core.errors import NotFound
from memory.embedding.hashing import HashingEmbedder
from memory.postgres import doctor
from memory.postgres.database import Database
from memory.postgres.digest import settle
from memory.postgres.models import reembed

ZH = "项目代号叫夜莺，下周五交付第一版"
EN = "The staging server runs in Frankfurt"
TEA = "Prefers green tea"
Run = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, pool_size=4, timeout=10)
    yield opened
    opened.close()


@pytest.fixture
def sql(database: Database) -> Run:
    def run(statement: str, *params: Any) -> list[tuple[Any, ...]]:
        with database.connection() as connection:
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def ids(database_url: str) -> dict[str, str]:
    """Content → id of a store with two users, a recall, an edit and a deletion."""
    with opened(database_url) as store:
        made = {text: store.add_memory(text, user_id="u", tags=["t"]).memory_id for text in (ZH, EN, TEA)}
        made["other"] = store.add_memory("of another user", user_id="v").memory_id
        made["gone"] = store.add_memory("to be deleted", user_id="u").memory_id
        store.recall("夜莺", user_id="u")
        store.update_memory(made[EN], user_id="u", add_tags=["ops"])
        store.archive_memory(made[TEA], user_id="u")
        store.delete_memory(made["gone"], user_id="u")
    return made


@contextmanager
def opened(url: str) -> Iterator[Any]:
    with memory.connect(url, embedder=HashingEmbedder(), retry_interval=3600) as store:
        yield store


def now() -> int:
    return time.time_ns() // 1_000_000


def faults(database: Database) -> dict[str, int]:
    found = doctor.examine(database, now=now())
    return {finding.name: finding.rows for finding in found if finding.is_problem}


def repaired(database: Database) -> dict[str, int]:
    return {item.name: item.rows for item in doctor.repair(database, now=now())}


def test_a_store_in_use_is_sound_and_repair_changes_nothing(database: Database, ids: dict[str, str], sql: Run) -> None:
    tables = ("memories", "memory_vectors", "memory_access", "memory_tombstones", "sync_user")
    before = [sql(f"SELECT t::text FROM {table} t ORDER BY 1") for table in tables]
    assert faults(database) == {}
    assert repaired(database) == {}
    assert [sql(f"SELECT t::text FROM {table} t ORDER BY 1") for table in tables] == before


def test_an_imported_store_is_sound(
    database_url: str, ids: dict[str, str], new_database: Callable[..., str], tmp_path: Any
) -> None:
    path = tmp_path / "memories.jsonl"
    other = new_database()
    with opened(database_url) as store:
        store.export_memories(path)
    with opened(other) as store:
        store.import_memories(path)
        store.update_memory(ids[ZH], user_id="u", content="项目代号改为杜鹃")
        store.import_memories(path)
    database = Database(other, pool_size=2, timeout=10)
    assert faults(database) == {}
    database.close()


def test_an_empty_database_is_sound(database: Database) -> None:
    assert faults(database) == {}


def test_every_check_says_what_it_means(database: Database) -> None:
    found = doctor.examine(database, now=now())
    assert len({finding.name for finding in found}) == len(found)
    assert all(finding.meaning and finding.remedy for finding in found)


def test_another_schema_is_all_that_is_found(database: Database, sql: Run) -> None:
    sql("DROP TABLE memory_tags")
    [finding] = doctor.examine(database, now=now())
    assert (finding.name, finding.rows, finding.repairable) == ("schema", 1, False)
    sql("DROP TABLE alembic_version")
    [finding] = doctor.examine(database, now=now())
    assert (finding.name, finding.rows) == ("schema", 2)
    assert doctor.repair(database, now=now()) == []


def test_missing_and_invalid_indexes_are_built(database: Database, ids: dict[str, str], sql: Run) -> None:
    definitions = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'memor%%' ORDER BY 1"
    before = sql(definitions)
    sql("DROP INDEX memories_terms")
    sql("DROP INDEX memory_vectors_covering")
    sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'memories_listing'::regclass")
    assert faults(database) == {"indexes": 3}
    assert repaired(database) == {"indexes": 3}
    assert faults(database) == {}
    assert sql(definitions) == before


def test_a_missing_key_is_reported(database: Database, ids: dict[str, str], sql: Run) -> None:
    sql("ALTER TABLE memory_tombstones DROP CONSTRAINT memory_tombstones_pkey")
    assert faults(database) == {"keys": 1}
    assert repaired(database) == {}


def test_a_memory_that_lost_its_vector_is_marked_and_embedded(
    database: Database, database_url: str, ids: dict[str, str], sql: Run
) -> None:
    sql("DELETE FROM memory_vectors WHERE memory_id = %s", ids[ZH])
    assert faults(database) == {"vector_missing": 1}
    assert repaired(database) == {"vector_missing": 1}
    assert faults(database) == {}
    [pending] = [f for f in doctor.examine(database, now=now()) if f.name == "embedding_pending"]
    assert (pending.rows, pending.informational) == (1, True)
    with opened(database_url) as store:
        store.embed_pending()
        assert store.stats().pending_embeddings == 0


def test_a_mark_beside_a_vector_is_taken_away(database: Database, ids: dict[str, str], sql: Run) -> None:
    sql("UPDATE memories SET embedding_due = true WHERE user_id = 'u'")
    assert faults(database) == {"vector_waiting": 3}
    assert repaired(database) == {"vector_waiting": 3}
    assert sql("SELECT count(*) FROM memories WHERE embedding_due") == [(0,)]


@pytest.mark.parametrize("change", ["status = 'active'", "memory_type = 'event'", "created_at = created_at + 1"])
def test_columns_of_vectors_are_copied_from_their_memory(
    database: Database, ids: dict[str, str], sql: Run, change: str
) -> None:
    sql(f"UPDATE memory_vectors SET {change} WHERE memory_id = %s", ids[TEA])
    assert faults(database) == {"vector_differs": 1}
    assert repaired(database) == {"vector_differs": 1}
    assert faults(database) == {}
    copied = sql("SELECT status, memory_type, created_at FROM memory_vectors WHERE memory_id = %s", ids[TEA])
    assert copied == sql("SELECT status, memory_type, created_at FROM memories WHERE memory_id = %s", ids[TEA])


@pytest.mark.parametrize("dimension", [64, 3])
def test_a_vector_of_a_wrong_length_makes_room_for_a_new_one(
    database: Database, ids: dict[str, str], sql: Run, dimension: int
) -> None:
    sql(
        "UPDATE memory_vectors SET embedding = '[1,0,0]', dimension = %s WHERE memory_id = %s",
        dimension,
        ids[ZH],
    )
    assert faults(database) == {"vector_unusable": 1}
    assert repaired(database) == {"vector_unusable": 1}
    assert faults(database) == {}
    assert sql("SELECT embedding_due FROM memories WHERE memory_id = %s", ids[ZH]) == [(True,)]
    assert sql("SELECT count(*) FROM memories WHERE embedding_due") == [(1,)]


class _Failing(HashingEmbedder):
    """Another model, whose service stops answering half-way."""

    def embed_documents(self, texts: Any) -> Any:
        raise memory.EmbeddingUnavailable


def test_vectors_left_by_an_interrupted_change_of_model_are_removed(
    database: Database, database_url: str, ids: dict[str, str], sql: Run
) -> None:
    with pytest.raises(memory.EmbeddingUnavailable):
        reembed(database, _Failing(32))
    sql(
        "INSERT INTO memory_vectors SELECT user_id, memory_id, (SELECT max(model_id) FROM embedding_models),"
        " status, memory_type, created_at, 3, '[1,0,0]' FROM memory_vectors WHERE memory_id = %s",
        ids[ZH],
    )
    assert faults(database) == {"vector_unusable": 1}
    assert repaired(database) == {"vector_unusable": 1}
    assert faults(database) == {}
    assert sql("SELECT count(*) FROM memory_vectors") == [(4,)]
    assert sql("SELECT count(*) FROM memories WHERE embedding_due") == [(0,)]


def test_a_revision_counter_that_fell_behind_is_raised(
    database: Database, database_url: str, ids: dict[str, str], sql: Run
) -> None:
    largest = sql("SELECT rev FROM sync_user WHERE user_id = 'u'")
    sql("UPDATE sync_user SET rev = 1 WHERE user_id = 'u'")
    assert faults(database) == {"revision_behind": 1}
    assert repaired(database) == {"revision_behind": 1}
    assert sql("SELECT rev FROM sync_user WHERE user_id = 'u'") == largest
    assert faults(database) == {}


def test_a_user_without_a_counter_gets_one_and_edits_still_win(
    database: Database, database_url: str, ids: dict[str, str], sql: Run
) -> None:
    ahead = now() + 60_000
    with memory.connect(database_url, embedder=HashingEmbedder(), now=ahead) as store:
        store.update_memory(ids[ZH], user_id="u", content="written by a fast clock")
    [(largest,)] = sql("SELECT rev FROM sync_user WHERE user_id = 'u'")
    sql("DELETE FROM sync_user")
    assert faults(database) == {"revision_behind": 2}
    assert repaired(database) == {"revision_behind": 2}
    assert faults(database) == {}
    with opened(database_url) as store:
        changed = store.update_memory(ids[ZH], user_id="u", content=ZH)
        assert int(changed.version) == largest + 1
        assert changed.updated_at > ahead


def test_a_clock_that_fell_behind_is_raised(database: Database, ids: dict[str, str], sql: Run) -> None:
    sql("UPDATE sync_user SET hlc_ms = hlc_ms - 100000, hlc_counter = 7 WHERE user_id = 'u'")
    assert faults(database) == {"clock_behind": 1}
    assert repaired(database) == {"clock_behind": 1}
    assert faults(database) == {}


def test_shared_revisions_are_told_apart(database: Database, ids: dict[str, str], sql: Run) -> None:
    sql("UPDATE memories SET rev = 3 WHERE user_id = 'u'")
    sql("UPDATE memory_tombstones SET rev = 3 WHERE user_id = 'u'")
    assert faults(database) == {"duplicate_revision": 1}
    assert repaired(database) == {"duplicate_revision": 4}
    assert faults(database) == {}
    revisions = sql(
        "SELECT rev FROM memories WHERE user_id = 'u' UNION ALL SELECT rev FROM memory_tombstones ORDER BY 1"
    )
    [(largest,)] = sql("SELECT rev FROM sync_user WHERE user_id = 'u'")
    assert len(set(revisions)) == 4
    assert revisions[-1] == (largest,)
    assert sql("SELECT rev FROM memories WHERE user_id = 'v'") == [(1,)]


def test_what_is_alive_and_deleted_is_deleted_and_readers_hear_of_it(
    database: Database, database_url: str, ids: dict[str, str], sql: Run
) -> None:
    [(before,)] = sql("SELECT rev FROM sync_user WHERE user_id = 'u'")
    sql("INSERT INTO memory_tombstones SELECT user_id, %s, stamp, 999 FROM memory_tombstones", ids[EN])
    sql("UPDATE sync_user SET rev = 999 WHERE user_id = 'u'")
    assert faults(database) == {"alive_and_deleted": 1}
    assert repaired(database) == {"alive_and_deleted": 1}
    assert faults(database) == {}
    assert before < 999
    assert sql("SELECT rev FROM memory_tombstones WHERE memory_id = %s", ids[EN]) == [(1000,)]
    with opened(database_url) as store, pytest.raises(NotFound):
        store.get_memory(ids[EN], user_id="u")


def test_stamps_ahead_of_time_are_reported_and_left_alone(
    database: Database, database_url: str, ids: dict[str, str]
) -> None:
    with memory.connect(database_url, embedder=HashingEmbedder(), now=now() + 3_600_000) as store:
        store.update_memory(ids[ZH], user_id="u", content="from a clock an hour ahead")
        store.delete_memory(ids[TEA], user_id="u")
    assert faults(database) == {"stamp_ahead": 3}
    assert repaired(database) == {}
    with memory.connect(database_url, embedder=HashingEmbedder()) as store:
        assert store.get_memory(ids[ZH], user_id="u").content == "from a clock an hour ahead"


def test_wrong_words_are_replaced_page_by_page(
    database: Database, database_url: str, sql: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PAGE", 2)
    with opened(database_url) as store:
        for user in ("u", "v"):
            store.add_many([memory.NewMemory(content=f"{ZH} number{n}") for n in range(5)], user_id=user)
    right = sql("SELECT user_id, memory_id, terms::text, length FROM memories ORDER BY 1, 2")
    sql("UPDATE memories SET terms = array_to_tsvector('{wrong}') WHERE user_id = 'u'")
    sql("UPDATE memories SET length = length + 1 WHERE user_id = 'v' AND content LIKE '%%number3'")
    assert faults(database) == {"terms": 6}
    assert repaired(database) == {"terms": 6}
    assert faults(database) == {}
    assert sql("SELECT user_id, memory_id, terms::text, length FROM memories ORDER BY 1, 2") == right


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE sync_user SET digest = digest # 1 WHERE user_id = 'u'",
        "UPDATE sync_user SET live_count = live_count + 1 WHERE user_id = 'u'",
        "INSERT INTO memory_hashes VALUES ('u', gen_random_uuid(), 7)",
    ],
)
def test_a_digest_that_is_not_of_the_memories_is_computed_again(
    database: Database, ids: dict[str, str], sql: Run, harm: str
) -> None:
    settle(database, "u")
    right = sql("SELECT digest, live_count, access_total, hashed_rev FROM sync_user WHERE user_id = 'u'")
    sql(harm)
    assert faults(database) == {"digest": 1}
    assert repaired(database) == {"digest": 1}
    assert faults(database) == {}
    settle(database, "u")
    assert sql("SELECT digest, live_count, access_total, hashed_rev FROM sync_user WHERE user_id = 'u'") == right


def test_several_faults_at_once_are_mended_in_one_go(
    database: Database, database_url: str, ids: dict[str, str], sql: Run
) -> None:
    sql("DELETE FROM sync_user")
    sql("UPDATE memories SET rev = 1, terms = array_to_tsvector('{wrong}')")
    sql("INSERT INTO memory_tombstones SELECT user_id, %s, stamp, rev FROM memory_tombstones", ids[EN])
    sql("UPDATE memory_vectors SET embedding = '[1]' WHERE memory_id = %s", ids[ZH])
    sql("DROP INDEX memories_due")
    repaired(database)
    assert faults(database) == {}
    with opened(database_url) as store:
        assert store.recall("夜莺", user_id="u")[0].memory.content == ZH


def test_a_repair_that_fails_changes_nothing(database: Database, ids: dict[str, str], sql: Run) -> None:
    sql("UPDATE memories SET embedding_due = true WHERE user_id = 'u'")
    sql("ALTER TABLE memories ADD CONSTRAINT in_the_way CHECK (embedding_due OR content NOT LIKE 'Pref%%')")
    with pytest.raises(memory.IntegrityFailure):
        doctor.repair(database, now=now())
    assert sql("SELECT count(*) FROM memories WHERE embedding_due") == [(3,)]


def test_it_examines_and_repairs_while_others_write(database: Database, database_url: str, sql: Run) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(user: str) -> None:
        try:
            with opened(database_url) as store:
                number = 0
                while not stop.is_set():
                    added = store.add_memory(f"{ZH} {user} {number}", user_id=user)
                    store.update_memory(added.memory_id, user_id=user, content=f"{EN} {number}")
                    store.recall("Frankfurt", user_id=user, top_k=2)
                    if number % 3 == 0:
                        store.delete_memory(added.memory_id, user_id=user)
                    number += 1
        except (memory.Error, psycopg.Error) as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(user,)) for user in ("a", "b")]
    for writer in writers:
        writer.start()
    found: dict[str, int] = {}
    for _ in range(5):
        sql("UPDATE memories SET embedding_due = true, length = length + 1")
        sql("DELETE FROM memory_vectors WHERE user_id = 'a'")
        found |= faults(database)
        doctor.repair(database, now=now())
    stop.set()
    for writer in writers:
        writer.join()
    assert failures == []
    assert {"vector_waiting", "terms"} & found.keys()
    doctor.repair(database, now=now())
    assert faults(database) == {}
