"""Errors for people and programs: one or two lines, or JSON; never a password."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from memory.cli import shapes
from memory.cli.exits import ExitCode, exit_code
from memory.cli.screen import Screen
from memory.core.errors import Error

_HIDDEN: Final = "***"
# Up to the last "@", for a password may hold one that should have been written %40.
_USERINFO: Final = re.compile(r"^[a-zA-Z0-9+.-]+:/*[^/?#:]*:(?P<password>.*)@")
_PARAMETER: Final = re.compile(r"password\s*=\s*(?P<value>'[^']*'|[^\s&]+)", re.IGNORECASE)
_DELIMITERS: Final = re.compile(r"[@:/?#\[\]\s]")


class UnexpectedError(Error):
    """Something happened that this program was not prepared for."""


def report(error: Error, *, as_json: bool, debug: bool, urls: Sequence[str]) -> ExitCode:
    """Print an error to stderr; returns the exit code."""
    code = exit_code(error)
    if debug:
        sys.stderr.write(redacted("".join(traceback.format_exception(error)), urls))
    if as_json:
        shape = shapes.error_shape(error, code)["error"]
        sys.stderr.write(shapes.encode({"error": _redacted_fields(shape, urls)}) + "\n")
        return code
    screen = Screen(sys.stderr)
    screen.line(("Error: ", "bold red"), redacted(error.message, urls))
    if error.hint:
        screen.line(("Hint: ", "bold"), redacted(error.hint, urls))
    return code


def redacted(text: str, urls: Sequence[str]) -> str:
    """``text`` without the passwords of ``urls``."""
    for url in urls:
        text = _without_password(text, url)
    return text


def _without_password(text: str, url: str) -> str:
    for match in _PARAMETER.finditer(url):
        text = text.replace(match[0], f"password={_HIDDEN}")
    userinfo = _USERINFO.match(url)
    if userinfo is None:
        return text
    password = userinfo["password"]
    text = text.replace(f":{password}@", f":{_HIDDEN}@")
    for piece in _misread(password):
        text = text.replace(piece, _HIDDEN)
    return text


def _misread(password: str) -> list[str]:
    """What a parser may take for something else, and name in its error, if a password is not quoted well.

    A well-quoted password is never named, and must not be looked for: it may be an everyday word.
    """
    pieces = _DELIMITERS.split(password)
    if len(pieces) == 1 and "%" not in password:
        return []
    candidates = {password, unquote(password), *(piece for piece in pieces if len(piece) > 3)}
    return sorted(candidates, key=len, reverse=True)


def _redacted_fields(fields: dict[str, Any], urls: Sequence[str]) -> dict[str, Any]:
    return {name: redacted(value, urls) if isinstance(value, str) else value for name, value in fields.items()}
