"""Normalisation and checking of single values. Every error names the field, the limit and the remedy.

Text: NUL is removed and a lone surrogate becomes U+FFFD, because Postgres stores neither and all stores must
agree; only ids refuse them, for an id must never turn into another one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from memory.core.errors import InvalidValue
from memory.policies import limits

E = TypeVar("E", bound=str)

_written = json.JSONEncoder(ensure_ascii=False).encode
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def clean_text(value: object, field: str, *, max_bytes: int) -> str:
    """A string that every store can hold."""
    if not isinstance(value, str):
        raise InvalidValue(field, f"must be a string, not {type(value).__name__}")
    text = value if type(value) is str else str.__str__(value)  # of an enumeration, its plain text
    if _UNSTORABLE.search(value):
        text = _UNSTORABLE.sub(lambda match: "" if match[0] == "\x00" else "\ufffd", value)
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise InvalidValue(
            field,
            f"{size:,} bytes of UTF-8, the limit is {max_bytes:,}",
            hint="shorten it, or split it into several memories",
            limit=max_bytes,
        )
    return text


def required_text(value: object, field: str, *, max_bytes: int) -> str:
    """``clean_text`` that must hold more than white space."""
    text = clean_text(value, field, max_bytes=max_bytes)
    if not text.strip():
        raise InvalidValue(field, "must not be empty or blank")
    return text


def identifier(value: object, field: str) -> str:
    """An id, taken literally: no pattern, no trimming, nothing silently removed."""
    if not isinstance(value, str):
        raise InvalidValue(field, f"must be a string, not {type(value).__name__}")
    if not value.strip():
        raise InvalidValue(field, "must not be empty or blank", hint="every call names the user it is for")
    if _UNSTORABLE.search(value):
        raise InvalidValue(field, "contains NUL or a lone surrogate", hint="use an id of ordinary characters")
    size = len(value.encode())
    if size > limits.MAX_ID_BYTES:
        raise InvalidValue(field, f"{size:,} bytes of UTF-8, the limit is {limits.MAX_ID_BYTES}")
    return value


def choice(value: object, field: str, options: type[E]) -> E:
    """A member of a string enumeration."""
    if isinstance(value, str):
        try:
            return options(value)
        except ValueError:
            pass  # the error below says more
    names = ", ".join(str(option) for option in options)  # type: ignore[attr-defined]
    raise InvalidValue(field, f"{shown(value)} is not one of {names}")


def shown(value: object) -> str:
    """A value as error messages quote it; of one that may be deep or huge only the type."""
    return f"{value!r:.80}" if value is None or isinstance(value, str | float) else type(value).__name__


def fraction(value: object, field: str) -> float:
    """A finite number in [0, 1]."""
    number = _number(value, field)
    if not 0.0 <= number <= 1.0:
        raise InvalidValue(field, f"{value!r} is not between 0 and 1")
    return number + 0.0  # -0.0 becomes 0.0


def whole_number(value: object, field: str, *, low: int, high: int) -> int:
    """An integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidValue(field, f"must be an integer, not {type(value).__name__}")
    if not low <= value <= high:
        number = str(value) if abs(value) < 10**30 else "the number"
        raise InvalidValue(field, f"{number} is not between {low} and {high}", limit=high)
    return value


