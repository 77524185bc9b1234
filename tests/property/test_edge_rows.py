"""What SQL says for a replica is what the core says in Python: the clock, records, words and their scores."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from edge.sqlite import todo
from edge.sqlite.database import Db
from edge.sqlite.merging import Merging
from edge.sqlite.migrations import Schema
from edge.sqlite.reading import fetch
from edge.sqlite.rows import Author
from edge.sqlite.snapshot import live_records, tombstone_records
from edge.sqlite.words import lexical_scores
from edge.sqlite.writing import draw
from memory.core.clock import MAX_COUNTER, Tick, next_tick
from memory.core.record import Record, encode_record
from memory.core.state import State
from memory.core.text import document_terms
from memory.engine.storage import Incoming, Scope
from memory.policies.ranking import inverse_document_frequency, lexical_score
from tests.property.strategies import SLOW, exact, full_states, stamps, texts

MANY = settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
BLANK: Final = Schema().blank
AUTHOR: Final = Author("u", "5f3a")
MODEL: Final = "model"
times = st.integers(0, 3) | st.integers(0, 2_000_000_000_000)
counters = st.integers(0, 2) | st.integers(MAX_COUNTER - 2, MAX_COUNTER) | st.integers(0, MAX_COUNTER)


@contextmanager
def a_file() -> Iterator[Db]:
    """A user's database in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(BLANK)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(
            "INSERT INTO replica (user_id, rev, hlc_ms, hlc_counter, numbers, words_upto, points_upto,"
            " words_removed, model, dimension) VALUES ('u', 0, 0, 0, 0, 0, 0, 0, ?, 3)",
            (MODEL,),
        )
        yield connection


@pytest.fixture(scope="module")
def kept() -> Iterator[Db]:
    with a_file() as connection:
        yield connection


@MANY
@given(last=st.builds(Tick, times, counters), now=times, revs=st.integers(1, 5), numbers=st.integers(0, 5))
@example(last=Tick(5, MAX_COUNTER), now=5, revs=1, numbers=0)
@example(last=Tick(5, MAX_COUNTER), now=6, revs=1, numbers=0)
@example(last=Tick(5, MAX_COUNTER), now=4, revs=1, numbers=0)
@example(last=Tick(5, MAX_COUNTER - 1), now=5, revs=1, numbers=0)
def test_the_clock_in_sql_is_the_clock_of_the_core(kept: Db, last: Tick, now: int, revs: int, numbers: int) -> None:
    kept.execute("UPDATE replica SET rev = 7, numbers = 3, hlc_ms = ?, hlc_counter = ?", last)
    drawn = draw(kept, AUTHOR, now=now, revs=revs, numbers=numbers)
    assert drawn.stamp.tick == next_tick(last, now)
    assert (drawn.rev, drawn.number, drawn.stamp.writer) == (7 + revs, 3 + numbers, AUTHOR.writer)
    assert kept.execute("SELECT hlc_ms, hlc_counter FROM replica").fetchone() == next_tick(last, now)


@MANY
@given(rev=st.integers(0, 2**40), floor=st.integers(0, 2**40), count=st.integers(1, 5))
def test_revisions_are_above_all_that_was_given_out_and_above_the_floor(
    kept: Db, rev: int, floor: int, count: int
) -> None:
    author = Author("u", "5f3a", floor=floor)
    kept.execute("UPDATE replica SET rev = ?", (rev,))
    first, second = draw(kept, author, now=1, revs=count), draw(kept, author, now=1)
    assert first.rev - count == max(rev, floor)
    assert second.rev == first.rev + 1 == kept.execute("SELECT rev FROM replica").fetchone()[0]


def written(value: Any) -> str:
    """JSON that tells True, 1 and 1.0 apart."""
    return json.dumps(value, sort_keys=True)


three_numbers = st.tuples(*[st.floats(-1, 1, width=32)] * 3).map(lambda row: np.array(row, np.float32))


