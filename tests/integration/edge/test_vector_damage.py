"""Indexes that keep files: whatever became of them, opening tells, and nothing ends the process."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import qdrant_edge
from qdrant_client import QdrantClient, models

from memory.core.errors import VectorIndexDamaged
from memory.policies.admission import Filter
from tests.integration.edge.indexes import DIMENSION, Kit, assert_exact, make_kit, make_points

POINTS = make_points(60)


@pytest.fixture(params=["engine", "local"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    with make_kit(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Kit]:
    with make_kit("engine", tmp_path) as made:
        yield made


def folder_of(kit: Kit) -> Path:
    return kit.place().folder / ("index" if kit.kind == "engine" else "index-local")


def fill(kit: Kit) -> Path:
    """An index at rest, all flushed; returns its folder."""
    with kit.opened() as index:
        index.upsert(POINTS)
        index.flush()
    return folder_of(kit)


def assert_damaged(kit: Kit) -> None:
    with pytest.raises(VectorIndexDamaged):
        kit.factory.open(kit.place())


def assert_made_anew(kit: Kit) -> None:
    """After a discard, an empty index that works."""
    kit.factory.discard(kit.place())
    with kit.opened() as index:
        assert index.entries() == {}
        index.upsert(POINTS)
        index.flush()
    with kit.opened() as index:
        assert index.count() == len(POINTS)
        assert_exact(index, POINTS, Filter())


def empty(file: Path) -> None:
    file.touch()


def one_byte_short(file: Path) -> None:
    with file.open("wb") as made:
        made.truncate(SIZES.pop() - 1)


def folder_instead(file: Path) -> None:
    file.mkdir()


def nothing_instead(file: Path) -> None:
    """It stays away."""


SIZES: list[int] = []


@pytest.mark.parametrize("put", [nothing_instead, empty, one_byte_short, folder_instead])
def test_a_missing_or_shortened_file_is_damage_whichever_it_is(kit: Kit, put: Callable[[Path], None]) -> None:
    folder = fill(kit)
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]
    assert len(files) > (50 if kit.kind == "engine" else 3)
    aside = folder.parent / "aside"
    for file in files:
        SIZES[:] = [file.stat().st_size]
        file.rename(aside)
        put(file)
        assert_damaged(kit)
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        aside.rename(file)
    with kit.opened() as index:
        assert_exact(index, POINTS, Filter())


@pytest.mark.parametrize("name", ["identity.json", "files.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"data": "x"}', "\x00\xff", "[" * 100_000, '{"model": 1}'])
def test_garbage_in_our_own_notes_is_damage(kit: Kit, name: str, text: str) -> None:
    (fill(kit) / name).write_text(text, encoding="latin-1")
    assert_damaged(kit)
    assert_made_anew(kit)


@pytest.mark.parametrize(
    "pattern",
    [
        "edge_config.json",
        "segments/*/segment.json",
        "segments/*/version.info",
        "segments/*/mutable_id_tracker.mappings",
        "segments/*/vector_storage/deleted/status.dat",
        "segments/*/payload_index/*-tags-map/tracker.dat",
    ],
)
def test_garbage_in_a_file_of_the_engine_is_damage(engine: Kit, pattern: str) -> None:
    for file in (fill(engine) / "data").glob(pattern):
        file.write_bytes(b"\xff" * min(file.stat().st_size, 4_096) + file.read_bytes()[4_096:])
    assert_damaged(engine)
    assert_made_anew(engine)


SWEEP = """
import sys
from pathlib import Path
from edge.vectors.engine import EdgeEngineFactory
from memory.core.errors import VectorIndexDamaged
from memory.policies.admission import Filter
from tests.integration.edge.indexes import Kit, make_points

points, factory, total = make_points(60), EdgeEngineFactory(), 1
for number in range(1_000):
    kit = Kit("engine", factory, Path(sys.argv[1]) / str(number))
    with kit.opened() as index:
        index.upsert(points)
        index.flush()
    folder = kit.place().folder / "index" / "data"
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size]
    alike = ("-status-", "-memory_t-", "-source_s-", "-importan-")  # as the files of tags, and of created_at
    files = [file for file in files if not any(name in str(file) for name in alike)]
    if number == len(files):
        break
    with files[number].open("r+b") as file:
        file.write(b"\\xff" * min(files[number].stat().st_size, 4_096))
    try:
        with kit.opened() as index:
            index.search(points[0].vector, 10, Filter(tags_any=("tag1",), created_from=1, min_importance=0.1))
            index.entries(), index.count(), index.vectors([point.memory_id for point in points])
            index.upsert(points), index.remove([points[0].memory_id]), index.flush(), index.compact()
    except VectorIndexDamaged:
        factory.discard(kit.place())
