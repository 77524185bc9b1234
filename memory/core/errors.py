"""The error tree: every failure a caller can meet, as a type.

The first line of a class docstring is its default message. Facts travel as fields, never inside prose
to be parsed; ``hint`` says what to do next and ``retryable`` whether trying the same call again can help.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Error(Exception):
    """Something went wrong in the memory layer."""

    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str = "", *, hint: str = "", **fields: Any) -> None:
        self.message = message or (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        self.hint = hint or self.default_hint
        self.fields = fields
        super().__init__(self.message)

    def __getattr__(self, name: str) -> Any:
        # Fields read as attributes (`error.line`); __getattr__ only runs when ordinary lookup failed.
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles are made of what the constructors set: subclasses take other arguments.
        return _revived, (type(self), self.message), self.__dict__

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def _revived(kind: type[Error], message: str) -> Error:
    return kind.__new__(kind, message)


class UsageError(Error):
    """The call cannot be carried out as it is written."""


class InvalidValue(UsageError):
    """A value is not acceptable; ``field`` names it."""

    def __init__(self, field: str, problem: str, *, hint: str = "", **fields: Any) -> None:
        super().__init__(f"{field}: {problem}", hint=hint, field=field, problem=problem, **fields)


class ConfigError(UsageError):
    """A setting is missing, unknown or contradicts another one."""


class Unsupported(Error):
    """Not possible with this provider, platform or installation."""


class NotFound(Error):
    """No such memory for this user."""


class Conflict(Error):
    """The memory has changed since the version you read."""

    default_hint = "read the memory again and repeat the change on its current version"


class Refused(Error):
    """The request is understood and not allowed."""


class StoreError(Error):
    """The database failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached."""

    retryable = True
    default_hint = "check that the server runs and that the database URL is right, then try again"


class StoreBusy(StoreUnavailable):
    """The database gave this transaction up in favour of another one."""

    default_hint = "repeat the call; nothing of it was written"


class StoreTimeout(StoreUnavailable):
    """The database did not answer in time."""

    default_hint = "try again; if it persists, raise the pool size or look for long-running transactions"


class StoreDenied(StoreError):
    """The database server refuses this connection."""

    default_hint = "check user, password and database name in the database URL"


class StoreReadOnly(StoreError):
    """The database accepts no writes."""

    default_hint = "connect to the primary server, with a role that may write"


class StoreFull(StoreError):
    """There is no space left to write to."""

    default_hint = "free some disk space and repeat the call; nothing was half-written"


class StoreInUse(StoreError):
    """Another process owns this directory; ``pid`` names it."""

    retryable = True
    default_hint = "end that process, or talk to it instead of opening its directory"


class VectorIndexUnavailable(StoreUnavailable):
    """The vector index does not answer; vectors are compared one by one meanwhile."""

    default_hint = "start the Qdrant server, or check qdrant_url; nothing is lost, the index catches up by itself"


class VectorIndexDamaged(StoreError):
    """The vector index cannot be read or is of another model; it is made anew from the stored vectors."""


class SchemaMismatch(StoreError):
    """The database schema is not the one this program works with."""


class IntegrityFailure(StoreError):
    """Stored data contradict each other."""

    default_hint = "run `memory doctor`"


class EmbeddingError(Error):
    """The embedding model failed."""


class EmbeddingUnavailable(EmbeddingError):
    """The embedding service cannot be reached or refuses to answer for now."""

    retryable = True


class EmbeddingRejected(EmbeddingError):
    """The embedding service refused the request for good."""


class EmbeddingInvalid(EmbeddingError):
    """The embedding model returned something that is not a usable vector."""


class ModelMismatch(EmbeddingError):
    """The database holds vectors of another embedding model."""


class FormatError(Error):
    """A record or an export file cannot be read."""


class FormatTooNew(FormatError):
    """The file was written in a newer format than this program reads."""

    default_hint = "upgrade nightingale-memory on this machine"


class FileDamaged(FormatError):
    """The file is cut, altered or out of order."""

    default_hint = "export again, or copy the file again from its source"


class TargetError(Error):
    """The export file cannot be written."""


class SyncError(Error):
    """Replica and centre could not be brought together."""


class ProtocolMismatch(SyncError):
    """Replica and centre speak different versions of the sync protocol."""

    default_hint = "upgrade the older of the two; the replica works on locally, and nothing is lost"


class DeviceRevoked(SyncError):
    """The centre no longer admits this device."""

    default_hint = "the user's memories are removed from this device; to use it again, register it anew"


class EpochChanged(SyncError):
    """The centre's history is another than the replica knows: it was restored."""

    retryable = True
    default_hint = "sync again: the replica compares everything first"


class ClockAhead(SyncError):
    """Stamps lie in the future of the centre: the clock of the device runs ahead; ``now`` is the centre's time."""

    retryable = True
    default_hint = "set the clock of the device; what has not been accepted gets new stamps by itself"


class SyncInterrupted(SyncError):
    """The provider was closed during the sync."""

    retryable = True
    default_hint = "the next sync goes on where this one was"


class SyncIncomplete(SyncError):
    """Replica and centre still differ after comparing everything."""

    default_hint = "run `memory doctor` on both; nothing is lost meanwhile"
