"""The command line: assembly, and the outermost boundary where every error ends."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from memory.cli import exits, memories, moving, quickstart, registry, syncing, upkeep
from memory.cli.commanding import ClosedPipe, adapted_callback, show_help_if_alone
from memory.cli.exits import ExitCode
from memory.cli.failures import UnexpectedError, report
from memory.cli.session import Session
from memory.core.errors import Error, TargetError, UsageError
from memory.version import __version__

PROGRAM: Final = "memory"
# typer carries its own copy of click or uses the installed one; this is the base of usage errors in both.
_CLICK_USAGE_ERROR: Final[type[Exception]] = typer.BadParameter.__bases__[0]


def _build() -> typer.Typer:
    app = typer.Typer(
        name=PROGRAM,
        help="Long-term memory for AI agents.",
        epilog=exits.table(),
        no_args_is_help=False,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(adapted_callback(_root))
    for commands in (quickstart, memories, moving, upkeep, syncing, registry):
        commands.register(app)
    return app


def _root(
    session: Session,
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Long-term memory for AI agents."""
    if version:
        session.show({"version": __version__}, lambda screen: screen.line(f"nightingale-memory {__version__}"))
        raise typer.Exit(ExitCode.OK)
    show_help_if_alone(context)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    session = Session()
    # Known before the rest is understood, so that also a wrong command line is answered in JSON.
    options = given[: given.index("--")] if "--" in given else given
    session.as_json = "--json" in options
    _prepare_streams(as_json=session.as_json)
    try:
        return _run(given, session)
    except (BrokenPipeError, ClosedPipe):
        _forget_stdout()
        return ExitCode.CLOSED_PIPE


def _run(given: Sequence[str], session: Session) -> int:
    try:
        result = typer.main.get_command(_build()).main(
            args=list(given), prog_name=PROGRAM, standalone_mode=False, obj=session
        )
        sys.stdout.flush()
    except (ClosedPipe, BrokenPipeError):
        raise
    except SystemExit as stopped:
        # Both typer and rich end the process by themselves on a closed pipe, and only then.
        raise ClosedPipe from stopped
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except _CLICK_USAGE_ERROR as error:
        return _failed(_usage_error(error), session)
    except Error as error:
        return _failed(error, session)
    except OSError as error:
        return _failed(_output_error(error), session)
    except Exception as error:  # noqa: BLE001  the outermost boundary: nobody else would say it in one line
        return _failed(_unexpected(error), session)
    return result if isinstance(result, int) else ExitCode.OK


def _failed(error: Error, session: Session) -> int:
    if isinstance(error.__cause__, BrokenPipeError):
        raise ClosedPipe from error
    try:
        sys.stdout.flush()
    except OSError:
        _forget_stdout()
    return report(error, as_json=session.as_json, debug=session.debug, urls=session.known_urls())


def _usage_error(error: Exception) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    raised = UsageError(message, hint=f"see `{path} --help`")
    raised.__cause__ = error
    return raised


def _output_error(error: OSError) -> TargetError:
    """Adapters translate the errors of files and sockets: what is left is about stdout."""
    raised = TargetError(f"{error.filename or 'stdout'}: {error.strerror or error}")
    raised.__cause__ = error
    return raised


def _unexpected(error: Exception) -> UnexpectedError:
    raised = UnexpectedError(
        f"unexpected {type(error).__name__}: {error}",
        hint="this is an error in the program: run it again with --debug and report what it prints",
    )
    raised.__cause__ = error
    return raised


def _prepare_streams(*, as_json: bool) -> None:
    """No text may fail to print: JSON is UTF-8, other text is spelt out where the encoding lacks it.

    A stream that the caller has closed leads nowhere.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if as_json else None, errors="backslashreplace")


def _forget_stdout() -> None:
    """Let the interpreter's last flush go nowhere: it would fail again, and say so."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
