"""Admission of changes: what ``update_memory`` may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from memory.core.clock import Stamp
from memory.core.errors import InvalidValue
from memory.core.model import MemoryType, Status
from memory.core.state import ABSENT, Changes, created_state
from memory.policies.admission import admit_changes
from tests.unit.refusals import refusal

OLD, NEW = Stamp(1, 0, "a"), Stamp(2, 0, "a")
CHANGEABLE = (
    "add_tags, content, importance, memory_type, metadata, remove_metadata, remove_tags, source_session, status, tags"
)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"content": ""}, "content", "must not be empty or blank"),
        ({"content": " \0\n"}, "content", "must not be empty or blank"),
        ({"content": None}, "content", "must be a string, not NoneType"),
        ({"content": "x" * 5_000_000}, "content", "the limit is 4,194,304"),
        ({"memory_type": "dream"}, "memory_type", "is not one of fact, preference, event, summary"),
        ({"memory_type": None}, "memory_type", "is not one of"),
        ({"importance": float("nan")}, "importance", "is not a finite number"),
        ({"importance": -1}, "importance", "-1 is not between 0 and 1"),
        ({"importance": 7}, "importance", "7 is not between 0 and 1"),
        ({"importance": True}, "importance", "must be a number, not bool"),
        ({"importance": "0.5"}, "importance", "must be a number, not str"),
        ({"importance": None}, "importance", "must be a number, not NoneType"),
        ({"status": "deleted"}, "status", "'deleted' is not one of active, archived, superseded"),
        ({"status": "gone"}, "status", "'gone' is not one of active, archived, superseded"),
        ({"status": None}, "status", "None is not one of"),
        ({"source_session": ""}, "source_session", "must not be empty or blank"),
        ({"source_session": 5}, "source_session", "must be a string, not int"),
        ({"tags": "project"}, "tags", "must be a list of strings"),
        ({"tags": None}, "tags", "must be a list of strings"),
        ({"tags": [f"t{i}" for i in range(1_000)]}, "tags", "1,000 tags, the limit is 256"),
        ({"add_tags": "project"}, "add_tags", "must be a list of strings"),
        ({"add_tags": ["a", 1]}, "add_tags[1]", "must be a string, not int"),
        ({"remove_tags": "project"}, "remove_tags", "must be a list of strings"),
        ({"metadata": None}, "metadata", "must be a mapping, not NoneType"),
        ({"metadata": {"a": {1}}}, "metadata.a", "set is not JSON"),
        ({"remove_metadata": "a"}, "remove_metadata", "must be a list of keys"),
        ({"remove_metadata": {"a": 1}}, "remove_metadata", "must be a list of keys"),
        ({"remove_metadata": None}, "remove_metadata", "must be a list of keys"),
        ({"remove_metadata": [1]}, "remove_metadata", "must be a string, not int"),
        ({"add_tags": ["a", "B"], "remove_tags": ["b "]}, "remove_tags", "'b' is in add_tags too"),
        ({"metadata": {"k": 1}, "remove_metadata": ["k\0"]}, "remove_metadata", "'k' is in metadata too"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_a_bad_change_is_refused_by_the_name_of_its_field(changes: dict[str, Any], field: str, problem: str) -> None:
    error = refusal(lambda: admit_changes(changes))
    assert error.field == field
    assert problem in error.problem


NOT_CHANGEABLE = [
    *("memory_id", "created_at", "updated_at", "access_count", "version"),
    *("deleted", "vector", "text", "Content", ""),
]


@pytest.mark.parametrize("name", NOT_CHANGEABLE)
def test_an_unknown_or_fixed_field_is_refused_and_the_changeable_ones_are_named(name: str) -> None:
    error = refusal(lambda: admit_changes({"content": "tea", name: "x"}))
    assert (error.field, error.problem) == (name, "cannot be changed")
    assert error.hint == f"what can be: {CHANGEABLE}"


def test_changes_are_normalised_like_a_new_memory() -> None:
    assert admit_changes(
        {
            "content": "te\0a",
            "memory_type": MemoryType.EVENT,
            "importance": 1,
            "status": Status.ARCHIVED,
            "source_session": None,
            "tags": [" A ", "a", "b"],
            "metadata": {"k\0": (1, 2)},
            "remove_metadata": ("x\ud800",),
        }
    ) == Changes(
        scalars={
            "content": "tea",
            "memory_type": "event",
            "importance": 1.0,
            "status": "archived",
            "source_session": None,
        },
        tags=frozenset({"a", "b"}),
        metadata={"k": [1, 2]},
        remove_metadata=frozenset({"x\ufffd"}),
    )


def test_only_what_is_given_is_changed() -> None:
    assert admit_changes({}) == Changes()
    assert admit_changes({"importance": 0.5}) == Changes(scalars={"importance": 0.5})
    assert admit_changes({"add_tags": []}) == Changes()
    assert admit_changes({"tags": []}) == Changes(tags=frozenset())


def test_an_edit_gives_a_new_stamp_to_what_it_changes_and_to_nothing_else() -> None:
    first = Changes(
        scalars={"content": "tea", "importance": 0.5},
        add_tags=frozenset({"hot", "drink"}),
        metadata={"x": 1, "y": 2},
    )
    before = created_state(OLD, first)
    after = before.written(
        NEW,
        admit_changes(
            {
                "content": "tea",
                "importance": 0.6,
                "tags": ["drink", "green"],
                "metadata": {"x": True},
                "remove_metadata": ["y"],
            }
        ),
    )
    assert {name for name, register in after.scalars.items() if register.stamp == NEW} == {"importance"}
    assert {tag for tag, register in after.tags.items() if register.stamp == NEW} == {"hot", "green"}
    assert after.present_tags() == ("drink", "green")
    assert {key for key, register in after.metadata.items() if register.stamp == NEW} == {"x", "y"}
    assert after.metadata["x"].value is True
    assert after.metadata["y"].value is ABSENT
    assert before.present_tags() == ("drink", "hot")


def test_an_edit_that_says_what_holds_already_writes_nothing() -> None:
    changes = Changes(scalars={"content": "tea"}, add_tags=frozenset({"a"}), metadata={"x": [1, {"y": None}]})
    state = created_state(OLD, changes)
    again = admit_changes(
        {
            "content": "tea",
            "add_tags": ["A"],
            "remove_tags": ["never there"],
            "metadata": {"x": (1, {"y": None})},
            "remove_metadata": ["never there"],
        }
    )
    assert state.written(NEW, again) == state


def test_removed_tags_and_keys_can_come_back() -> None:
    state = created_state(OLD, Changes(add_tags=frozenset({"a"}), metadata={"x": 1}))
    removed = state.written(NEW, admit_changes({"remove_tags": ["a"], "remove_metadata": ["x"]}))
    later = Stamp(3, 0, "a")
    back = removed.written(later, admit_changes({"add_tags": ["a"], "metadata": {"x": None}}))
    assert (removed.present_tags(), removed.present_metadata()) == ((), {})
    assert (back.present_tags(), back.present_metadata()) == (("a",), {"x": None})
    assert back.tags["a"].stamp == back.metadata["x"].stamp == later


def test_a_new_set_of_tags_replaces_the_old_and_stands_alone() -> None:
    state = created_state(OLD, Changes(add_tags=frozenset({"old"})))
    assert state.written(NEW, admit_changes({"tags": ["a", "b"]})).present_tags() == ("a", "b")
    for beside in ({"add_tags": ["c"]}, {"remove_tags": ["b"]}):
        with pytest.raises(InvalidValue, match="tags: replaces all tags"):
            admit_changes({"tags": ["a", "b"], **beside})
