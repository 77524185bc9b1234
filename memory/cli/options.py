"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from memory.core.errors import InvalidValue
from memory.core.model import MemoryType, RecallFilter, Status

STDIN = "-"
TIME = "ISO 8601 (without a zone: UTC), or Unix time in s or ms"
_FILTERS = "Which memories"
_GLOBAL = "Global options, before or after the command"

User = Annotated[str, typer.Option("--user", metavar="ID", help="Whose memory it is; taken literally.")]
AnyUser = Annotated[
    str | None, typer.Option("--user", metavar="ID", help="Only this user's memories; all users' without it.")
]
MemoryId = Annotated[str, typer.Argument(metavar="ID", help="The id of the memory.", show_default=False)]


def filters(
    *,
    status: Annotated[
        list[Status] | None,
        typer.Option("--status", help="Repeatable; active without it.", rich_help_panel=_FILTERS),
    ] = None,
    kind: Annotated[
        list[MemoryType] | None, typer.Option("--type", help="Repeatable.", rich_help_panel=_FILTERS)
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="With any of these; repeatable.", rich_help_panel=_FILTERS),
    ] = None,
    all_tags: Annotated[
        list[str] | None,
        typer.Option("--all-tags", metavar="TAG", help="With all of these; repeatable.", rich_help_panel=_FILTERS),
    ] = None,
    created_from: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help=f"Created then or later. {TIME}.", rich_help_panel=_FILTERS),
    ] = None,
    created_to: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="Created before then.", rich_help_panel=_FILTERS),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="From this conversation.", rich_help_panel=_FILTERS),
    ] = None,
    min_importance: Annotated[
        float | None, typer.Option(help="At least this important, 0 to 1.", rich_help_panel=_FILTERS)
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="JSON",
            help='Conditions on metadata: \'{"k": 1}\' or \'{"k": {"gte": 1}}\';'
            " operators: eq ne gt gte lt lte in exists.",
            rich_help_panel=_FILTERS,
        ),
    ] = None,
) -> RecallFilter:
    """What the filter options ask for."""
    return RecallFilter(
        statuses=tuple(status) if status else (Status.ACTIVE,),
        types=tuple(kind or ()),
        tags_any=tuple(tag or ()),
        tags_all=tuple(all_tags or ()),
        created_from=time_value(created_from),
        created_to=time_value(created_to),
        source_session=session,
        min_importance=min_importance,
        metadata={} if where is None else json_object(where, "where"),
    )


def global_options(
    *,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            "-u",
            metavar="URL",
            help="Where the memories are: postgresql://…, edge:///directory or memory://. Without it"
            " MEMORY_DATABASE_URL, and without that the bundled Postgres.",
            rich_help_panel=_GLOBAL,
        ),
    ] = None,
    data_directory: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Of the bundled Postgres.", rich_help_panel=_GLOBAL),
    ] = None,
    embedding_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="local, fastembed:…, openai:… or hashing.", rich_help_panel=_GLOBAL),
    ] = None,
    now: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="A fixed time instead of the clock: ISO 8601 or ms.", rich_help_panel=_GLOBAL
        ),
    ] = None,
    no_track_access: Annotated[
        bool,
        typer.Option("--no-track-access", help="Do not count what recall returns.", rich_help_panel=_GLOBAL),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON value instead of text.", rich_help_panel=_GLOBAL)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show logs, and tracebacks of errors.", rich_help_panel=_GLOBAL)
    ] = False,
) -> dict[str, Any]:
    """The global options that were given."""
    given = {
        "url": url,
        "data_directory": _directory(data_directory),
        "embedding_model": embedding_model,
        "now": None if now is None else time_value(now),
        "no_track_access": no_track_access or None,
        "as_json": as_json or None,
        "debug": debug or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _directory(text: str | None) -> Path | None:
    if text is not None and not text.strip():
        # What a shell makes of an unset variable must not become the current directory.
        raise InvalidValue("data_directory", "must not be empty")
    return None if text is None else Path(text)


def time_value(text: str | None) -> Any:
    """A number, or a time with a zone; anything else stays text, for the provider to refuse by name."""
    if text is None:
        return None
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return time if time.utcoffset() is not None else time.replace(tzinfo=UTC)


def json_object(text: str, option: str) -> dict[str, Any]:
    """A JSON object given as an option.

    Raises:
        InvalidValue: not JSON, or not an object.
    """
    hint = f'quote it for the shell, e.g. --{option} \'{{"key": "value"}}\''
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(option, f"is not JSON ({error})", hint=hint) from error
    if not isinstance(value, dict):
        raise InvalidValue(option, "must be a JSON object", hint=hint)
    return value


def text_value(given: str, field: str) -> str:
    """An argument, or all of stdin for ``-`` without the line feed that ends it.

    Raises:
        InvalidValue: stdin is not UTF-8.
    """
    if given != STDIN:
        return given
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValue(field, f"stdin is not UTF-8 ({error.reason} at byte {error.start})") from error
    return text.removesuffix("\n").removesuffix("\r")
