"""A real Postgres that goes back, or is another than before: replicas notice, and nothing they hold is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import memory
from edge.provider import EdgeMemory
from memory.postgres import cluster, migrations
from memory.postgres.embedded import EmbeddedServer
from tests.integration.sync.devices import OpenDevice, texts, wait_until

USER = "用户"
ZH = "项目代号叫夜莺"


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
    assert texts(replica, USER) == expected
    with memory.connect(url, embedding_model="hashing") as centre:
        assert texts(centre, USER) == expected
    [report] = replica.sync_now(USER)
    assert (report.reconciled, report.pushed, report.pulled, report.equal) == (False, 0, 0, True)


@pytest.mark.parametrize("way", ["dump", "template"])
def test_a_centre_restored_into_another_database_gets_back_what_it_has_lost(
    server: EmbeddedServer, new_database: Callable[..., str], device: OpenDevice, way: str
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
def test_a_data_directory_put_back_is_found_by_the_marks(reachable: Path, device: OpenDevice, *, grown: bool) -> None:
    with EmbeddedServer(reachable / "postgres", settings={"fsync": "off"}) as server:
        url = server.url()
        migrations.upgrade(url)
        a = device("a", url)
        doomed, before = history(a)
        data = data_directory(url)
        server.stop()
        subprocess.run(["cp", "-a", str(data), str(reachable / "kept")], check=True)  # with its owner
        server.start()
        after(a, doomed)
        server.stop()
        shutil.rmtree(data)
        (reachable / "kept").rename(data)
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
            assert texts(a, USER) == texts(b, USER)
            assert len(texts(a, USER)) == 22
            return
        mended(a, url, before)


def copy_running(server: EmbeddedServer, target: Path, signal: str, **recovery: str) -> None:
    """A copy of the server as it is now, that begins with a recovery: ``signal`` names its kind."""
    cluster.claim(target)
    data = target / "data"
    backup = [str(server.bin_directory / "pg_basebackup"), "-d", server.url(), "-D", str(data), "--checkpoint=fast"]
    subprocess.run(backup, check=True)
    (data / signal).touch()
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.writelines(f"{name} = '{value}'\n" for name, value in recovery.items())
    owner = data_directory(server.url()).stat()
    for place in (data, *data.rglob("*")):
        os.chown(place, owner.st_uid, owner.st_gid)


def test_the_promotion_of_a_standby_that_lagged_behind_begins_a_new_history(
    reachable: Path, device: OpenDevice
) -> None:
    with EmbeddedServer(reachable / "primary", settings={"fsync": "off"}) as server:
        url = server.url()
        migrations.upgrade(url)
        a = device("a", url)
        doomed, before = history(a)
        copy_running(server, reachable / "standby", "standby.signal")
        after(a, doomed)
        a.close()
    with EmbeddedServer(reachable / "standby", settings={"fsync": "off"}) as server:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            assert admin.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            assert admin.execute("SELECT pg_promote()").fetchone() == (True,)
        mended(device("a", server.url()), server.url(), before)


def archive_everything(url: str, archive: Path) -> None:
    """Until all that was written up to now is in the archive."""
    with psycopg.connect(url, autocommit=True) as admin:
        last = admin.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone()
        assert last is not None
        wait_until((archive / last[0]).exists)


def test_a_centre_brought_back_to_a_point_in_time_gets_back_what_came_after_it(
    reachable: Path, device: OpenDevice
) -> None:
    archive = reachable / "archive"
    archive.mkdir()
    archive.chmod(0o777)
    kept = {"fsync": "off", "archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
    with EmbeddedServer(reachable / "primary", settings=kept) as server:
        url = server.url()
        migrations.upgrade(url)
        a = device("a", url)
        copy_running(
            server,
            reachable / "restored",
            "recovery.signal",
            restore_command=f"cp {archive}/%f %p",
            recovery_target_name="the point",
            recovery_target_action="promote",
        )
        doomed, before = history(a)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("SELECT pg_create_restore_point('the point')")
        after(a, doomed)
        a.close()
        archive_everything(url, archive)
    with EmbeddedServer(reachable / "restored", settings={"fsync": "off"}) as server:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            wait_until(lambda: admin.execute("SELECT pg_is_in_recovery()").fetchone() == (False,))
            assert admin.execute("SELECT count(*) FROM memories").fetchone() == (2,)
        mended(device("a", server.url()), server.url(), before)


def test_a_standby_can_be_read_and_refuses_devices(reachable: Path, device: OpenDevice) -> None:
    settings: dict[str, Any] = {"embedding_model": "hashing", "track_access": False}
    with EmbeddedServer(reachable / "primary", settings={"fsync": "off"}) as server:
        with memory.connect(server.url(), auto_migrate=True, **settings) as store:
            store.add_memory(ZH, user_id=USER)
        copy_running(server, reachable / "standby", "standby.signal")
    with EmbeddedServer(reachable / "standby", settings={"fsync": "off"}) as server:
        with memory.connect(server.url(), **settings) as store:
            assert [hit.memory.content for hit in store.recall("夜莺", user_id=USER)] == [ZH]
        a = device("a", server.url())
        with pytest.raises(memory.StoreReadOnly):
            a.sync_now(USER)


def data_directory(url: str) -> Path:
    with psycopg.connect(url) as asked:
        return Path((asked.execute("SHOW data_directory").fetchone() or ("",))[0])
