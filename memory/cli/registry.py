"""The centre's devices: who syncs a user's memories, and how one is turned away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from memory.cli.commanding import adapted_callback, command, show_help_if_alone
from memory.cli.options import User
from memory.cli.screen import Screen, moment
from memory.cli.session import Session
from memory.connect import SystemClock
from memory.core.errors import NotFound
from memory.policies import normalise
from memory.postgres import migrations
from memory.postgres.devices import Device
from memory.postgres.devices import devices as of_user
from memory.postgres.devices import revoke as turn_away

PANEL = "Care of the store"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Devices that sync with this centre.")
    group.callback(invoke_without_command=True)(adapted_callback(_devices))
    command(group, "list")(list_)
    command(group, "revoke")(revoke)
    app.add_typer(group, name="devices", rich_help_panel=PANEL)


def _devices(_session: Session, context: typer.Context) -> None:
    """Devices that sync with this centre."""
    show_help_if_alone(context)


def list_(session: Session, *, user: User) -> None:
    """Show the devices that hold a user's memories."""
    user_id = normalise.identifier(user, "user_id")
    with session.centre() as url:
        migrations.check(url)
    with session.database() as database:
        found = of_user(database, user_id)
    shape = {"user_id": user_id, "devices": [asdict(device) for device in found]}
    session.show(shape, lambda screen: _view(screen, found))


def revoke(
    session: Session,
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="As `devices list` names it.", show_default=False)],
    *,
    user: User,
) -> None:
    """Turn a device away: at its next sync it removes what it has of the user."""
    user_id = normalise.identifier(user, "user_id")
    with session.centre() as url:
        migrations.check(url)
    with session.database() as database:
        if not turn_away(database, user_id, device, SystemClock().now()):
            raise NotFound("this user has no such device", hint="`memory devices list` names them", device=device)
    session.show(
        {"user_id": user_id, "device": device, "revoked": True},
        lambda screen: screen.line("Revoked: at its next sync the device removes what it has of this user."),
    )


def _view(screen: Screen, found: Sequence[Device]) -> None:
    if not found:
        screen.line("No device has synced this user's memories.")
        return
    screen.table(
        ("device", "last seen", "registered", "revoked", "model"),
        [
            (
                device.device_id,
                moment(device.last_seen_at),
                moment(device.registered_at),
                "" if device.revoked_at is None else moment(device.revoked_at),
                device.model,
            )
            for device in found
        ],
        wide=4,
    )
