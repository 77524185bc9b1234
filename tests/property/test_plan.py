"""The decisions of sync: laws of what is received, and the tables of the rest row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from edge.sync import plan
from edge.sync.plan import Local, Missing, Opening, Position, Reception
from memory.core.clock import Stamp
from memory.core.merge import merge
from memory.core.record import encode_stamps
from memory.core.state import Register, State
from memory.core.sync import Head, Welcome
from tests.property.strategies import few_stamps, states

texts = st.sampled_from(["one", "other"])


@st.composite
def versions(draw: st.DrawFn) -> State:
    """Live and deleted states as replicas hold them: a live one has a text."""
    state = draw(states())
    if state.deleted is not None:
        return state
    return replace(state, scalars={**state.scalars, "content": Register(draw(few_stamps), draw(texts))})


@st.composite
def locals_(draw: st.DrawFn) -> Local:
    """What may be here: nothing, a tombstone, or a memory that was received, edited, both or neither."""
    state = draw(st.none() | versions())
    if state is None or state.deleted is not None:
        return Local(state=state)
    received = draw(st.booleans())
    edited = received and draw(st.booleans())
    seen = None
    if received:
        seen = draw(few_stamps) if edited else state.scalars["content"].stamp
    return Local(state=state, received=received, edited=edited, seen=seen)


def above(high: State, low: State) -> bool:
    """Whether joining the one to the other adds nothing."""
    return merge(high, low) == high


def repairs(local: Local, incoming: State, *, same_history: bool) -> bool:
    """Whether the version received replaces what is here, since nobody has changed that."""
    state = local.state
    if state is None or state.deleted is not None or incoming.deleted is not None:
        return False
    unchanged = same_history and local.received and not local.edited
    return unchanged and encode_stamps(merge(state, incoming)) == encode_stamps(incoming)


def received(local: Local, incoming: State, same_history: bool) -> Reception:
    return plan.receive(local, incoming, same_history=same_history)


@given(locals_(), versions(), st.booleans())
def test_what_is_kept_is_never_below_what_was_here_or_what_came_unless_it_repairs(
    local: Local, incoming: State, same_history: bool
) -> None:
    kept = received(local, incoming, same_history).state
    if repairs(local, incoming, same_history=same_history):
        assert kept.without_accesses() == incoming.without_accesses()
        assert encode_stamps(kept) == encode_stamps(incoming)
    else:
        assert above(kept, incoming)
        assert local.state is None or above(kept, local.state)


@given(locals_(), versions(), st.booleans())
def test_access_counts_are_never_below_either_side(local: Local, incoming: State, same_history: bool) -> None:
    kept = received(local, incoming, same_history).state
    assume(kept.deleted is None)
    for state in (incoming, local.state or State()):
        assert all(kept.accesses[writer] >= count for writer, count in state.accesses.items())
        assert (kept.last_access or 0) >= (state.last_access or 0)


@given(locals_(), versions(), st.booleans())
def test_it_is_pushed_back_exactly_if_the_centre_has_less(local: Local, incoming: State, same_history: bool) -> None:
    decided = received(local, incoming, same_history)
    assert decided.push_back == (merge(incoming, decided.state).without_accesses() != incoming.without_accesses())


@given(locals_(), versions(), st.booleans())
def test_what_comes_a_second_time_changes_nothing(local: Local, incoming: State, same_history: bool) -> None:
    first = received(local, incoming, same_history)
    alive = incoming.deleted is None and first.state.deleted is None
    seen = incoming.scalars["content"].stamp if alive else None
    after = Local(state=first.state, received=alive, edited=first.push_back and alive, seen=seen)
    again = received(after, incoming, same_history)
    assert (again.state, again.push_back) == (first.state, first.push_back)
    assert again.lost is None or first.push_back


@given(versions(), st.booleans())
def test_what_is_new_here_is_taken_as_it_came(incoming: State, same_history: bool) -> None:
    assert received(Local(), incoming, same_history) == Reception(state=incoming, push_back=False)


@given(locals_(), versions(), st.booleans())
def test_a_deletion_on_either_side_stays_one(local: Local, incoming: State, same_history: bool) -> None:
    dead = incoming.deleted is not None or (local.state is not None and local.state.deleted is not None)
    assert (received(local, incoming, same_history).state.deleted is not None) == dead


@given(locals_(), versions(), st.booleans())
def test_the_log_keeps_exactly_what_a_deletion_or_a_later_text_takes_away_unsent(
    local: Local, incoming: State, same_history: bool
) -> None:
    lost = received(local, incoming, same_history).lost
    state = local.state
    if state is None or state.deleted is not None:
        assert lost is None
    elif incoming.deleted is not None:
        assert lost == (plan.DELETED if local.edited or not local.received else None)
    else:
        ours, theirs = state.scalars["content"], incoming.scalars["content"]
        taken = ours.value != theirs.value and theirs.stamp > ours.stamp and ours.stamp != local.seen
        assert lost == (plan.OVERWRITTEN if taken else None)


@given(versions(), versions())
def test_a_text_is_in_no_log_while_it_is_still_shown(state: State, incoming: State) -> None:
    decided = received(Local(state=state), incoming, same_history=False)
    if decided.lost is not None and state.deleted is None:
        assert decided.state.value("content") != state.value("content")


@given(versions(), texts)
def test_a_damaged_text_is_replaced_only_within_one_history_and_only_if_nobody_edited_it(
    incoming: State, damage: str
) -> None:
    assume(incoming.deleted is None and incoming.value("content") != damage)
    stamp = incoming.scalars["content"].stamp
    broken = replace(incoming, scalars={**incoming.scalars, "content": Register(stamp, damage)})
    local = Local(state=broken, received=True, seen=stamp)
    mended = received(local, incoming, same_history=True)
    assert (mended.state, mended.push_back) == (incoming, False)
    for other, same_history in ((replace(local, edited=True), True), (local, False), (Local(state=broken), True)):
        assert received(other, incoming, same_history).state == merge(broken, incoming)


# -- what the centre does not have


def welcome(
    *, epoch: str = "now", rev: int = 100, digest: int = 7, live: int = 3, reconcile: bool = False, **lineage: int
) -> Welcome:
    head = Head(rev=rev, digest=digest, live=live, accesses=0)
    return Welcome(epoch=epoch, lineage=lineage, head=head, reconcile=reconcile, now=0, model=None, dimension=None)


@pytest.mark.parametrize(
    ("base", "answer", "wanted"),
    [
        (None, welcome(), Missing.PUSH),
        (("now", 100), welcome(), Missing.REMOVE),
        (("now", 1), welcome(), Missing.REMOVE),
        (("now", 101), welcome(), Missing.PUSH_AGAIN),
        (("before", 50), welcome(before=50), Missing.REMOVE),
        (("before", 51), welcome(before=50), Missing.PUSH_AGAIN),
        (("before", 1), welcome(before=0), Missing.PUSH_AGAIN),
        (("unheard of", 1), welcome(before=50), Missing.PUSH_AGAIN),
        (("now", 40), welcome(now=30), Missing.PUSH_AGAIN),  # the centre trusts its own epoch only so far
        (("now", 30), welcome(now=30), Missing.REMOVE),
    ],
)
def test_a_memory_that_the_centre_lacks(base: tuple[str, int] | None, answer: Welcome, wanted: Missing) -> None:
    assert plan.missing(base, answer) is wanted


# -- how a session begins

HERE = Position(epoch="now", cursor=100, digest=7, live=3)
BEFORE = replace(HERE, epoch="before")


@pytest.mark.parametrize(
    ("here", "answer", "wanted"),
    [
        (replace(HERE, epoch=None, cursor=0), welcome(), Opening.GO_ON),
        (replace(HERE, epoch=None, cursor=0), welcome(reconcile=True), Opening.GO_ON),
        (HERE, welcome(), Opening.GO_ON),
        (replace(HERE, cursor=20), welcome(), Opening.GO_ON),
        (replace(HERE, digest=8), welcome(), Opening.GO_ON),
        (HERE, welcome(reconcile=True), Opening.RECONCILE),
        (replace(HERE, suspicious=True), welcome(), Opening.RECONCILE),
        (BEFORE, welcome(before=100), Opening.ADOPT),
        (BEFORE, welcome(before=100, reconcile=True), Opening.RECONCILE),
        (replace(BEFORE, suspicious=True), welcome(before=100), Opening.RECONCILE),
        (BEFORE, welcome(before=99), Opening.RECONCILE),
        (BEFORE, welcome(), Opening.RECONCILE),
        (BEFORE, welcome(before=100, rev=101), Opening.RECONCILE),
        (replace(BEFORE, cursor=99), welcome(before=100), Opening.RECONCILE),
        (replace(BEFORE, digest=8), welcome(before=100), Opening.RECONCILE),
        (replace(BEFORE, live=4), welcome(before=100), Opening.RECONCILE),
    ],
)
def test_how_a_session_begins(here: Position, answer: Welcome, wanted: Opening) -> None:
    assert plan.opening(here, answer) is wanted


epochs = st.sampled_from(["now", "before", "earlier"])


@given(epochs, st.integers(0, 200), st.dictionaries(epochs, st.integers(0, 200)), st.integers(0, 200))
@example("before", 150, {"before": 120}, 130)
def test_comparing_everything_never_moves_the_cursor_forward(
    epoch: str, cursor: int, lineage: dict[str, int], rev: int
) -> None:
    here = replace(HERE, epoch=epoch, cursor=cursor)
    after = plan.cursor_after_comparison(here, replace(welcome(rev=rev), lineage=lineage))
    assert 0 <= after <= cursor
    if epoch == "now":
        assert after == cursor
    else:
        assert after <= lineage.get(epoch, 0)


@pytest.mark.parametrize(
    ("cursor", "before", "all_equal", "skips"),
    [
        (10, 10, True, True),
        (10, 10, False, False),
        (9, 10, True, False),  # somebody else's changes are in between
        (11, 10, True, False),  # the centre went back
    ],
)
def test_only_what_is_all_its_own_is_not_sent_back(cursor: int, before: int, all_equal: bool, skips: bool) -> None:
    assert plan.may_skip_echo(cursor=cursor, before=before, all_equal=all_equal) is skips


def test_every_reason_of_the_log_is_explained() -> None:
    assert set(plan.REASONS) == {plan.OVERWRITTEN, plan.DELETED, plan.GONE, plan.REJECTED}


@given(few_stamps, few_stamps)
def test_of_two_deletions_the_later_stamp_is_kept(ours: Stamp, theirs: Stamp) -> None:
    decided = received(Local(state=State(deleted=ours)), State(deleted=theirs), same_history=True)
    assert decided.state.deleted == max(ours, theirs)
    assert decided.push_back == (ours > theirs)
