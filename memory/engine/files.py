"""Files of exports: opened by path or stream, plain or compressed, written whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Self

import zstandard

from memory.core.errors import FileDamaged, FormatError, TargetError, UsageError
from memory.policies.limits import MAX_LINE_BYTES

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SPOOL_BYTES: Final = 16 * 1024 * 1024
_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError)


class LineSource:
    """A file that can be read line by line more than once; a stream is copied to a temporary file first."""

    def __init__(self, source: str | Path | IO[bytes]) -> None:
        self._path: Path | None = None
        self._spool: IO[bytes] | None = None
        if isinstance(source, str | Path):
            self._path = Path(source)
        elif hasattr(source, "read"):
            self._spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115  closed by close()
            shutil.copyfileobj(source, self._spool)
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
            FileDamaged: the compressed data are broken. FormatError: a line is too long, or no such file.
        """
        with self._open() as stream:
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
        if self._spool is not None:
            self._spool.seek(0)
            with _decompressed(self._spool) as stream:
                yield stream
            return
        try:
            raw = self._path.open("rb")  # type: ignore[union-attr]  # either a path or a spool is set
        except OSError as error:
            raise FormatError(f"{self._path}: cannot be read ({error.strerror})") from error
        with raw, _decompressed(raw) as stream:
            yield stream


@contextlib.contextmanager
def _decompressed(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        with gzip.open(raw, "rb") as unzipped:
            yield unzipped  # type: ignore[misc]  # GzipFile has all of IO[bytes] that is used
    elif magic == _ZSTD_MAGIC:
        reader = zstandard.ZstdDecompressor().stream_reader(raw, closefd=False, read_across_frames=True)
        with io.BufferedReader(reader, 1 << 20) as buffered:
            yield buffered
    else:
        yield raw


@contextlib.contextmanager
def open_target(target: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """A binary stream to write to.

    A path gets its content under a temporary name beside it, readable by the owner only, and is replaced when
    the block ends well; after an error nothing is left. ``.gz`` and ``.zst`` compress. A stream is used as is.

    Raises:
        TargetError: the file cannot be written.
    """
    if not isinstance(target, str | Path):
        if not hasattr(target, "write"):
            raise UsageError(f"target must be a path or a binary stream, not {type(target).__name__}")
        with _target_errors("the stream"):
            yield target
            target.flush()
        return
    path = Path(target)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with _target_errors(path):
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb", buffering=1 << 20) as raw:  # noqa: PTH123  a descriptor, not a path
                with _compressed(raw, path.suffix) as stream:
                    yield stream
                raw.flush()
                os.fsync(raw.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


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
        raise TargetError(f"{name}: cannot be written ({error.strerror or error})", hint=hint) from error
