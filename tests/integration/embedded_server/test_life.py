"""One process and its embedded server: starting, stopping, persisting, any directory."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from memory.core.errors import (
    Refused,
)
from memory.postgres import embedded
from memory.postgres.embedded import EmbeddedServer, default_directory
from tests.integration.embedded_server.processes import (
    answer,
    cluster_from,
    is_gone,
    keep_note,
    leave,
    log_of,
    notes,
    open_server,
    spawn,
)


def test_data_survive_a_stop_and_a_start(fresh: Path) -> None:
    with EmbeddedServer(fresh) as server:  # durable, as users run it
        keep_note(server.url(), "夜莺")
        pid = server.pid
        assert pid is not None
    assert server.pid is None
    assert is_gone(pid)
    assert log_of(fresh).rstrip().endswith("database system is shut down")
    with EmbeddedServer(fresh) as server:
        assert notes(server.url()) == ["夜莺"]
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_start_and_stop_may_be_repeated(directory: Path) -> None:
    server = open_server(directory)
    server.stop()
    first = server.start()
    pid = server.pid
    assert server.start() == first == server.url()
    assert server.pid == pid
    server.stop()
    server.stop()
    assert server.pid is None


def test_the_database_is_utf8_checksummed_ordered_by_code_point_and_takes_vectors(fresh: Path) -> None:
    with open_server(fresh) as server, psycopg.connect(server.url()) as connection:
        row = connection.execute(
            "SELECT current_user, current_database(), pg_encoding_to_char(encoding), datlocprovider,"
            " datlocale, current_setting('data_checksums'), lower('ÄÖ')"
            " FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        connection.execute("CREATE EXTENSION vector")
        distance = connection.execute("SELECT '[1,2]'::vector <-> '[1,4]'::vector").fetchone()
    assert distance == (2.0,)
    assert row == ("postgres", "memory", "UTF8", "b", "C.UTF-8", "on", "äö")


def test_nothing_listens_on_the_network_and_the_socket_is_private(directory: Path) -> None:
    with open_server(directory) as server, psycopg.connect(server.url()) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        socket = server.socket_directory / ".s.PGSQL.5432"
        assert stat.S_IMODE(server.socket_directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / "data").stat().st_mode) == 0o700
        if Path("/proc/net/tcp").exists():
            fds = Path(f"/proc/{server.pid}/fd").iterdir()
            opened = [str(fd.readlink()) for fd in fds]
            sockets = {name[8:-1] for name in opened if name.startswith("socket:[")}
            listening = {
                line.split()[9]
                for table in ("tcp", "tcp6", "udp", "udp6")
                for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
            }
            assert sockets
            assert not sockets & listening


def test_client_programs_of_the_server_work_with_its_url(directory: Path, base: Path) -> None:
    with open_server(directory) as server:
        keep_note(server.url(), "kept")
        dump = subprocess.run(
            [server.bin_directory / "pg_dump", server.url()], check=True, capture_output=True, text=True
        )
        backup = base / "backup"
        subprocess.run(
            [server.bin_directory / "pg_basebackup", "-d", server.url(), "-D", backup, "--checkpoint=fast"],
            check=True,
        )
    assert "kept" in dump.stdout
    assert (backup / "PG_VERSION").read_text() == "18\n"


@pytest.mark.parametrize(
    "name",
    ['Application "Support"', "夜莺's 100%\\$HOME;`x`", "a,b", "é" * 60],
    ids=["mac", "odd", "comma", "long"],
)
def test_any_name_will_do_for_the_directory(stock: Path, base: Path, name: str) -> None:
    with cluster_from(stock, base / name / "postgres") as directory, open_server(directory) as server:
        keep_note(server.url(), name)
        address = sqlalchemy.make_url(server.url()).set(drivername="postgresql+psycopg")
        engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT note FROM notes")).scalar() == name
        engine.dispose()


def test_a_path_too_long_for_a_socket_still_has_one_server(base: Path, holders: list[subprocess.Popen[str]]) -> None:
    directory = base / ("long" * 50) / "postgres"
    elsewhere = base / "tmp"
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    with open_server(directory) as server:
        sockets = server.socket_directory
        assert sockets.parent == Path(tempfile.gettempdir()).resolve()
        # Whoever joins learns from the server where it listens, whatever its own temporary directory is.
        holder = spawn(holders, directory, environment={"TMPDIR": str(elsewhere)})
        assert answer(holder) == (server.url(), server.pid)
        leave(holder)
    assert not sockets.exists()


def test_a_socket_directory_that_somebody_else_made_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = base / ("long" * 50) / "postgres"
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    trap = open_server(directory).socket_directory
    trap.symlink_to(base)
    with pytest.raises(Refused, match="private"):
        open_server(directory).start()


def test_the_default_directory_is_the_users_own_or_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_directory() == Path("/var/lib/nightingale-memory/postgres")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_directory().parts[-2:] == ("nightingale-memory", "postgres")


def test_a_log_that_has_grown_is_set_aside_at_the_next_start(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_server(directory):
        pass
    monkeypatch.setattr(embedded, "LOG_LIMIT_BYTES", 1)
    with open_server(directory):
        pass
    assert (directory / "control" / "server.log.1").exists()
    assert log_of(directory).count("ready to accept connections") == 1