@MANY
@given(state=full_states(), vector=st.none() | three_numbers, memory_id=st.uuids(version=4).map(str))
def test_a_memory_is_read_and_exported_as_the_core_writes_it(state: Any, vector: Any, memory_id: str) -> None:
    assume(state.last_access != 0)  # the very first moment of 1970 is how a table of accesses says "never"
    with a_file() as connection:
        terms = document_terms(state.value("content"))
        item = Incoming(memory_id=memory_id, user_id="u", state=state, terms=terms, vector=vector)
        [outcome] = Merging(connection, AUTHOR).run([item])
        assert (outcome.verdict, outcome.deferred) == ("created", vector is None)
        stored = fetch(connection, [memory_id])[memory_id]
        assert exact(stored.state) == exact(state)
        [record] = live_records(connection, Scope(), after=None, model=MODEL)
        right = Record(memory_id=memory_id, user_id="u", state=state, vector=vector, model=MODEL, rev=1)
        assert written(record) == written(encode_record(right))
        assert Merging(connection, AUTHOR).run([item])[0].verdict == "unchanged"


@MANY
@given(memory_id=st.uuids(version=4).map(str), stamp=stamps)
def test_a_deletion_is_exported_as_the_core_writes_it(memory_id: str, stamp: Any) -> None:
    deleted = Record(memory_id=memory_id, user_id="u", state=State(deleted=stamp), rev=1)
    with a_file() as connection:
        item = Incoming(memory_id=memory_id, user_id="u", state=deleted.state, terms=None, vector=None)
        Merging(connection, AUTHOR).run([item])
        [record] = tombstone_records(connection, after=None)
        assert written(record) == written(encode_record(deleted))
        assert list(live_records(connection, Scope(), after=None, model=MODEL)) == []
        assert list(tombstone_records(connection, after=1)) == []


def indexed(connection: Db) -> dict[int, set[str]]:
    """Terms by number, as the index of words holds them."""
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.held USING fts5vocab(main, memory_terms, instance)")
    held: dict[int, set[str]] = {}
    for term, number in connection.execute("SELECT term, doc FROM temp.held"):
        held.setdefault(number, set()).add(term)
    return held


@MANY
@given(st.lists(texts(min_size=1, max_size=60), min_size=1, max_size=4))
def test_the_index_of_words_takes_every_term_as_it_is(contents: list[str]) -> None:
    terms = [document_terms(content) for content in contents]
    with a_file() as connection:
        for number, found in enumerate(terms, start=1):
            add(connection, number, found.terms)
        assert todo.index_words(connection, 100) == len(contents)
        assert indexed(connection) == {n: set(found.terms) for n, found in enumerate(terms, start=1) if found.terms}
        for number, found in enumerate(terms, start=1):
            for term in found.terms:
                hits = connection.execute("SELECT rowid FROM memory_terms WHERE memory_terms MATCH ?", (f'"{term}"',))
                assert number in [row[0] for row in hits]
        for number in range(1, len(terms) + 1):
            todo.unindex_words(connection, str(number), number)
        assert indexed(connection) == {}


def add(connection: Db, number: int, terms: frozenset[str]) -> None:
    connection.execute(
        "INSERT INTO memories (number, user_id, memory_id, rev, edited, status, memory_type, created_at, length,"
        " importance, embedding_due, updated_at, version, stamps, metadata, tags, extra, content, terms)"
        " VALUES (?, 'u', ?, ?, 0, 'active', 'fact', 0, 1, 0.5, 1, 0, '', '{}', '{}', '[]', '{}', '', ?)",
        (number, str(number), number, " ".join(terms)),
    )


@MANY
@given(
    memories=st.integers(1, 10_000),
    containing=st.lists(st.integers(0, 10_000), min_size=1, max_size=6),
    rows=st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(1, 400)), min_size=1, max_size=8),
    mean_length=st.floats(0.5, 500),
)
def test_scores_of_many_memories_are_those_of_each(
    memories: int, containing: list[int], rows: list[tuple[set[int], int]], mean_length: float
) -> None:
    idf = [inverse_document_frequency(memories, min(count, memories)) for count in containing]
    matched = [sorted(index for index in indices if index < len(idf)) for indices, _ in rows]
    assume(all(matched))
    lengths = [length for _, length in rows]
    weights = np.array([sum(idf[i] for i in one) for one in matched])
    found = lexical_scores(weights, np.array(lengths, np.int32), total=sum(idf), mean_length=mean_length)
    for score, one, length in zip(found, matched, lengths, strict=True):
        assert score == pytest.approx(lexical_score(one, idf, length=length, mean_length=mean_length), rel=1e-9)


def test_no_match_has_no_scores() -> None:
    empty = np.array([], np.float64)
    assert len(lexical_scores(empty, np.array([], np.int32), total=0.0, mean_length=0.0)) == 0
