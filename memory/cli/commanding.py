"""From a function to a command: sessions, global options and bundles of options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer

from memory.cli.options import global_options
from memory.cli.session import Session

Bundle = Callable[..., Any]
"""A function whose parameters are options, and whose result is the one value that they make together."""


class ClosedPipe(Exception):
    """Whoever read the output has gone."""


def command(app: typer.Typer, name: str, *, panel: str | None = None, **bundles: Bundle) -> Callable[[Any], Any]:
    """Register a function as a command.

    The function takes the session first, then its own arguments and options, and for each bundle one value
    under the bundle's name. The global options are added to every command, so that they may stand before its
    name or after it. What it returns is the exit code, None for success.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        own = list(_parameters(function).values())[1:]
        run = _adapted(function, bundles)
        parameters = [p for p in own if p.name not in bundles]
        for bundle in (*bundles.values(), global_options):
            parameters.extend(_parameters(bundle).values())
        _sign(run, parameters)
        app.command(name, rich_help_panel=panel)(run)
        return function

    return register


def adapted_callback(function: Callable[..., None]) -> Callable[..., None]:
    """A function for ``app.callback``: it gets the session, settled, and the context if it asks for it."""
    run = _adapted(function, {})
    own = [p for p in list(_parameters(function).values())[1:] if p.name != "context"]
    _sign(run, [*own, *_parameters(global_options).values()])
    return run


def show_help_if_alone(context: typer.Context) -> None:
    """Without a command, a group shows its help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _adapted(function: Callable[..., Any], bundles: dict[str, Bundle]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(context: typer.Context, **values: Any) -> Any:
        session: Session = context.obj
        session.settle(global_options(**_taken(values, global_options)))
        if "context" in _parameters(function):
            values["context"] = context
        made = {name: bundle(**_taken(values, bundle)) for name, bundle in bundles.items()}
        try:
            return function(session, **values, **made)
        except BrokenPipeError as error:
            raise ClosedPipe from error

    return run


def _taken(values: dict[str, Any], bundle: Bundle) -> dict[str, Any]:
    return {name: values.pop(name) for name in _parameters(bundle)}


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function, eval_str=True).parameters)


def _sign(run: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    """Give ``run`` the signature that typer makes options from."""
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    signature = inspect.Signature([context, *keyword_only])
    run.__signature__ = signature  # type: ignore[attr-defined]  # what inspect.signature answers with
    run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
