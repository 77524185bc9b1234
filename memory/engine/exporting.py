"""Export: a consistent snapshot of a store as one framed stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from memory.core.errors import FormatError, Refused
from memory.core.framing import Begin, encode_line, frame, is_begin, verify
from memory.core.model import ExportReport, Status
from memory.core.ports import Clock
from memory.engine.files import LineSource, open_target
from memory.engine.storage import Scope, Snapshot, Storage
from memory.policies import normalise


class Exporter:
    """Writes one export."""

    def __init__(self, storage: Storage, model: str, clock: Clock) -> None:
        self._storage, self._model, self._clock = storage, model, clock
        self._memories = self._deletions = 0

    def run(
        self,
        target: str | Path | IO[bytes],
        *,
        user_id: str | None,
        created_from: Any,
        created_to: Any,
        statuses: Sequence[str],
        tags: Sequence[str],
        after: str | Path | IO[bytes] | None,
    ) -> ExportReport:
        """See ``MemoryProvider.export_memories``."""
        scope = Scope(
            user_id=None if user_id is None else normalise.identifier(user_id, "user_id"),
            created_from=None if created_from is None else normalise.timestamp(created_from, "created_from"),
            created_to=None if created_to is None else normalise.timestamp(created_to, "created_to"),
            statuses=tuple(normalise.choice(status, "statuses", Status) for status in _list(statuses)),
            tags=tuple(sorted(normalise.tags(tags, "tags"))),
        )
        base = None if after is None else _base(after, scope)
        if base is not None:
            scope = _continuing(scope, base)
        with self._storage.snapshot(scope) as snapshot:
            if base is not None and base.epoch != snapshot.epoch:
                raise Refused("`after` was exported from another history of this database", hint="make a full export")
            if base is not None and _is_ahead(base, snapshot, scope):
                raise Refused(
                    "`after` knows later changes than this database has: it was restored to an earlier time",
                    hint="make a full export",
                )
            return self._write(target, scope, snapshot, base)

    def _write(
        self, target: str | Path | IO[bytes], scope: Scope, snapshot: Snapshot, base: Begin | None
    ) -> ExportReport:
        begin = Begin(
            created_at=self._clock.now(),
            model=self._model,
            dimension=self._storage.dimension,
            filters=_filters(scope),
            epoch=snapshot.epoch,
            revisions=snapshot.revisions if scope.complete else {},
            after=None if base is None else {"epoch": base.epoch, "revisions": dict(base.revisions)},
        )
        size = 0
        last = b""
        with open_target(target) as stream:
            for line in frame(begin, self._lines(snapshot.records)):
                stream.write(line)
                size += len(line)
                last = line
        return ExportReport(
            memories=self._memories,
            deletions=self._deletions,
            bytes=size,
            sha256=last.split(b'"sha256":"')[1][:64].decode("ascii"),
            incremental=base is not None,
        )

    def _lines(self, records: Iterator[Mapping[str, Any]]) -> Iterator[bytes]:
        for record in records:
            if "content" in record:
                self._memories += 1
            else:
                self._deletions += 1
            yield encode_line(record)


def _list(value: Sequence[str] | None) -> Sequence[str]:
    return [value] if isinstance(value, str) else value or ()


def _base(after: str | Path | IO[bytes], scope: Scope) -> Begin:
    if not scope.complete:
        raise Refused(
            "`after` cannot be combined with times, statuses or tags: a memory that no longer matches would be missed",
            hint="leave the filters out, or make a full export with them",
        )
    with LineSource(after) as source:
        first = next(source.lines(), b"")
        if not is_begin(first):
            raise FormatError("`after` is not an export of ours: it has no begin line")
        begin, _ = verify(source.lines())
    filters = dict(begin.filters)
    covered = filters.pop("user_id", None)
    if filters:
        raise Refused("`after` was filtered, so it cannot be continued", hint="make a full export")
    if covered is not None and covered != scope.user_id:
        raise Refused("`after` covers another user", hint="name the user it was made for, or make a full export")
    return begin


def _continuing(scope: Scope, base: Begin) -> Scope:
    revisions = dict(base.revisions)
    if scope.user_id is not None:
        revisions = {scope.user_id: revisions.get(scope.user_id, 0)}
    return Scope(user_id=scope.user_id, after=revisions)


def _is_ahead(base: Begin, snapshot: Snapshot, scope: Scope) -> bool:
    return any(
        rev > snapshot.revisions.get(user_id, 0)
        for user_id, rev in base.revisions.items()
        if scope.user_id in (None, user_id)
    )


def _filters(scope: Scope) -> dict[str, Any]:
    given = {
        "user_id": scope.user_id,
        "created_from": scope.created_from,
        "created_to": scope.created_to,
        "statuses": list(scope.statuses),
        "tags": list(scope.tags),
    }
    return {name: value for name, value in given.items() if value not in (None, [])}
