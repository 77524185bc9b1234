"""The default importance: the formula of the Hermes memory architecture, §4.2, to the last digit."""

from __future__ import annotations

from typing import Any

import pytest

from memory.core.model import MemoryType
from memory.policies.importance import default_importance


def as_printed(content: str, memory_type: str, metadata: dict[str, Any]) -> float:
    """The code of the document, kept as it is printed there."""
    base = {
        "fact": 0.7,
        "preference": 0.8,
        "event": 0.5,
        "summary": 0.6,
    }.get(memory_type, 0.5)
    length_factor = min(len(content) / 100.0, 1.0) * 0.2
    explicit = 0.3 if metadata.get("explicit_important") else 0.0
    return min(base + length_factor + explicit, 1.0)


@pytest.mark.parametrize("memory_type", [*MemoryType, "dream"])
@pytest.mark.parametrize("length", [1, 2, 7, 33, 50, 99, 100, 101, 5_000])
@pytest.mark.parametrize("metadata", [{}, {"explicit_important": True}, {"explicit_important": False}])
def test_it_equals_the_documents_own_code(memory_type: str, length: int, metadata: dict[str, Any]) -> None:
    content = "夜" * length
    assert default_importance(content, memory_type, metadata) == as_printed(content, memory_type, metadata)


@pytest.mark.parametrize(
    ("content", "memory_type", "metadata", "expected"),
    [
        ("a", "fact", {}, 0.702),
        ("a" * 50, "fact", {}, 0.7 + 0.1),
        ("a" * 100, "fact", {}, 0.7 + 0.2),
        ("a" * 100, "preference", {}, 1.0),
        ("a" * 100, "event", {}, 0.7),
        ("a" * 100, "summary", {}, 0.6 + 0.2),
        ("a" * 100_000, "event", {}, 0.7),
        ("", "event", {}, 0.5),
        ("项目代号叫夜莺", "fact", {}, 0.7 + 0.07 * 0.2),
        ("a" * 50, "event", {"explicit_important": True}, 0.5 + 0.1 + 0.3),
        ("a" * 50, "preference", {"explicit_important": True}, 1.0),
        ("a" * 100, "fact", {"explicit_important": True}, 1.0),
    ],
)
def test_figures_worked_out_by_hand(content: str, memory_type: str, metadata: dict[str, Any], expected: float) -> None:
    assert default_importance(content, memory_type, metadata) == expected


@pytest.mark.parametrize("mark", [True, 1, "yes", [0]])
def test_any_true_mark_counts(mark: Any) -> None:
    assert default_importance("", "event", {"explicit_important": mark}) == 0.8


@pytest.mark.parametrize("mark", [False, 0, "", None, []])
def test_no_false_mark_counts(mark: Any) -> None:
    assert default_importance("", "event", {"explicit_important": mark}) == 0.5


def test_length_is_counted_in_characters_not_in_bytes() -> None:
    assert default_importance("夜" * 50, "fact", {}) == default_importance("a" * 50, "fact", {})
