"""Directories that can, and that cannot, be a replica."""

from __future__ import annotations

import errno
import os
import pwd
import sqlite3
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

import memory
from edge import directory
from edge.directory import file_system_of
from edge.sqlite.database import Db
from memory.testing.base import everything
from tests.integration.edge.others import elsewhere
from tests.plain_index import plain_index
from tests.replicas import findings, open_replica, settle


def use(path: Path) -> int:
    """Open a replica as a program does, add, and close; how many memories there are then."""
    with memory.connect(f"edge://{quote(str(path))}", embedding_model="hashing") as store:
        store.add_memory("green tea", user_id="u")
        return len(store.recall("tea", user_id="u"))


@pytest.mark.parametrize(
    "name",
    ["two words", "记忆 🐦", "100%", "per%20cent", "a?b", "a#b", 'it\'s "so"', "back\\slash", "line\nbreak", "-wal"],
)
def test_any_name_of_a_directory_will_do(tmp_path: Path, name: str) -> None:
    assert [use(tmp_path / name), use(tmp_path / name)] == [1, 2]
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert findings(tmp_path / name) == {}


def test_missing_parents_are_made(tmp_path: Path) -> None:
    assert use(tmp_path / "a" / "b" / "c") == 1


def test_a_relative_directory_stays_the_same_when_the_program_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with memory.connect("edge:replica", embedding_model="hashing") as store:
        store.add_memory("green tea", user_id="u")
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.add_memory("black tea", user_id="v")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(list((tmp_path / "replica" / "users").iterdir())) == 2


def test_a_link_to_a_replica_is_the_same_replica(tmp_path: Path) -> None:
    use(tmp_path / "replica")
    (tmp_path / "link").symlink_to(tmp_path / "replica")
    with open_replica(tmp_path / "link"), pytest.raises(memory.StoreInUse):
        open_replica(tmp_path / "replica")
    assert use(tmp_path / "link") == 2


def made_file(place: Path) -> Path:
    (place / "file").write_text("precious")
    return place / "file"


def made_below_a_file(place: Path) -> Path:
    return made_file(place) / "replica"


def made_loop(place: Path) -> Path:
    (place / "a").symlink_to(place / "b")
    (place / "b").symlink_to(place / "a")
    return place / "a"


def made_below_a_loop(place: Path) -> Path:
    return made_loop(place) / "replica"


def made_too_long(place: Path) -> Path:
    return place / ("x" * 300)


def made_dangling(place: Path) -> Path:
    (place / "link").symlink_to("/proc/nowhere")
    return place / "link"


def made_with_users_that_is_a_file(place: Path) -> Path:
    (place / "users").write_text("precious")
    return place


@pytest.mark.parametrize(
    "make",
    [
        made_file,
        made_below_a_file,
        made_loop,
        made_below_a_loop,
        made_too_long,
        made_with_users_that_is_a_file,
    ],
)
def test_what_can_be_no_directory_is_a_wrong_setting(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(memory.ConfigError) as caught:
        open_replica(path)
    assert str(tmp_path) in caught.value.message
    assert caught.value.hint
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_that_the_system_refuses_to_make_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(memory.StoreError, match="/proc/nowhere"):
        open_replica(made_dangling(tmp_path))


@pytest.mark.parametrize("path", ["/tmp/a\0b", "~no-such-account/replica"])
def test_what_is_no_path_is_a_wrong_setting(path: str) -> None:
    with pytest.raises(memory.ConfigError):
        open_replica(Path(path))
    with pytest.raises(memory.ConfigError):
        memory.connect(f"edge:{quote(path, safe='/~')}", embedding_model="hashing")


def test_a_directory_of_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "photos").mkdir()
    with pytest.raises(memory.ConfigError, match=r"notes\.txt") as caught:
        open_replica(tmp_path)
    assert "empty directory" in caught.value.hint
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["notes.txt", "photos"]


def test_an_empty_directory_and_hidden_files_are_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").write_text("")
    assert use(tmp_path) == 1


def test_other_things_beside_a_replica_are_left_alone(tmp_path: Path) -> None:
    use(tmp_path)
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "users" / "notes.txt").write_text("precious")
    (tmp_path / "users" / "._notes.txt").write_text("precious")
    with open_replica(tmp_path) as store:
        assert len(store.recall("tea", user_id="u")) == 1
    assert len(list(tmp_path.rglob("*notes.txt"))) == 3


def test_only_the_owner_of_the_account_may_read_what_is_made(tmp_path: Path) -> None:
    path = tmp_path / "replica"
    umask = os.umask(0)
    try:
        with open_replica(path) as store:
            store.add_memory("green tea", user_id="u")
            settle(store)
            [folder] = (path / "users").iterdir()
            modes = {entry.relative_to(path).parts: stat.S_IMODE(entry.stat().st_mode) for entry in path.rglob("*")}
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = ("memory.db", "memory.db-wal", "memory.db-shm", "user.txt")
    assert [modes["users", folder.name, name] for name in files] == [0o600] * 4
    assert modes["owner.lock",] == modes["replica.json",] == 0o600
    assert modes["users",] == 0o700


# Rights


