"""Cursors of listings: opaque text that reads back, or is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from memory.engine import cursor
from tests.unit.refusals import refusal

A_UUID = "8c5fd3ac-8f0c-4d51-a9d5-0f29f0d0b1c0"


def packed(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize("created_at", [0, 1, 1_733_000_000_000, 253_402_300_799_999])
def test_a_cursor_reads_back_as_the_position_it_was_made_of(created_at: int) -> None:
    text = cursor.encode(created_at, A_UUID)
    assert cursor.decode(text) == (created_at, A_UUID)
    assert text.replace("-", "").replace("_", "").replace("=", "").isalnum()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "no cursor",
        "夜莺",
        "\0",
        "\ud800",
        None,
        5,
        b"W10=",
        packed(None),
        packed([]),
        packed([1]),
        packed([1, A_UUID, 2]),
        packed({"a": 1, "b": 2}),
        packed("ab"),
        packed([1, 2]),
        packed([1, "not-a-uuid"]),
        packed(["1", A_UUID]),
        packed([1.5, A_UUID]),
        packed([True, A_UUID]),
        packed([None, A_UUID]),
        packed([2**64, A_UUID]),
        packed([1, [A_UUID]]),
        packed([1, "' OR '1'='1"]),
        packed([1, A_UUID])[:-6],
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
        base64.urlsafe_b64encode(b"9" * 5_000).decode(),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_anything_else_is_refused(text: object) -> None:
    error = refusal(lambda: cursor.decode(text))
    assert error.field == "cursor"
    assert error.hint == "start again without a cursor"
