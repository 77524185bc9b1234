"""What every refusal of a value has in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memory.core.errors import InvalidValue


def refusal(call: Callable[[], object]) -> InvalidValue:
    """The error with which a call is refused: it names the field, and its message stays short."""
    with pytest.raises(InvalidValue) as caught:
        call()
    error = caught.value
    assert error.message == f"{error.field}: {error.problem}"
    assert error.problem
    assert len(str(error)) < 800
    return error
