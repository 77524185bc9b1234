"""The centre on Postgres: what becomes of pushed pages, line by line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from memory.core.clock import MAX_SKEW_MS, Stamp
from memory.core.errors import ClockAhead, EpochChanged, FileDamaged, FormatError
from memory.core.merge import merge
from memory.core.state import Changes, State
from memory.core.sync import (
    GONE,
    OK,
    REJECTED,
    UNKNOWN,
    FetchRequest,
    ManifestRequest,
)
from memory.embedding.hashing import HashingEmbedder
from memory.postgres.database import Database
from memory.postgres.devices import conflicts, dismiss_conflict
from tests.integration.sync.at_centre import (
    NOW,
    USER,
    Hand,
    Ticking,
    count_line,
    made,
    new_id,
    record_line,
)

Rows = list[tuple[Any, ...]]
Sql = Callable[..., Rows]
A, B, C = new_id(1), new_id(2), new_id(3)


# -- push


def test_a_pushed_record_is_there_and_known_to_be_equal(hand: Hand) -> None:
    state = made("one", tags=("x",))
    (verdict,) = hand.push(record_line(A, state, seq=9))
    assert (verdict.memory_id, verdict.seq, verdict.code, verdict.rev, verdict.equal) == (A, 9, OK, 1, True)
    hand.pull_all()
    assert hand.states == {A: state}


def test_a_repeated_push_moves_nothing(hand: Hand, sql: Sql) -> None:
    lines = [
        record_line(A, replace(made("one"), accesses={"w1": 3}, last_access=NOW)),
        record_line(B, State(deleted=Stamp(NOW, 0, "w1"))),
        count_line(A, {"w1": 4}, NOW),
    ]
    first = hand.answer(*lines)
    tables = ("memories", "memory_access", "memory_tombstones", "memory_hashes", "memory_conflicts")
    before = [sql(f"SELECT * FROM {table} ORDER BY user_id, memory_id") for table in tables]
    for _ in range(2):
        again = hand.answer(*lines)
        assert (again.page.after, again.page.to) == (first.page.to, first.page.to)
        assert [line["code"] for line in again.lines] == [OK] * 3
    assert [sql(f"SELECT * FROM {table} ORDER BY user_id, memory_id") for table in tables] == before


def test_an_answer_says_where_the_centre_was_and_is(hand: Hand) -> None:
    hand.push(record_line(A, made("one")))
    page = hand.answer(record_line(B, made("two")), record_line(C, made("three"))).page
    assert (page.after, page.to) == (1, 3)
    assert page.mark


def test_what_the_centre_has_more_of_is_not_equal(hand: Hand) -> None:
    held = made("one", tags=("x",))
    hand.push(record_line(A, held))
    edited = made("one").written(Stamp(NOW + 1, 0, "w2"), Changes(scalars={"importance": 0.9}))
    (verdict,) = hand.push(record_line(A, edited))
    assert (verdict.code, verdict.equal) == (OK, False)
    (verdict,) = hand.push(record_line(A, merge(held, edited)))
    assert verdict.equal


def test_slots_sent_are_equal_only_if_they_are_the_centres(hand: Hand) -> None:
    hand.push(record_line(A, replace(made("one"), accesses={"w1": 5, "w2": 1}, last_access=NOW)))
    same, less, more = (hand.push(count_line(A, accesses, NOW))[0] for accesses in ({"w1": 5}, {"w1": 4}, {"w1": 6}))
    assert (same.equal, less.equal, more.equal) == (True, False, True)


def test_accesses_of_what_is_not_there_are_unknown(hand: Hand) -> None:
    (verdict,) = hand.push(count_line(A, {"w1": 1}, NOW))
    assert verdict.code == UNKNOWN


def test_accesses_of_a_deleted_memory_change_nothing(hand: Hand) -> None:
    hand.push(record_line(A, State(deleted=Stamp(NOW, 0, "w1"))))
    answer = hand.answer(count_line(A, {"w1": 1}, NOW))
    assert (answer.page.to, answer.lines[0]["code"], answer.lines[0]["equal"]) == (1, OK, False)


def test_what_was_purged_here_is_gone(hand: Hand, sql: Sql) -> None:
    hand.push(record_line(A, made("one")))
    sql("DELETE FROM memories")
    sql("DELETE FROM memory_tombstones")
    epoch = str(hand.epoch)
    sql("INSERT INTO sync_lineage VALUES (%s, 'former', 4)", USER)

    def code(base: tuple[str, int] | None) -> str:
        return hand.push(record_line(A, made("one"), base=base))[0].code

    assert [code((epoch, 1)), code(("former", 4))] == [GONE, GONE]
    assert code(("former", 5)) == OK


@pytest.mark.parametrize("base", [None, ("never", 1)])
def test_what_this_centre_never_had_is_taken(hand: Hand, base: tuple[str, int] | None) -> None:
    assert hand.push(record_line(A, made("one"), base=base))[0].code == OK


def test_one_bad_record_is_rejected_alone(hand: Hand) -> None:
    bad = [
        record_line(A, made("x", importance=2.0)),
        record_line(A, made("x"), user_id="somebody else"),
        record_line(A, made("a\0b")),  # admission would change it
        record_line(A, made("x", importance=1)),
        record_line("not an id", made("x")),
        {**record_line(A, made("x")), "stamps": {}},
        {**count_line(A, {}, NOW), "accesses": {"NOT A WRITER": 1}},
        {**count_line(A, {}, NOW), "user_id": "somebody else"},
        count_line("not an id", {"w1": 1}, NOW),
    ]
    verdicts = hand.push(*bad, record_line(B, made("good")))
    assert [verdict.code for verdict in verdicts] == [REJECTED] * len(bad) + [OK]
    assert all(verdict.problem for verdict in verdicts[:-1])
    hand.pull_all()
    assert set(hand.states) == {B}


def test_a_page_from_the_future_is_refused_whole(hand: Hand, clock: Ticking) -> None:
    edge = NOW + MAX_SKEW_MS
    for ahead in (
        record_line(B, made("two", at=edge + 1)),
        record_line(B, replace(made("two"), last_access=edge + 1)),
        count_line(A, {"w1": 1}, edge + 1),
    ):
        with pytest.raises(ClockAhead) as refused:
            hand.push(record_line(A, made("one")), ahead)
        assert refused.value.now == NOW
    assert hand.pull().lines == ()
    assert hand.push(record_line(A, made("one", at=edge)))[0].code == OK


def test_another_epoch_is_refused_everywhere(hand: Hand) -> None:
    where: dict[str, Any] = {"device": hand.device, "user_id": USER, "epoch": "other"}
    for call in (
        lambda: hand.pull(epoch="other"),
        lambda: hand.push(record_line(A, made("one")), epoch="other"),
        lambda: list(hand.centre.manifest(ManifestRequest(**where))),
        lambda: list(hand.centre.fetch(FetchRequest(**where, memory_ids=(A,)))),
    ):
        with pytest.raises(EpochChanged):
            call()
    assert hand.pull().lines == ()


def test_a_damaged_page_is_refused_whole(hand: Hand) -> None:
    lines = hand.stream(record_line(A, made("one")), record_line(B, made("two")))
    with pytest.raises(FileDamaged):
        hand.centre.push(lines[:-1])
    with pytest.raises(FileDamaged):
        hand.centre.push([lines[0], lines[2], lines[1], lines[3]])
    with pytest.raises(FormatError):
        hand.push({**record_line(A, made("one")), "sync": {"seq": 1, "base": "x"}})
    assert hand.pull().lines == ()


def test_the_same_memory_twice_on_a_page_is_joined(hand: Hand) -> None:
    later = made("two", at=NOW + 1)
    answer = hand.push(record_line(A, made("one"), seq=1), record_line(A, later, seq=2), count_line(A, {"w1": 2}, NOW))
    assert [verdict.code for verdict in answer] == [OK] * 3
    hand.pull_all()
    assert hand.states[A] == replace(later, accesses={"w1": 2}, last_access=NOW)


def test_a_vector_of_another_model_is_left_out_and_the_first_model_adopted(hand: Hand, sql: Sql) -> None:
    model = HashingEmbedder(8, name="m")
    vector = model.embed_documents(["one"])[0]
    hand.model, hand.dimension = "m", 8
    hand.push(
        record_line(A, made("one"), vector=vector, model="m"), record_line(B, made("two"), vector=vector, model="other")
    )
    welcome = hand.hello()
    assert (welcome.model, welcome.dimension) == ("m", 8)
    lines = {line["memory_id"]: line for line in hand.pull().lines}
    assert (lines[A]["embedding_version"], lines[B]["vector"]) == ("m", None)
    assert sql("SELECT embedding_due FROM memories ORDER BY memory_id") == [(False,), (True,)]
    # A later push of the same content without its vector keeps the one that is here.
    hand.push(record_line(A, made("one").written(Stamp(NOW + 1, 0, "w"), Changes(scalars={"importance": 0.7}))))
    assert hand.pull().lines[0]["vector"] == lines[A]["vector"] is not None


# -- the log of conflicts


def test_a_text_that_loses_to_a_concurrent_edit_is_kept(hand: Hand, database: Database) -> None:
    base = made("base")
    hand.push(record_line(A, base))
    one = base.written(Stamp(NOW + 1, 0, "w1"), Changes(scalars={"content": "one"}))
    two = base.written(Stamp(NOW + 2, 0, "w2"), Changes(scalars={"content": "two"}))
    seen = str(base.scalars["content"].stamp)
    hand.push(record_line(A, one, seen=seen))
    assert conflicts(database, USER) == []
    other = Hand(hand.centre, device="d-2")
    other.hello()
    other.push(record_line(A, two, seen=seen))
    (lost,) = conflicts(database, USER)
    assert (lost.memory_id, lost.content, lost.device_id) == (A, "one", "d-2")
    assert (lost.stamp, lost.winner) == (f"{NOW + 1}.0.w1", f"{NOW + 2}.0.w2")
    hand.push(record_line(A, one, seen=seen))  # late once more: logged already
    assert len(conflicts(database, USER)) == 1
    assert dismiss_conflict(database, USER, A, lost.stamp)
    assert not dismiss_conflict(database, USER, A, lost.stamp)


def test_lost_texts_go_with_their_memory(hand: Hand, database: Database) -> None:
    hand.push(record_line(A, made("one", at=NOW)))
    hand.push(record_line(A, made("two", at=NOW + 1)))
    assert [lost.content for lost in conflicts(database, USER)] == ["one"]
    hand.push(record_line(A, State(deleted=Stamp(NOW + 2, 0, "w"))))
    assert conflicts(database, USER) == []
    # Lost and deleted on one page: nothing is left to point to.
    hand.push(record_line(B, made("x", at=NOW)))
    hand.push(record_line(B, made("y", at=NOW + 1)), record_line(B, State(deleted=Stamp(NOW + 2, 0, "w"))))
    assert conflicts(database, USER) == []
