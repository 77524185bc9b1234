"""What can happen to a stream on its way, line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.integration.sync.devices import USER

RECORDS_IN_PAGE = 20
Change = Callable[[list[bytes]], Sequence[bytes]]


def cut_at(stream: bytes, cut: int) -> Change:
    return lambda _lines: stream[:cut].splitlines(keepends=True)


def shuffled(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def doubled(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[2], *lines[3:]]


def thinned(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], *lines[4:]]


def altered(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[3].replace(b"memory 2", b"memory 9"), *lines[4:]]


def begun_elsewhere(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(f'"{USER}":'.encode(), b'"x":'), *lines[1:]]


def continued(lines: list[bytes]) -> list[bytes]:
    return [*lines, *lines[1:2]]


def joined(lines: list[bytes]) -> list[bytes]:
    return [*lines, *lines]


def headless(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def noise(_lines: list[bytes]) -> list[bytes]:
    return [b"<html>502 Bad Gateway</html>\n"]


def silence(_lines: list[bytes]) -> list[bytes]:
    return []
