"""Admission of a new memory: refused by the name of a field, or put into the form that stores agree on."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from memory.core.model import MemoryType, NewMemory
from memory.policies import limits, normalise
from memory.policies.admission import Admitted, admit_memory_id, admit_new, known_memory_id
from tests.unit.refusals import refusal

NOW = 1_800_000_000_000
MEGABYTE = 1024 * 1024
TOO_LONG_ID = "x" * (limits.MAX_ID_BYTES + 1)
A_UUID = "8c5fd3ac-8f0c-4d51-a9d5-0f29f0d0b1c0"


def admitted(**fields: Any) -> Admitted:
    return admit_new(NewMemory(**{"content": "tea", **fields}), now=NOW)


def nested_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fields", "field", "problem", "hint"),
    [
        ({"content": ""}, "content", "must not be empty or blank", ""),
        ({"content": " \n\t\u3000\u2028\u00a0"}, "content", "must not be empty or blank", ""),
        ({"content": "\0\0"}, "content", "must not be empty or blank", ""),
        ({"content": None}, "content", "must be a string, not NoneType", ""),
        ({"content": b"tea"}, "content", "must be a string, not bytes", ""),
        ({"content": ["tea"]}, "content", "must be a string, not list", ""),
        (
            {"content": "x" * (5 * MEGABYTE)},
            "content",
            "5,242,880 bytes of UTF-8, the limit is 4,194,304",
            "split",
        ),
        ({"content": "夜" * (2 * MEGABYTE)}, "content", "6,291,456 bytes of UTF-8", "split"),
        (
            {"memory_type": "dream"},
            "memory_type",
            "'dream' is not one of fact, preference, event, summary",
            "",
        ),
        ({"memory_type": "Fact"}, "memory_type", "'Fact' is not one of", ""),
        ({"memory_type": ""}, "memory_type", "'' is not one of", ""),
        ({"memory_type": None}, "memory_type", "None is not one of", ""),
        ({"memory_type": 1}, "memory_type", "int is not one of", ""),
        ({"memory_type": 10**5_000}, "memory_type", "int is not one of", ""),
        ({"memory_type": nested_list(100_000)}, "memory_type", "list is not one of", ""),
        ({"memory_type": "x" * MEGABYTE}, "memory_type", "is not one of", ""),
        ({"memory_type": "\ud800"}, "memory_type", "is not one of", ""),
        ({"importance": float("nan")}, "importance", "nan is not a finite number", ""),
        ({"importance": float("inf")}, "importance", "inf is not a finite number", ""),
        ({"importance": float("-inf")}, "importance", "-inf is not a finite number", ""),
        ({"importance": 10**400}, "importance", "is not a finite number", ""),
        ({"importance": -1}, "importance", "-1 is not between 0 and 1", ""),
        ({"importance": 7}, "importance", "7 is not between 0 and 1", ""),
        ({"importance": 1.000_000_1}, "importance", "1.0000001 is not between 0 and 1", ""),
        ({"importance": -5e-324}, "importance", "-5e-324 is not between 0 and 1", ""),
        ({"importance": True}, "importance", "must be a number, not bool", ""),
        ({"importance": "0.5"}, "importance", "must be a number, not str", ""),
        ({"importance": [0.5]}, "importance", "must be a number, not list", ""),
        ({"importance": 0.5 + 0j}, "importance", "must be a number, not complex", ""),
        ({"tags": "project"}, "tags", "must be a list of strings", "write tags=[…]"),
        ({"tags": None}, "tags", "must be a list of strings", "write tags=[…]"),
        ({"tags": 3}, "tags", "must be a list of strings", "write tags=[…]"),
        ({"tags": ["ok", 3]}, "tags[1]", "must be a string, not int", ""),
        ({"tags": ["ok", None]}, "tags[1]", "must be a string, not NoneType", ""),
        ({"tags": b"project"}, "tags[0]", "must be a string, not int", ""),
        ({"tags": ["x" * 129]}, "tags[0]", "129 characters, the limit is 128", ""),
        ({"tags": ["x" * (5 * MEGABYTE)]}, "tags[0]", "the limit is", ""),
        ({"tags": [f"t{i}" for i in range(1_000)]}, "tags", "1,000 tags, the limit is 256", ""),
        ({"source_session": ""}, "source_session", "must not be empty or blank", ""),
        ({"source_session": " "}, "source_session", "must not be empty or blank", ""),
        ({"source_session": 7}, "source_session", "must be a string, not int", ""),
        ({"source_session": TOO_LONG_ID}, "source_session", "513 bytes of UTF-8, the limit is 512", ""),
        ({"memory_id": "not-a-uuid"}, "memory_id", "'not-a-uuid' is not a UUID", "leave it out"),
        ({"memory_id": ""}, "memory_id", "'' is not a UUID", "leave it out"),
        ({"memory_id": 5}, "memory_id", "must be a string, not int", ""),
        ({"memory_id": uuid.UUID(A_UUID)}, "memory_id", "must be a string, not UUID", ""),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, dict) else None,
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(
    fields: dict[str, Any], field: str, problem: str, hint: str
) -> None:
    error = refusal(lambda: admitted(**fields))
    assert error.field == field
    assert problem in error.problem
    assert hint in error.hint
    assert bool(hint) == bool(error.hint) or "shorten" in error.hint


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"content": "x" * (limits.MAX_CONTENT_BYTES + 1)}, limits.MAX_CONTENT_BYTES),
        ({"tags": ["x" * (limits.MAX_TAG_LENGTH + 1)]}, limits.MAX_TAG_LENGTH),
        ({"tags": [f"t{i}" for i in range(limits.MAX_TAGS + 1)]}, limits.MAX_TAGS),
        ({"source_session": TOO_LONG_ID}, limits.MAX_ID_BYTES),
    ],
    ids=["content", "tag", "tags", "session"],
)
def test_an_exceeded_limit_is_a_field_of_the_error(fields: dict[str, Any], limit: int) -> None:
    assert refusal(lambda: admitted(**fields)).limit == limit


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x" * limits.MAX_CONTENT_BYTES},
        {"tags": ["x" * limits.MAX_TAG_LENGTH, "夜" * limits.MAX_TAG_LENGTH]},
        {"tags": [f"t{i}" for i in range(limits.MAX_TAGS)] * 5},
        {"source_session": "x" * limits.MAX_ID_BYTES},
        {"importance": 0},
        {"importance": 1},
        {"importance": 5e-324},
    ],
    ids=["content", "tag", "tags", "session", "zero", "one", "tiny"],
)
def test_what_just_keeps_within_a_limit_is_taken(fields: dict[str, Any]) -> None:
    ((name, value),) = fields.items()
    changes = admitted(**fields).changes
    assert changes.add_tags == frozenset(value) if name == "tags" else changes.scalars[name] == value


# -- what is filled in


def test_a_memory_of_which_only_the_content_is_given_gets_the_rest() -> None:
    new = admitted(content="tea")
    assert new.content == "tea"
    assert new.changes.scalars == {
        "content": "tea",
        "memory_type": "fact",
        "importance": 0.7 + 3 / 100.0 * 0.2,
        "status": "active",
        "source_session": None,
        "created_at": NOW,
    }
    assert new.changes.add_tags == frozenset()
    assert new.changes.metadata == {}


def test_ids_are_random_uuids_of_version_4() -> None:
    drawn = {admitted().memory_id for _ in range(50)}
    assert len(drawn) == 50
    assert {uuid.UUID(memory_id).version for memory_id in drawn} == {4}


def test_importance_is_computed_from_what_was_given() -> None:
    new = admitted(content="a" * 50, memory_type="event", metadata={"explicit_important": True})
    assert new.changes.scalars["importance"] == 0.5 + 0.1 + 0.3


@pytest.mark.parametrize(("given", "stored"), [(0, 0.0), (1, 1.0), (-0.0, 0.0), (np.float64(0.25), 0.25)])
def test_a_given_importance_is_kept_as_a_float(given: float, stored: float) -> None:
    importance = admitted(importance=given).changes.scalars["importance"]
    assert type(importance) is float
    assert str(importance) == str(stored)


@pytest.mark.parametrize("memory_type", [*MemoryType, *(str(member) for member in MemoryType)])
def test_types_are_taken_as_words_or_as_members_and_kept_as_plain_words(memory_type: str) -> None:
    kept = admitted(memory_type=memory_type).changes.scalars["memory_type"]
    assert type(kept) is str
    assert kept == memory_type


# -- text that not every store can hold

NUL_AND_SURROGATES = "a\0b\ud800c\udfffd\0"
CLEAN = "ab\ufffdc\ufffdd"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"content": NUL_AND_SURROGATES}, CLEAN),
        ({"source_session": NUL_AND_SURROGATES}, CLEAN),
        ({"tags": [NUL_AND_SURROGATES]}, frozenset({CLEAN})),
        ({"tags": ["a\0", "a", "A\0\0"]}, frozenset({"a"})),
        ({"tags": ["\0", " \0 "]}, frozenset()),
        ({"metadata": {NUL_AND_SURROGATES: 1}}, {CLEAN: 1}),
        ({"metadata": {"k": NUL_AND_SURROGATES}}, {"k": CLEAN}),
        ({"metadata": {"k": [{"n\0": ["\ud83d"]}]}}, {"k": [{"n": ["\ufffd"]}]}),
        ({"content": "🦜\U0010ffff\ufffe\x01\x7f"}, "🦜\U0010ffff\ufffe\x01\x7f"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_nul_goes_and_a_lone_surrogate_becomes_a_replacement_character(fields: dict[str, Any], expected: Any) -> None:
    (name,) = fields
    changes = admitted(**fields).changes
    held = {**changes.scalars, "tags": changes.add_tags, "metadata": changes.metadata}
    assert held[name] == expected


def test_two_metadata_keys_that_would_become_one_are_refused() -> None:
    error = refusal(lambda: admitted(metadata={"a": 1, "a\0": 2}))
    assert error.field == "metadata"
    assert "two keys become 'a'" in error.problem


def test_content_keeps_its_white_space_and_its_unicode_form() -> None:
    for content in (" tea \n", "mu\u0308ller", "Ａ", "\ufeffx", "a\r\nb"):
        assert admitted(content=content).content == content


# -- tags


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([], set()),
        (["Project", "project ", "\tPROJECT\n"], {"project"}),
        (("b", "a"), {"a", "b"}),
        ({"x", "y"}, {"x", "y"}),
        (["", "  ", "a"], {"a"}),
        (["two words", "夜莺", "É", "Straße"], {"two words", "夜莺", "é", "straße"}),
        ((tag for tag in ["a", "b"]), {"a", "b"}),
    ],
)
def test_tags_are_lower_cased_trimmed_and_each_kept_once(tags: Any, expected: set[str]) -> None:
    assert admitted(tags=tags).changes.add_tags == expected


def test_normalising_tags_again_changes_nothing() -> None:
    once = normalise.tags(["İstanbul", "ΑΣ", " \u00a0x\u2003", "ǅ", "a\0b", "ẞ"], "tags")
    assert normalise.tags(once, "tags") == once


# -- ids


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "must not be empty or blank"),
        ("   ", "must not be empty or blank"),
        ("\u3000\n", "must not be empty or blank"),
        (None, "must be a string, not NoneType"),
        (42, "must be a string, not int"),
        (b"u-42", "must be a string, not bytes"),
        ("u\0", "contains NUL or a lone surrogate"),
        ("\ud800u", "contains NUL or a lone surrogate"),
        ("u\udfff", "contains NUL or a lone surrogate"),
        ("u" * 513, "513 bytes of UTF-8, the limit is 512"),
        ("夜" * 171, "513 bytes of UTF-8, the limit is 512"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_user_id_is_refused_rather_than_changed(value: object, problem: str) -> None:
    error = refusal(lambda: normalise.identifier(value, "user_id"))
    assert error.field == "user_id"
    assert problem in error.problem


@pytest.mark.parametrize(
    "value", ["u-42", " u", "U", "%", "*", "u_42", "..", "a'b", 'a"b', "夜莺", "x" * 512, "\\", "null"]
)
def test_a_user_id_is_taken_literally(value: str) -> None:
    assert normalise.identifier(value, "user_id") == value


@pytest.mark.parametrize(
    "value",
    [A_UUID, A_UUID.upper(), A_UUID.replace("-", ""), f"{{{A_UUID}}}", f"urn:uuid:{A_UUID}"],
)
def test_a_memory_id_is_kept_in_its_canonical_spelling(value: str) -> None:
    assert admit_memory_id(value) == A_UUID
    assert known_memory_id(value) == A_UUID
    assert admitted(memory_id=value).memory_id == A_UUID


def almost_uuids() -> Iterator[str]:
    yield from (f" {A_UUID}", f"{A_UUID} ", f"{A_UUID}\n", f"{A_UUID}\0", A_UUID[:-1], f"{A_UUID}0")
    digits = A_UUID.replace("-", "")
    yield from (f" {digits[:-1]}", f"0x{digits[2:]}", f"+{digits[1:]}", f"{digits[:15]}_{digits[16:]}")
    yield from ("１" * 32, "\ud800" * 32, "\0" * 32, "g" * 32, "-".join(digits), A_UUID.replace("8", "\0"))


@pytest.mark.parametrize("value", list(almost_uuids()), ids=ascii)
def test_what_is_not_quite_a_uuid_never_turns_into_one(value: str) -> None:
    error = refusal(lambda: admit_memory_id(value))
    assert error.field == "memory_id"
    assert "is not a UUID" in error.problem


@pytest.mark.parametrize("value", ["no such id", "' OR '1'='1", "\0", "\ud800", "x" * MEGABYTE, "%"])
def test_an_id_that_is_asked_for_and_no_uuid_belongs_to_no_memory(value: str) -> None:
    assert known_memory_id(value) is None


@pytest.mark.parametrize("value", ["", "  ", None, 5, b"x", [A_UUID]])
def test_an_id_that_is_asked_for_must_be_a_string_of_something(value: object) -> None:
    error = refusal(lambda: known_memory_id(value))
    assert (error.field, error.problem) == ("memory_id", "must be a non-empty string")


# -- whole numbers


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (0, "0 is not between 1 and 1000"),
        (-1, "-1 is not between 1 and 1000"),
        (10**6, "1000000 is not between 1 and 1000"),
        (10**5_000, "is not between 1 and 1000"),
        (-sys.maxsize, "is not between 1 and 1000"),
        (True, "must be an integer, not bool"),
        (5.0, "must be an integer, not float"),
        (float("nan"), "must be an integer, not float"),
        ("5", "must be an integer, not str"),
        (None, "must be an integer, not NoneType"),
    ],
    ids=lambda value: repr(value)[:30] if not isinstance(value, int) or abs(value) < 10**9 else "huge",
)
def test_a_number_of_results_out_of_range_is_refused(value: object, problem: str) -> None:
    error = refusal(lambda: normalise.whole_number(value, "top_k", low=1, high=limits.MAX_TOP_K))
    assert error.field == "top_k"
    assert problem in error.problem


def test_a_number_of_results_in_range_is_taken() -> None:
    assert [normalise.whole_number(n, "top_k", low=1, high=1_000) for n in (1, 10, 1_000)] == [1, 10, 1_000]