def timestamp(value: object, field: str) -> int:
    """Milliseconds UTC from milliseconds, seconds (below 1e11), an aware datetime or its ISO 8601 text."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidValue(field, f"{value!r:.80} is not an ISO 8601 time") from None
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidValue(field, "has no time zone", hint="use e.g. datetime.now(timezone.utc)")
        number = value.timestamp() * 1000.0
    else:
        number = _number(value, field)
        if abs(number) < limits.SECONDS_BELOW:
            number *= 1000.0
    if not limits.EARLIEST_MS <= number <= limits.LATEST_MS:
        raise InvalidValue(field, f"{value!r:.80} is not between the years 1970 and 9999")
    return round(number)


def tags(value: object, field: str) -> frozenset[str]:
    """Tags lower-cased, trimmed and de-duplicated; blank ones are left out."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidValue(field, "must be a list of strings", hint=f"write {field}=[…]")
    cleaned = set()
    for position, tag in enumerate(value):
        text = clean_text(tag, f"{field}[{position}]", max_bytes=limits.MAX_CONTENT_BYTES).strip().lower()
        if len(text) > limits.MAX_TAG_LENGTH:
            raise InvalidValue(
                f"{field}[{position}]",
                f"{len(text):,} characters, the limit is {limits.MAX_TAG_LENGTH}",
                limit=limits.MAX_TAG_LENGTH,
            )
        cleaned.add(text)
    cleaned.discard("")
    if len(cleaned) > limits.MAX_TAGS:
        raise InvalidValue(field, f"{len(cleaned):,} tags, the limit is {limits.MAX_TAGS}", limit=limits.MAX_TAGS)
    return frozenset(cleaned)


def metadata(value: object, field: str = "metadata", *, max_bytes: int = limits.MAX_METADATA_BYTES) -> dict[str, Any]:
    """A JSON object: string keys, finite numbers, limited size and depth; tuples become lists."""
    if not isinstance(value, Mapping):
        raise InvalidValue(field, f"must be a mapping, not {type(value).__name__}")
    cleaned = json_object(value, field)
    size = len(_written(cleaned).encode())
    if size > max_bytes:
        raise InvalidValue(
            field,
            f"{size:,} bytes as JSON, the limit is {max_bytes:,}",
            hint="keep large data elsewhere and store a reference to it",
            limit=max_bytes,
        )
    return cleaned


def json_object(value: Mapping[Any, Any], field: str, depth: int = 0) -> dict[str, Any]:
    """A mapping whose values are JSON all the way down."""
    if depth >= limits.MAX_METADATA_DEPTH:
        raise InvalidValue(field, f"is nested deeper than {limits.MAX_METADATA_DEPTH} levels")
    cleaned: dict[str, Any] = {}
    for key, item in value.items():
        name = clean_text(key, f"{field} key", max_bytes=limits.MAX_METADATA_BYTES)
        if name in cleaned:
            raise InvalidValue(field, f"two keys become {name!r:.80} once NUL and lone surrogates are replaced")
        cleaned[name] = json_value(item, f"{field}.{name:.80}", depth + 1)
    return cleaned


def json_value(value: object, field: str, depth: int = 0) -> Any:
    """Any JSON value, in the one form that survives every store unchanged."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value, field, max_bytes=limits.MAX_METADATA_BYTES)
    if isinstance(value, int | float):
        return _json_number(value, field)
    if isinstance(value, Mapping):
        return json_object(value, field, depth)
    if isinstance(value, list | tuple):
        if depth >= limits.MAX_METADATA_DEPTH:
            raise InvalidValue(field, f"is nested deeper than {limits.MAX_METADATA_DEPTH} levels")
        return [json_value(item, f"{field}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise InvalidValue(
        field,
        f"{type(value).__name__} is not JSON",
        hint="use strings, numbers, booleans, null, lists, objects",
    )


def _json_number(value: float, field: str) -> int | float:
    if isinstance(value, int):
        if abs(value) > limits.MAX_NUMBER:
            raise InvalidValue(field, f"is larger than {float(limits.MAX_NUMBER):.2g}", hint="use a string")
        return int(value)
    value = float(value)
    if not math.isfinite(value):
        raise InvalidValue(field, f"{value} is not JSON", hint="leave the key out, or use null or a string")
    # Postgres writes 1e20 as 100000000000000000000 and knows no negative zero: say so before it does.
    return int(value) if value.is_integer() and "e" in repr(value) else value + 0.0


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValue(field, f"must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValue(field, f"{number} is not a finite number")
    return number