print(number)
"""


@pytest.mark.slow
def test_garbage_in_any_file_of_the_engine_never_ends_the_process(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SWEEP, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25


def test_a_panic_of_the_engine_is_damage(engine: Kit) -> None:
    (tracker,) = (fill(engine) / "data").glob("segments/*/payload_index/*-tags-map/tracker.dat")
    tracker.write_bytes(b"\xff" * tracker.stat().st_size)
    with pytest.raises(VectorIndexDamaged) as caught:
        engine.factory.open(engine.place())
    assert not isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize("path", ["meta.json", "collection/memories/storage.sqlite"])
@pytest.mark.parametrize("text", [b"garbage", b"{}", b'{"collections": {}, "aliases": {}}', b"SQLite format 3\x00"])
def test_garbage_in_a_file_of_local_mode_is_damage(tmp_path: Path, path: str, text: bytes) -> None:
    with make_kit("local", tmp_path) as kit:
        file = fill(kit) / "data" / path
        file.write_bytes(text.ljust(file.stat().st_size))
        assert_damaged(kit)
        assert_made_anew(kit)


def test_garbage_in_a_row_of_local_mode_is_damage(tmp_path: Path) -> None:
    with make_kit("local", tmp_path) as kit:
        file = fill(kit) / "data" / "collection" / "memories" / "storage.sqlite"
        connection = sqlite3.connect(file)
        connection.execute("UPDATE points SET point = zeroblob(length(point)) WHERE rowid = 1")
        connection.commit()
        connection.close()
        assert_damaged(kit)
        assert_made_anew(kit)


def a_file(folder: Path) -> None:
    folder.write_text("not a folder", encoding="utf-8")


def an_empty_folder(folder: Path) -> None:
    folder.mkdir()


def a_link_to_nowhere(folder: Path) -> None:
    folder.symlink_to(folder.parent / "nowhere")


@pytest.mark.parametrize("put", [a_file, an_empty_folder, a_link_to_nowhere])
def test_anything_else_in_place_of_the_folder_is_damage(kit: Kit, put: Callable[[Path], None]) -> None:
    folder = fill(kit)
    shutil.rmtree(folder)
    put(folder)
    assert_damaged(kit)
    assert_made_anew(kit)


def test_an_index_whose_making_was_interrupted_is_damage(kit: Kit) -> None:
    (fill(kit) / "identity.json").unlink()
    assert_damaged(kit)
    assert_made_anew(kit)


@pytest.mark.parametrize("distance", ["Dot", "Euclid", "Manhattan"])
def test_another_distance_is_damage_whatever_our_notes_say(kit: Kit, distance: str) -> None:
    folder = fill(kit)
    notes = (folder / "identity.json").read_bytes()
    shutil.rmtree(folder / "data")
    (folder / "data").mkdir()
    if kit.kind == "engine":
        vectors = qdrant_edge.EdgeVectorParams(size=DIMENSION, distance=getattr(qdrant_edge.Distance, distance))
        config = qdrant_edge.EdgeConfig(vectors=vectors, wal_enabled=False)
        qdrant_edge.EdgeShard.create(str(folder / "data"), config).close()
    else:
        client = QdrantClient(path=str(folder / "data"))
        size = models.VectorParams(size=DIMENSION, distance=models.Distance(distance))
        client.create_collection("memories", size)
        client.close()
    (folder / "files.json").write_text("{}", encoding="utf-8")
    assert (folder / "identity.json").read_bytes() == notes
    assert_damaged(kit)
    assert_made_anew(kit)


def test_notes_of_another_distance_are_damage(kit: Kit) -> None:
    path = fill(kit) / "identity.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"distance": "dot"}), encoding="utf-8")
    assert_damaged(kit)


def test_a_folder_deleted_under_an_open_index_is_damage(kit: Kit) -> None:
    index = kit.factory.open(kit.place())
    index.upsert(POINTS)
    shutil.rmtree(folder_of(kit))
    with pytest.raises(VectorIndexDamaged):
        index.upsert(POINTS[:1])
    with pytest.raises(VectorIndexDamaged):
        index.remove([POINTS[0].memory_id])
    with pytest.raises(VectorIndexDamaged):
        index.flush()
    index.close()
    assert_made_anew(kit)


def test_points_that_have_lost_their_fields_are_damage(engine: Kit) -> None:
    index: Any = engine.factory.open(engine.place())
    index.upsert(POINTS)
    index._shard.update(qdrant_edge.UpdateOperation.clear_payload([POINTS[7].memory_id]))
    with pytest.raises(VectorIndexDamaged):
        index.entries()
    index.close()


def test_an_interrupt_passes_through(engine: Kit) -> None:
    index: Any = engine.factory.open(engine.place())
    real = index._shard
    for kind in (KeyboardInterrupt, SystemExit, MemoryError):

        def raise_it(_request: Any, kind: type[BaseException] = kind) -> None:
            raise kind

        index._shard = SimpleNamespace(query=raise_it)
        with pytest.raises(kind):
            index.search(POINTS[0].vector, 1, Filter())
    index._shard = real
    index.close()


def test_the_engine_builds_no_graph_and_one_thread(engine: Kit) -> None:
    points = make_points(3_000)
    index: Any = engine.factory.open(engine.place())
    index.upsert(points)
    index.remove([point.memory_id for point in points[:1_500]])
    index.flush()
    before = sum(file.stat().st_blocks for file in folder_of(engine).rglob("*"))
    index.compact()
    assert sum(file.stat().st_blocks for file in folder_of(engine).rglob("*")) < before
    assert index._shard.info().segments_count == 1
    assert index._shard.info().indexed_vectors_count == 0
    for segment in folder_of(engine).glob("data/segments/*/segment.json"):
        assert json.loads(segment.read_bytes())["config"]["vector_data"][""]["index"] == {
            "type": "plain",
            "options": {},
        }
    assert_exact(index, points[1_500:], Filter())
    index.close()
