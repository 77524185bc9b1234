"""The embedded server, with real servers and real kills."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from memory.core.errors import (
    ConfigError,
    InvalidValue,
    Refused,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
    Unsupported,
)
from memory.postgres import cluster, embedded, installation, keeper
from memory.postgres.embedded import EmbeddedServer, default_directory

REPOSITORY = Path(__file__).resolve().parents[2]
FAST = {"fsync": "off", "shared_buffers": "16MB"}
IS_ROOT = os.geteuid() == 0
root_only = pytest.mark.skipif(not IS_ROOT, reason="about running as root")

# Another process that holds the server until its standard input ends.
HOLDER = """
import sys
from pathlib import Path
from memory.postgres.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), settings={"fsync": "off", "shared_buffers": "16MB"})
print(server.start(), server.pid, flush=True)
sys.stdin.read()
server.stop()
print("stopped", flush=True)
"""

# A holder that forks a child and ends without a word; the child ends with its standard input.
FORKING_HOLDER = """
import os, sys
from pathlib import Path
from memory.postgres.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), settings={"fsync": "off", "shared_buffers": "16MB"})
line = f"{server.start()} {server.pid}"
if os.fork():
    os._exit(0)
print(line, flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that every account can reach, unlike pytest's own temporary directories."""
    path = Path(tempfile.mkdtemp(prefix="nightingale-test-")).resolve()
    path.chmod(0o755)
    yield path
    with contextlib.suppress(StoreError):
        eventually(lambda: not processes_below(path), "no process is left behind")
    left = processes_below(path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)
    assert not left


@pytest.fixture
def fresh(base: Path) -> Path:
    """A directory that does not exist yet."""
    return base / "postgres"


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A cluster as a first start makes it; a copy takes a tenth of the time."""
    path = Path(tempfile.mkdtemp(prefix="nightingale-test-")).resolve()
    path.chmod(0o755)
    with open_server(path / "postgres"):
        pass
    yield path / "postgres"
    shutil.rmtree(path)


def settle(template: Path, directory: Path) -> Path:
    cluster.claim(directory)
    subprocess.run(["cp", "-a", template / "data", directory], check=True)
    return directory


@pytest.fixture
def directory(template: Path, base: Path) -> Path:
    return settle(template, base / "postgres")


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        with process:
            process.kill()


def open_server(directory: Path) -> EmbeddedServer:
    return EmbeddedServer(directory, settings=FAST)


def spawn(
    holders: list[subprocess.Popen[str]],
    directory: Path,
    script: str = HOLDER,
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(directory)],
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    holders.append(process)
    return process


def answer(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The URL and the postmaster's process id that a holder reports."""
    assert process.stdout is not None
    url, pid = process.stdout.readline().split()
    return url, int(pid)


def leave(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=30)
    assert output == "stopped\n"
    assert process.returncode == 0


def eventually(condition: Callable[[], object], what: str, timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise StoreTimeout(f"waited in vain: {what}")
        time.sleep(0.02)


def ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], check=False, capture_output=True, text=True).stdout.strip()


def processes_below(path: Path) -> list[int]:
    """Keepers and postmasters whose command line names the path."""
    lines = [line.split(maxsplit=1) for line in ps("-A", "-ww", "-o", "pid=,args=").splitlines()]
    return [
        int(pid)
        for pid, command in lines
        if str(path) in command and ("keeper.py" in command or "bin/postgres" in command)
    ]


def is_gone(pid: int) -> bool:
    state = ps("-o", "stat=", "-p", str(pid))
    return not state or state.startswith("Z")


def parent_of(pid: int) -> int:
    return int(ps("-o", "ppid=", "-p", str(pid)))


