"""Reading what an OpenAI-compatible embeddings service answers."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from memory.core.errors import EmbeddingInvalid

_LONGEST_MESSAGE = 200
_WITHHELD = "(message withheld: it repeats what was sent)"
# A shared run of this many characters counts as a quotation of a memory. Chinese says in four characters
# what English says in a dozen.
_ASCII_RUN = 12
_OTHER_RUN = 4
# Services show a key with its middle starred out; what is left of it is still nobody's business.
_KEY_REMAINS = re.compile(r"\bsk-\S+")


def decode(body: bytes) -> dict[str, Any]:
    """Parse a JSON object; anything else gives an empty one.

    ``json`` rather than ``orjson``: some services write NaN, and that should be reported for its item.
    """
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return payload if isinstance(payload, dict) else {}


def vectors_in(payload: dict[str, Any], count: int, *, start: int = 0) -> list[ArrayLike]:
    """Take the vectors out of an answer, in the order of the texts.

    Args:
        payload: the parsed answer.
        count: number of texts sent.
        start: position of the first of them in the caller's list.

    Returns:
        ``count`` raw vectors, lists or arrays; their numbers are not checked yet.

    Raises:
        EmbeddingInvalid: no list of data, an ``index`` that is missing, unknown or there twice, or
            unreadable base64; the field ``index`` names the item where one is at fault.
    """
    data = payload.get("data")
    if not isinstance(data, list):
        raise EmbeddingInvalid("the embedding service answered without a list of vectors")
    rows: dict[int, ArrayLike] = {}
    for entry in data:
        position = entry.get("index") if isinstance(entry, dict) else None
        if type(position) is not int or not 0 <= position < count:
            raise EmbeddingInvalid("the embedding service answered with a vector for no item it was sent")
        if position in rows:
            index = start + position
            raise EmbeddingInvalid(f"the embedding service answered twice for item {index}", index=index)
        rows[position] = _raw_vector(entry.get("embedding"), start + position)
    for position in range(count):
        if position not in rows:
            index = start + position
            raise EmbeddingInvalid(f"the embedding service did not answer for item {index}", index=index)
    return [rows[position] for position in range(count)]


def _raw_vector(value: Any, index: int) -> ArrayLike:
    """Accept a list of numbers, or base64 of little-endian float32 whichever was asked for."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        raise EmbeddingInvalid(f"the vector of item {index} is missing", index=index)
    try:
        return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
    except (binascii.Error, ValueError) as exc:
        raise EmbeddingInvalid(f"the vector of item {index} is no base64 of floats", index=index) from exc


def status_in(payload: dict[str, Any]) -> int | None:
    """Return the HTTP status that a gateway put into the body of a 200 answer, if it did."""
    error = payload.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code if type(code) is int and 400 <= code <= 599 else None


def message_in(payload: dict[str, Any], *, secret: str | None, texts: Sequence[str]) -> str:
    """Take a short explanation out of an error answer, fit for logs.

    Args:
        payload: the parsed body, empty if it was no JSON object.
        secret: the API key, which is blotted out.
        texts: what was sent; a message that quotes any of it is withheld as a whole.

    Returns:
        At most 200 characters on one line; empty when the service did not explain.
    """
    message = " ".join(" ".join(_explanations(payload)).split())
    if secret:
        message = message.replace(secret, "***")
    message = _KEY_REMAINS.sub("***", message)
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 1] + "…"
    if "\\u" in message or any(_quotes(message, text) for text in (*texts, secret or "")):
        return _WITHHELD
    return message


def _explanations(payload: dict[str, Any]) -> Iterator[str]:
    """Yield the texts that OpenAI, TEI, FastAPI and others put their explanation into.

    Only fields made for people: FastAPI, for one, repeats the whole input in a field next to them.
    """
    for key in ("error", "detail", "message"):
        value = payload.get(key)
        if isinstance(value, dict):
            value = value.get("message")
        if isinstance(value, list):
            yield from (str(part["msg"]) for part in value if isinstance(part, dict) and "msg" in part)
        elif isinstance(value, str):
            yield value


def _quotes(message: str, text: str) -> bool:
    """Tell whether the message holds the text or a telling part of it."""
    text = " ".join(text.split())
    if len(text) >= _OTHER_RUN and text in message:
        return True
    if any(message[at : at + _ASCII_RUN] in text for at in range(len(message) - _ASCII_RUN + 1)):
        return True
    runs = (message[at : at + _OTHER_RUN] for at in range(len(message) - _OTHER_RUN + 1))
    return any(not run.isascii() and run in text for run in runs)
