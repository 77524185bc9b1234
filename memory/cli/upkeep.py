"""Commands for whoever looks after the store: figures, schema, model, and the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from memory.cli import replicas
from memory.cli.commanding import adapted_callback, command, show_help_if_alone
from memory.cli.exits import ExitCode
from memory.cli.options import AnyUser
from memory.cli.screen import Screen, bytes_text, progress
from memory.cli.session import Session, is_central, url_of
from memory.connect import SystemClock, make_embedder
from memory.core.model import Stats
from memory.core.ports import Embedder
from memory.engine.diagnosis import Finding, Repaired
from memory.postgres import doctor as rules
from memory.postgres import migrations
from memory.postgres.models import reembed as embed_central

PANEL = "Care of the store"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "stats", panel=PANEL)(stats)
    command(app, "doctor", panel=PANEL)(doctor)
    db = typer.Typer(help="The database: schema and embedding model.")
    db.callback(invoke_without_command=True)(adapted_callback(_db))
    command(db, "upgrade")(upgrade)
    command(db, "current")(current)
    command(db, "check")(check)
    command(db, "reembed")(reembed)
    app.add_typer(db, name="db", rich_help_panel=PANEL)


def _db(_session: Session, context: typer.Context) -> None:
    """The database: schema and embedding model."""
    show_help_if_alone(context)


def stats(session: Session, user: AnyUser = None) -> None:
    """Show figures about the store, or about one user's memories."""
    with session.provider() as store:
        figures = store.stats(user_id=user)
    session.show({"user_id": user, **asdict(figures)}, lambda screen: _view_stats(screen, figures, user))


def upgrade(session: Session) -> None:
    """Bring the schema to this program's revision; safe on many hosts at once."""
    before, head = _revisions(session)
    replica = session.replica()
    if replica is not None:
        replicas.upgrade(replica)
        after: str | None = head
    else:
        with session.centre() as url:
            after = migrations.upgrade(url)
    changed = before != after
    text = f"Already at {after}."
    if changed:
        text = f"Upgraded from {before or 'an empty database'} to {after}."
    shape = {"from_revision": before, "revision": after, "changed": changed}
    session.show(shape, lambda screen: screen.line(text))


def current(session: Session) -> None:
    """Show the revision of the schema."""
    at, head = _revisions(session)
    text = f"{at or 'no schema yet'} (this program: {head})"
    session.show({"revision": at, "head": head, "up_to_date": at == head}, lambda screen: screen.line(text))


def _revisions(session: Session) -> tuple[str | None, str]:
    """The revision that is there, None if there is none, and this program's."""
    replica = session.replica()
    if replica is not None:
        return replicas.revisions(replica)
    with session.centre() as url:
        return migrations.current(url), migrations.head()


def check(session: Session) -> None:
    """Open the database as a program would: exit code 6 if its schema or its embedding model is another."""
    with session.provider(auto_migrate=False) as store:
        figures = store.stats()
    head = migrations.head() if session.replica() is None else replicas.head()
    model = {"embedding_model": figures.embedding_model, "embedding_dimension": figures.embedding_dimension}
    session.show(
        {"revision": head, "head": head, "up_to_date": True, **model},
        lambda screen: screen.line(f"Ready: schema {head}, vectors of {_model(figures)}."),
    )


def reembed(session: Session) -> None:
    """Embed all memories with the configured model and make it the database's.

    Recall goes on with the old model until the last moment. Interrupted, it continues where it was.
    """
    embedder = make_embedder(session.config())
    try:
        embedded = _embed_all(session, embedder)
        name, dimension = embedder.name, embedder.dimension
    finally:
        embedder.close()
    session.show(
        {"embedded": embedded, "embedding_model": name, "embedding_dimension": dimension},
        lambda screen: screen.line(f"Embedded {embedded} memories; all vectors are now of {name}."),
    )


