"""A real Postgres that goes back, or is another than before: replicas notice, and nothing they hold is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import memory
from edge.provider import EdgeMemory
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import StorageProvider
from memory.postgres import cluster, migrations
from memory.postgres.embedded import EmbeddedServer
from memory.testing.base import everything

USER = "用户"
ZH = "项目代号叫夜莺"
Open = Callable[..., EdgeMemory]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Open]:
    opened: list[EdgeMemory] = []

    def open_(name: str, url: str, **settings: Any) -> EdgeMemory:
        given = {"embedding_model": "hashing", "track_access": False, "sync_background": False, **settings}
        opened.append(memory.connect(f"edge://{tmp_path / name}", centre=url, **given))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that the account of the server can reach."""
    path = Path(tempfile.mkdtemp(prefix="memory-tests-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def texts(store: memory.MemoryProvider) -> set[str]:
    return {item.content for item in everything(store, USER)}


def epoch(replica: EdgeMemory) -> str | None:
    return replica.sync_status(USER)[0].epoch


def history(replica: EdgeMemory) -> tuple[str, str]:
    """A text that a backup knows, and a memory to be deleted after it."""
    replica.add_memory("known to the backup", user_id=USER)
    doomed = replica.add_memory("deleted after the backup", user_id=USER)
    replica.sync_now(USER)
    return doomed.memory_id, str(epoch(replica))


def after(replica: EdgeMemory, doomed: str) -> None:
    """What happens after the backup, and reaches the centre."""
    replica.add_memory("added after the backup", user_id=USER)
    replica.delete_memory(doomed, user_id=USER)
    replica.sync_now(USER)


def mended(replica: EdgeMemory, url: str, before: str) -> None:
    """The restored centre has everything again, and nothing that was deleted."""
    [report] = replica.sync_now(USER)
    assert (report.reconciled, report.equal) == (True, True)
    assert epoch(replica) != before
    expected = {"known to the backup", "added after the backup"}
    assert texts(replica) == expected
    with memory.connect(url, embedding_model="hashing") as centre:
        assert texts(centre) == expected
    [report] = replica.sync_now(USER)
    assert (report.reconciled, report.pushed, report.pulled, report.equal) == (False, 0, 0, True)


@pytest.mark.parametrize("way", ["dump", "template"])
def test_a_centre_restored_into_another_database_gets_back_what_it_has_lost(
    server: EmbeddedServer, new_database: Callable[..., str], device: Open, way: str
) -> None:
    url = new_database()
    a = device("a", url)
    doomed, before = history(a)
    a.close()
    restored = dumped(server, url, new_database) if way == "dump" else copied(url)
    a = device("a", url)
    after(a, doomed)
    a.close()
    mended(device("a", restored), restored, before)


def dumped(server: EmbeddedServer, url: str, new_database: Callable[..., str]) -> str:
    target = new_database(empty=True)
    tools = server.bin_directory
    dump = subprocess.run([tools / "pg_dump", url], capture_output=True, check=True)
    subprocess.run(
        [tools / "psql", "-q", "-v", "ON_ERROR_STOP=1", target], input=dump.stdout, check=True, capture_output=True
    )
    return target


def copied(url: str) -> str:
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url.replace(f"/{name}?", "/postgres?"), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            [name],
        )
        admin.execute(f"CREATE DATABASE {name}_copy TEMPLATE {name}")
    return url.replace(f"/{name}?", f"/{name}_copy?")


@pytest.mark.parametrize("grown", [False, True], ids=["as it was", "grown past the cursor"])
def test_a_data_directory_put_back_is_found_by_the_marks(base: Path, device: Open, *, grown: bool) -> None:
    with EmbeddedServer(base / "postgres", settings={"fsync": "off"}) as server:
        url = server.url()
        migrations.upgrade(url)
        a = device("a", url)
        doomed, before = history(a)
        data = data_directory(url)
        server.stop()
        subprocess.run(["cp", "-a", str(data), str(base / "kept")], check=True)  # with its owner
        server.start()
        after(a, doomed)
        server.stop()
        shutil.rmtree(data)
        (base / "kept").rename(data)
        server.start()
        if grown:
            b = device("b", url)
            for number in range(20):
                b.add_memory(f"written elsewhere {number}", user_id=USER)
            b.sync_now(USER)
            [report] = a.sync_now(USER)
            assert (report.reconciled, report.equal) == (True, True)
            assert epoch(a) != before
            b.sync_now(USER)
            assert texts(a) == texts(b)
            assert len(texts(a)) == 22
            return
        mended(a, url, before)


def begin_standby(server: EmbeddedServer, standby: Path) -> None:
    """A copy of the server as it is now, that begins as a standby of nobody."""
    cluster.claim(standby)
    data = standby / "data"
    backup = [str(server.bin_directory / "pg_basebackup"), "-d", server.url(), "-D", str(data), "--checkpoint=fast"]
    subprocess.run(backup, check=True)
    owner = data_directory(server.url()).stat()
    (data / "standby.signal").touch()
    for place in (data, *data.rglob("*")):
        os.chown(place, owner.st_uid, owner.st_gid)


def test_the_promotion_of_a_standby_that_lagged_behind_begins_a_new_history(base: Path, device: Open) -> None:
    with EmbeddedServer(base / "primary", settings={"fsync": "off"}) as server:
        url = server.url()
        migrations.upgrade(url)
        a = device("a", url)
        doomed, before = history(a)
        begin_standby(server, base / "standby")
        after(a, doomed)
        a.close()
    with EmbeddedServer(base / "standby", settings={"fsync": "off"}) as server:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            assert admin.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            assert admin.execute("SELECT pg_promote()").fetchone() == (True,)
        mended(device("a", server.url()), server.url(), before)


def test_a_standby_can_be_read_and_refuses_devices(base: Path, device: Open) -> None:
    settings: dict[str, Any] = {"embedding_model": "hashing", "track_access": False}
    with EmbeddedServer(base / "primary", settings={"fsync": "off"}) as server:
        with memory.connect(server.url(), auto_migrate=True, **settings) as store:
            store.add_memory(ZH, user_id=USER)
        begin_standby(server, base / "standby")
    with EmbeddedServer(base / "standby", settings={"fsync": "off"}) as server:
        with memory.connect(server.url(), **settings) as store:
            assert [hit.memory.content for hit in store.recall("夜莺", user_id=USER)] == [ZH]
        a = device("a", server.url())
        with pytest.raises(memory.StoreReadOnly):
            a.sync_now(USER)


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


def data_directory(url: str) -> Path:
    with psycopg.connect(url) as asked:
        return Path((asked.execute("SHOW data_directory").fetchone() or ("",))[0])


def test_what_is_changed_and_deleted_by_raw_sql_reaches_all_replicas(database_url: str, device: Open) -> None:
    a, b = device("a", database_url), device("b", database_url)
    kept = a.add_memory(ZH, user_id=USER)
    gone = a.add_memory("to be deleted", user_id=USER)
    a.sync_now(USER)
    b.sync_now(USER)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE memories SET content = '代号改为杜鹃' WHERE memory_id = %s", [kept.memory_id])
        psql.execute("DELETE FROM memories WHERE memory_id = %s", [gone.memory_id])
    for replica in (a, b):
        assert replica.sync_now(USER)[0].equal
        assert texts(replica) == {"代号改为杜鹃"}
        assert replica.recall("杜鹃", user_id=USER)[0].memory.memory_id == kept.memory_id


@pytest.mark.parametrize(("revision", "word"), [("central_0001", "older"), ("central_9999", "newer")])
def test_a_centre_of_another_schema_is_named_and_the_replica_works_on(
    database_url: str, device: Open, revision: str, word: str
) -> None:
    a = device("a", database_url)
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("UPDATE alembic_version SET version_num = %s", [revision])
    a.add_memory(ZH, user_id=USER)
    with pytest.raises(memory.SchemaMismatch, match=word):
        a.sync_now(USER)
    [status] = a.sync_status(USER)
    assert (status.condition, status.pending) == ("versions differ", 1)
    assert texts(a) == {ZH}


def test_a_device_with_another_model_keeps_to_its_own_and_dimensions_never_mix(database_url: str, device: Open) -> None:
    with memory.connect(database_url, embedding_model="hashing") as centre:
        centre.add_memory(ZH, user_id=USER)
        other = HashingEmbedder(dimension=32, name="another")
        a = device("a", database_url, embedder=other)
        a.add_memory("tea at five", user_id=USER)
        [report] = a.sync_now(USER)
        assert (report.equal, report.deferred) == (True, 1)
        assert a.embed_pending() in (0, 1)
        assert {hit.memory.content for hit in a.recall(ZH, user_id=USER)} >= {ZH}
        assert isinstance(centre, StorageProvider)
        assert centre.embed_pending() == 1
        with psycopg.connect(database_url) as psql:
            dimensions = psql.execute("SELECT DISTINCT vector_dims(embedding) FROM memory_vectors").fetchall()
        assert dimensions == [(centre.stats().embedding_dimension,)]
        assert a.stats().embedding_dimension == 32
