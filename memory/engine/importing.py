"""Import: records of a file, merged page by page, each page one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Final

import numpy as np

from memory.core.errors import FormatError, InvalidValue
from memory.core.framing import decode_line, is_begin, verify
from memory.core.model import ImportReport, RejectedLine
from memory.core.ports import Clock, Embedder, Vector
from memory.core.record import KIND, Record, decode_record
from memory.core.text import document_terms
from memory.engine.embedding import embed_documents
from memory.engine.files import LineSource
from memory.engine.storage import Incoming, Outcome, Pending, Storage
from memory.policies import normalise
from memory.policies.records import admit_record

PAGE: Final = 1_000
PAGE_BYTES: Final = 8 * 1024 * 1024
MAX_NAMED_REJECTIONS: Final = 1_000
Progress = Callable[[int, int], None]


class Importer:
    """Carries out one import."""

    def __init__(self, storage: Storage, embedder: Embedder, clock: Clock) -> None:
        self._storage, self._embedder, self._clock = storage, embedder, clock
        self._counts = dict.fromkeys(("created", "merged", "unchanged", "reembedded", "deferred", "rejected"), 0)
        self._rejected: list[RejectedLine] = []

    def run(self, source: str | Path | IO[bytes], *, user_id: str | None, progress: Progress | None) -> ImportReport:
        """See ``MemoryProvider.import_memories``."""
        only = None if user_id is None else normalise.identifier(user_id, "user_id")
        with LineSource(source) as file:
            framed, total = _inspect(file)
            done = 0
            for page in _pages(_records(file, framed=framed)):
                self._take(page, only)
                done += len(page)
                if progress is not None:
                    progress(done, total)
        counts = dict(self._counts)
        return ImportReport(rejected=tuple(self._rejected), rejected_count=counts.pop("rejected"), **counts)

    def _take(self, page: Sequence[tuple[int, bytes]], only: str | None) -> None:
        incoming = [item for number, line in page if (item := self._admit(number, line, only)) is not None]
        if not incoming:
            return
        outcomes = self._storage.merge(incoming)
        for outcome in outcomes:
            self._counts[outcome.verdict] += 1
        self._embed(incoming, outcomes)

    def _admit(self, number: int, line: bytes, only: str | None) -> Incoming | None:
        memory_id = None
        try:
            data = decode_line(line, number)
            if data.get("kind", KIND) != KIND:
                raise FormatError(f"kind {data['kind']!r:.40} is not known to this version")
            memory_id = data.get("memory_id") if isinstance(data.get("memory_id"), str) else None
            record = decode_record(data)
            admitted = admit_record(record, now=self._clock.now())
            if only is not None and admitted.user_id != only:
                raise InvalidValue("user_id", "the record is another user's", hint="import without user_id")
        except (FormatError, InvalidValue) as error:
            self._reject(RejectedLine(number, error.message, error.hint, memory_id))
            return None
        live = admitted.state.deleted is None
        content = admitted.state.value("content")
        return Incoming(
            memory_id=admitted.memory_id,
            user_id=admitted.user_id,
            state=admitted.state,
            terms=document_terms(content) if live else None,
            # Normalisation may have changed the text; its vector then belongs to another one.
            vector=usable_vector(record, self._embedder.name, self._storage.dimension)
            if live and content == record.state.value("content")
            else None,
        )

    def _embed(self, incoming: Sequence[Incoming], outcomes: Sequence[Outcome]) -> None:
        """Embed what is live without a vector now. It is marked in the store, so a crash here loses nothing."""
        waiting = [
            Pending(item.user_id, item.memory_id, str(item.state.value("content")))
            for item, outcome in zip(incoming, outcomes, strict=True)
            if outcome.deferred
        ]
        results = embed_documents(self._embedder, [item.content for item in waiting], self._storage.dimension)
        ready = [(w, r.vector) for w, r in zip(waiting, results, strict=True) if r.vector is not None]
        stored = self._storage.put_vectors(ready) if ready else 0
        self._counts["reembedded"] += stored
        self._counts["deferred"] += len(waiting) - stored

    def _reject(self, line: RejectedLine) -> None:
        self._counts["rejected"] += 1
        if len(self._rejected) < MAX_NAMED_REJECTIONS:
            self._rejected.append(line)


def usable_vector(record: Record, model: str, dimension: int) -> Vector | None:
    """The record's vector if it is one of this model: same name, same dimension, finite, not zero."""
    vector = record.vector
    if vector is None or record.model != model or vector.shape != (dimension,):
        return None
    # Not a dot product: waking the threads of a linear algebra library takes longer than so short a sum.
    length = float(np.sqrt(np.square(vector.astype(np.float64)).sum()))
    if not np.isfinite(length) or length == 0.0:
        return None
    return vector if abs(length - 1.0) < 1e-3 else (vector / length).astype(np.float32)


def _inspect(file: LineSource) -> tuple[bool, int]:
    """Whether the file is framed, and how many records it holds. Checks all of a framed file."""
    first = next(file.lines(), b"")
    if not first:
        raise FormatError("the file is empty", hint="an export has at least a begin and an end line")
    if is_begin(first):
        _, end = verify(file.lines())
        return True, end.count
    data = decode_line(first, 1)
    if "stamps" in data or data.get("kind") is not None:
        raise FormatError("line 1: the begin line is missing: the file is cut at its start")
    if "content" not in data and data.get("status") != "deleted":
        raise FormatError("line 1: neither a begin line nor a memory", hint="export files start with a begin line")
    return False, sum(1 for _ in file.lines())


def _records(file: LineSource, *, framed: bool) -> Iterator[tuple[int, bytes]]:
    """Numbered record lines; blank lines of plain files are passed over."""
    for number, line in enumerate(file.lines(), start=1):
        if framed and (number == 1 or line.startswith(b'{"kind":"end"')):
            continue
        if line.strip():
            yield number, line


def _pages(records: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Pages bounded by number and bytes."""
    while page := list(islice(records, 1)):
        size = len(page[0][1])
        while len(page) < PAGE and size < PAGE_BYTES and (following := next(records, None)) is not None:
            page.append(following)
            size += len(following[1])
        yield page
