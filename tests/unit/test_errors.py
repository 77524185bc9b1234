"""The error tree: what a caller can catch, read and pass on."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import memory
from memory.core import errors
from memory.core.errors import Conflict, Error, FileDamaged, FormatError, InvalidValue, NotFound, StoreError


def tree(kind: type[Error] = Error) -> Iterator[type[Error]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


KINDS = sorted(set(tree()), key=lambda kind: kind.__name__)
PLAIN_KINDS = [kind for kind in KINDS if kind is not InvalidValue]
RETRYABLE = {
    "ClockAhead",
    "EpochChanged",
    "SyncInterrupted",
    "StoreUnavailable",
    "StoreTimeout",
    "StoreBusy",
    "StoreInUse",
    "VectorIndexUnavailable",
    "EmbeddingUnavailable",
}


def example(kind: type[Error]) -> Error:
    if issubclass(kind, InvalidValue):
        return kind("importance", "7 is not between 0 and 1", hint="use a number in [0, 1]", item=3)
    return kind("something happened", hint="do this", line=7, memory_id="m")


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_exported_and_derives_from_the_one_base(kind: type[Error]) -> None:
    assert getattr(memory, kind.__name__) is kind
    assert kind.__name__ in memory.__all__
    assert issubclass(kind, memory.Error)


def test_whatever_is_exported_and_can_be_raised_derives_from_the_base() -> None:
    exported = [getattr(memory, name) for name in memory.__all__]
    raisable = [item for item in exported if inspect.isclass(item) and issubclass(item, BaseException)]
    assert set(raisable) == set(KINDS)


def test_no_error_is_named_like_a_builtin() -> None:
    assert not {kind.__name__ for kind in KINDS} & set(dir(builtins))


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_the_first_line_of_the_docstring_is_the_default_message(kind: type[Error]) -> None:
    error = kind()
    assert kind.__doc__
    assert error.message == kind.__doc__.strip().splitlines()[0]
    assert error.message.endswith(".")
    assert error.message in str(error)


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_a_given_message_and_hint_replace_the_defaults(kind: type[Error]) -> None:
    error = kind("it broke", hint="mend it")
    assert (error.message, error.hint, str(error)) == ("it broke", "mend it", "it broke (mend it)")


def test_an_error_without_a_hint_is_its_message() -> None:
    assert str(NotFound()) == "No such memory for this user."


def test_default_hints_say_what_to_do() -> None:
    assert str(Conflict()) == f"{Conflict().message} ({Conflict.default_hint})"
    assert "again" in Conflict().hint


@pytest.mark.parametrize("kind", KINDS)
def test_the_class_says_whether_trying_again_can_help(kind: type[Error]) -> None:
    assert kind.retryable is (kind.__name__ in RETRYABLE)


def test_facts_are_attributes() -> None:
    error = FileDamaged("cut", line=7, memory_id="m")
    assert (error.line, error.memory_id) == (7, "m")
    assert error.fields == {"line": 7, "memory_id": "m"}


def test_a_fact_that_was_not_given_is_a_missing_attribute() -> None:
    error = FileDamaged("cut")
    assert not hasattr(error, "line")
    with pytest.raises(AttributeError, match="FileDamaged has no field 'line'"):
        _ = error.line


def test_a_bad_value_names_its_field() -> None:
    error = InvalidValue("importance", "7 is not between 0 and 1", hint="use a number in [0, 1]", item=3)
    assert (error.field, error.problem, error.item) == ("importance", "7 is not between 0 and 1", 3)
    assert str(error) == "importance: 7 is not between 0 and 1 (use a number in [0, 1])"


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("InvalidValue", "UsageError"),
        ("ConfigError", "UsageError"),
        ("StoreTimeout", "StoreUnavailable"),
        ("StoreUnavailable", "StoreError"),
        ("StoreFull", "StoreError"),
        ("StoreReadOnly", "StoreError"),
        ("SchemaMismatch", "StoreError"),
        ("IntegrityFailure", "StoreError"),
        ("ModelMismatch", "EmbeddingError"),
        ("EmbeddingRejected", "EmbeddingError"),
        ("FileDamaged", "FormatError"),
        ("FormatTooNew", "FormatError"),
    ],
)
def test_families_can_be_caught_as_a_whole(kind: str, family: str) -> None:
    assert issubclass(getattr(memory, kind), getattr(memory, family))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_the_way_to_another_process(kind: type[Error], protocol: int) -> None:
    error = example(kind)
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is kind
    assert (back.message, back.hint, back.fields, str(back), back.args) == (
        *(error.message, error.hint, error.fields, str(error)),
        error.args,
    )
    assert back.retryable is error.retryable


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_an_error_can_be_copied(kind: type[Error], copied: Any) -> None:
    error = example(kind)
    assert vars(copied(error)) == vars(error)


def test_notes_survive_the_way_to_another_process() -> None:
    error = NotFound(memory_id="m")
    error.add_note("while importing line 7")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while importing line 7"]


def test_the_cause_is_kept() -> None:
    cause = OSError("disk on fire")
    with pytest.raises(StoreError) as caught:
        raise StoreError from cause
    assert caught.value.__cause__ is cause
    assert str(caught.value) == "The database failed."


def test_a_class_without_a_docstring_is_known_by_its_name() -> None:
    class Overslept(FormatError):
        pass

    assert str(Overslept()) == "Overslept"


def test_errors_work_where_docstrings_are_stripped() -> None:
    program = "import runpy, sys; e = runpy.run_path(sys.argv[1]); print(e['NotFound'](), e['NotFound']('gone'))"
    command = [sys.executable, "-OO", "-B", "-c", program, errors.__file__]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["NotFound", "gone"]
