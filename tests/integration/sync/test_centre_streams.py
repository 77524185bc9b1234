"""The centre on Postgres: hello, marks, pull, manifest and fetch, and what each leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from memory.core.clock import Stamp
from memory.core.errors import DeviceRevoked, ProtocolMismatch
from memory.core.record import ACCESS_KIND, KIND
from memory.core.rowhash import row_hash
from memory.core.state import State
from memory.core.sync import (
    MANIFEST,
    MAX_PAGE_BYTES,
    RECORDS,
    FetchRequest,
    ManifestRequest,
    Mark,
    entries,
    read_page,
)
from memory.embedding.hashing import HashingEmbedder
from memory.postgres import digest, greeting
from memory.postgres.centre import PostgresCentre, dial_centre
from memory.postgres.database import Database
from memory.postgres.devices import devices, revoke
from memory.postgres.greeting import MARKS_KEPT, SEEN_EVERY_MS, WATCH_MS
from tests.integration.sync.at_centre import (
    NOW,
    USER,
    Hand,
    Ticking,
    count_line,
    digest_of,
    made,
    new_id,
    open_provider,
    record_line,
    wait_until_blocked,
)

Rows = list[tuple[Any, ...]]
Sql = Callable[..., Rows]
A, B, C = new_id(1), new_id(2), new_id(3)


# -- hello


def test_a_first_hello_makes_the_user_and_registers_the_device(centre: PostgresCentre, database: Database) -> None:
    welcome = Hand(centre).hello()
    assert (welcome.head.rev, welcome.head.digest, welcome.head.live, welcome.head.accesses) == (0, 0, 0, 0)
    assert (welcome.lineage, welcome.reconcile, welcome.now, welcome.model) == ({}, False, NOW, None)
    assert [device.device_id for device in devices(database, USER)] == ["d-1"]


def test_hello_says_the_head_and_its_model(centre: PostgresCentre, database_url: str) -> None:
    with open_provider(database_url) as store:
        store.add_memory("tea is best at 80 degrees", user_id=USER)
        store.recall("tea", user_id=USER)
    hand = Hand(centre)
    welcome = hand.hello()
    hand.pull_all()
    assert welcome.head.digest == hand.digest() != 0
    assert (welcome.head.live, welcome.head.accesses) == (1, 1)
    assert (welcome.model, welcome.dimension) == (HashingEmbedder().name, HashingEmbedder().dimension)


def test_an_idle_hello_writes_nothing(hand: Hand, sql: Sql, clock: Ticking) -> None:
    hand.push(record_line(A, made("one")))
    hand.hello(listens=True)
    seen = sql("SELECT d.xmin::text, u.xmin::text FROM sync_device d JOIN sync_user u USING (user_id)")
    clock.time += SEEN_EVERY_MS
    hand.hello(listens=True)
    assert sql("SELECT d.xmin::text, u.xmin::text FROM sync_device d JOIN sync_user u USING (user_id)") == seen
    clock.time += 1
    hand.hello()
    assert sql("SELECT last_seen_at FROM sync_device") == [(clock.time,)]


def test_an_idle_hello_is_one_statement(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    hand.push(record_line(A, made("one")))
    hand.hello()
    statements: list[object] = []
    execute = psycopg.Connection.execute

    def counted(connection: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        statements.append(query)
        return execute(connection, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    hand.hello()
    assert len(statements) == 1
    assert "memories" not in str(statements[0])


def test_who_listens_is_watched_for_an_hour_renewed_at_half(hand: Hand, sql: Sql, clock: Ticking) -> None:
    watched = "SELECT watched_until FROM sync_user"
    assert sql(watched) == [(0,)]
    hand.hello(listens=True)
    assert sql(watched) == [(NOW + WATCH_MS,)]
    clock.time += WATCH_MS // 2
    hand.hello(listens=True)
    assert sql(watched) == [(NOW + WATCH_MS,)]
    clock.time += 1
    hand.hello(listens=True)
    assert sql(watched) == [(clock.time + WATCH_MS,)]


@pytest.mark.parametrize("away", [0, SEEN_EVERY_MS + 1], ids=["seen just now", "long not seen"])
def test_a_transaction_left_open_keeps_no_device_from_what_has_been_committed(
    hand: Hand, clock: Ticking, database_url: str, sql: Sql, away: int
) -> None:
    hand.push(record_line(A, made("one")))
    clock.time += away
    with ThreadPoolExecutor(1) as pool, psycopg.connect(database_url) as forgotten:
        forgotten.execute("UPDATE memories SET importance = 0.9")
        head = pool.submit(hand.hello).result(20).head
        assert (head.rev, head.digest) == (1, None)
        hand.pull_all()
        assert set(hand.states) == {A}
        forgotten.rollback()
    assert hand.hello().head.digest == hand.digest()
    assert sql("SELECT last_seen_at FROM sync_device") == [(clock.time,)]


def test_a_device_that_is_not_known_waits_to_be_registered(
    hand: Hand, database_url: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "PATIENCE_MS", 1)
    hand.push(record_line(A, made("one")))
    with ThreadPoolExecutor(1) as pool, psycopg.connect(database_url) as forgotten:
        forgotten.execute("UPDATE memories SET importance = 0.9")
        greeted = pool.submit(Hand(hand.centre, device="d-2").hello)
        with psycopg.connect(database_url, autocommit=True) as watcher:
            wait_until_blocked(watcher)
        forgotten.rollback()
        greeted.result(20)
    assert sql("SELECT device_id FROM sync_device ORDER BY 1") == [("d-1",), ("d-2",)]


def test_another_protocol_is_refused(hand: Hand) -> None:
    with pytest.raises(ProtocolMismatch):
        hand.hello(protocol=99)


def test_a_revoked_device_is_turned_away_everywhere(hand: Hand, database: Database) -> None:
    hand.push(record_line(A, made("one")))
    other = Hand(hand.centre, device="d-2")
    other.hello()
    assert revoke(database, USER, "d-1", NOW)
    assert not revoke(database, USER, "nobody", NOW)
    where: dict[str, Any] = {"device": hand.device, "user_id": USER, "epoch": str(hand.epoch)}
    for call in (
        hand.hello,
        hand.pull,
        lambda: hand.push(record_line(B, made("two"))),
        lambda: list(hand.centre.manifest(ManifestRequest(**where))),
        lambda: list(hand.centre.fetch(FetchRequest(**where, memory_ids=(A,)))),
    ):
        with pytest.raises(DeviceRevoked):
            call()
    other.pull_all()
    assert set(other.states) == {A}


# -- marks


def test_the_last_mark_is_known_and_nothing_is_to_be_compared(hand: Hand) -> None:
    hand.push(record_line(A, made("one")))
    hand.pull_all()
    epoch = hand.epoch
    welcome = hand.hello()
    assert (welcome.epoch, welcome.reconcile, welcome.lineage) == (epoch, False, {})


def test_a_page_without_lines_has_no_mark_and_notes_none(hand: Hand, sql: Sql) -> None:
    page = hand.pull().page
    assert (page.mark, page.more, page.to) == (None, False, 0)
    assert sql("SELECT count(*) FROM sync_mark") == [(0,)]


def test_an_unknown_mark_begins_an_epoch_bound_by_the_last_common_one(hand: Hand, sql: Sql) -> None:
    hand.push(record_line(A, made("one")))
    known, old = hand.marks[-1], str(hand.epoch)
    hand.push(record_line(B, made("two")))
    hand.cursor = 2
    sql("DELETE FROM sync_mark WHERE mark = %s", hand.marks[-1].name)
    welcome = hand.hello()
    assert welcome.reconcile
    assert welcome.epoch != old
    assert welcome.lineage == {old: known.rev, welcome.epoch: known.rev}
    assert sql("SELECT epoch, bound_rev FROM sync_lineage") == [(old, known.rev)]


def test_a_cursor_above_the_head_begins_an_epoch(hand: Hand) -> None:
    old = str(hand.epoch)
    hand.cursor = 7
    welcome = hand.hello()
    assert welcome.epoch != old
    assert welcome.lineage == {old: 0}


def test_an_unknown_mark_of_another_epoch_limits_what_can_be_trusted(hand: Hand, sql: Sql) -> None:
    hand.push(record_line(A, made("one")), record_line(B, made("two")))
    sql("INSERT INTO sync_lineage VALUES (%s, 'former', 2), (%s, 'older', 1)", USER, USER)
    epoch = str(hand.epoch)
    welcome = hand.hello(epoch="former", marks=(Mark("nobody", 1),), cursor=1)
    assert welcome.epoch == epoch
    assert welcome.reconcile
    assert welcome.lineage == {"former": 0, "older": 0, epoch: 0}


def test_a_pruned_mark_cannot_be_judged(hand: Hand, sql: Sql) -> None:
    hand.push(record_line(A, made("one")))
    for _ in range(MARKS_KEPT + 3):
        hand.push(record_line(A, made("one")))
    first, old = hand.marks[0], hand.epoch
    hand.push(record_line(B, made("two")))
    welcome = hand.hello(marks=(first,), cursor=1)
    assert welcome.reconcile
    assert (welcome.epoch, welcome.lineage) == (old, {})
    assert sql("SELECT count(*) FROM sync_mark") == [(MARKS_KEPT,)]
    assert sql("SELECT pruned_rev FROM sync_device") == [(1,)]


# -- pull


def test_pages_follow_each_other_and_the_last_has_the_head(hand: Hand) -> None:
    hand.push(*(record_line(new_id(i), made(f"m {i}")) for i in range(25)))
    reader = Hand(hand.centre, device="d-2")
    reader.hello()
    pages = [reader.pull(limit=10).page for _ in range(3)]
    assert [(page.after, page.to, page.more) for page in pages] == [(0, 10, True), (10, 20, True), (20, 25, False)]
    assert [page.head is None for page in pages] == [True, True, False]
    assert pages[-1].head is not None
    assert (pages[-1].head.digest, pages[-1].head.live) == (reader.digest(), 25)


def test_a_page_ends_when_it_has_enough_bytes(hand: Hand) -> None:
    size = 60_000
    for start in range(0, 80, 40):
        hand.push(*(record_line(new_id(i), made("x" * size)) for i in range(start, start + 40)))
    received = hand.pull()
    assert received.page.more
    assert len(received.lines) == MAX_PAGE_BYTES // size + 1
    hand.pull_all()
    assert len(hand.states) == 80


def test_equal_revisions_are_never_parted(hand: Hand, sql: Sql) -> None:
    hand.push(*(record_line(new_id(i), made(f"m {i}")) for i in range(9)))
    sql("ALTER TABLE memories DISABLE TRIGGER USER")
    sql("UPDATE memories SET rev = 3 WHERE rev IN (3, 4, 5, 6)")
    for limit, sizes in ((3, [6, 3]), (2, [2, 4, 2, 1]), (4, [6, 3])):
        reader = Hand(hand.centre, device=f"d-{limit}")
        reader.hello()
        found = []
        while (received := reader.pull(limit=limit)).page.more:
            found.append(len(received.lines))
        assert [*found, len(received.lines)] == sizes
        assert len(reader.states) == 9


def test_a_thousand_recalls_bring_access_lines_only(hand: Hand, database_url: str) -> None:
    with open_provider(database_url) as store:
        for i in range(50):
            store.add_memory(f"fact number {i}", user_id=USER)
        hand.pull_all()
        assert hand.records == 50
        for i in range(1_000):
            store.recall(f"fact number {i % 50}", user_id=USER, top_k=1)
        store.flush()
    head = hand.pull_all().head
    assert (hand.records, 0 < hand.accesses <= 50) == (50, True)
    assert head is not None
    assert head.accesses == sum(sum(state.accesses.values()) for state in hand.states.values()) == 1_000


def test_an_access_line_has_only_the_slots_that_changed(hand: Hand) -> None:
    hand.push(record_line(A, replace(made("one"), accesses={"w1": 5, "w2": 1}, last_access=NOW)))
    hand.pull_all()
    hand.push(count_line(A, {"w1": 5, "w2": 2, "w3": 1}, NOW + 1))
    (line,) = hand.pull().lines
    assert (line["kind"], line["accesses"], line["last_access_at"]) == (ACCESS_KIND, {"w2": 2, "w3": 1}, NOW + 1)
    hand.push(count_line(A, {"w1": 5}, NOW + 2))
    (line,) = hand.pull().lines
    assert (line["accesses"], line["last_access_at"]) == ({}, NOW + 2)


def test_a_record_on_its_way_carries_its_accesses(hand: Hand) -> None:
    hand.push(record_line(A, made("one")), record_line(B, made("two")))
    hand.push(count_line(A, {"w1": 1}, NOW), record_line(B, made("three", at=NOW + 1)))
    received = hand.pull(limit=1)
    assert [(line["kind"], line["memory_id"]) for line in received.lines] == [(KIND, A)]
    assert received.lines[0]["accesses"] == {"w1": 1}
    hand.pull_all()
    assert hand.states[A].accesses == {"w1": 1}


def test_deletions_are_told(hand: Hand, database_url: str) -> None:
    with open_provider(database_url) as store:
        memory_id = store.add_memory("one", user_id=USER).memory_id
        hand.pull_all()
        store.delete_memory(memory_id, user_id=USER)
    hand.pull_all()
    assert hand.states[memory_id].deleted is not None


def test_users_see_their_own_only(hand: Hand) -> None:
    other = Hand(hand.centre, user_id="u-2")
    other.hello()
    other.push(record_line(A, made("hers"), user_id="u-2"))
    assert hand.pull().lines == ()
    assert hand.hello().head.live == 0


# -- manifest and fetch


def test_a_manifest_lists_the_living_and_the_dead_by_id(hand: Hand) -> None:
    states = {new_id(i): made(f"m {i}") for i in range(5)} | {new_id(7): State(deleted=Stamp(NOW, 0, "w"))}
    hand.push(*(record_line(memory_id, state) for memory_id, state in states.items()))
    found: dict[str, tuple[int | None, bool]] = {}
    above, more = "", True
    while more:
        request = ManifestRequest(device="d-1", user_id=USER, epoch=str(hand.epoch), above=above, limit=4)
        received = read_page(hand.centre.manifest(request), MANIFEST)
        page = entries(received)
        found |= {entry.memory_id: (entry.hash, entry.deleted) for entry in page}
        above, more = page[-1].memory_id, received.page.more
    assert found == {i: (row_hash(i, state), state.deleted is not None) for i, state in states.items()}
    assert list(found) == sorted(found)


def test_records_are_fetched_in_the_order_asked_for(hand: Hand) -> None:
    hand.push(record_line(A, made("one")), record_line(B, State(deleted=Stamp(NOW, 0, "w"))))
    request = FetchRequest(device="d-1", user_id=USER, epoch=str(hand.epoch), memory_ids=(B, C, "nonsense", A))
    received = read_page(hand.centre.fetch(request), RECORDS)
    assert [line["memory_id"] for line in received.lines] == [B, A]
    assert (received.lines[0]["stamps"], received.lines[1]["content"]) == ({"deleted": f"{NOW}.0.w"}, "one")
    assert (received.page.to, received.page.mark) == (2, None)


# -- hashes


def test_a_settled_digest_is_the_one_made_from_scratch(
    hand: Hand, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "CHUNK", 7)
    with open_provider(database_url) as store:
        ids = [
            store.add_memory(f"m {i}", user_id=USER, tags=["a", "b"], metadata={"k": i}).memory_id for i in range(20)
        ]
        hand.hello()
        for memory_id in ids[:8]:
            store.delete_memory(memory_id, user_id=USER)
        for memory_id in ids[6:15]:
            if memory_id not in ids[:8]:
                store.update_memory(memory_id, user_id=USER, tags=["b"], metadata={"new": "x"})
        store.recall("m", user_id=USER)
    hand.push(record_line(A, replace(made("one"), accesses={"w": 2})))
    head = hand.hello().head
    hand.pull_all()
    live = hand.live()
    assert (head.digest, head.live) == (digest_of(hand.states), len(live)) != (0, 0)
    assert head.accesses == sum(sum(state.accesses.values()) for state in live.values())


def test_a_centre_is_dialled(database_url: str, clock: Ticking) -> None:
    centre = dial_centre(database_url, clock, pool_size=2, timeout=10)
    try:
        assert Hand(centre).hello().head.rev == 0
    finally:
        centre.close()
