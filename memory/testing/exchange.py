"""Export and import: everything travels, nothing twice, and nothing of a damaged file."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from memory.core.errors import FileDamaged, FormatError, FormatTooNew
from memory.core.model import Memory, NewMemory
from memory.embedding.hashing import HashingEmbedder
from memory.engine.provider import StorageProvider
from memory.testing.base import DAY, NOW, OpenStore, SuiteBase, everything


def filled(store: StorageProvider) -> list[Memory]:
    """A bit of everything: languages, users, tags, edits, accesses, an archived and a deleted memory."""
    store.add_memory("项目代号叫夜莺 🐦", user_id="甲", tags=["项目", "a"], metadata={"n": 1, "x": {"y": [None, 2.5]}})
    edited = store.add_memory("Prefers tea", user_id="甲", memory_type="preference", tags=["gone"], metadata={"old": 1})
    store.update_memory(
        edited.memory_id, user_id="甲", content="Prefers coffee", tags=["drink"], remove_metadata=["old"]
    )
    store.add_memory('quotes " and \\ and \n', user_id="b", source_session="s-1", created_at=NOW - 40 * DAY)
    archived = store.add_memory("archived", user_id="b")
    store.archive_memory(archived.memory_id, user_id="b")
    deleted = store.add_memory("deleted secret", user_id="b")
    store.delete_memory(deleted.memory_id, user_id="b")
    store.recall("coffee", user_id="甲")
    store.flush()
    return state_of(store)


def state_of(store: StorageProvider) -> list[Memory]:
    """Everything that users 甲 and b can see, without versions, which belong to one store."""
    return [memory for user in ("甲", "b") for memory in everything(store, user)]


def visible(memories: list[Memory]) -> list[dict[str, Any]]:
    """Comparable across stores."""
    names = [name for name in Memory.__dataclass_fields__ if name not in ("version", "notices")]
    return [{name: getattr(memory, name) for name in names} for memory in memories]


def exported(store: StorageProvider, **arguments: Any) -> bytes:
    """An export as bytes."""
    target = io.BytesIO()
    store.export_memories(target, **arguments)
    return target.getvalue()


class ExchangeTests(SuiteBase):
    """``export_memories`` and ``import_memories``."""

    @pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
    def test_what_is_exported_arrives_whole_in_another_store(
        self, open_store: OpenStore, tmp_path: Path, suffix: str
    ) -> None:
        source = open_store()
        before = filled(source)
        path = tmp_path / f"export{suffix}"
        report = source.export_memories(path)
        assert (report.memories, report.deletions, report.incremental) == (4, 1, False)
        target = open_store("other")
        taken = target.import_memories(path)
        assert (taken.created, taken.merged, taken.unchanged, taken.rejected) == (5, 0, 0, ())
        assert (taken.reembedded, taken.deferred) == (0, 0)
        assert visible(state_of(target)) == visible(before)
        assert (
            target.recall("夜莺", user_id="甲", top_k=1)[0].relevance
            == source.recall("夜莺", user_id="甲", top_k=1)[0].relevance
        )

    def test_the_compressed_files_are_what_their_names_say(self, store: StorageProvider, tmp_path: Path) -> None:
        filled(store)
        for suffix, decompress in (
            (".gz", gzip.decompress),
            (".zst", zstandard.ZstdDecompressor().stream_reader),
        ):
            path = tmp_path / f"e{suffix}"
            store.export_memories(path)
            raw = decompress(path.read_bytes())
            text = raw if isinstance(raw, bytes) else raw.read()
            assert text.startswith(b'{"kind":"begin"')

    def test_importing_again_changes_nothing(self, open_store: OpenStore) -> None:
        data = exported_of(open_store())
        target = open_store("other")
        target.import_memories(io.BytesIO(data))
        before = state_of(target)
        again = target.import_memories(io.BytesIO(data))
        assert (again.created, again.merged, again.unchanged) == (0, 0, 5)
        assert state_of(target) == before

    def test_exporting_again_gives_the_same_records(self, open_store: OpenStore) -> None:
        data = exported_of(open_store())
        target = open_store("other")
        target.import_memories(io.BytesIO(data))
        ours, theirs = (records_of(text) for text in (data, exported(target)))
        for record in (*ours, *theirs):
            record.pop("rev")
        assert ours == theirs

    def test_the_end_line_holds_the_hash_of_the_lines_between(self, store: StorageProvider) -> None:
        data = exported_of(store)
        lines = data.splitlines(keepends=True)
        end = json.loads(lines[-1])
        assert (end["kind"], end["count"]) == ("end", len(lines) - 2)
        assert end["sha256"] == hashlib.sha256(b"".join(lines[1:-1])).hexdigest()

    def test_records_can_be_read_without_our_help(self, store: StorageProvider) -> None:
        record = next(r for r in records_of(exported_of(store)) if r.get("content") == "Prefers coffee")
        assert record["user_id"] == "甲"
        assert record["tags"] == ["drink"]
        assert record["access_count"] == 1
        assert "夜莺" in exported_of(store).decode()

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"user_id": "b"}, {'quotes " and \\ and \n', "archived"}),
            ({"user_id": "nobody"}, set()),
            ({"statuses": ["archived"]}, {"archived"}),
            ({"tags": ["项目", "drink"]}, {"项目代号叫夜莺 🐦", "Prefers coffee"}),
            ({"created_to": NOW - DAY}, {'quotes " and \\ and \n'}),
            ({"created_from": NOW - DAY, "statuses": ["active"]}, {"项目代号叫夜莺 🐦", "Prefers coffee"}),
        ],
        ids=str,
    )
    def test_an_export_takes_what_its_filters_say(
        self, store: StorageProvider, arguments: dict[str, Any], expected: set[str]
    ) -> None:
        filled(store)
        records = records_of(exported(store, **arguments))
        assert {record["content"] for record in records if "content" in record} == expected
        assert b"deleted secret" not in exported(store, **arguments)

    def test_an_import_for_one_user_rejects_the_others_by_line(self, open_store: OpenStore) -> None:
        data = exported_of(open_store())
        target = open_store("other")
        report = target.import_memories(io.BytesIO(data), user_id="b")
        assert report.created == 3
        assert [line.line for line in report.rejected] == [
            number for number, record in enumerate(records_of(data), start=2) if record["user_id"] != "b"
        ]
        assert everything(target, "甲") == []

    def test_vectors_of_another_model_are_made_anew(self, open_store: OpenStore) -> None:
        data = exported_of(open_store())
        target = open_store("other", embedder=HashingEmbedder(96))
        report = target.import_memories(io.BytesIO(data))
        assert (report.created, report.reembedded) == (5, 4)
        assert target.import_memories(io.BytesIO(data)).reembedded == 0
        assert target.stats().pending_embeddings == 0
        assert target.recall("Prefers coffee", user_id="甲", top_k=1)[0].relevance == pytest.approx(1.0)

    def test_an_export_replaces_its_target_only_when_complete(self, store: StorageProvider, tmp_path: Path) -> None:
        path = tmp_path / "export.jsonl"
        path.write_text("precious")
        filled(store)
        store.export_memories(path)
        assert path.read_bytes().startswith(b'{"kind":"begin"')
        assert [entry.name for entry in tmp_path.iterdir()] == ["export.jsonl"]

    def test_progress_is_told_after_each_page(self, open_store: OpenStore) -> None:
        source = open_store()
        source.add_many([NewMemory(content=f"n{i}") for i in range(2_500)], user_id="u")
        steps: list[tuple[int, int]] = []
        target = open_store("other")
        target.import_memories(io.BytesIO(exported(source)), progress=lambda done, total: steps.append((done, total)))
        assert steps[-1] == (2_500, 2_500)
        assert len(steps) > 1
        assert [done for done, _ in steps] == sorted({done for done, _ in steps})

    def test_a_damaged_file_is_refused_and_nothing_of_it_is_written(self, open_store: OpenStore) -> None:
        data = exported_of(open_store())
        lines = data.splitlines(keepends=True)
        damaged = {
            "cut": data[: len(data) // 2],
            "no end": b"".join(lines[:-1]),
            "no line feed at the end": data[:-1],
            "no begin": b"".join(lines[1:]),
            "a line twice": b"".join([*lines[:2], lines[1], *lines[2:]]),
            "a line missing": b"".join([lines[0], *lines[2:]]),
            "lines swapped": b"".join([lines[0], lines[2], lines[1], *lines[3:]]),
            "altered": data.replace(b"Prefers coffee", b"Prefers whisky"),
            "two files": data + data,
            "cut gzip": gzip.compress(data)[:-20],
            "broken gzip": gzip.compress(data)[:40] + b"garbage" + gzip.compress(data)[47:],
            "cut zstd": zstandard.compress(data)[:-20],
        }
        for name, content in damaged.items():
            target = open_store(f"target {name}")
            with pytest.raises((FileDamaged, FormatError)):
                target.import_memories(io.BytesIO(content))
            assert target.stats().memories_by_status == {}, name

    def test_a_foreign_file_is_refused(self, store: StorageProvider, tmp_path: Path) -> None:
        foreign = [
            b"",
            b"\n",
            b"[1, 2]\n",
            b"id,content\n1,x\n",
            b"\x89PNG\r\n\x1a\n",
            b'{"a": 1}\n',
            b"{" * 5_000,
            b"null\n",
        ]
        for content in (*foreign, b'{"kind":"begin","format":"other","version":1}\n'):
            with pytest.raises(FormatError):
                store.import_memories(io.BytesIO(content))
        with pytest.raises(FormatError):
            store.import_memories(tmp_path / "missing.jsonl")
        with pytest.raises(FormatError):
            store.import_memories(tmp_path)
        assert store.stats().memories_by_status == {}

    def test_a_file_of_a_newer_format_is_refused_with_the_remedy(self, store: StorageProvider) -> None:
        data = exported_of(store).replace(b'"version":1', b'"version":2')
        with pytest.raises(FormatTooNew) as caught:
            store.import_memories(io.BytesIO(data))
        assert "upgrade" in caught.value.hint

    def test_fields_of_a_later_version_are_kept_and_passed_on(self, open_store: OpenStore) -> None:
        line: dict[str, Any] = {
            "kind": "memory",
            "memory_id": "0c8f3f9e-6d0b-4c57-9e0f-0d9c3b1a2f10",
            "user_id": "u",
            "content": "from the future",
            "memory_type": "fact",
            "importance": 0.5,
            "status": "active",
            "source_session": None,
            "created_at": NOW,
            "mood": {"level": 3},
            "stamps": {"*": f"{NOW}.0.abc", "mood": f"{NOW}.7.abc"},
        }
        store = open_store()
        store.import_memories(io.BytesIO(framed([line])))
        store.update_memory(line["memory_id"], user_id="u", content="edited here")
        record = records_of(exported(store))[0]
        assert record["mood"] == {"level": 3}
        assert record["stamps"]["mood"] == f"{NOW}.7.abc"
        assert record["content"] == "edited here"

    def test_a_bad_record_is_reported_and_the_others_are_taken(self, open_store: OpenStore) -> None:
        records = records_of(exported_of(open_store()))
        live = [record for record in records if "content" in record]
        live[0]["importance"] = 7
        live[1]["stamps"]["*"] = f"{NOW + 10 * DAY}.0.abc"
        live[2]["user_id"] = ""
        target = open_store("other")
        report = target.import_memories(io.BytesIO(framed(records)))
        assert (report.created, report.rejected_count) == (2, 3)
        reasons = {line.line: line.reason for line in report.rejected}
        for record, word in ((live[0], "importance"), (live[1], "future"), (live[2], "user_id")):
            assert word in reasons[records.index(record) + 2]

    def test_document_1_records_are_accepted(self, open_store: OpenStore) -> None:
        vector = HashingEmbedder().embed_documents(["项目代号叫夜莺"])[0].tolist()
        base = {
            "memory_type": "fact",
            "importance": 0.9,
            "status": "active",
            "source_session": "s",
            "user_id": "u",
        }
        plain = [
            {
                **base,
                "memory_id": "6f1f0c6e-8f5e-4a4e-9d0c-2f5f3d6f7a01",
                "content": "项目代号叫夜莺",
                "created_at": NOW - DAY,
                "updated_at": NOW - DAY,
                "last_access_at": NOW - 5,
                "access_count": 4,
                "tags": ["项目"],
                "embedding_version": "hashing-v1-64",
                "vector_synced": 1,
                "vector": vector,
            },
            {
                **base,
                "access_count": 3,
                "memory_id": "6f1f0c6e-8f5e-4a4e-9d0c-2f5f3d6f7a02",
                "content": "in seconds",
                "created_at": NOW // 1000,
                "tags": '["json", "text"]',
            },
            {
                **base,
                "memory_id": "6f1f0c6e-8f5e-4a4e-9d0c-2f5f3d6f7a03",
                "created_at": NOW,
                "status": "deleted",
            },
            {**base, "memory_id": "bad", "content": "bad id", "created_at": NOW},
        ]
        data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in plain).encode()
        store = open_store()
        report = store.import_memories(io.BytesIO(data))
        assert (report.created, report.reembedded, [line.line for line in report.rejected]) == (3, 1, [4])
        first, second = everything(store, "u")[::-1]
        assert (first.content, first.access_count, first.tags) == ("项目代号叫夜莺", 4, ("项目",))
        assert (first.updated_at, first.last_access_at) == (NOW - DAY, NOW - 5)
        assert (second.created_at, second.tags) == (NOW, ("json", "text"))
        assert (second.access_count, second.last_access_at) == (3, None)
        again = store.import_memories(io.BytesIO(data))
        assert (again.created, again.merged, again.unchanged) == (0, 0, 3)
        edited = store.update_memory(first.memory_id, user_id="u", content="edited since")
        store.import_memories(io.BytesIO(data))
        assert store.get_memory(first.memory_id, user_id="u") == edited


def exported_of(store: StorageProvider) -> bytes:
    """The export of a filled store."""
    if not state_of(store):
        filled(store)
    return exported(store)


def records_of(data: bytes) -> list[dict[str, Any]]:
    """The records between begin and end."""
    return [json.loads(line) for line in data.splitlines()[1:-1]]


def framed(records: list[dict[str, Any]]) -> bytes:
    """A valid stream of records."""
    lines = [json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records]
    begin = {
        "kind": "begin",
        "format": "nightingale-memory",
        "version": 1,
        "model": "hashing-v1-64",
        "dimension": 64,
    }
    end = {"kind": "end", "count": len(lines), "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return b"".join([encode(begin).encode() + b"\n", *lines, encode(end).encode() + b"\n"])
