"""Text for people: coloured and aligned on a terminal, plain and unwrapped everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import IO, Final, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

# A stored text must not move the cursor or change the title of whoever reads it in a terminal.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))}
_SHOWN: Final = {code: shown for code, shown in _CONTROLS.items() if chr(code) not in "\n\t"}

Part = str | tuple[str, str]
"""Text, or text with a rich style."""


def visible(text: str) -> str:
    """Text whose control characters, line feeds and tabs aside, are spelt out."""
    return text.translate(_SHOWN)


def one_line(text: str) -> str:
    """Text on a single line."""
    return visible(" ".join(text.split()))


def moment(ms: int | None) -> str:
    """A time in UTC to the minute."""
    if ms is None:
        return "never"
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%MZ")


def bytes_text(size: int) -> str:
    """A size in the largest unit that leaves a whole number before the point."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


class Screen:
    """Where text goes."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._console = Console(file=stream, markup=False, highlight=False, emoji=False)
        self.is_terminal = self._console.is_terminal
        self.width = self._console.width

    def line(self, *parts: Part) -> None:
        """Print a line."""
        text = Text.assemble(*((visible(p), "") if isinstance(p, str) else (visible(p[0]), p[1]) for p in parts))
        if self.is_terminal:
            self._console.print(text)
        else:
            self._stream.write(text.plain + "\n")

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]], *, wide: int) -> None:
        """Print rows.

        On a terminal they are aligned; column ``wide`` is folded into the room that is left, and no other
        is cut. Elsewhere cells are separated by tabs.
        """
        if not self.is_terminal:
            for row in (headers, *rows):
                self._stream.write("\t".join(one_line(cell) for cell in row) + "\n")
            return
        cells = [[Text(one_line(cell)) for cell in row] for row in rows]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for position, header in enumerate(headers):
            fold = position == wide
            widest = max([cell_len(header), *(row[position].cell_len for row in cells)])
            table.add_column(header, no_wrap=not fold, overflow="fold", min_width=20 if fold else widest)
        for texts in cells:
            table.add_row(*texts)
        self._console.print(table)


class Advance(Protocol):
    """What providers call as work goes on."""

    def __call__(self, done: int, total: int, /) -> None:
        """``done`` of ``total``."""


def progress(label: str, *, shown: bool) -> AbstractContextManager[Advance]:
    """A progress bar on stderr, if that is a terminal and it is wanted at all."""
    if shown and sys.stderr.isatty():
        return _Bar(label)
    return nullcontext(lambda _done, _total: None)


class _Bar(AbstractContextManager[Advance]):
    def __init__(self, label: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(label, total=None)

    def __enter__(self) -> Advance:
        self._bar.start()
        return lambda done, total: self._bar.update(self._task, completed=done, total=total)

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()
