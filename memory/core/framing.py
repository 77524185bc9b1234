"""The JSONL framing of a stream of records: a begin line, the records, an end line with count and hash.

A stream that was cut, altered or reordered has no valid end; readers refuse it whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from memory.core.errors import FileDamaged, FormatError, FormatTooNew

FORMAT: Final = "nightingale-memory"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The first line: what the stream holds, and from where a later one may continue."""

    created_at: int
    """ms UTC."""
    model: str
    """Name of the embedding model of the vectors."""
    dimension: int
    filters: Mapping[str, Any] = field(default_factory=dict)
    epoch: str = ""
    """Identity of the database's history; revisions of different epochs do not compare."""
    revisions: Mapping[str, int] = field(default_factory=dict)
    """Per user the revision up to which the stream is complete."""
    after: Mapping[str, Any] | None = None
    """Epoch and revisions that an incremental stream continues; None for a full one."""
    sync: Mapping[str, Any] | None = None
    """Of a stream between a replica and the centre: what it is (``core.sync``)."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class End:
    """The last line."""

    count: int
    sha256: str
    """Of the uncompressed bytes of the lines between begin and end, line feeds included. The end line also
    carries the hash of the begin line, as ``begin``, for readers that continue from its revisions."""


def encode_line(value: Mapping[str, Any]) -> bytes:
    """One JSON object and a line feed, UTF-8."""
    return _encode(value).encode() + b"\n"


def decode_line(line: bytes, number: int) -> dict[str, Any]:
    """Read one line; ``number`` counts from 1 and goes into the error.

    Raises:
        FormatError: not a JSON object.
    """
    try:
        value = _decode(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"line {number}: not valid JSON ({error})", line=number) from None
    if not isinstance(value, dict):
        raise FormatError(f"line {number}: not a JSON object", line=number)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def frame(begin: Begin, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Wrap encoded record lines; yields every line of the stream."""
    fields = {name: getattr(begin, name) for name in Begin.__dataclass_fields__}
    if begin.sync is None:
        del fields["sync"]
    first = encode_line({"kind": "begin", "format": FORMAT, **fields})
    yield first
    digest, count = hashlib.sha256(), 0
    for line in lines:
        digest.update(line)
        count += 1
        yield line
    yield encode_line({"kind": "end", "count": count, "sha256": digest.hexdigest(), "begin": _sha256(first)})


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def is_begin(line: bytes) -> bool:
    """Whether a file that starts with this line is framed."""
    try:
        return decode_line(line, 1).get("kind") == "begin"
    except FormatError:
        return False


def decode_begin(line: bytes) -> Begin:
    """Read the first line.

    Raises:
        FormatError: some other format. FormatTooNew: a later version of ours.
    """
    data = decode_line(line, 1)
    if data.get("kind") != "begin" or data.get("format") != FORMAT:
        raise FormatError(f"line 1: not the beginning of a {FORMAT} file", line=1)
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise FormatError(f"line 1: version {version!r:.40} makes no sense", line=1)
    if version > VERSION:
        raise FormatTooNew(
            f"the file has format version {version}, this program reads up to {VERSION}", version=version
        )
    known = {name: data[name] for name in Begin.__dataclass_fields__ if name in data}
    begin = Begin(**{"created_at": 0, "model": "", "dimension": 0, **known})
    _check_begin(begin)
    return begin


_BEGIN_TYPES: Final = {"created_at": int, "model": str, "dimension": int, "filters": Mapping, "epoch": str}


def _check_begin(begin: Begin) -> None:
    after: object = begin.after
    valid = (
        all(isinstance(getattr(begin, name), kind) for name, kind in _BEGIN_TYPES.items())
        and _is_revisions(begin.revisions)
        and (after is None or (isinstance(after, Mapping) and _is_revisions(after.get("revisions"))))
        and isinstance(begin.sync, Mapping | None)
    )
    if not valid:
        raise FormatError("line 1: the begin line has fields of the wrong type", line=1)


def _is_revisions(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(rev, int) for rev in value.values())


# Made once: a stream has many lines.
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_decode: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


def verify(lines: Iterable[bytes]) -> tuple[Begin, End]:
    """Read a whole framed stream and check it, decoding only its first and last line.

    Raises:
        FileDamaged: no end line, bytes after it, or count or hash differ.
    """
    iterator = iter(lines)
    first = next(iterator, b"")
    begin = decode_begin(first)
    digest, count, number = hashlib.sha256(), 0, 1
    held: bytes | None = None
    for line in iterator:
        number += 1
        if held is not None:
            if held.startswith(b'{"kind":"end"'):
                raise FileDamaged(
                    f"line {number}: data after the end line",
                    hint="import joined files one by one",
                    line=number,
                )
            digest.update(held)
            count += 1
        held = line
    if held is None or not held.startswith(b'{"kind":"end"') or not held.endswith(b"\n"):
        raise FileDamaged("the file is cut: it has no end line", line=number)
    end = decode_line(held, number)
    if end.get("count") != count:
        raise FileDamaged(f"the end line counts {end.get('count')!r:.40} records, the file holds {count}")
    if end.get("sha256") != digest.hexdigest():
        raise FileDamaged("the records do not have the hash that the end line names")
    if end.get("begin", expected := _sha256(first)) != expected:
        raise FileDamaged("the begin line does not have the hash that the end line names", line=1)
    return begin, End(count, digest.hexdigest())
