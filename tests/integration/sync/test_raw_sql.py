"""Raw SQL at the centre: what a person changes at psql gets stamps and revisions, and replicas hear of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import memory
from memory.core.clock import Stamp
from memory.core.record import decode_record, encode_stamps
from memory.core.state import ABSENT, State
from memory.core.sync import user_name
from memory.engine.provider import StorageProvider
from memory.postgres.database import Database
from memory.postgres.rows import SELECT_STATE, read_state
from tests.sync.ports import registers_of

ZH = "项目代号叫夜莺"
Psql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def store(database_url: str) -> Iterator[memory.MemoryProvider]:
    with memory.connect(database_url, embedding_model="hashing") as store:
        yield store


@pytest.fixture
def psql(database_url: str) -> Iterator[Psql]:
    """Runs statements as a person would: in a session that knows nothing of ours."""
    with psycopg.connect(database_url, autocommit=True) as connection:

        def run(statement: str, *params: Any) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def state(database_url: str) -> Iterator[Callable[[str], State]]:
    database = Database(database_url, pool_size=1, timeout=10)

    def read(memory_id: str) -> State:
        with database.connection() as connection:
            row = connection.execute(f"{SELECT_STATE} WHERE m.memory_id = %s", [uuid.UUID(memory_id)]).fetchone()
        assert row is not None
        return read_state(row).state

    yield read
    database.close()


@pytest.fixture
def made(store: memory.MemoryProvider) -> memory.Memory:
    """With tags and metadata, some of them set, changed or removed later."""
    made = store.add_memory(ZH, user_id="u", tags=["one", "两"], metadata={"k": 1, "键": [2], "gone": 0})
    store.update_memory(made.memory_id, user_id="u", remove_tags=["one"], add_tags=["three"], importance=0.25)
    return store.update_memory(made.memory_id, user_id="u", metadata={"k": 2}, remove_metadata=["gone"])


def rev_of(psql: Psql, user_id: str = "u") -> int:
    return int(psql("SELECT rev FROM sync_user WHERE user_id = %s", user_id)[0][0])


def changed(before: State, after: State) -> set[str]:
    """Names of registers whose stamp or value is another; their stamps are all one, and larger than any before."""
    old, new = registers_of(before), registers_of(after)
    names = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    stamps = {new[name].stamp for name in names}
    assert len(stamps) <= 1
    assert all(stamp > max(before.stamps()) for stamp in stamps)
    return names


@pytest.mark.parametrize(
    ("assignment", "value", "register"),
    [
        ("importance", 0.75, "importance"),
        ("status", "archived", "status"),
        ("memory_type", "event", "memory_type"),
        ("source_session", "s-1", "source_session"),
        ("created_at", 1_700_000_000_000, "created_at"),
    ],
)
def test_a_changed_column_gets_a_stamp_and_a_revision_and_nothing_else_does(
    psql: Psql, made: memory.Memory, state: Callable[[str], State], assignment: str, value: Any, register: str
) -> None:
    before, rev = state(made.memory_id), rev_of(psql)
    psql(f"UPDATE memories SET {assignment} = %s WHERE memory_id = %s", value, made.memory_id)
    after = state(made.memory_id)
    assert changed(before, after) == {register}
    assert after.value(register) == value
    [(at, stored_rev)] = psql("SELECT updated_at, rev FROM memories WHERE memory_id = %s", made.memory_id)
    assert (stored_rev, rev_of(psql)) == (rev + 1, rev + 1)
    assert at == after.updated_at()
    repeated = psql("SELECT status, memory_type, created_at FROM memory_vectors WHERE memory_id = %s", made.memory_id)
    assert repeated == [(after.value("status"), after.value("memory_type"), after.value("created_at"))]


def test_changed_content_keeps_the_stamps_of_all_that_has_not_changed(
    psql: Psql, made: memory.Memory, state: Callable[[str], State], store: memory.MemoryProvider
) -> None:
    before = state(made.memory_id)
    psql("UPDATE memories SET content = %s WHERE memory_id = %s", "代号改为杜鹃", made.memory_id)
    after = state(made.memory_id)
    assert changed(before, after) == {"content"}
    assert decode_record({**record(made, after), "stamps": encode_stamps(after)}).state == after.without_accesses()


def record(made: memory.Memory, state: State) -> dict[str, Any]:
    scalars = {name: register.value for name, register in state.scalars.items()}
    return {
        "memory_id": made.memory_id,
        "user_id": "u",
        **scalars,
        "tags": list(state.present_tags()),
        "metadata": state.present_metadata(),
    }


def test_changed_content_is_found_by_its_new_words_and_meaning_once_it_is_embedded(
    psql: Psql, made: memory.Memory, store: memory.MemoryProvider
) -> None:
    psql("UPDATE memories SET content = 'green tea at five' WHERE memory_id = %s", made.memory_id)
    assert psql("SELECT count(*) FROM memory_vectors WHERE memory_id = %s", made.memory_id) == [(0,)]
    assert isinstance(store, StorageProvider)
    assert store.embed_pending() == 1
    [hit] = store.recall("green tea", user_id="u", top_k=1)
    assert hit.memory.memory_id == made.memory_id
    assert hit.relevance > 0.5
    [(length, due)] = psql("SELECT length, embedding_due FROM memories WHERE memory_id = %s", made.memory_id)
    assert (length > 0, due) == (True, False)


def test_changed_metadata_stamps_the_keys_that_differ(
    psql: Psql, made: memory.Memory, state: Callable[[str], State]
) -> None:
    before = state(made.memory_id)
    psql("""UPDATE memories SET metadata = '{"k": 3, "new": true}' WHERE memory_id = %s""", made.memory_id)
    after = state(made.memory_id)
    assert changed(before, after) == {"metadata.k", "metadata.new", "metadata.键"}
    assert after.metadata["键"].value is ABSENT


def test_several_columns_at_once_get_one_stamp(psql: Psql, made: memory.Memory, state: Callable[[str], State]) -> None:
    before = state(made.memory_id)
    psql(
        "UPDATE memories SET content = 'x', importance = 1, metadata = metadata - 'k' WHERE memory_id = %s",
        made.memory_id,
    )
    assert changed(before, state(made.memory_id)) == {"content", "importance", "metadata.k"}


def test_a_change_of_no_register_touches_neither_revision_nor_stamps(
    psql: Psql, made: memory.Memory, state: Callable[[str], State]
) -> None:
    before, rev = state(made.memory_id), rev_of(psql)
    psql("ALTER TABLE memories ADD COLUMN score int")
    psql("UPDATE memories SET score = 1, importance = importance")
    assert (state(made.memory_id), rev_of(psql)) == (before, rev)


def test_an_inserted_row_gets_all_that_it_lacks(psql: Psql, store: memory.MemoryProvider) -> None:
    [(memory_id,)] = psql("INSERT INTO memories (user_id, content) VALUES ('新用户', %s) RETURNING memory_id", ZH)
    found = store.get_memory(str(memory_id), user_id="新用户")
    assert (found.content, found.memory_type, found.importance, found.status) == (ZH, "fact", 0.5, "active")
    assert isinstance(store, StorageProvider)
    store.embed_pending()
    assert [hit.memory.memory_id for hit in store.recall("夜莺", user_id="新用户")] == [str(memory_id)]
    assert rev_of(psql, "新用户") == 1


def test_what_an_inserted_row_says_of_its_own_bookkeeping_is_drawn_anew(
    psql: Psql, made: memory.Memory, state: Callable[[str], State]
) -> None:
    rev = rev_of(psql)
    [(copy,)] = psql(
        "INSERT INTO memories SELECT (m).* FROM (SELECT jsonb_populate_record(m, %s) AS m FROM memories m) c"
        " RETURNING memory_id",
        psycopg.types.json.Jsonb({"memory_id": str(uuid.uuid4()), "rev": 10**9, "updated_at": 1}),
    )
    [(stored_rev, at, length, terms, due)] = psql(
        "SELECT rev, updated_at, length, terms::text, embedding_due FROM memories WHERE memory_id = %s", str(copy)
    )
    [stamp] = set(state(str(copy)).stamps())
    assert (stored_rev, length, terms, due) == (rev + 1, 0, "", True)
    assert stamp > max(state(made.memory_id).stamps())
    assert at == stamp.ms


def test_unknown_fields_are_registers_too_and_none_is_removed(
    psql: Psql, made: memory.Memory, state: Callable[[str], State]
) -> None:
    before = state(made.memory_id)
    psql("""UPDATE memories SET extra = '{"later": 1, "other": 2}'""")
    middle = state(made.memory_id)
    assert changed(before, middle) == {"later", "other"}
    psql("""UPDATE memories SET extra = '{"later": 3}'""")
    after = state(made.memory_id)
    assert changed(middle, after) == {"later"}
    assert (after.value("later"), after.value("other")) == (3, 2)


def test_a_deletion_becomes_a_tombstone_above_everything_known_of_the_memory(
    psql: Psql, made: memory.Memory, state: Callable[[str], State], store: memory.MemoryProvider
) -> None:
    latest, rev = max(state(made.memory_id).stamps()), rev_of(psql)
    psql("DELETE FROM memories WHERE user_id = 'u'")
    [(stamp, buried)] = psql("SELECT stamp, rev FROM memory_tombstones WHERE memory_id = %s", made.memory_id)
    ms, counter, writer = stamp.split(".")
    assert Stamp(int(ms), int(counter), writer) > latest
    assert buried == rev_of(psql) == rev + 1, "tags that went with it took no revisions"
    with pytest.raises(psycopg.errors.RaiseException, match="was deleted"):
        psql("INSERT INTO memories (user_id, memory_id, content) VALUES ('u', %s, 'again')", made.memory_id)


def test_tags_put_and_taken_are_registers_with_stamps(
    psql: Psql, made: memory.Memory, state: Callable[[str], State]
) -> None:
    before, rev = state(made.memory_id), rev_of(psql)
    psql("INSERT INTO memory_tags VALUES ('u', %s, 'one')", made.memory_id)
    again = state(made.memory_id)
    assert changed(before, again) == {"tags.one"}
    psql("DELETE FROM memory_tags WHERE tag = '两'")
    after = state(made.memory_id)
    assert changed(again, after) == {"tags.两"}
    assert after.present_tags() == ("one", "three")
    assert rev_of(psql) == rev + 2
    psql("UPDATE memory_tags SET tag = 'four' WHERE tag = 'three'")
    assert state(made.memory_id).present_tags() == ("four", "one")


def test_access_counts_get_a_revision(psql: Psql, made: memory.Memory, store: memory.MemoryProvider) -> None:
    store.recall("夜莺", user_id="u")
    store.flush()
    rev = rev_of(psql)
    psql("UPDATE memory_access SET count = count + 1")
    assert psql("SELECT rev FROM memory_access") == [(rev + 1,)]
    psql("INSERT INTO memory_access VALUES ('u', %s, 'w9', 1, 0, 7)", made.memory_id)
    assert psql("SELECT rev FROM memory_access WHERE writer = 'w9'") == [(rev + 2,)]


@pytest.mark.parametrize("table", ["memories CASCADE", "memory_tombstones"])
def test_truncate_is_refused_since_nobody_would_hear_of_it(psql: Psql, made: memory.Memory, table: str) -> None:
    with pytest.raises(psycopg.errors.RaiseException) as refused:
        psql(f"TRUNCATE {table}")
    assert "DELETE" in str(refused.value.diag.message_hint)


@pytest.mark.parametrize("column", ["user_id", "memory_id"])
def test_a_memory_keeps_its_user_and_its_id(psql: Psql, made: memory.Memory, column: str) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="keeps its user and its id"):
        psql(f"UPDATE memories SET {column} = %s", "other" if column == "user_id" else str(uuid.uuid4()))


def test_whoever_watches_a_user_is_told_of_changes_when_they_are_committed(
    psql: Psql, made: memory.Memory, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("LISTEN memory_changes")
        psql("UPDATE memories SET importance = 0.1")
        psql("UPDATE sync_user SET watched_until = 253402300799999")
        psql("UPDATE memories SET importance = 0.2")
        told = [notice.payload for notice in listener.notifies(timeout=5, stop_after=1)]
    assert told == [user_name("u")], "only since somebody watches"
