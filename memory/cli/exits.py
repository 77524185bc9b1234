"""Exit codes: the one table, from which the help is made too."""

from __future__ import annotations

import enum
from typing import Final

from memory.core.errors import (
    Conflict,
    DeviceRevoked,
    EmbeddingError,
    Error,
    FormatError,
    ModelMismatch,
    NotFound,
    ProtocolMismatch,
    Refused,
    SchemaMismatch,
    StoreError,
    StoreInUse,
    StoreUnavailable,
    SyncError,
    TargetError,
    Unsupported,
    UsageError,
)


class ExitCode(enum.IntEnum):
    """What the process ends with."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    MISMATCH = 6
    FILE = 7
    REFUSED = 8
    EMBEDDING = 9
    REJECTED = 10
    PROBLEMS = 11
    STORE = 12
    SYNC = 13
    INTERRUPTED = 130
    CLOSED_PIPE = 141


MEANINGS: Final = {
    ExitCode.OK: "done",
    ExitCode.UNEXPECTED: "a step of quickstart failed, or an error in this program",
    ExitCode.USAGE: "wrong use: an option, a value or a setting",
    ExitCode.NOT_FOUND: "no such memory of this user",
    ExitCode.CONFLICT: "the memory has changed since, or its id is taken",
    ExitCode.UNAVAILABLE: "the database does not answer, or another program has the replica open (retry)",
    ExitCode.MISMATCH: "the database has another schema or embedding model",
    ExitCode.FILE: "a file cannot be read, is damaged, or cannot be written",
    ExitCode.REFUSED: "refused, or not supported here",
    ExitCode.EMBEDDING: "the embedding model failed",
    ExitCode.REJECTED: "imported, but some records were rejected",
    ExitCode.PROBLEMS: "doctor found problems that are not repaired",
    ExitCode.STORE: "the database failed: read-only, full, or contradictory",
    ExitCode.SYNC: "replica and centre could not be brought together",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
    ExitCode.CLOSED_PIPE: "the reader of the output went away",
}

# The most telling class first.
_BY_ERROR: Final[tuple[tuple[type[Error], ExitCode], ...]] = (
    (UsageError, ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    (Conflict, ExitCode.CONFLICT),
    (StoreUnavailable, ExitCode.UNAVAILABLE),
    (StoreInUse, ExitCode.UNAVAILABLE),
    (SchemaMismatch, ExitCode.MISMATCH),
    (ModelMismatch, ExitCode.MISMATCH),
    (FormatError, ExitCode.FILE),
    (TargetError, ExitCode.FILE),
    (ProtocolMismatch, ExitCode.MISMATCH),
    (DeviceRevoked, ExitCode.REFUSED),
    (SyncError, ExitCode.SYNC),
    (Refused, ExitCode.REFUSED),
    (Unsupported, ExitCode.REFUSED),
    (EmbeddingError, ExitCode.EMBEDDING),
    (StoreError, ExitCode.STORE),
)


def exit_code(error: Error) -> ExitCode:
    """The code for an error of ours."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.UNEXPECTED)


def table() -> str:
    """The table for the help."""
    return "\n".join(["Exit codes:", *(f"{code:4}  {meaning}" for code, meaning in MEANINGS.items())])