def _embed_all(session: Session, embedder: Embedder) -> int:
    replica = session.replica()
    with progress("embedding", shown=not session.as_json) as advance:
        if replica is not None:
            return replicas.reembed(session, replica, embedder, advance)
        with session.centre() as url:
            migrations.check(url)
        with session.database() as database:
            return embed_central(database, embedder, progress=advance)


def doctor(
    session: Session,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what has one right answer.")] = False,
) -> int:
    """Look for contradictions in the database, and mend them with --repair.

    Exit code 11 if problems remain.
    """
    config = session.config()
    url = url_of(config)
    if url is not None and not is_central(url) and url.startswith("memory:"):
        return _healthy_without_checks(session)
    now = SystemClock().now() if config.now is None else config.now
    replica = session.replica()
    if replica is not None:
        found, repaired = replicas.examine(session, replica, now=now, repair=repair)
    else:
        found, repaired = _examine_centre(session, now=now, repair=repair)
    healthy = not any(finding.is_problem for finding in found)
    shape = _doctor_shape(found, repaired, healthy=healthy, checked=True)
    session.show(shape, lambda screen: _view_findings(screen, found, repaired, healthy=healthy))
    return ExitCode.OK if healthy else ExitCode.PROBLEMS


def _examine_centre(session: Session, *, now: int, repair: bool) -> tuple[list[Finding], list[Repaired]]:
    with session.database() as database:
        found = rules.examine(database, now=now)
        repaired: list[Repaired] = []
        if repair and any(finding.is_problem and finding.repairable for finding in found):
            repaired = rules.repair(database, now=now)
            found = rules.examine(database, now=now)
    return found, repaired


def _healthy_without_checks(session: Session) -> int:
    session.show(
        _doctor_shape([], [], healthy=True, checked=False),
        lambda screen: screen.line("memory:// keeps nothing between runs: there is nothing to check."),
    )
    return ExitCode.OK


def _doctor_shape(
    found: Sequence[Finding], repaired: Sequence[Repaired], *, healthy: bool, checked: bool
) -> dict[str, Any]:
    findings = [asdict(finding) for finding in found]
    return {
        "healthy": healthy,
        "checked": checked,
        "findings": findings,
        "repaired": [asdict(item) for item in repaired],
    }


# Views


def _model(figures: Stats) -> str:
    return f"{figures.embedding_model} ({figures.embedding_dimension} dimensions)"


def _view_stats(screen: Screen, figures: Stats, user: str | None) -> None:
    lines = [
        ("user", user) if user is not None else ("users", f"{figures.users:,}"),
        *((f"{status} memories", f"{count:,}") for status, count in figures.memories_by_status.items()),
        ("deleted memories", f"{figures.deletions:,}"),
        ("times recalled", f"{figures.accesses:,}"),
        ("waiting for a vector", f"{figures.pending_embeddings:,}"),
        ("embedding model", _model(figures)),
    ]
    if figures.storage_bytes is not None:
        lines.append(("size", bytes_text(figures.storage_bytes)))
    lines += [(name, _detail(name, value)) for name, value in figures.details.items()]
    for name, value in lines:
        screen.line((f"{name:<22}", "dim"), value)


def _detail(name: str, value: Any) -> str:
    if name.endswith("bytes"):
        return bytes_text(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _view_findings(screen: Screen, found: Sequence[Finding], repaired: Sequence[Repaired], *, healthy: bool) -> None:
    for item in repaired:
        screen.line(("repaired ", "green"), f"{item.name}: {item.rows}")
    for finding in found:
        if finding.is_problem:
            screen.line(("problem  ", "red"), f"{finding.name}: {finding.rows} {finding.meaning}")
            what = "repair would" if finding.repairable else "what to do"
            screen.line(("         ", ""), (f"{what}: {finding.remedy}", "dim"))
        elif finding.rows:
            screen.line(("note     ", "yellow"), f"{finding.name}: {finding.rows} {finding.meaning}")
        else:
            screen.line(("ok       ", "green"), finding.name)
    if healthy:
        screen.line("The database is sound.")
    elif any(finding.is_problem and finding.repairable for finding in found):
        screen.line("Run `memory doctor --repair` to mend what can be mended.")
