"""Files of exports: opened by path or stream, plain or compressed, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Self

import zstandard

from memory.core.errors import FileDamaged, FormatError, TargetError, UsageError
from memory.policies.limits import MAX_LINE_BYTES

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES: Final = 128 * 1024
_SPOOL_BYTES: Final = 16 * 1024 * 1024
_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError)


class LineSource:
    """A file that can be read line by line more than once; a stream is copied to a temporary file first."""

    def __init__(self, source: str | Path | IO[bytes]) -> None:
        self._path: Path | None = None
        self._spool: IO[bytes] | None = None
        if isinstance(source, str | Path):
            self._path = Path(source)
        elif hasattr(source, "read") and not _is_text(source):
            with _source_errors("the stream"):
                self._spool = _spooled(source)
        else:
            raise UsageError(f"source must be a path or a binary stream, not {type(source).__name__}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._spool is not None:
            self._spool.close()

    def lines(self) -> Iterator[bytes]:
        """Every line with its line feed, decompressed.

        Raises:
            FileDamaged: the compressed data are broken. FormatError: a line is too long, or the file cannot be read.
        """
        with _source_errors(self._path or "the stream"), self._open() as stream:
            number = 0
            while True:
                number += 1
                try:
                    line = stream.readline(MAX_LINE_BYTES + 1)
                except _DAMAGED as error:
                    raise FileDamaged(f"line {number}: cannot be decompressed ({error})", line=number) from error
                if len(line) > MAX_LINE_BYTES:
                    raise FormatError(f"line {number}: longer than {MAX_LINE_BYTES:,} bytes", line=number)
                if not line:
                    return
                yield line

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if self._spool is None:
            with self._path.open("rb") as raw:  # type: ignore[union-attr]  # either a path or a spool is set
                if raw.seekable():
                    with _decompressed(raw) as stream:
                        yield stream
                    return
                self._spool = _spooled(raw)  # a pipe can be read only once
        self._spool.seek(0)
        with _decompressed(self._spool) as stream:
            yield stream


def _is_text(stream: object) -> bool:
    return isinstance(stream, io.TextIOBase)


def _spooled(source: IO[bytes]) -> IO[bytes]:
    with contextlib.ExitStack() as unless_complete:
        spool = unless_complete.enter_context(tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES))
        shutil.copyfileobj(source, spool)
        unless_complete.pop_all()
        return spool


@contextlib.contextmanager
def _source_errors(name: object) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, a closed stream
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{name}: cannot be read ({reason})") from error


@contextlib.contextmanager
def _decompressed(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        with gzip.open(raw, "rb") as unzipped:
            yield unzipped  # type: ignore[misc]  # GzipFile has all of IO[bytes] that is used
    elif magic == _ZSTD_MAGIC:
        with io.BufferedReader(_ZstdReader(raw), 1 << 20) as buffered:
            yield buffered
    else:
        yield raw


class _ZstdReader(io.RawIOBase):
    """Decompresses frames one after the other; unlike the library's reader it notices that the last is cut."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            data = data or self._raw.read(_CHUNK_BYTES)
            if not data:
                if not self._frame.eof:
                    raise zstandard.ZstdError("the last frame is cut")
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


@contextlib.contextmanager
def open_target(target: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """A binary stream to write to.

    A path gets its content under a temporary name beside it, readable by the owner only, and is replaced when
    the block ends well; after an error nothing is left. A pipe or device is written to where it is. ``.gz`` and
    ``.zst`` compress. A stream is used as is.

    Raises:
        TargetError: the file cannot be written.
    """
    if not isinstance(target, str | Path):
        if not hasattr(target, "write") or _is_text(target):
            raise UsageError(f"target must be a path or a binary stream, not {type(target).__name__}")
        if getattr(target, "closed", False):
            raise TargetError("the stream: is closed", hint="pass an open binary stream")
        with _target_errors("the stream"):
            yield _Whole(target) if isinstance(target, io.RawIOBase) else target  # type: ignore[misc]  # only write is used
            target.flush()
        return
    suffix = Path(target).suffix
    with _target_errors(target):
        path = _resolved(target)
        written = path.open("wb") if path.exists() and not path.is_file() else _replacing(path)
        with written as raw, _compressed(raw, suffix) as stream:
            yield stream


class _Whole:
    """A raw stream may take less than it is given; this one goes on until it has taken all."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            taken = self._raw.write(rest)
            if not taken:
                raise BlockingIOError(errno.EAGAIN, "the stream would block")
            rest = rest[taken:]
        return len(data)


def _resolved(target: str | Path) -> Path:
    """The path behind links, so that the file is replaced and not the link."""
    try:
        return Path(os.path.realpath(target))
    except ValueError as error:
        raise OSError(str(error)) from error


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    # A name of its own for each export: two at once, also in two containers, must not write into one file.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".partial")
    partial = Path(name)
    try:
        with open(descriptor, "wb", buffering=1 << 20) as raw:  # noqa: PTH123  a descriptor, not a path
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _compressed(raw: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    if suffix == ".gz":
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, filename="", mtime=0) as zipped:
            yield zipped  # type: ignore[misc]  # GzipFile has all of IO[bytes] that is used
    elif suffix in (".zst", ".zstd"):
        with zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as writer:
            yield writer
    else:
        yield raw


@contextlib.contextmanager
def _target_errors(name: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "choose another place, or free some space; nothing was left behind"
        raise TargetError(
            f"{name}: cannot be written ({getattr(error, 'strerror', None) or error})", hint=hint
        ) from error
