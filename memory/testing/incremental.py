"""Incremental export: everything that changed since a file, edits and deletions included."""

from __future__ import annotations

import io
import json

import pytest

from memory.core.errors import FormatError, InvalidValue, Refused
from memory.core.model import NewMemory
from memory.engine.provider import StorageProvider
from memory.testing.base import NOW, OpenStore, SuiteBase, everything
from memory.testing.exchange import exported, records_of, visible


class IncrementalTests(SuiteBase):
    """``export_memories(after=…)``, and merging what both sides changed."""

    def test_an_incremental_export_brings_edits_and_deletions_that_creation_times_would_miss(
        self, open_store: OpenStore
    ) -> None:
        source, target = open_store(), open_store("other")
        old = source.add_many([NewMemory(content=f"old {i}", tags=["t"]) for i in range(4)], user_id="u")
        full = exported(source)
        target.import_memories(io.BytesIO(full))
        source.update_memory(old[0].memory_id, user_id="u", content="edited", remove_tags=["t"])
        source.delete_memory(old[1].memory_id, user_id="u")
        source.archive_memory(old[2].memory_id, user_id="u")
        source.add_memory("new, but of long ago", user_id="u", created_at=NOW - 10**10)
        source.add_memory("of another user", user_id="v")
        delta = exported(source, after=io.BytesIO(full))
        # Document 1's recipe, records created after the first export, would have brought one of these five.
        assert len(records_of(delta)) == 5
        report = target.import_memories(io.BytesIO(delta))
        assert (report.created, report.merged, report.unchanged) == (2, 3, 0)
        for user in ("u", "v"):
            assert visible(everything(target, user)) == visible(everything(source, user))

    def test_increments_can_be_chained_and_imported_in_any_order(self, open_store: OpenStore) -> None:
        source = open_store()
        added = source.add_memory("one", user_id="u")
        files = [exported(source)]
        for step in range(3):
            source.update_memory(added.memory_id, user_id="u", content=f"step {step}", add_tags=[f"t{step}"])
            source.add_memory(f"new {step}", user_id="u")
            files.append(exported(source, after=io.BytesIO(files[-1])))
        for name, order in (("forth", files), ("back", files[::-1]), ("twice", [*files[::-1], *files])):
            target = open_store(name)
            for data in order:
                target.import_memories(io.BytesIO(data))
            assert visible(everything(target, "u")) == visible(everything(source, "u"))

    def test_accesses_since_are_part_of_an_increment(self, open_store: OpenStore) -> None:
        source, target = open_store(), open_store("other")
        added = source.add_memory("green tea", user_id="u")
        full = exported(source)
        source.recall("tea", user_id="u")
        source.flush()
        for data in (full, exported(source, after=io.BytesIO(full))):
            target.import_memories(io.BytesIO(data))
        assert target.get_memory(added.memory_id, user_id="u").access_count == 1

    def test_nothing_changed_gives_an_empty_increment(self, store: StorageProvider) -> None:
        store.add_memory("one", user_id="u")
        full = exported(store)
        delta = exported(store, after=io.BytesIO(full))
        assert records_of(delta) == []
        begin = json.loads(delta.splitlines()[0])
        assert begin["after"]["revisions"] == begin["revisions"]

    def test_one_users_increment_continues_a_full_or_a_users_own_export(self, store: StorageProvider) -> None:
        for user in ("a", "b"):
            store.add_memory("one", user_id=user)
        full, own = exported(store), exported(store, user_id="a")
        for user in ("a", "b"):
            store.add_memory("two", user_id=user)
        for base in (full, own):
            records = records_of(exported(store, user_id="a", after=io.BytesIO(base)))
            assert [(record["user_id"], record["content"]) for record in records] == [("a", "two")]
        with pytest.raises(Refused):
            exported(store, after=io.BytesIO(own))
        with pytest.raises(Refused):
            exported(store, user_id="b", after=io.BytesIO(own))

    def test_filters_and_increments_do_not_mix(self, store: StorageProvider) -> None:
        store.add_memory("one", user_id="u", tags=["t"])
        full = exported(store)
        with pytest.raises(Refused):
            exported(store, tags=["t"], after=io.BytesIO(full))
        with pytest.raises(Refused):
            exported(store, after=io.BytesIO(exported(store, tags=["t"])))

    def test_an_increment_to_another_store_or_to_no_export_is_refused(self, open_store: OpenStore) -> None:
        store, other = open_store(), open_store("other")
        store.add_memory("one", user_id="u")
        with pytest.raises(Refused):
            exported(other, after=io.BytesIO(exported(store)))
        with pytest.raises(FormatError):
            exported(store, after=io.BytesIO(b'{"content": "plain"}\n'))

    def test_edits_of_both_sides_survive_a_merge(self, open_store: OpenStore) -> None:
        here, there = open_store(), open_store("other")
        added = here.add_memory("original", user_id="u", tags=["both", "drop"], metadata={"k": 0})
        there.import_memories(io.BytesIO(exported(here)))
        key = {"memory_id": added.memory_id, "user_id": "u"}
        here.update_memory(**key, content="edited here", remove_tags=["drop"])
        there.update_memory(**key, importance=0.1, add_tags=["there"], metadata={"k": 1, "n": 2})
        for _ in range(2):
            data = exported(here), exported(there)
            here.import_memories(io.BytesIO(data[1]))
            there.import_memories(io.BytesIO(data[0]))
        merged = here.get_memory(**key)
        assert (merged.content, merged.importance, merged.tags) == ("edited here", 0.1, ("both", "there"))
        assert merged.metadata == {"k": 1, "n": 2}
        assert visible([merged]) == visible([there.get_memory(**key)])
        assert there.recall("edited here", user_id="u", top_k=1)[0].relevance == pytest.approx(1.0)

    def test_a_deletion_wins_over_an_edit_and_is_never_undone(self, open_store: OpenStore) -> None:
        here, there = open_store(), open_store("other")
        added = here.add_memory("original", user_id="u")
        full = exported(here)
        there.import_memories(io.BytesIO(full))
        here.delete_memory(added.memory_id, user_id="u")
        there.update_memory(added.memory_id, user_id="u", content="edited later")
        here.import_memories(io.BytesIO(exported(there)))
        there.import_memories(io.BytesIO(exported(here)))
        here.import_memories(io.BytesIO(full))
        assert everything(here, "u") == everything(there, "u") == []
        assert there.recall("edited later", user_id="u") == []

    def test_a_memory_that_merging_made_large_can_still_be_edited(self, open_store: OpenStore) -> None:
        here, there = open_store(), open_store("other")
        added = here.add_memory("original", user_id="u")
        key = {"memory_id": added.memory_id, "user_id": "u"}
        there.import_memories(io.BytesIO(exported(here)))
        here.update_memory(**key, tags=[f"a{i}" for i in range(200)])
        there.update_memory(**key, tags=[f"b{i}" for i in range(200)])
        here.import_memories(io.BytesIO(exported(there)))
        assert len(here.get_memory(**key).tags) == 400
        assert here.update_memory(**key, content="edited", remove_tags=["a1"]).content == "edited"
        with pytest.raises(InvalidValue, match="tags"):
            here.update_memory(**key, add_tags=["one", "more"])
        assert there.import_memories(io.BytesIO(exported(here))).rejected == ()

    def test_access_counts_of_two_stores_add_up_exactly_once(self, open_store: OpenStore) -> None:
        here, there = open_store(), open_store("other")
        added = here.add_memory("green tea", user_id="u")
        there.import_memories(io.BytesIO(exported(here)))
        for store, times in ((here, 5), (there, 3)):
            for _ in range(times):
                store.recall("tea", user_id="u")
            store.flush()
        for _ in range(2):
            data = exported(here), exported(there)
            here.import_memories(io.BytesIO(data[1]))
            there.import_memories(io.BytesIO(data[0]))
        for store in (here, there):
            assert store.get_memory(added.memory_id, user_id="u").access_count == 8
