"""The decisions of sync, as values: what is to become of a record received, of one that the centre lacks, of a verdict.

Nothing here reads or writes; ``edge.sync.session`` and ``edge.sqlite`` carry out what is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from memory.core.clock import Stamp
from memory.core.merge import merge
from memory.core.record import encode_stamps
from memory.core.state import State
from memory.core.sync import Welcome

OVERWRITTEN: Final = "overwritten"
DELETED: Final = "deleted"
GONE: Final = "gone"
REJECTED: Final = "rejected"
REASONS: Final[Mapping[str, str]] = {
    OVERWRITTEN: "another edit made at the same time was later; this is the text that lost",
    DELETED: "the memory was deleted elsewhere; this is what had been changed here and not been sent",
    GONE: "the centre has purged the memory; this is what had been changed here and not been sent",
    REJECTED: "the centre did not take the record",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What a replica has of a memory, and what it knows of the centre's version."""

    state: State | None = None
    received: bool = False
    """The centre's version has been received at least once."""
    edited: bool = False
    """Registers differ from the centre's version as received last."""
    seen: Stamp | None = None
    """Stamp of the content in that version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """What to do with a record received from the centre."""

    state: State
    """To be kept from now on."""
    push_back: bool
    """The centre has less than that."""
    lost: str | None = None
    """Why what is here now goes to the log of conflicts first."""


def receive(local: Local, incoming: State, *, same_history: bool) -> Reception:
    """Decide about a record received.

    Args:
        local: What is here.
        incoming: The centre's version.
        same_history: It is of the history that the version received last was of. What has not been edited here since,
            and has no later stamp, is then replaced, not merged: so a row that was damaged on disk is mended.
    """
    if local.state is None:
        return Reception(state=incoming, push_back=False)
    merged = merge(local.state, incoming)
    if same_history and local.received and not local.edited and _same_stamps(merged, incoming):
        merged = with_accesses(incoming, local.state)
    return Reception(
        state=merged,
        push_back=merged.without_accesses() != incoming.without_accesses(),
        lost=_lost(local, incoming),
    )


def _same_stamps(a: State, b: State) -> bool:
    return a.deleted is None and b.deleted is None and encode_stamps(a) == encode_stamps(b)


def with_accesses(state: State, other: State) -> State:
    """A state with the access counts of another one joined to its own."""
    joined = merge(
        State(accesses=state.accesses, last_access=state.last_access),
        State(accesses=other.accesses, last_access=other.last_access),
    )
    return replace(state, accesses=joined.accesses, last_access=joined.last_access)


def _lost(local: Local, incoming: State) -> str | None:
    state = local.state
    if state is None or state.deleted is not None:
        return None
    if incoming.deleted is not None:
        return DELETED if local.edited or not local.received else None
    ours, theirs = state.scalars["content"], incoming.scalars["content"]
    written_here = ours.stamp != local.seen
    return OVERWRITTEN if written_here and theirs.stamp > ours.stamp and theirs.value != ours.value else None


class Missing(Enum):
    """What to do with a memory that the centre does not have."""

    PUSH = "push"
    """It has never had it."""
    PUSH_AGAIN = "push again"
    """It lost it in a restore."""
    REMOVE = "remove"
    """It had it, and has purged it."""


def missing(base: tuple[str, int] | None, welcome: Welcome) -> Missing:
    """Decide about a memory that is here and not at the centre, by the version last received of it."""
    if base is None:
        return Missing.PUSH
    epoch, rev = base
    bound = welcome.lineage.get(epoch, welcome.head.rev if epoch == welcome.epoch else 0)
    return Missing.REMOVE if rev <= bound else Missing.PUSH_AGAIN


class Opening(Enum):
    """How a session begins."""

    GO_ON = "go on"
    ADOPT = "adopt the epoch"
    """The centre has a new history, and in it everything that has been received: only its name is new."""
    RECONCILE = "reconcile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a replica stands."""

    epoch: str | None
    cursor: int
    digest: int
    live: int
    suspicious: bool = False


def opening(here: Position, welcome: Welcome) -> Opening:
    """Decide how to begin, from the centre's answer to the greeting."""
    if here.epoch is None:
        return Opening.GO_ON
    if welcome.reconcile or here.suspicious:
        return Opening.RECONCILE
    if here.epoch == welcome.epoch:
        return Opening.GO_ON
    head = welcome.head
    nothing_lost = here.cursor == welcome.lineage.get(here.epoch) == head.rev
    same = nothing_lost and (here.digest, here.live) == (head.digest, head.live)
    return Opening.ADOPT if same else Opening.RECONCILE


def cursor_after_comparison(here: Position, welcome: Welcome) -> int:
    """Where to go on after everything was compared. Never further on: a cursor moves only together with a mark."""
    if here.epoch == welcome.epoch:
        return here.cursor
    return min(here.cursor, welcome.lineage.get(here.epoch or "", 0))


def may_skip_echo(*, cursor: int, before: int, all_equal: bool) -> bool:
    """Whether everything between the cursor and the head is what this replica has just pushed itself."""
    return all_equal and cursor == before
