"""What a sync did, and how a replica stands to the centre: values for callers, the command line and tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memory.core.errors import (
    ClockAhead,
    DeviceRevoked,
    EpochChanged,
    Error,
    FormatError,
    ProtocolMismatch,
    SchemaMismatch,
    StoreUnavailable,
    SyncError,
    SyncIncomplete,
    SyncInterrupted,
)


class SyncCondition(StrEnum):
    """How the last attempt ended."""

    NEVER = "never synced"
    DONE = "in sync"
    UNREACHED = "centre not reached"
    DAMAGED = "stream damaged"
    VERSIONS = "versions differ"
    CLOCK = "clock ahead"
    RESTORED = "centre restored"
    REVOKED = "device revoked"
    DIFFERENT = "still different"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


# The most telling class first.
_CONDITIONS: tuple[tuple[type[Error], SyncCondition], ...] = (
    (ProtocolMismatch, SyncCondition.VERSIONS),
    (SchemaMismatch, SyncCondition.VERSIONS),
    (ClockAhead, SyncCondition.CLOCK),
    (EpochChanged, SyncCondition.RESTORED),
    (DeviceRevoked, SyncCondition.REVOKED),
    (SyncIncomplete, SyncCondition.DIFFERENT),
    (SyncInterrupted, SyncCondition.INTERRUPTED),
    (SyncError, SyncCondition.VERSIONS),
    (FormatError, SyncCondition.DAMAGED),
    (StoreUnavailable, SyncCondition.UNREACHED),
)


def condition_of(error: Error) -> SyncCondition:
    """The condition that an error leaves a replica in."""
    return next((condition for kind, condition in _CONDITIONS if isinstance(error, kind)), SyncCondition.FAILED)


@dataclass(slots=True, kw_only=True)
class SyncReport:
    """What one sync of one user did."""

    user_id: str
    pushed: int = 0
    """Lines that the centre took."""
    pulled: int = 0
    """Lines received."""
    changed: int = 0
    """Memories that are others here than before."""
    pushed_back: int = 0
    """Memories received of which more is here than at the centre."""
    rejected: int = 0
    conflicts: int = 0
    """New entries in the log of conflicts."""
    removed: int = 0
    """Memories that the centre has purged."""
    reconciled: bool = False
    """Everything was compared."""
    restamped: int = 0
    """Stamps given anew, since the clock ran ahead."""
    deferred: int = 0
    """Memories received that wait for a vector of this replica's model."""
    round_trips: int = 0
    rev: int = 0
    """The centre's revision."""
    equal: bool | None = None
    """Whether replica and centre have the same digest; None: not known, the centre is being written to."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStatus:
    """How one user's replica stands to the centre. Times in ms UTC."""

    user_id: str
    condition: SyncCondition
    problem: str | None
    """What went wrong at the last attempt."""
    hint: str | None
    device: str
    epoch: str | None
    cursor: int
    """The centre's revision up to which everything has been received."""
    head: int | None
    """The centre's revision as seen last."""
    pending: int
    """Memories and deletions to be sent."""
    pending_accesses: int
    """Memories of which only access counts are to be sent."""
    equal: bool | None
    conflicts: int
    synced_at: int | None
    """When the last complete sync ended."""
    tried_at: int | None
    clock_offset: int
    """ms to be added to this device's clock to get the centre's time."""
