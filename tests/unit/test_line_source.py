"""Reading exports: by path or stream, plain or compressed, recognised by content, more than once."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from memory.core.errors import FileDamaged, FormatError, UsageError
from memory.core.framing import Begin, frame, verify
from memory.engine.files import LineSource
from memory.policies import limits

LINES = [b'{"n":%d,"text":"\xe5\xa4\x9c\xe8\x8e\xba %d"}\n' % (number, number * 7919) for number in range(5_000)]
PLAIN = b"".join(LINES)
HALVES = b"".join(LINES[:2_500]), b"".join(LINES[2_500:])


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_of_unknown_size(data: bytes) -> bytes:
    packed = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as writer:
        writer.write(data)
    return packed.getvalue()


FORMS = {
    "plain": PLAIN,
    "gzip": gzip.compress(PLAIN),
    "gzip of two members": gzip.compress(HALVES[0]) + gzip.compress(HALVES[1]),
    "zstd": zstd(PLAIN),
    "zstd of unknown size": zstd_of_unknown_size(PLAIN),
    "zstd of two frames": zstd(HALVES[0]) + zstd(HALVES[1]),
}


def lines(source: Any) -> list[bytes]:
    with LineSource(source) as file:
        return list(file.lines())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["export", "export.jsonl", "export.gz", "export.zst"])
def test_a_file_is_recognised_by_its_content_whatever_its_name(tmp_path: Path, form: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(FORMS[form])
    assert lines(path) == lines(str(path)) == LINES


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_is_read_like_a_file(form: str) -> None:
    assert lines(io.BytesIO(FORMS[form])) == LINES


@pytest.mark.parametrize("form", FORMS)
def test_a_source_can_be_read_more_than_once_and_left_in_the_middle(tmp_path: Path, form: str) -> None:
    path = tmp_path / "export"
    path.write_bytes(FORMS[form])
    for source in (path, io.BytesIO(FORMS[form])):
        with LineSource(source) as file:
            assert next(file.lines()) == LINES[0]
            assert list(file.lines()) == LINES
            assert list(file.lines()) == LINES


def test_a_stream_that_cannot_go_back_can_be_read_more_than_once() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\nb\n")
    os.close(writing)
    with open(reading, "rb", buffering=0) as pipe, LineSource(pipe) as file:  # noqa: PTH123  a descriptor
        assert list(file.lines()) == list(file.lines()) == [b"a\n", b"b\n"]
        assert not pipe.closed


def test_a_stream_is_read_from_where_it_stands() -> None:
    stream = io.BytesIO(b"skip\nkeep\n")
    stream.readline()
    assert lines(stream) == [b"keep\n"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b"\n"]),
        (b"a", [b"a"]),
        (b"a\nb", [b"a\n", b"b"]),
        (b"a\r\nb\rc\n", [b"a\r\n", b"b\rc\n"]),
        (b"a\xe2\x80\xa8b\n\x0b\x0c\n", [b"a\xe2\x80\xa8b\n", b"\x0b\x0c\n"]),
        (b"\x1f\n", [b"\x1f\n"]),
        (b"(\xb5/\n", [b"(\xb5/\n"]),
        (gzip.compress(b""), []),
        (zstd(b""), []),
    ],
)
def test_only_line_feeds_end_a_line(data: bytes, expected: list[bytes]) -> None:
    assert lines(io.BytesIO(data)) == expected


# -- what cannot be read


@pytest.mark.parametrize("share", [0.0002, 0.001, 0.3, 0.7, 0.9999])
def test_a_cut_gzip_file_is_damaged(share: float) -> None:
    whole = FORMS["gzip"]
    with pytest.raises(FileDamaged, match="cannot be decompressed") as caught:
        lines(io.BytesIO(whole[: round(len(whole) * share)]))
    assert "copy the file again" in caught.value.hint


@pytest.mark.parametrize("packed", [gzip.compress, zstd, zstd_of_unknown_size])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.9999])
def test_a_cut_compressed_export_is_refused(packed: Callable[[bytes], bytes], share: float) -> None:
    begin = Begin(created_at=1, model="m", dimension=2)
    whole = packed(b"".join(frame(begin, LINES)))
    with pytest.raises(FormatError):
        verify(lines(io.BytesIO(whole[: round(len(whole) * share)])))
    assert verify(lines(io.BytesIO(whole)))[1].count == len(LINES)


@pytest.mark.parametrize("form", ["gzip", "zstd"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_flipped_bits_in_a_compressed_file_are_damage_or_at_least_never_pass_for_the_same(
    form: str, share: float
) -> None:
    data = bytearray(FORMS[form])
    for offset in range(round(len(data) * share), round(len(data) * share) + 64):
        data[offset] ^= 0xFF
    try:
        read = lines(io.BytesIO(bytes(data)))
    except FileDamaged:
        return
    assert read != LINES


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_damaged_compressed_file_names_the_line(form: str) -> None:
    with pytest.raises(FileDamaged) as caught:
        lines(io.BytesIO(FORMS[form] + b"garbage after the end"))
    assert caught.value.message.startswith(f"line {caught.value.line}: ")
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize("magic", [b"\x1f\x8b", b"\x1f\x8b\x08", b"\x1f\x8b text\n", b"\x28\xb5\x2f\xfdtext\n" * 9])
def test_what_only_begins_like_a_compressed_file_is_damaged(magic: bytes) -> None:
    with pytest.raises(FileDamaged):
        lines(io.BytesIO(magic))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file or directory") as caught:
        lines(tmp_path / "missing.jsonl")
    assert "missing.jsonl" in caught.value.message


def test_a_directory_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="Is a directory"):
        lines(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a file")
def test_a_file_that_opens_and_cannot_be_read_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        lines("/proc/self/mem")


def test_a_name_that_no_file_can_have_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        lines("a\0b")


def test_a_named_pipe_can_be_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=[b"a\nb\n"], daemon=True).start()
    with LineSource(pipe) as file:
        assert list(file.lines()) == [b"a\n", b"b\n"]
        assert list(file.lines()) == [b"a\n", b"b\n"]


@pytest.mark.parametrize("source", [None, 5, b"path", ["path"], object()])
def test_what_is_neither_path_nor_stream_is_refused(source: Any) -> None:
    with pytest.raises(UsageError, match="must be a path or a binary stream"):
        LineSource(source)


def test_a_text_stream_is_refused() -> None:
    with pytest.raises(UsageError, match="must be a path or a binary stream"):
        lines(io.StringIO("text"))


# -- long lines


def test_a_line_of_the_largest_size_is_read() -> None:
    data = b"x" * (limits.MAX_LINE_BYTES - 1) + b"\n"
    assert lines(io.BytesIO(zstd(data))) == [data]


def test_a_longer_line_is_refused_before_it_fills_the_memory() -> None:
    data = b"short\n" + b"x" * (2 * limits.MAX_LINE_BYTES)
    with pytest.raises(FormatError, match="line 2: longer than 67,108,864 bytes") as caught:
        lines(io.BytesIO(zstd(data)))
    assert caught.value.line == 2
