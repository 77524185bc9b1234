"""Admission of filters: known fields, known operators, typed operands; nothing can widen a search."""

from __future__ import annotations

from typing import Any

import pytest

from memory.core.model import MemoryType, RecallFilter, Status
from memory.policies import limits
from memory.policies.admission import OPERATORS, Condition, Filter, admit_filter
from tests.unit.refusals import refusal

KNOWN_OPERATORS = "known: eq, ne, gt, gte, lt, lte, in, exists"


def conditions(metadata: Any) -> tuple[Condition, ...]:
    return admit_filter({"metadata": metadata}).conditions


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"eq": 1}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("given", [None, {}, RecallFilter()])
def test_without_any_condition_active_memories_are_considered(given: Any) -> None:
    assert admit_filter(given) == Filter(statuses=(Status.ACTIVE,))


def test_a_filter_may_be_a_value_or_a_mapping_of_its_fields() -> None:
    fields: dict[str, Any] = {
        "statuses": ["archived", "active", "archived"],
        "types": {"event"},
        "tags_all": [" B", "a", "b"],
        "tags_any": ("X\0",),
        "created_from": 1_733_000_000,
        "created_to": 1_733_000_000_001,
        "source_session": "s\ud8001",
        "min_importance": 1,
        "min_relevance": 0.25,
        "metadata": {"lang": "zh"},
    }
    expected = Filter(
        statuses=(Status.ARCHIVED, Status.ACTIVE),
        types=(MemoryType.EVENT,),
        tags_all=("a", "b"),
        tags_any=("x",),
        created_from=1_733_000_000_000,
        created_to=1_733_000_000_001,
        source_session="s\ufffd1",
        min_importance=1.0,
        min_relevance=0.25,
        conditions=(Condition(key="lang", operator="eq", value="zh"),),
    )
    assert admit_filter(fields) == admit_filter(RecallFilter(**fields)) == expected


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ("active", "filters", "must be a RecallFilter or a mapping, not str"),
        ([("types", ["fact"])], "filters", "must be a RecallFilter or a mapping, not list"),
        (5, "filters", "must be a RecallFilter or a mapping, not int"),
        ({"user_id": "a"}, "filters.user_id", "is not a filter"),
        ({"$or": [{}, {}]}, "filters.$or", "is not a filter"),
        ({"status": "active"}, "filters.status", "is not a filter"),
        ({"x' OR '1'='1": 1}, "filters.x' OR '1'='1", "is not a filter"),
        ({5: 1}, "filters.5", "is not a filter"),
        ({"x" * 1_000_000: 1}, "filters." + "x" * 80, "is not a filter"),
        ({"statuses": []}, "filters.statuses", "must name at least one status"),
        ({"statuses": "active"}, "filters.statuses", "must be a list"),
        ({"statuses": None}, "filters.statuses", "must be a list"),
        (
            {"statuses": ["deleted"]},
            "filters.statuses",
            "'deleted' is not one of active, archived, superseded",
        ),
        ({"statuses": ["active", None]}, "filters.statuses", "None is not one of"),
        ({"types": "fact"}, "filters.types", "must be a list"),
        ({"types": ["dream"]}, "filters.types", "'dream' is not one of fact, preference, event, summary"),
        ({"tags_all": "a"}, "filters.tags_all", "must be a list of strings"),
        ({"tags_any": [1]}, "filters.tags_any[0]", "must be a string, not int"),
        ({"tags_any": [f"t{i}" for i in range(1_000)]}, "filters.tags_any", "1,000 tags, the limit is 256"),
        ({"created_from": "yesterday"}, "filters.created_from", "is not an ISO 8601 time"),
        ({"created_to": float("nan")}, "filters.created_to", "is not a finite number"),
        ({"source_session": ""}, "filters.source_session", "must not be empty or blank"),
        ({"source_session": 5}, "filters.source_session", "must be a string, not int"),
        ({"min_importance": float("nan")}, "filters.min_importance", "is not a finite number"),
        ({"min_importance": 2}, "filters.min_importance", "2 is not between 0 and 1"),
        ({"min_relevance": True}, "filters.min_relevance", "must be a number, not bool"),
        ({"min_relevance": "0.5"}, "filters.min_relevance", "must be a number, not str"),
        ({"metadata": None}, "filters.metadata", "must be a mapping, not NoneType"),
        ({"metadata": "a = 1"}, "filters.metadata", "must be a mapping, not str"),
        ({"metadata": [("a", 1)]}, "filters.metadata", "must be a mapping, not list"),
        ({"metadata": {1: 1}}, "filters.metadata key", "must be a string, not int"),
        ({"metadata": {"a": {}}}, "filters.metadata.a", "has no operator"),
        (
            {"metadata": {"a": [1]}},
            "filters.metadata.a.eq",
            "must be a string, number, boolean or null, not list",
        ),
        (
            {"metadata": {"a": {1}}},
            "filters.metadata.a.eq",
            "must be a string, number, boolean or null, not set",
        ),
        ({"metadata": {"a": float("nan")}}, "filters.metadata.a.eq", "nan is not JSON"),
        ({"metadata": {"a": 10**400}}, "filters.metadata.a.eq", "is larger than 1.8e+308"),
        ({"metadata": {"a": {"eq": {"b": 1}}}}, "filters.metadata.a.eq", "must be a string, number"),
        ({"metadata": {"a": {"ne": []}}}, "filters.metadata.a.ne", "must be a string, number"),
        ({"metadata": {"a": {"gt": None}}}, "filters.metadata.a.gt", "orders only numbers and strings"),
        ({"metadata": {"a": {"gte": True}}}, "filters.metadata.a.gte", "orders only numbers and strings"),
        ({"metadata": {"a": {"lt": [1]}}}, "filters.metadata.a.lt", "must be a string, number"),
        ({"metadata": {"a": {"lte": float("inf")}}}, "filters.metadata.a.lte", "inf is not JSON"),
        ({"metadata": {"a": {"in": "abc"}}}, "filters.metadata.a.in", "must be a list of values"),
        ({"metadata": {"a": {"in": {"b": 1}}}}, "filters.metadata.a.in", "must be a list of values"),
        ({"metadata": {"a": {"in": [[1]]}}}, "filters.metadata.a.in", "must be a string, number"),
        ({"metadata": {"a": {"in": list(range(1_001))}}}, "filters.metadata.a.in", "more than 1000 values"),
        ({"metadata": {"a": {"exists": 1}}}, "filters.metadata.a.exists", "must be True or False"),
        ({"metadata": {"a": {"exists": None}}}, "filters.metadata.a.exists", "must be True or False"),
        (
            {"metadata": {f"k{i}": 1 for i in range(1_001)}},
            "filters.metadata",
            "1,001 values to compare",
        ),
        ({"metadata": {"x" * 70_000: 1}}, "filters.metadata key", "70,000 bytes"),
        ({"metadata": {"a": "x" * 70_000}}, "filters.metadata.a.eq", "70,000 bytes"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_a_bad_filter_is_refused_by_the_place_of_the_fault(given: Any, field: str, problem: str) -> None:
    error = refusal(lambda: admit_filter(given))
    assert error.field == field
    assert problem in error.problem


@pytest.mark.parametrize(
    "operator",
    [
        "$eq",
        "$where",
        "$or",
        "==",
        "like",
        "EQ",
        "eq ",
        "",
        "a",
        "regex",
        "not",
        "__class__",
        5,
        None,
        10**5_000,
        ("eq",),
    ],
    ids=lambda value: repr(value) if not isinstance(value, int) else "number",
)
def test_an_unknown_operator_is_refused_and_the_known_ones_are_named(operator: Any) -> None:
    error = refusal(lambda: conditions({"a": {operator: 1}}))
    assert error.field == "filters.metadata.a"
    assert "unknown operator" in error.problem
    assert error.hint == KNOWN_OPERATORS


@pytest.mark.parametrize("depth", [1, 200, 100_000])
def test_a_nested_filter_is_refused_however_deep_it_goes(depth: int) -> None:
    assert "unknown operator 'a'" in refusal(lambda: conditions({"k": nested(depth)})).problem


def test_an_unknown_filter_is_answered_with_the_known_ones() -> None:
    hint = refusal(lambda: admit_filter({"tag": ["a"]})).hint
    assert hint.startswith("known: statuses, types, tags_all, tags_any, created_from, created_to")


@pytest.mark.parametrize(
    "key", ["x' OR '1'='1", 'a"); DROP TABLE memories;--', "$where", "a.b", "%s", "{0}", "", "夜莺", "\\"]
)
def test_a_key_is_any_text_and_stays_as_it_is(key: str) -> None:
    assert conditions({key: {"gte": key}}) == (Condition(key=key, operator="gte", value=key),)


def test_keys_and_values_are_cleaned_as_stored_ones_are() -> None:
    assert conditions({"k\0": {"in": ["\ud800", -0.0, 1e20]}}) == (
        Condition(key="k", operator="in", value=["\ufffd", 0.0, 10**20]),
    )


def test_a_scalar_means_equality() -> None:
    for value in ("x", 1, 1.5, True, None):
        (condition,) = conditions({"k": value})
        assert (condition.operator, condition.value) == ("eq", value)


def test_every_operator_is_taken_with_a_fitting_operand() -> None:
    operands: dict[str, Any] = {
        "eq": None,
        "ne": True,
        "gt": 1,
        "gte": "a",
        "lt": 2.5,
        "lte": "夜",
        "in": [1, "a", None, True],
        "exists": False,
    }
    assert tuple(operands) == OPERATORS
    assert {c.operator: c.value for c in conditions({"k": operands})} == operands


def test_ordering_takes_numbers_and_texts_of_which_neither_compares_with_the_other() -> None:
    lower, upper = conditions({"k": {"gt": 5, "lt": "5"}})
    assert (type(lower.value), type(upper.value)) == (int, str)


def test_several_operators_on_one_key_and_several_keys_must_all_hold() -> None:
    found = conditions({"year": {"gte": 2020, "lt": 2030}, "lang": "zh"})
    assert [(c.key, c.operator) for c in found] == [("year", "gte"), ("year", "lt"), ("lang", "eq")]


def test_as_many_conditions_and_values_as_the_limit_allows_are_taken() -> None:
    most = limits.MAX_FILTER_VALUES
    assert len(conditions({f"k{i}": i for i in range(most)})) == most
    (condition,) = conditions({"k": {"in": range_list(most)}})
    assert len(condition.value) == most


def range_list(size: int) -> list[int]:
    return list(range(size))
