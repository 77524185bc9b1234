"""The vector index goes wrong in every way: answers stay right, and it is made right again without embedding anew."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import edge.indexing
from edge.vectors.engine import EdgeEngineFactory
from edge.vectors.port import Hit, Place, Point, VectorIndex
from memory.core.errors import StoreFull, VectorIndexDamaged, VectorIndexUnavailable
from memory.core.model import NewMemory
from memory.core.ports import Vector, Vectors
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import StorageProvider
from memory.policies.admission import Filter
from tests.replicas import findings, open_replica, settle, storage_of

WORDS = ("tea", "coffee", "deadline", "夜莺", "咖啡", "running", "budget", "コーヒー")
MEANING: dict[str, Any] = {"semantic_share": 1.0, "track_access": False, "rerank_beta": 0.0, "rerank_gamma": 0.0}
"""Settings with which only vectors decide."""


class CountingEmbedder(HashingEmbedder):
    """Knows how many texts it has embedded."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = 0

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.embedded += len(texts)
        return super().embed_documents(texts)


class Faulty:
    """An index in front of the real one that fails when told to."""

    def __init__(self, real: VectorIndex, faults: Faults) -> None:
        self._real, self._faults = real, faults

    def search(self, vector: Vector, limit: int, where: Filter) -> list[Hit]:
        self._faults.meet("search")
        return self._real.search(vector, limit, where)

    def upsert(self, points: Sequence[Point]) -> None:
        self._faults.meet("upsert")
        self._real.upsert(points)

    def flush(self) -> None:
        self._faults.meet("flush")
        self._real.flush()

    def entries(self) -> dict[str, str]:
        self._faults.meet("entries")
        return self._real.entries()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Faults(EdgeEngineFactory):
    """Makes such indexes; ``failing`` says what fails now, and how."""

    def __init__(self) -> None:
        self.failing: dict[str, Callable[[], Exception]] = {}
        self.met = 0

    def meet(self, where: str) -> None:
        kind = self.failing.get(where) or self.failing.get("everything")
        if kind is not None:
            self.met += 1
            raise kind()

    def open(self, place: Place) -> VectorIndex:
        self.meet("open")
        return Faulty(super().open(place), self)


@pytest.fixture(autouse=True)
def ask_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge.indexing, "RETRY_SECONDS", 0.0)


def fill(store: StorageProvider) -> None:
    texts = [f"{WORDS[i % 8]} {WORDS[(i // 8) % 8]} {i % 7}" for i in range(300)]
    added = store.add_many([NewMemory(content=text, tags=[WORDS[i % 8]]) for i, text in enumerate(texts)], user_id="u")
    for memory in added[::10]:
        store.archive_memory(memory.memory_id, user_id="u")


def answers(store: StorageProvider) -> list[list[tuple[str, float]]]:
    asked: list[dict[str, Any]] = [
        {},
        {"tags_any": ["tea", "夜莺"]},
        {"statuses": ["archived"]},
        {"min_importance": 0.7},
    ]
    return [
        [
            (hit.memory.memory_id, hit.relevance)
            for hit in store.recall(f"{word} deadline", user_id="u", filters=filters, top_k=20)
        ]
        for word in WORDS
        for filters in asked
    ]


@pytest.fixture
def replica(tmp_path: Path) -> tuple[Path, list[list[tuple[str, float]]]]:
    """A replica at rest, all indexed, and what it answers."""
    path = tmp_path / "replica"
    with open_replica(path, **MEANING) as store:
        fill(store)
        settle(store)
        right = answers(store)
    assert all(len(found) == 20 for found in right[::4])
    return path, right


def index_of(path: Path) -> Path:
    (index,) = path.glob("users/*/index")
    return index


def lose(path: Path) -> None:
    shutil.rmtree(index_of(path))


