"""Export and import."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from memory.cli.commanding import command
from memory.cli.exits import ExitCode
from memory.cli.options import STDIN, TIME, AnyUser, time_value
from memory.cli.screen import Screen, bytes_text, progress
from memory.cli.session import Session
from memory.core.model import ExportReport, ImportReport, Status

PANEL = "Moving memories"
SHOWN_REJECTIONS: Final = 20


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "export", panel=PANEL)(export)
    command(app, "import", panel=PANEL)(import_)


def export(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Where to; .gz and .zst compress, - is stdout.", show_default=False),
    ],
    *,
    user: AnyUser = None,
    status: Annotated[list[Status] | None, typer.Option("--status", help="Repeatable; all without it.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="With any of these; repeatable.")
    ] = None,
    created_from: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Created then or later. {TIME}.")
    ] = None,
    created_to: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Created before then.")] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="An earlier export: write only what changed since, deletions too. No filters then.",
        ),
    ] = None,
) -> None:
    """Write memories to a file: complete, consistent, and readable anywhere as JSON lines."""
    piped = target == STDIN
    with session.provider() as store:
        report = store.export_memories(
            sys.stdout.buffer if piped else target,
            user_id=user,
            created_from=time_value(created_from),
            created_to=time_value(created_to),
            statuses=status or (),
            tags=tag or (),
            after=after,
        )
    # stdout carries the export itself then, so the report goes beside it.
    session.show({"target": target, **asdict(report)}, lambda s: _view_export(s, report, target), beside=piped)


def import_(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="FILE", help="An export; - is stdin.", show_default=False)],
    *,
    user: AnyUser = None,
) -> int:
    """Merge an export into the store.

    Safe to repeat, also after an interruption: what is already there stays as it is. Exit code 10 if some
    records were not taken; their line numbers are printed.
    """
    with session.provider() as store, progress("importing", shown=not session.as_json) as advance:
        report = store.import_memories(sys.stdin.buffer if source == STDIN else source, user_id=user, progress=advance)
    session.show({"source": source, **asdict(report)}, lambda screen: _view_import(screen, report))
    return ExitCode.REJECTED if report.rejected_count else ExitCode.OK


def _view_export(screen: Screen, report: ExportReport, target: str) -> None:
    kind = "changed memories" if report.incremental else "memories"
    screen.line(
        ("Exported ", "bold"),
        f"{report.memories} {kind} and {report.deletions} deletions ({bytes_text(report.bytes)})",
        "" if target == STDIN else f" to {target}",
    )


def _view_import(screen: Screen, report: ImportReport) -> None:
    screen.line(
        ("Imported: ", "bold"),
        f"{report.created} created, {report.merged} merged, {report.unchanged} unchanged,"
        f" {report.rejected_count} rejected",
    )
    if report.reembedded:
        screen.line(f"  {report.reembedded} were embedded anew, for this store's model")
    if report.deferred:
        screen.line(f"  {report.deferred} could not be embedded yet; they are found by their words until then")
    for rejected in report.rejected[:SHOWN_REJECTIONS]:
        hint = f" ({rejected.hint})" if rejected.hint else ""
        screen.line(("  rejected ", "red"), f"line {rejected.line}: {rejected.reason}{hint}")
    if report.rejected_count > SHOWN_REJECTIONS:
        screen.line(f"  … and {report.rejected_count - SHOWN_REJECTIONS} more; --json names up to a thousand")