@contextlib.contextmanager
def as_server_account(command: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to the owner of the data."""
    owner = (directory / "data").stat()
    with subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        cwd="/",
        user=owner.st_uid if IS_ROOT else None,
        group=owner.st_gid if IS_ROOT else None,
        extra_groups=[] if IS_ROOT else None,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def keep_note(url: str, note: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (note text)")
        connection.execute("INSERT INTO notes VALUES (%s)", [note])


def notes(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT note FROM notes ORDER BY note")]


def log_of(directory: Path) -> str:
    return (directory / "control" / "server.log").read_text()


# Starting, stopping, persisting


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


def test_the_database_is_utf8_checksummed_and_ordered_by_code_point(fresh: Path) -> None:
    with open_server(fresh) as server, psycopg.connect(server.url()) as connection:
        row = connection.execute(
            "SELECT current_user, current_database(), pg_encoding_to_char(encoding), datlocprovider,"
            " datlocale, current_setting('data_checksums'), lower('ÄÖ')"
            " FROM pg_database WHERE datname = current_database()"
        ).fetchone()
    assert row == ("postgres", "memory", "UTF8", "b", "C.UTF-8", "on", "äö")


def test_the_vector_extension_can_be_created(directory: Path) -> None:
    with open_server(directory) as server, psycopg.connect(server.url()) as connection:
        connection.execute("CREATE EXTENSION vector")
        assert connection.execute("SELECT '[1,2]'::vector <-> '[1,4]'::vector").fetchone() == (2.0,)


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
    ["Application Support", 'it\'s "quoted" 100%', "夜莺 记忆", "a,b", "back\\slash $HOME;`x`", "é" * 60],
)
def test_any_name_will_do_for_the_directory(template: Path, base: Path, name: str) -> None:
    directory = settle(template, base / name / "postgres")
    with open_server(directory) as server:
        keep_note(server.url(), name)
        address = sqlalchemy.make_url(server.url()).set(drivername="postgresql+psycopg")
        engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT note FROM notes")).scalar() == name
        engine.dispose()


def test_a_path_too_long_for_a_socket_still_has_one_server(
    base: Path, holders: list[subprocess.Popen[str]]
) -> None:
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


def test_a_socket_directory_that_somebody_else_made_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = base / ("long" * 50) / "postgres"
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    trap = open_server(directory).socket_directory
    trap.symlink_to(base)
    with pytest.raises(Refused, match="private"):
        open_server(directory).start()


# Several holders


def test_two_processes_share_a_server_that_stops_after_the_second_has_left(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    first, second = spawn(holders, directory), spawn(holders, directory)
    url, pid = answer(first)
    assert answer(second) == (url, pid)
    leave(first)
    keep_note(url, "after the first has left")
    leave(second)
    assert is_gone(pid)


def test_six_processes_at_once_on_an_empty_directory_get_one_postmaster(
    fresh: Path, holders: list[subprocess.Popen[str]]
) -> None:
    started = [spawn(holders, fresh) for _ in range(6)]
    assert len({answer(process) for process in started}) == 1
    for process in started:
        leave(process)
    assert not processes_below(fresh)
    assert log_of(fresh).count("ready to accept connections") == 1


def test_objects_and_threads_of_one_process_hold_the_server_independently(fresh: Path) -> None:
    servers = [open_server(fresh) for _ in range(4)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({server.pid for server in servers}) == 1
    for server in servers[1:]:
        server.stop()
    keep_note(servers[0].url(), "still there")
    threads = [threading.Thread(target=servers[0].stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert servers[0].pid is None


def test_opening_and_leaving_in_turns_never_loses_the_server(directory: Path) -> None:
    problems: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(4):
                with open_server(directory) as server:
                    notes(server.url())
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            problems.append(error)

    with open_server(directory) as server:
        keep_note(server.url(), "x")
    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_forked_child_keeps_the_server_until_it_ends(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory, FORKING_HOLDER)
    url, pid = answer(holder)
    assert holder.wait(timeout=10) == 0
    keep_note(url, "kept by the child")
    assert holder.stdin is not None
    holder.stdin.close()
    eventually(lambda: is_gone(pid), "the server stops after the child")


# Kills


def test_a_killed_holder_leaves_no_server_and_loses_no_commit(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    url, pid = answer(holder)
    keep_note(url, "committed")
    holder.kill()
    eventually(lambda: not processes_below(directory), "the server stops")
    assert is_gone(pid)
    with open_server(directory) as server:
        assert notes(server.url()) == ["committed"]


def test_the_next_opener_adopts_the_server_of_a_killed_keeper(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    url, pid = answer(holder)
    os.kill(parent_of(pid), signal.SIGKILL)
    keep_note(url, "without a keeper")
    with open_server(directory) as server:
        assert server.pid == pid
        holder.kill()
        holder.wait()
        assert notes(server.url()) == ["without a keeper"]
    assert is_gone(pid)
    assert not processes_below(directory)
    assert log_of(directory).rstrip().endswith("database system is shut down")


def test_the_last_to_leave_replaces_a_killed_keeper(directory: Path) -> None:
    server = open_server(directory)
    server.start()
    pid = server.pid
    assert pid is not None
    os.kill(parent_of(pid), signal.SIGKILL)
    server.stop()
    assert is_gone(pid)
    assert not processes_below(directory)


def test_a_holder_and_its_keeper_killed_leave_a_server_that_the_next_opener_takes_over(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    _, pid = answer(holder)
    os.kill(parent_of(pid), signal.SIGKILL)
    holder.kill()
    holder.wait()
    with open_server(directory) as server:
        assert server.pid == pid
    assert is_gone(pid)


def test_a_killed_postmaster_is_started_again_while_somebody_holds_the_server(directory: Path) -> None:
    with open_server(directory) as server:
        keep_note(server.url(), "committed")
        killed = server.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)

        def is_back() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                return notes(server.url()) == ["committed"]
            return False

        eventually(is_back, "the server is back")
        assert server.pid != killed


def test_everything_killed_at_once_does_not_prevent_the_next_start(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    url, pid = answer(holder)
    keep_note(url, "committed")
    keeper_pid = parent_of(pid)
    holder.kill()
    os.kill(keeper_pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    assert (directory / "data" / "postmaster.pid").exists()
    with open_server(directory) as server:
        assert notes(server.url()) == ["committed"]
        assert server.pid != pid


def test_a_stale_process_id_that_another_program_has_now_does_not_prevent_the_next_start(
    directory: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder = spawn(holders, directory)
    _, pid = answer(holder)
    keeper_pid = parent_of(pid)
    for victim in (holder.pid, keeper_pid, pid):
        os.kill(victim, signal.SIGKILL)
    stale = directory / "data" / "postmaster.pid"
    with as_server_account(["sleep", "60"], directory) as sleeper:
        _, rest = stale.read_text().split("\n", 1)
        stale.write_text(f"{sleeper.pid}\n{rest}")
        with open_server(directory) as server:
            assert server.pid not in (None, pid, sleeper.pid)
        assert sleeper.poll() is None


def test_a_server_started_by_hand_is_left_alone(directory: Path) -> None:
    with open_server(directory) as server:
        sockets = server.socket_directory
    data = directory / "data"
    cluster.make_private(sockets, installation.server_account(None, data))
    by_hand = cluster.command(server.bin_directory, data, sockets, FAST)
    with as_server_account(by_hand, directory) as postgres:
        eventually(lambda: "ready" in (data / "postmaster.pid").read_text(), "it is ready")
        with pytest.raises(StoreUnavailable, match="by hand") as caught:
            open_server(directory).start()
        assert caught.value.pid == postgres.pid
        assert postgres.poll() is None


def test_a_killed_initdb_leaves_no_half_made_cluster(
    base: Path, holders: list[subprocess.Popen[str]]
) -> None:
    for attempt in range(10):
        directory = base / str(attempt)
        holder = spawn(holders, directory)
        eventually(lambda place=directory: list(place.glob("unfinished-*/*")), "initdb is at work")  # type: ignore[misc]
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        if not (directory / "data").exists():
            break
    assert list(directory.glob("unfinished-*"))
    with open_server(directory) as server:
        keep_note(server.url(), "made again")
    assert not list(directory.glob("unfinished-*"))


def test_a_keeper_asked_to_end_shuts_the_server_down(directory: Path) -> None:
    server = open_server(directory)
    server.start()
    pid = server.pid
    assert pid is not None
    os.kill(parent_of(pid), signal.SIGTERM)
    eventually(lambda: server.pid is None, "the server stops")
    assert log_of(directory).rstrip().endswith("database system is shut down")
    keep_note(server.start(), "started again by the same object")
    server.stop()


def test_a_directory_removed_under_a_running_server_does_not_keep_it_running(directory: Path) -> None:
    server = open_server(directory)
    server.start()
    pid = server.pid
    assert pid is not None
    shutil.rmtree(directory)
    server.stop()
    eventually(lambda: is_gone(pid), "the server stops")


# Refusals


def test_a_start_that_fails_says_why_and_leaves_nothing_running(directory: Path) -> None:
    server = EmbeddedServer(directory, settings={"no_such_setting": "1"})
    with pytest.raises(StoreUnavailable, match="did not start") as caught:
        server.start()
    assert 'unrecognized configuration parameter "no_such_setting"' in caught.value.log
    assert "settings" in caught.value.hint
    assert not processes_below(directory)
    with open_server(directory) as server:
        assert server.pid is not None


def test_an_initdb_that_fails_says_why(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ROLE", "pg_reserved")
    with pytest.raises(StoreUnavailable, match="could not be created") as caught:
        open_server(fresh).start()
    assert "pg_reserved" in caught.value.log
    assert not (fresh / "data").exists()


def test_a_full_disk_is_told_from_other_failures() -> None:
    error = cluster.failure("it did not start", b'FATAL:  could not write "x": No space left on device\n')
    assert isinstance(error, StoreFull)
    assert "disk space" in error.hint


def test_a_start_that_takes_too_long_is_given_up(fresh: Path, holders: list[subprocess.Popen[str]]) -> None:
    cluster.claim(fresh)
    lock = keeper.open_lock(fresh / "control" / "start.lock")
    assert keeper.try_lock(lock, 2)  # LOCK_EX, as another opener holds it
    try:
        with pytest.raises(StoreTimeout, match=r"start\.lock"):
            EmbeddedServer(fresh, start_timeout=0.2).start()
    finally:
        os.close(lock)


def test_a_cluster_of_another_version_is_refused_with_the_way_out(fresh: Path) -> None:
    cluster.claim(fresh)
    (fresh / "data").mkdir()
    (fresh / "data" / "PG_VERSION").write_text("17\n")
    if IS_ROOT:
        os.chown(fresh / "data", 65534, 65534)
    with pytest.raises(SchemaMismatch, match="Postgres 17") as caught:
        open_server(fresh).start()
    assert "export" in caught.value.hint


def test_a_data_directory_without_a_cluster_is_refused(fresh: Path) -> None:
    cluster.claim(fresh)
    (fresh / "data").mkdir()
    if IS_ROOT:
        os.chown(fresh / "data", 65534, 65534)
    with pytest.raises(StoreError, match="not a Postgres data directory"):
        open_server(fresh).start()


def test_a_directory_of_another_user_is_refused(fresh: Path) -> None:
    if IS_ROOT:
        fresh.mkdir()
        os.chown(fresh, 65534, 65534)
    with pytest.raises(Refused, match="belongs to another user"):
        open_server(fresh if IS_ROOT else Path("/usr")).start()


def test_a_file_in_place_of_the_directory_is_refused(fresh: Path) -> None:
    fresh.write_text("")
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        open_server(fresh).start()


def test_an_unknown_account_is_refused(fresh: Path) -> None:
    with pytest.raises(ConfigError, match="nobody-of-this-name"):
        EmbeddedServer(fresh, run_as="nobody-of-this-name").start()


def test_settings_that_would_open_or_move_the_server_are_refused(fresh: Path) -> None:
    for name in ("listen_addresses", "Unix-Socket-Directories", "hba_file", "data_directory"):
        with pytest.raises(InvalidValue, match="settings"):
            EmbeddedServer(fresh, settings={name: "*"})


def test_control_characters_in_the_path_are_refused(base: Path) -> None:
    with pytest.raises(InvalidValue, match="directory"):
        EmbeddedServer(base / "two\nlines")


def test_missing_binaries_are_reported(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PACKAGE", "no_such_package")
    with pytest.raises(Unsupported, match="binaries") as caught:
        open_server(fresh).start()
    assert "MEMORY_DATABASE_URL" in caught.value.hint


def test_windows_is_refused_with_the_way_out(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Unsupported, match="Windows") as caught:
        EmbeddedServer(fresh)
    assert "MEMORY_DATABASE_URL" in caught.value.hint


def test_the_default_directory_is_the_users_own_or_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_directory() == Path("/var/lib/nightingale-memory/postgres")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_directory().parts[-2:] == ("nightingale-memory", "postgres")


def test_a_log_that_has_grown_is_set_aside_at_the_next_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_server(directory):
        pass
    monkeypatch.setattr(embedded, "LOG_LIMIT_BYTES", 1)
    with open_server(directory):
        pass
    assert (directory / "control" / "server.log.1").exists()
    assert log_of(directory).count("ready to accept connections") == 1


# Root


def modes(*paths: Path) -> dict[Path, int]:
    return {place: place.stat().st_mode for path in paths for place in (path, *path.parents)}


@root_only
def test_root_runs_the_server_as_somebody_else_and_opens_no_directory(directory: Path) -> None:
    package = installation.package_directory()
    before = modes(package, directory.parent, Path.home(), Path(sys.executable).resolve())
    with open_server(directory) as server:
        uid = Path(f"/proc/{server.pid}").stat().st_uid
        assert uid != 0
        assert (directory / "data").stat().st_uid == uid
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n" in status
        assert "Groups:\t \n" in status
        assert b"HOME=" not in Path(f"/proc/{server.pid}/environ").read_bytes()
        assert modes(package, directory.parent, Path.home(), Path(sys.executable).resolve()) == before


@root_only
def test_root_runs_the_server_as_the_account_it_is_given_and_stays_with_it(fresh: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    with EmbeddedServer(fresh, run_as="nobody", settings=FAST):
        assert (fresh / "data").stat().st_uid == nobody.pw_uid
    with open_server(fresh):  # the data decide when nothing is said
        pass
    with pytest.raises(Refused, match="nobody"):
        EmbeddedServer(fresh, run_as="daemon").start()
    with pytest.raises(ConfigError, match="root"):
        EmbeddedServer(fresh, run_as="root").start()


@root_only
def test_binaries_below_a_closed_directory_are_copied_and_the_directory_stays_closed(
    base: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = base / "closed"
    closed.mkdir(0o700)
    installed = installation.package_directory()
    for part in (installed / installation.TREE, installed.parent / f"{installed.name}.libs"):
        shutil.copytree(part, closed / part.relative_to(installed.parent))
    monkeypatch.setattr(installation, "package_directory", lambda: closed / installed.name)
    for _ in range(2):
        with open_server(fresh) as server, psycopg.connect(server.url()) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            program = Path(f"/proc/{server.pid}/exe").readlink()
    assert program.parts[: len(fresh.parts)] == fresh.parts
    assert len(list(fresh.glob("binaries-*"))) == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@root_only
def test_a_parent_that_the_server_cannot_enter_is_named_and_left_alone(base: Path) -> None:
    closed = base / "closed"
    closed.mkdir(0o700)
    with pytest.raises(Refused, match="cannot enter") as caught:
        open_server(closed / "postgres").start()
    assert caught.value.barrier == str(closed)
    assert "/var/lib" in caught.value.hint
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@root_only
def test_a_system_without_a_suitable_account_gets_the_way_out(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "PREFERRED_ACCOUNT", "no-such-account")
    monkeypatch.setattr(installation, "OWN_ACCOUNT", "no-such-account-either")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(StoreError, match="useradd") as caught:
        open_server(fresh).start()
    assert "run_as" in caught.value.hint
