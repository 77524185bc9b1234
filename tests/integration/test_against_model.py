"""Random work on Postgres and on the plain store side by side: they must answer alike."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import memory
from memory.engine.provider import StorageProvider
from memory.testing.base import DAY, NOW, everything

STATUSES = ["active", "archived", "superseded"]
WORDS = ["tea", "coffee", "deadline", "项目", "夜莺", "咖啡", "running", "budget", "コーヒー", "the", "?!"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
users = st.sampled_from(["a", "用户"])
tag_lists = st.lists(st.sampled_from(["x", "y", "标签"]), max_size=3)
values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2).map(lambda f: round(f, 2)), st.text(max_size=3)
)
metadata = st.dictionaries(st.sampled_from(["k", "n", "键"]), values, max_size=3)
types = st.sampled_from(["fact", "preference", "event", "summary"])
one_filter: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda v: {"statuses": v}, st.lists(st.sampled_from(STATUSES), min_size=1, max_size=3)),
    st.builds(lambda v: {"types": v}, st.lists(types, max_size=2)),
    st.builds(lambda v: {"tags_any": v}, tag_lists),
    st.builds(lambda v: {"tags_all": v}, tag_lists),
    st.builds(lambda v: {"created_from": NOW - v * DAY}, st.integers(0, 60)),
    st.builds(lambda v: {"created_to": NOW - v * DAY}, st.integers(0, 60)),
    st.builds(lambda v: {"min_importance": v}, st.sampled_from([0.0, 0.5, 0.75])),
    st.builds(lambda v: {"min_relevance": v}, st.sampled_from([0.0, 0.2, 0.5])),
    st.builds(
        lambda key, condition: {"metadata": {key: condition}},
        st.sampled_from(["k", "n", "键"]),
        st.one_of(
            values,
            st.builds(lambda v: {"gte": v}, st.integers(-3, 3)),
            st.builds(lambda v: {"in": v}, st.lists(values, max_size=3)),
            st.builds(lambda v: {"exists": v}, st.booleans()),
            st.builds(lambda v: {"ne": v}, values),
        ),
    ),
)
filters: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}), one_filter, st.builds(lambda a, b: a | b, one_filter, one_filter)
)


def outcome(call: Callable[[], Any]) -> Any:
    """What a verb did: its result, or the type of its error."""
    try:
        return call()
    except memory.Error as error:
        return type(error)


def comparable(item: memory.Memory) -> tuple[Any, ...]:
    names = [name for name in memory.Memory.__dataclass_fields__ if name not in ("version", "notices")]
    return tuple(getattr(item, name) for name in names)


class Pair(RuleBasedStateMachine):
    """The same verbs on both stores."""

    open_real: Callable[[], StorageProvider]
    recalled: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.real = type(self).open_real()
        # An import adds the other store's access counts to one's own, as it should: here nobody counts.
        self.plain = memory.connect("memory://", embedding_model="hashing", now=NOW, track_access=False)
        self.ids: list[tuple[str, str]] = []
        self.exports: list[bytes] = []

    def both(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        real = outcome(lambda: getattr(self.real, verb)(*args, **kwargs))
        plain = outcome(lambda: getattr(self.plain, verb)(*args, **kwargs))
        if isinstance(real, memory.Memory):
            assert isinstance(plain, memory.Memory)
            assert comparable(real) == comparable(plain)
        elif isinstance(real, type):
            assert real is plain
        return real

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(2, 8))):
            self.add_one(data)

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        self.add_one(data)

    def add_one(self, data: st.DataObject) -> None:
        user, given = data.draw(users), str(data.draw(st.uuids(version=4)))
        self.both(
            "add_memory",
            data.draw(texts),
            user_id=user,
            memory_type=data.draw(types),
            tags=data.draw(tag_lists),
            metadata=data.draw(metadata),
            created_at=NOW - data.draw(st.integers(0, 60)) * DAY,
            memory_id=given,
        )
        self.ids.append((user, given))

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), text=texts, importance=st.floats(0, 1), meta=metadata, add=tag_lists, drop=tag_lists)
    def update(
        self, data: st.DataObject, text: str, importance: float, meta: dict[str, Any], add: list[str], drop: list[str]
    ) -> None:
        user, memory_id = data.draw(st.sampled_from(self.ids))
        every = {
            "content": text,
            "importance": importance,
            "metadata": meta,
            "add_tags": add,
            "remove_tags": [tag for tag in drop if tag not in add],
            "remove_metadata": [key for key in ("k", "n") if key not in meta],
            "status": data.draw(st.sampled_from(STATUSES)),
            "memory_type": data.draw(types),
        }
        names = data.draw(st.sets(st.sampled_from(sorted(every)), max_size=4))
        self.both("update_memory", memory_id, user_id=user, **{name: every[name] for name in names})

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), asker=users)
    def archive_or_delete(self, data: st.DataObject, asker: str) -> None:
        user, memory_id = data.draw(st.sampled_from(self.ids))
        verb = data.draw(st.sampled_from(["archive_memory", "delete_memory", "get_memory"]))
        self.both(verb, memory_id, user_id=data.draw(st.sampled_from([user, asker])))

    @rule(user=users, query=texts, where=filters, top_k=st.integers(1, 30))
    def recall(self, user: str, query: str, where: dict[str, Any], top_k: int) -> None:
        real, plain = (s.recall(query, user_id=user, filters=where, top_k=top_k) for s in (self.real, self.plain))
        assert [hit.memory.memory_id for hit in real] == [hit.memory.memory_id for hit in plain]
        for ours, theirs in zip(real, plain, strict=True):
            assert comparable(ours.memory) == comparable(theirs.memory)
            for part in ("score", "relevance", "importance", "recency"):
                assert getattr(ours, part) == pytest.approx(getattr(theirs, part), abs=2e-6)
        type(self).recalled += len(real)

    @rule(user=users, where=filters, size=st.integers(1, 5))
    def list_all(self, user: str, where: dict[str, Any], size: int) -> None:
        pages = []
        where = {name: value for name, value in where.items() if name != "min_relevance"}
        for store in (self.real, self.plain):
            found, cursor = [], None
            while True:
                page = store.list_memories(user_id=user, filters=where, limit=size, cursor=cursor)
                found += [comparable(item) for item in page.items]
                cursor = page.next_cursor
                if cursor is None:
                    break
            pages.append(found)
        assert pages[0] == pages[1]

    @rule()
    def export(self) -> None:
        target = io.BytesIO()
        self.real.export_memories(target)
        self.exports.append(target.getvalue())

    @precondition(lambda self: self.exports)
    @rule(data=st.data())
    def import_an_old_export_again(self, data: st.DataObject) -> None:
        content = data.draw(st.sampled_from(self.exports))
        real, plain = (s.import_memories(io.BytesIO(content)) for s in (self.real, self.plain))
        assert (real.created, real.rejected_count) == (0, 0)
        assert (plain.created, plain.rejected_count) == (0, 0)

    @invariant()
    def same_memories(self) -> None:
        for user in ("a", "用户"):
            real, plain = everything(self.real, user), everything(self.plain, user)
            assert [without_accesses(m) for m in real] == [without_accesses(m) for m in plain]

    def teardown(self) -> None:
        self.real.close()
        self.plain.close()


def without_accesses(item: memory.Memory) -> tuple[Any, ...]:
    return tuple(
        getattr(item, name)
        for name in memory.Memory.__dataclass_fields__
        if name not in ("version", "notices", "access_count", "last_access_at", "updated_at")
    )


def test_postgres_answers_like_the_plain_store(database_url: str) -> None:
    class OnPostgres(Pair):
        @staticmethod
        def open_real() -> StorageProvider:
            with psycopg.connect(database_url, autocommit=True) as connection:
                connection.execute("SET nightingale.stamps = 'kept'")  # to begin anew, nobody need hear of it
                connection.execute("TRUNCATE memories, memory_tombstones, sync_user CASCADE")
            return memory.connect(database_url, embedding_model="hashing", now=NOW, track_access=False)

    run_state_machine_as_test(
        OnPostgres,
        settings=settings(
            max_examples=settings().max_examples,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking on a database takes minutes
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert OnPostgres.recalled > 50, "the random work hardly recalled anything, so it compared hardly anything"
