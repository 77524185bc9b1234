"""Writing exports: a file is written whole or not at all, and every failure is a typed one."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import zstandard

from memory.core.errors import NotFound, TargetError, UsageError
from memory.engine.files import LineSource, open_target

LINES = [b'{"n":%d,"text":"\xe5\xa4\x9c\xe8\x8e\xba"}\n' % number for number in range(2_000)]
SUFFIXES = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.zstd", ""]
UNCOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    "": bytes,
    ".jsonl.gz": gzip.decompress,
    ".jsonl.zst": lambda data: zstandard.ZstdDecompressor().stream_reader(data).read(),
    ".jsonl.zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(data).read(),
}


def write(target: str | Path | IO[bytes], lines: list[bytes] = LINES) -> None:
    with open_target(target) as stream:
        for line in lines:
            stream.write(line)


def write_and_fail(target: Path, error: BaseException) -> None:
    with open_target(target) as stream:
        stream.write(b"x" * 3_000_000)
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("as_text", [True, False])
def test_the_suffix_decides_the_compression_and_every_form_reads_back(
    tmp_path: Path, suffix: str, as_text: bool
) -> None:
    path = tmp_path / f"export{suffix}"
    write(str(path) if as_text else path)
    assert UNCOMPRESS[suffix](path.read_bytes()) == b"".join(LINES)
    assert list(LineSource(path).lines()) == LINES
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_content_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    write(first)
    write(second)
    assert first.read_bytes() == second.read_bytes()
    if suffix.endswith(".gz"):
        assert first.read_bytes()[4:8] == b"\0\0\0\0", "the header holds a time"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read_an_export(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        write(tmp_path / "export")
    assert stat.S_IMODE((tmp_path / "export").stat().st_mode) == 0o600


def test_an_existing_file_is_replaced_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_bytes(b"old")
    with open_target(path) as stream:
        stream.write(b"new" * 1_000_000)
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" * 1_000_000


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("error", [OSError(5, "I/O error"), NotFound(), KeyboardInterrupt(), GeneratorExit()])
def test_after_a_failure_in_the_middle_the_old_file_is_untouched_and_nothing_is_left(
    tmp_path: Path, suffix: str, existing: bool, error: BaseException
) -> None:
    path = tmp_path / f"export{suffix}"
    if existing:
        path.write_bytes(b"old")
    with pytest.raises(TargetError if isinstance(error, OSError) else type(error)):
        write_and_fail(path, error)
    assert names(tmp_path) == ([path.name] if existing else [])
    assert not existing or path.read_bytes() == b"old"


def test_a_directory_as_target_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(TargetError, match="folder") as caught:
        write(folder)
    assert caught.value.hint
    assert names(tmp_path) == ["folder"]
    assert names(folder) == []


def test_a_missing_directory_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="No such file or directory") as caught:
        write(tmp_path / "missing" / "export")
    assert str(tmp_path) in caught.value.message
    assert "another place" in caught.value.hint
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_file_where_a_directory_should_be_is_a_target_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(TargetError):
        write(tmp_path / "file" / "export")
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["", "x" * 300, "a\0b"], ids=["empty", "too long", "NUL"])
def test_a_name_that_no_file_can_have_is_a_target_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(TargetError):
        write(f"{tmp_path}/{name}" if name else "")
    assert names(tmp_path) == []


def test_a_name_as_long_as_a_name_can_be_is_written(tmp_path: Path) -> None:
    write(tmp_path / ("x" * 255))
    assert names(tmp_path) == ["x" * 255]


def test_two_exports_to_one_path_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "export"
    with open_target(path) as one:
        one.write(b"one " * 1_000_000)
        with open_target(path) as other:
            other.write(b"other")
        assert path.read_bytes() == b"other"
    assert path.read_bytes() == b"one " * 1_000_000


def test_a_named_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, [b"line\n"])
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert os.read(reader, 100) == b"line\n"
    finally:
        os.close(reader)


def test_a_link_that_stands_for_a_file_keeps_standing_for_it(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", [b"new"])
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()


# -- streams


@pytest.mark.parametrize("name", ["export.jsonl", "export.gz"])
def test_a_stream_gets_the_plain_lines_is_flushed_and_stays_open(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as stream:
        write(stream)
        assert (tmp_path / name).read_bytes() == b"".join(LINES)
        assert not stream.closed


@pytest.mark.parametrize(
    "target",
    [None, 5, b"path", ["path"], io.StringIO()],
    ids=lambda target: type(target).__name__,
)
def test_what_is_neither_path_nor_stream_is_refused(target: Any) -> None:
    with pytest.raises(UsageError, match="must be a path or a binary stream") as caught:
        write(target)
    assert type(target).__name__ in caught.value.message


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
@pytest.mark.parametrize("buffering", [0, 1 << 16])
def test_a_full_disk_behind_a_stream_is_a_target_error(buffering: int) -> None:
    stream = open("/dev/full", "wb", buffering=buffering)  # noqa: SIM115, PTH123  its close fails, too
    with pytest.raises(TargetError, match="No space left on device") as caught:
        write(stream)
    assert "space" in caught.value.hint
    if buffering:
        with pytest.raises(OSError, match="No space left"):
            stream.close()
    stream.close()


def test_a_reader_that_went_away_is_a_target_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as stream, pytest.raises(TargetError, match="Broken pipe"):  # noqa: PTH123
        write(stream)


# -- a disk that fills up

FULL_DISK = """
import random, resource, sys
from memory.core.errors import TargetError
from memory.engine.files import open_target

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with open_target(sys.argv[1]) as stream:
        for number in range(3_000):
            stream.write(random.Random(number).randbytes(1_000))
except TargetError as error:
    print(type(error.__cause__).__name__, "|", error)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_disk_that_fills_up_is_a_target_error_and_leaves_what_was_there(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"export{suffix}"
    path.write_bytes(b"old")
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.startswith(f"OSError | {path}: cannot be written (File too large)")
    assert run.stderr == ""
    assert names(tmp_path) == [path.name]
    assert path.read_bytes() == b"old"


def test_a_raw_stream_that_takes_a_little_at_a_time_gets_all() -> None:
    class Sipping(io.RawIOBase):
        def __init__(self) -> None:
            self.got = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.got += bytes(data[:3])
            return min(3, len(data))

    sipping = Sipping()
    with open_target(sipping) as stream:  # type: ignore[arg-type]  # a raw stream is a binary stream
        stream.write(b"0123456789")
    assert sipping.got == b"0123456789"


def test_a_closed_stream_is_a_target_error() -> None:
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(TargetError, match="closed"), open_target(closed):
        pass
