"""A replica on this device and its centre: bring memories here, sync, look at the state, settle conflicts, remove."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from memory.cli.commanding import adapted_callback, command, show_help_if_alone
from memory.cli.options import User
from memory.cli.screen import Screen, progress
from memory.cli.session import Session, is_central, url_of
from memory.cli.syncviews import view_conflicts, view_reports, view_status
from memory.connect import FixedClock, SystemClock, centre_dial, connect
from memory.core.errors import NotFound, Refused, UsageError

if TYPE_CHECKING:
    from edge.provider import EdgeMemory
    from edge.sync.report import SyncReport, SyncStatus

# `edge` is loaded by those who use it only.

PANEL = "Care of the store"
WATCH_SECONDS: Final = 0.5
Centre = Annotated[
    str | None,
    typer.Option("--centre", metavar="URL", help="postgresql://… to sync with. Without it MEMORY_CENTRE_URL."),
]
OneUser = Annotated[
    str | None, typer.Option("--user", metavar="ID", help="Only this user; all on the device without it.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="A replica on this device, and its centre.")
    group.callback(invoke_without_command=True)(adapted_callback(_edge))
    command(group, "init")(init)
    command(group, "sync")(sync)
    command(group, "status")(status)
    command(group, "reconcile")(reconcile)
    command(group, "wipe")(wipe)
    command(group, "answer")(answer)
    conflicts = typer.Typer(help="Texts that lost to another edit, and records that the centre refused.")
    conflicts.callback(invoke_without_command=True)(adapted_callback(_conflicts))
    command(conflicts, "list")(list_conflicts)
    command(conflicts, "restore")(restore)
    command(conflicts, "dismiss")(dismiss)
    group.add_typer(conflicts, name="conflicts")
    app.add_typer(group, name="edge", rich_help_panel=PANEL)


def _edge(_session: Session, context: typer.Context) -> None:
    """A replica on this device, and its centre."""
    show_help_if_alone(context)


def _conflicts(session: Session, context: typer.Context, user: OneUser = None) -> None:
    """Texts that lost to another edit, and records that the centre refused; with --user alone, list them."""
    if context.invoked_subcommand is None and user is not None:
        list_conflicts(session, user=user)
        return
    show_help_if_alone(context)


@contextmanager
def opened(
    session: Session, centre: str | None, *, create: bool = False, background: bool = False
) -> Iterator[EdgeMemory]:
    """The replica that ``--url`` names, open; ``create``: made if there is none.

    Raises:
        UsageError: it names something else. NotFound: there is none, and looking at one must not make it.
    """
    path = session.replica()
    if path is None:
        raise UsageError("these commands work on a replica", hint="name its directory: --url edge:///directory")
    if not create and not path.expanduser().is_dir():
        raise NotFound(f"{path}: there is no replica", hint="`memory edge init --user ID` makes one")
    with connect(config=session.synced(centre, sync_background=background)) as store:
        yield cast("EdgeMemory", store)  # that is what an edge: URL opens


def init(session: Session, *, user: User, centre: Centre = None) -> None:
    """Bring a user's memories to this device, and make the replica if there is none yet."""
    with opened(session, centre, create=True) as store, _advance(session) as advance:
        reports = store.sync_now(user, progress=advance)
    session.show({"reports": _shapes(reports)}, lambda screen: view_reports(screen, reports))


def sync(
    session: Session,
    *,
    user: OneUser = None,
    centre: Centre = None,
    verify: Annotated[bool, typer.Option("--verify", help="Look for damage on this device's disk, too.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep in sync until Ctrl-C, and tell of changes.")] = False,
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what the centre lacks, for a centre out of reach.")
    ] = None,
    reply: Annotated[
        Path | None, typer.Option("--answer", metavar="FILE", help="Take in what `edge answer` has made of it.")
    ] = None,
) -> None:
    """Bring this device and the centre together; by file where there is no network."""
    if sum((watch, request is not None, reply is not None)) > 1:
        raise UsageError("--watch, --request and --answer exclude each other")
    if request is not None or reply is not None:
        if verify or centre is not None:
            raise UsageError("--verify and --centre are for syncing over a network, not by file")
        _by_file(session, user, request=request, reply=reply)
        return
    if watch and (verify or user is not None):
        raise UsageError("--watch is for all users of the device, without --user and --verify")
    with opened(session, centre, create=user is not None, background=watch) as store:
        if watch:
            _watch(session, store)
            return
        with _advance(session) as advance:
            reports = store.sync_now(user, verify=verify, progress=advance)
    session.show({"reports": _shapes(reports)}, lambda screen: view_reports(screen, reports))