def another_account() -> int | None:
    """Who is not allowed everything: nobody if this is root, else this account itself."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def stays_as_it_was(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("root", "inside"), [(0o500, 0o700), (0o700, 0o500)])
def test_a_replica_without_the_right_to_write_is_denied(reachable: Path, root: int, inside: int) -> None:
    path = reachable / "replica"
    use(path)
    given_to(another_account(), path)
    (path / "users").chmod(inside)
    path.chmod(root)
    before = stays_as_it_was(path)
    with pytest.raises(memory.StoreDenied, match=str(path)) as caught:
        elsewhere(use, path, uid=another_account())
    assert "right to read and write" in caught.value.hint
    assert not caught.value.retryable
    assert stays_as_it_was(path) == before
    path.chmod(0o700)
    (path / "users").chmod(0o700)
    assert elsewhere(use, path, uid=another_account()) == 2


def given_to(uid: int | None, path: Path) -> None:
    if uid is not None:
        for entry in [path, *path.rglob("*")]:
            os.chown(entry, uid, uid)


def test_a_place_without_the_right_to_make_a_directory_is_denied(reachable: Path) -> None:
    given_to(another_account(), reachable)
    reachable.chmod(0o555)
    with pytest.raises(memory.StoreDenied, match="Permission denied"):
        elsewhere(use, reachable / "replica", uid=another_account())
    with pytest.raises(memory.StoreDenied, match="Permission denied"):
        elsewhere(use, Path("/root-only/replica") if os.geteuid() else Path("/root/replica"), uid=another_account())


@pytest.mark.parametrize(
    ("mode", "kind", "hint"),
    [(0o000, memory.StoreDenied, "right to read and write"), (0o400, memory.StoreReadOnly, "right to write")],
)
def test_a_file_without_rights_concerns_its_user_only(
    reachable: Path, mode: int, kind: type[memory.StoreError], hint: str
) -> None:
    path = reachable / "replica"
    use(path)
    [file] = path.rglob("memory.db")
    given_to(another_account(), path)
    file.chmod(mode)
    with pytest.raises(kind, match=str(file)) as caught:
        elsewhere(use, path, uid=another_account())
    assert hint in caught.value.hint
    assert elsewhere(use_as_another, path, uid=another_account()) == 1
    for beside in file.parent.glob("memory.db*"):
        beside.chmod(0o600)
    assert elsewhere(use, path, uid=another_account()) == 2


def use_as_another(path: Path) -> int:
    with open_replica(path, index=plain_index()) as store:
        store.add_memory("green tea", user_id="another")
        return len(store.recall("tea", user_id="another"))


# File systems


@pytest.mark.parametrize(("flag", "kind"), [(os.ST_RDONLY, memory.StoreReadOnly), (0, memory.StoreDenied)])
def test_a_read_only_file_system_is_told_from_missing_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int, kind: type[memory.StoreError]
) -> None:
    use(tmp_path)
    as_it_is = os.statvfs(tmp_path)
    fields = [*as_it_is[:8], as_it_is.f_flag | flag, *as_it_is[9:]]
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(fields))
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(kind) as caught:
        open_replica(tmp_path)
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, memory.StoreFull),
        (errno.EDQUOT, memory.StoreFull),
        (errno.EROFS, memory.StoreReadOnly),
        (errno.EIO, memory.StoreUnavailable),
    ],
)
def test_failures_of_the_system_are_told_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[memory.StoreError]
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match=os.strerror(number)):
        open_replica(tmp_path / "replica")
    monkeypatch.undo()
    assert use(tmp_path / "replica") == 1


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
malformed
tmpfs /srv tmpfs rw 0 0
server:/x /srv/shared nfs4 rw 0 0
/dev/sdb1 /srv/shared/local ext4 rw 0 0
server:/y /srv/with\\040blank\\043and\\011more cifs rw 0 0
/dev/sdc1 /srv/twice ext4 rw 0 0
me@host: /srv/twice fuse.sshfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    file = tmp_path / "mounts"
    file.write_text(MOUNTS, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/", "ext4"),
        ("/srv", "tmpfs"),
        ("/srv/sharedness", "tmpfs"),
        ("/srv/shared", "nfs4"),
        ("/srv/shared/a/b", "nfs4"),
        ("/srv/shared/local/a", "ext4"),
        ("/srv/with blank#and\tmore/a", "cifs"),
        ("/srv/twice/a", "fuse.sshfs"),
    ],
)
def test_the_file_system_is_that_of_the_longest_and_latest_mount(mounts: Path, path: str, kind: str) -> None:
    assert file_system_of(Path(path), mounts) == kind


def test_where_no_mounts_are_listed_the_file_system_is_unknown(tmp_path: Path) -> None:
    assert file_system_of(tmp_path, tmp_path / "none") is None


def test_a_network_file_system_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path}/shared nfs4 rw 0 0\n")
    monkeypatch.setattr(directory, "file_system_of", partial(file_system_of, mounts=mounts))
    with pytest.raises(memory.Unsupported, match="nfs4") as caught:
        open_replica(tmp_path / "shared" / "replica")
    assert "local disk" in caught.value.hint
    assert not (tmp_path / "shared").exists()
    assert use(tmp_path / "own") == 1


def test_a_file_system_without_the_log_of_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(path: Path, *, synchronous: str = "full") -> Db:
        # With this way of locking SQLite has no memory to share, and without it no write-ahead log.
        uri = f"{path.as_uri()}?mode=rw&vfs=unix-dotfile"
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)

    with open_replica(tmp_path, index=plain_index()) as store:
        with monkeypatch.context() as patched:
            patched.setattr("edge.sqlite.database.connect", connect)
            with pytest.raises(memory.Unsupported, match="write-ahead log") as caught:
                store.add_memory("green tea", user_id="u")
        assert "local disk" in caught.value.hint
        store.add_memory("green tea", user_id="u")
        assert [item.content for item in everything(store, "u")] == ["green tea"]