def cut_the_largest_file(path: Path) -> None:
    largest = max((file for file in index_of(path).rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.truncate(1_000)


def cut_every_file(path: Path) -> None:
    for file in index_of(path).rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def replace_by_a_file(path: Path) -> None:
    lose(path)
    (path / "users" / index_name(path) / "index").write_text("not a directory", encoding="utf-8")


def index_name(path: Path) -> str:
    (folder,) = (path / "users").iterdir()
    return folder.name


def of_another_dimension(path: Path) -> None:
    lose(path)
    folder = path / "users" / index_name(path)
    EdgeEngineFactory().open(Place(user_id="u", folder=folder, model="hashing-v1-64", dimension=8)).close()


def of_another_model(path: Path) -> None:
    lose(path)
    folder = path / "users" / index_name(path)
    EdgeEngineFactory().open(Place(user_id="u", folder=folder, model="other", dimension=64)).close()


@pytest.mark.parametrize(
    "damage",
    [lose, cut_the_largest_file, cut_every_file, replace_by_a_file, of_another_dimension, of_another_model],
)
def test_a_lost_or_damaged_index_changes_no_answer_and_is_made_anew_from_the_file(
    replica: tuple[Path, list[list[tuple[str, float]]]], damage: Callable[[Path], None]
) -> None:
    path, right = replica
    damage(path)
    embedder = CountingEmbedder()
    with open_replica(path, embedder=embedder, **MEANING) as store:
        assert answers(store) == right
        settle(store)
        assert store.stats().details["index_backlog_vectors"] == 0
        assert answers(store) == right
        assert embedder.embedded == 0
    assert findings(path) == {}


def test_an_index_from_last_week_is_brought_up_to_date(replica: tuple[Path, list[list[tuple[str, float]]]]) -> None:
    path, _ = replica
    shutil.copytree(index_of(path), path.parent / "last-week")
    with open_replica(path, **MEANING) as store:
        memories = store.list_memories(user_id="u", limit=100).items
        store.delete_memory(memories[0].memory_id, user_id="u")
        store.update_memory(memories[1].memory_id, user_id="u", content="夜莺 deadline")
        store.archive_memory(memories[2].memory_id, user_id="u")
        store.add_memory("tea deadline", user_id="u")
        settle(store)
        right = answers(store)
    lose(path)
    shutil.copytree(path.parent / "last-week", path / "users" / index_name(path) / "index")
    embedder = CountingEmbedder()
    with open_replica(path, embedder=embedder, **MEANING) as store:
        assert answers(store) == right
        settle(store)
        assert answers(store) == right
        assert embedder.embedded == 0
    assert findings(path) == {}


def test_the_index_of_another_user_tells_nothing_and_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "replica"
    with open_replica(path, **MEANING) as store:
        mine = store.add_memory("tea at five", user_id="mine")
        store.add_many([NewMemory(content=f"secret tea {i}") for i in range(50)], user_id="theirs")
        settle(store)
    folders = {(folder / "user.txt").read_text(encoding="utf-8"): folder for folder in (path / "users").iterdir()}
    shutil.rmtree(folders["mine"] / "index")
    shutil.copytree(folders["theirs"] / "index", folders["mine"] / "index")
    with open_replica(path, **MEANING) as store:
        for _ in range(2):
            found = store.recall("secret tea", user_id="mine", top_k=10)
            assert [hit.memory.memory_id for hit in found] == [mine.memory_id]
            settle(store)
    assert findings(path) == {}


def test_a_server_that_is_down_and_comes_back(tmp_path: Path) -> None:
    faults = Faults()
    faults.failing = {"open": VectorIndexUnavailable}
    with open_replica(tmp_path / "replica", index=lambda _: faults, **MEANING) as store:
        fill(store)
        right = answers(store)
        settle(store)
        assert store.stats().details["index_backlog_vectors"] == 300
        assert store.stats().details["index_backlog_words"] == 0
        assert answers(store) == right
        faults.failing = {}
        settle(store)
        assert store.stats().details["index_backlog_vectors"] == 0
        assert answers(store) == right
        met = faults.met
        faults.failing = {"everything": VectorIndexUnavailable}
        late = store.add_memory("夜莺 deadline 8", user_id="u")
        assert late.memory_id in [hit.memory.memory_id for hit in store.recall("夜莺 deadline 8", user_id="u")]
        assert faults.met > met
        store.delete_memory(late.memory_id, user_id="u")
        faults.failing = {}
        settle(store)
        assert answers(store) == right
    assert findings(tmp_path / "replica") == {}


@pytest.mark.parametrize("where", ["search", "upsert", "flush", "entries"])
@pytest.mark.parametrize("kind", [VectorIndexUnavailable, VectorIndexDamaged])
def test_a_failure_at_any_call_loses_no_answer_and_heals(
    tmp_path: Path, where: str, kind: Callable[[], Exception]
) -> None:
    faults = Faults()
    with open_replica(tmp_path / "replica", index=lambda _: faults, **MEANING) as store:
        fill(store)
        right = answers(store)
        settle(store)
        faults.failing = {where: kind}
        if where == "entries":  # asked for when an index is opened only
            storage_of(store).users._open["u"].replica.indexer._let_go()
        store.add_memory("unrelated", user_id="u", importance=0.0, memory_id="00000000-0000-4000-8000-000000000000")
        store.delete_memory("00000000-0000-4000-8000-000000000000", user_id="u")
        assert answers(store) == right
        settle(store)
        assert answers(store) == right
        faults.failing = {}
        settle(store)
        assert answers(store) == right
    assert findings(tmp_path / "replica") == {}


def test_a_full_disk_keeps_the_queue_and_the_writes(tmp_path: Path) -> None:
    faults = Faults()
    with open_replica(tmp_path / "replica", index=lambda _: faults, **MEANING) as store:
        faults.failing = {"upsert": StoreFull}
        for start in range(0, 2_500, 500):
            store.add_many([NewMemory(content=f"note {start + i}") for i in range(500)], user_id="u")
        assert sum(store.stats().memories_by_status.values()) == 2_500
        assert store.stats().details["index_backlog_vectors"] == 2_500
        faults.failing = {}
        settle(store)
        assert store.stats().details["index_backlog_vectors"] == 0
    assert findings(tmp_path / "replica") == {}


def test_answers_stay_right_while_the_index_is_lost_again_and_again(tmp_path: Path) -> None:
    with open_replica(tmp_path / "replica", **MEANING) as store:
        fill(store)
        settle(store)
        right = answers(store)
        indexer = storage_of(store).users._open["u"].replica.indexer

        def lose_and_rebuild() -> None:
            for _ in range(6):
                indexer.rebuild()
                indexer.drain()
                time.sleep(0.05)  # the engine keeps other threads out while it makes its files

        loser = threading.Thread(target=lose_and_rebuild)
        loser.start()
        wrong = []
        while loser.is_alive():
            wrong += [found for found in [answers(store)] if found != right]
        loser.join()
        assert wrong == []
    assert findings(tmp_path / "replica") == {}