def _by_file(session: Session, user: str | None, *, request: Path | None, reply: Path | None) -> None:
    if user is None:
        raise UsageError("a file is about one user", hint="name the user: --user ID")
    with opened(session, None, create=True) as store:
        if request is not None:
            written = store.write_changes(user, request)
            shape = {"file": str(request), **asdict(written)}
            text = f"Wrote {written.changes} changes. Take the file to the centre: `memory edge answer FILE REPLY`."
            session.show(shape, lambda screen: screen.line(text))
        elif reply is not None:
            report = store.read_answer(user, reply)
            session.show({"reports": _shapes([report])}, lambda screen: view_reports(screen, [report]))


def _watch(session: Session, store: EdgeMemory) -> None:
    """Print each user's state when it changes, until interrupted."""
    last: dict[str, tuple[object, ...]] = {}
    while True:
        for now in store.sync_status():
            seen = (now.condition, now.cursor, now.pending, now.problem)
            if last.get(now.user_id) != seen:
                last[now.user_id] = seen
                session.show(asdict(now), _viewing([now]))
                session.out.flush()
        time.sleep(WATCH_SECONDS)


def _viewing(found: Sequence[SyncStatus]) -> Callable[[Screen], None]:
    return lambda screen: view_status(screen, found)


def status(session: Session, *, user: OneUser = None) -> None:
    """Show how this device stands to its centre, without asking it."""
    with opened(session, None) as store:
        found = store.sync_status(user)
    session.show({"users": [asdict(item) for item in found]}, _viewing(found))


def reconcile(session: Session, *, user: User, centre: Centre = None) -> None:
    """Compare everything with the centre, and mend what differs on either side."""
    with opened(session, centre) as store, _advance(session) as advance:
        report = store.reconcile(user, progress=advance)
    session.show({"reports": _shapes([report])}, lambda screen: view_reports(screen, [report]))


def wipe(
    session: Session,
    *,
    user: User,
    centre: Centre = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
) -> None:
    """Remove a user's memories from this device, and only from it. What was not sent yet is sent first, if possible."""
    with opened(session, centre) as store:
        if not yes:
            [now] = store.sync_status(user)
            raise Refused(
                f"this removes the user's memories from this device; {now.pending} changes have not been sent",
                hint="repeat it with --yes; `memory edge sync` sends them first",
                unsent=now.pending,
            )
        unsent = store.forget_user(user)
    text = "Removed from this device." if not unsent else f"Removed, and with it {unsent} changes that were never sent."
    session.show({"user_id": user, "removed": True, "unsent": unsent}, lambda screen: screen.line(text))


def answer(
    session: Session,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="From `edge sync --request`.", show_default=False)],
    reply: Annotated[Path, typer.Argument(metavar="REPLY", help="The file to take back.", show_default=False)],
    *,
    centre: Centre = None,
) -> None:
    """At the centre: carry out what a device has written into a file, and write the reply for it."""
    from edge.sync.files import answer_request  # noqa: PLC0415

    url = url_of(session.config())
    if centre is None and url is not None and is_central(url):
        centre = url
    dial = centre_dial(session.synced(centre))
    if dial is None:
        raise UsageError("which centre?", hint="name it: --centre postgresql://…, or --url")
    reached = dial()
    try:
        now = session.config().now
        clock = SystemClock() if now is None else FixedClock(now)
        changes = answer_request(reached, request, reply, clock=clock)
    finally:
        reached.close()
    text = f"Took {changes} changes. Take the reply back: `memory edge sync --answer REPLY`."
    session.show({"request": str(request), "reply": str(reply), "changes": changes}, lambda screen: screen.line(text))


def list_conflicts(session: Session, *, user: User) -> None:
    """Show what could not be kept where it was."""
    with opened(session, None) as store:
        found = store.conflicts(user)
    shape = {"user_id": user, "conflicts": [asdict(item) for item in found]}
    session.show(shape, lambda screen: view_conflicts(screen, found))


Number = Annotated[int, typer.Argument(metavar="NUMBER", help="As `list` shows it.", show_default=False)]


def restore(session: Session, number: Number, *, user: User) -> None:
    """Write the text of an entry again: as an edit, or as a new memory if the old one is gone."""
    with opened(session, None) as store:
        memory = store.restore_conflict(user, number)
    shape = {"user_id": user, "number": number, "memory_id": memory.memory_id}
    session.show(shape, lambda screen: screen.line(f"Restored as {memory.memory_id}."))


def dismiss(session: Session, number: Number, *, user: User) -> None:
    """Remove an entry for good."""
    with opened(session, None) as store:
        store.dismiss_conflict(user, number)
    shape = {"user_id": user, "number": number, "dismissed": True}
    session.show(shape, lambda screen: screen.line("Dismissed."))


@contextmanager
def _advance(session: Session) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for long syncs, its phases one after the other."""
    with progress("syncing", shown=not session.as_json) as advance:
        yield lambda _phase, done, total: advance(done, total)


def _shapes(reports: Sequence[SyncReport]) -> list[dict[str, object]]:
    return [asdict(report) for report in reports]
