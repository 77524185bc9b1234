"""Metadata: JSON and nothing else, in the one form that survives every store unchanged."""

from __future__ import annotations

import enum
import json
import sys
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from memory.core.state import same_value
from memory.policies import limits
from memory.policies.normalise import json_value, metadata
from tests.unit.refusals import refusal


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def nested(depth: int, *, kind: type[Any] = dict) -> Any:
    value: Any = {} if kind is dict else []
    for _ in range(depth - 1):
        value = {"a": value} if kind is dict else [value]
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"": None},
        {"a": True, "b": False, "c": None, "d": "夜莺 🦜", "e": [1, [2.5, {"f": []}]]},
        {"quote'\"\\": "'; DROP TABLE memories; --", "$or": 1, "a.b": 2, "%": 3},
        {"zero": 0, "one": 1, "float": 1.0, "tiny": 5e-324, "small": 1e-7, "big": 2**63},
    ],
)
def test_json_is_kept_as_it_is(value: dict[str, Any]) -> None:
    assert same_value(metadata(value), value)


@pytest.mark.parametrize(
    ("value", "field", "problem"),
    [
        (None, "metadata", "must be a mapping, not NoneType"),
        ([], "metadata", "must be a mapping, not list"),
        ([("a", 1)], "metadata", "must be a mapping, not list"),
        ("{}", "metadata", "must be a mapping, not str"),
        (b"{}", "metadata", "must be a mapping, not bytes"),
        (5, "metadata", "must be a mapping, not int"),
        ({"a": {1, 2}}, "metadata.a", "set is not JSON"),
        ({"a": frozenset()}, "metadata.a", "frozenset is not JSON"),
        ({"a": b"bytes"}, "metadata.a", "bytes is not JSON"),
        ({"a": bytearray()}, "metadata.a", "bytearray is not JSON"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "metadata.a", "datetime is not JSON"),
        ({"a": Decimal("0.1")}, "metadata.a", "Decimal is not JSON"),
        ({"a": Fraction(1, 2)}, "metadata.a", "Fraction is not JSON"),
        ({"a": 1j}, "metadata.a", "complex is not JSON"),
        ({"a": Path("x")}, "metadata.a", "PosixPath is not JSON"),
        ({"a": object()}, "metadata.a", "object is not JSON"),
        ({"a": (n for n in [1])}, "metadata.a", "generator is not JSON"),
        ({"a": np.int64(1)}, "metadata.a", "int64 is not JSON"),
        ({"a": np.zeros(2)}, "metadata.a", "ndarray is not JSON"),
        ({"a": float("nan")}, "metadata.a", "nan is not JSON"),
        ({"a": float("inf")}, "metadata.a", "inf is not JSON"),
        ({"a": [0, float("-inf")]}, "metadata.a[1]", "-inf is not JSON"),
        ({"a": {"b": [{"c": b""}]}}, "metadata.a.b[0].c", "bytes is not JSON"),
        ({1: "a"}, "metadata key", "must be a string, not int"),
        ({None: "a"}, "metadata key", "must be a string, not NoneType"),
        ({True: "a"}, "metadata key", "must be a string, not bool"),
        ({("a", "b"): 1}, "metadata key", "must be a string, not tuple"),
        ({"a": {b"b": 1}}, "metadata.a key", "must be a string, not bytes"),
        ({"a": 10**400}, "metadata.a", "is larger than 1.8e+308"),
        ({"a": -(10**400)}, "metadata.a", "is larger than 1.8e+308"),
        ({"a": 10**5_000}, "metadata.a", "is larger than 1.8e+308"),
        ({"a": "x" * 70_000}, "metadata.a", "70,000 bytes of UTF-8, the limit is 65,536"),
        ({"x" * 70_000: 1}, "metadata key", "70,000 bytes of UTF-8, the limit is 65,536"),
        ({f"k{i}": "x" * 1_000 for i in range(70)}, "metadata", "bytes as JSON, the limit is 65,536"),
        ({"a": list(range(50_000))}, "metadata", "bytes as JSON, the limit is 65,536"),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else None,
)
def test_what_is_not_json_or_too_large_is_refused_by_its_place(value: Any, field: str, problem: str) -> None:
    error = refusal(lambda: metadata(value))
    assert error.field == field
    assert problem in error.problem


@pytest.mark.parametrize("kind", [dict, list])
def test_depth_is_limited(kind: type[Any]) -> None:
    inner = limits.MAX_METADATA_DEPTH - 1
    assert metadata({"a": nested(inner, kind=kind)}) == {"a": nested(inner, kind=kind)}
    for depth in (inner + 1, 200, 100_000):
        error = refusal(lambda depth=depth: metadata({"a": nested(depth, kind=kind)}))  # type: ignore[misc]
        assert error.field.startswith("metadata.a")
        assert error.problem == "is nested deeper than 32 levels"


def test_a_value_that_contains_itself_is_refused_as_too_deep() -> None:
    assert "nested deeper" in refusal(lambda: metadata(cyclic())).problem


def test_a_long_key_is_named_in_brief() -> None:
    assert refusal(lambda: metadata({"k" * 60_000: {1}})).field == "metadata." + "k" * 80


def test_the_size_limit_counts_bytes_of_json() -> None:
    room = limits.MAX_METADATA_BYTES - len('{"a": ""}')
    assert len(metadata({"a": "x" * room})["a"]) == room
    assert refusal(lambda: metadata({"a": "x" * (room + 1)})).limit == limits.MAX_METADATA_BYTES
    assert refusal(lambda: metadata({"a": "夜" * (room // 3 + 1)})).limit == limits.MAX_METADATA_BYTES


def written(value: object) -> str:
    return json.dumps(json_value(value, "metadata.a"))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (1e20, "100000000000000000000"),
        (-1e20, "-100000000000000000000"),
        (1e16, "10000000000000000"),
        (1e15, "1000000000000000.0"),
        (1.5e300, str(int(1.5e300))),
        (sys.float_info.max, str(int(sys.float_info.max))),
        (-0.0, "0.0"),
        (0.1, "0.1"),
        (1e-7, "1e-07"),
        (123.0, "123.0"),
        (2**63, "9223372036854775808"),
        (10**300, "1" + "0" * 300),
        (-5, "-5"),
        (True, "true"),
        (np.float64(0.25), "0.25"),
        (np.float64(1e20), "100000000000000000000"),
        (Level.HIGH, "3"),
        (Colour.RED, '"red"'),
        ((1, (2,)), "[1, [2]]"),
        (MappingProxyType({"b": 1}), '{"b": 1}'),
        (OrderedDict(b=1, a=2), '{"b": 1, "a": 2}'),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_values_take_the_form_that_a_database_gives_back(given: object, kept: str) -> None:
    assert written(given) == kept


@pytest.mark.parametrize(
    "given",
    [1e20, 1.7e308, sys.float_info.max, -0.0, (1, 2), Colour.RED, Level.HIGH, np.float64(0.5), {"a": [1e16]}],
)
def test_normalising_again_changes_nothing(given: object) -> None:
    once = json_value(given, "metadata.a")
    assert same_value(json_value(once, "metadata.a"), once)
    assert same_value(json.loads(json.dumps(once)), once)


def test_what_is_kept_is_a_copy() -> None:
    given = {"a": [1, {"b": 2}]}
    kept = metadata(given)
    given["a"].append(3)
    assert kept == {"a": [1, {"b": 2}]}
