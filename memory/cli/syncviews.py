"""How the commands of ``syncing`` look on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memory.cli.screen import Screen, moment, one_line

if TYPE_CHECKING:
    from edge.sqlite.conflicts import Conflict
    from edge.sync.report import SyncReport, SyncStatus


def view_reports(screen: Screen, reports: Sequence[SyncReport]) -> None:
    """What was done, a user a line, with what deserves attention below."""
    if not reports:
        screen.line("No user is on this device yet: `memory edge init --user ID` brings one.")
    for report in reports:
        equal = {True: "equal", False: "DIFFERENT", None: "not compared: the centre is being written to"}[report.equal]
        screen.line((f"{report.user_id}: ", "bold"), f"{report.pushed} sent, {report.pulled} received, {equal}")
        notes = [
            (report.reconciled, "everything was compared"),
            (report.rejected, f"{report.rejected} were refused by the centre"),
            (report.conflicts, f"{report.conflicts} new entries in the log of conflicts: `memory edge conflicts list`"),
            (report.removed, f"{report.removed} had been purged at the centre, and are removed"),
            (report.restamped, "this device's clock ran ahead: its stamps were put right"),
            (report.deferred, f"{report.deferred} wait for a vector of this device's model"),
        ]
        for applies, text in notes:
            if applies:
                screen.line(f"  {text}")


def view_status(screen: Screen, found: Sequence[SyncStatus]) -> None:
    """How each user stands."""
    if not found:
        screen.line("No user is on this device yet: `memory edge init --user ID` brings one.")
    for item in found:
        screen.line((item.user_id, "bold"), f"  {item.condition.value}")
        equal = {True: "equal at the last look", False: "different at the last look", None: "not compared"}[item.equal]
        lines = [
            ("last sync", moment(item.synced_at)),
            ("to be sent", f"{item.pending} memories, access counts of {item.pending_accesses}"),
            ("revision", f"{item.cursor} of {'?' if item.head is None else item.head}"),
            ("digest", equal),
            ("conflicts", str(item.conflicts)),
        ]
        if item.clock_offset:
            lines.append(("clock", f"{item.clock_offset / 1000:+.0f} s to the centre's"))
        if item.problem:
            lines.append(("problem", one_line(item.problem)))
        if item.hint:
            lines.append(("what to do", one_line(item.hint)))
        for name, value in lines:
            screen.line((f"  {name:<12}", "dim"), value)


def view_conflicts(screen: Screen, found: Sequence[Conflict]) -> None:
    """The log, with what each reason means."""
    from edge.sync.plan import REASONS  # noqa: PLC0415

    if not found:
        screen.line("Nothing: every edit is where it was made.")
        return
    for item in found:
        screen.line((f"{item.number}  ", "bold"), f"{moment(item.logged_at)}  {item.reason}  {item.memory_id}")
        screen.line((f"   {REASONS[item.reason]}" + (f": {item.problem}" if item.problem else ""), "dim"))
        screen.line(f"   {one_line(item.content or '')}")
