"""What a system refuses an index is told apart from damage: nothing is thrown away for want of space or rights."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge.vectors.folder import RESERVE, failure
from memory.core.errors import StoreFull, VectorIndexDamaged, VectorIndexUnavailable
from memory.policies.admission import Filter
from tests.integration.edge.indexes import Kit, assert_exact, everything, make_kit, make_points

POINTS = make_points(60)


@pytest.fixture(params=["engine", "local"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    with make_kit(request.param, tmp_path) as made:
        yield made


def test_a_full_disk_is_no_damage(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    index = kit.factory.open(kit.place())
    index.upsert(POINTS)
    full = SimpleNamespace(free=RESERVE - 1)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _path: full)
        with pytest.raises(StoreFull):
            index.upsert(POINTS[:1])
        with pytest.raises(StoreFull):
            index.remove([POINTS[0].memory_id])
        assert_exact(index, POINTS, Filter())
        with pytest.raises(VectorIndexUnavailable, match="free"):
            kit.factory.open(kit.place("another"))
    index.remove([POINTS[0].memory_id])
    assert index.count() == len(POINTS) - 1
    index.close()


LIMITED = """
import resource, sys
from pathlib import Path
from edge.vectors.engine import EdgeEngineFactory
from memory.core.errors import StoreFull, VectorIndexUnavailable
from memory.policies.admission import Filter
from tests.integration.edge.indexes import Kit, assert_exact, make_points

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def fails(kind, call):
    limit(1_000)
    try:
        call()
    except kind:
        return
    finally:
        limit(resource.RLIM_INFINITY)
    raise SystemExit(f"no {kind}")

kit = Kit("engine", EdgeEngineFactory(), Path(sys.argv[1]))
points = make_points(500)
fails(VectorIndexUnavailable, lambda: kit.factory.open(kit.place()))
kit.factory.discard(kit.place())
index = kit.factory.open(kit.place())
index.upsert(points)
fails(StoreFull, index.flush)
index.flush()
index.close()
with kit.opened() as index:
    assert index.count() == 500
    assert_exact(index, points, Filter())
"""


def test_a_write_that_the_system_refuses_for_its_size_is_no_damage_and_can_be_repeated(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_full_database_of_local_mode_is_no_damage(tmp_path: Path) -> None:
    with make_kit("local", tmp_path) as kit, kit.opened() as index:
        storage = index._client._client.collections["memories"].storage.storage  # type: ignore[attr-defined]
        storage.execute("PRAGMA max_page_count = 4")
        with pytest.raises(StoreFull):
            index.upsert(POINTS)
        storage.execute("PRAGMA max_page_count = 100000")
        index.upsert(POINTS)
        assert_exact(index, POINTS, everything())


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EMFILE, VectorIndexUnavailable),
        (errno.ENOMEM, VectorIndexUnavailable),
        (errno.EACCES, VectorIndexUnavailable),
        (errno.EROFS, VectorIndexUnavailable),
        (errno.ENOENT, VectorIndexDamaged),
        (errno.EIO, VectorIndexDamaged),
    ],
)
def test_what_the_system_refuses_is_told_apart_from_damage(number: int, kind: type[Exception], tmp_path: Path) -> None:
    stated = Exception(f"Service runtime error: IO Error: {os.strerror(number)} (os error {number}) at path x")
    for error in (OSError(number, os.strerror(number)), stated):
        assert type(failure(error, "writing to", tmp_path)) is kind
    assert type(failure(Exception("Vector dimension error"), "writing to", tmp_path)) is VectorIndexDamaged


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the client leaves its lock file open
def test_an_index_that_another_client_has_open_is_unavailable(tmp_path: Path) -> None:
    with make_kit("local", tmp_path) as kit:
        with kit.opened() as index:
            index.upsert(POINTS)
        folder = kit.place().folder / "index-local"
        script = (
            "import sys; from qdrant_client import QdrantClient; client = QdrantClient(path=sys.argv[1]);"
            "print('open', flush=True); sys.stdin.read()"
        )
        command = [sys.executable, "-c", script, str(folder / "data")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "open\n"
            with pytest.raises(VectorIndexUnavailable):
                kit.factory.open(kit.place())
            gc.collect()
            other.communicate()
        with kit.opened() as index:
            assert index.count() == len(POINTS)
