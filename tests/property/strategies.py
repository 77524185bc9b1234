"""Generators of what the core works on, shared by the property tests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck
from hypothesis import strategies as st

from memory.core.clock import MAX_COUNTER, Stamp
from memory.core.ports import Vector
from memory.core.record import Record
from memory.core.state import ABSENT, SCALARS, Register, State

SLOW = (HealthCheck.too_slow,)
"""To suppress: a busy machine makes large examples slowly, and that is no fault of theirs."""

ALPHABET = (
    "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789 .,!?-_'\"\\/\t\n"
    "éèüßñçøÅœşğИванжёΑλφάςΐ"
    "我喜欢喝咖啡夜莺项目代号猫咪𠮷々"
    "コーヒーが好きｺｰﾋｰぁっヴ"
    "커피를좋아해요한글"
    "नमस्ते हिन्दी สวัสดีกาแฟ"
    "🙂🦜☕❤️👍🏽👨‍👩‍👧🇨🇳⭐"
    "，。？！「」…’Ａ１％①㎒ﬁ"
    "\u0301\u200b\u200d\u00a0\u2028\ufeff\ufffd"
)
"""Latin, Cyrillic, Greek, Chinese, Japanese, Korean, Hindi, Thai, emoji, wide forms, odd spaces."""

UNKNOWN_NAMES = ("mood", "score_2", "新字段", "é", "stamps2", "content_hash", " ", "tags ")
USERS = ("u-42", "u-43", "张三", "o'brien \\ % _")


def texts(*, min_size: int = 0, max_size: int = 24) -> st.SearchStrategy[str]:
    """Storable text: no NUL, no lone surrogate; mostly of the alphabet, now and then anything."""
    anything = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    return st.text(st.sampled_from(ALPHABET) | anything, min_size=min_size, max_size=max_size)


json_numbers = (
    st.integers(-(2**70), 2**70)
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)
    | st.sampled_from([0.0, 1.0, -1.0, 0.1, 1e-300, 5e-324])
)
"""Numbers as admission leaves them: finite, without negative zero."""

json_scalars = st.none() | st.booleans() | json_numbers | texts()

json_values: st.SearchStrategy[Any] = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(max_size=8), inner, max_size=4),
    max_leaves=8,
)

alike_values = st.sampled_from([True, 1, 1.0, False, 0, 0.0, None, "", "1", [], {}, [1], [True], {"a": 1}, {"a": 1.0}])
"""Values that Python's ``==`` or a careless encoding takes for one another."""

writers = st.sampled_from(["0", "5f3a", "a", "b"]) | st.text("0123456789abcdefz", min_size=1, max_size=32)

stamps = st.builds(
    Stamp,
    ms=st.integers(0, 2) | st.integers(0, 2_000_000_000_000),
    counter=st.integers(0, 1) | st.integers(0, MAX_COUNTER),
    writer=writers,
)

few_stamps = st.builds(Stamp, ms=st.integers(0, 1), counter=st.integers(0, 1), writer=st.sampled_from(["a", "b"]))
"""So few that equal stamps with different values, which only a forger writes, are common."""


def states(
    stamps: st.SearchStrategy[Stamp] = few_stamps, values: st.SearchStrategy[Any] = alike_values
) -> st.SearchStrategy[State]:
    """Live and deleted states whose keys overlap, whatever their registers hold."""

    def registers(keys: list[str], held: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Register]]:
        return st.dictionaries(st.sampled_from(keys), st.builds(Register, stamps, held), max_size=len(keys))

    live = st.builds(
        State,
        scalars=registers(["content", "importance", "mood"], values),
        tags=registers(["project", "咖啡"], st.booleans()),
        metadata=registers(["a", "b"], values | st.just(ABSENT)),
        last_access=st.none() | st.integers(0, 3),
        accesses=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 5)),
    )
    return live | live | live | st.builds(State, deleted=stamps)


def _scalars(draw: st.DrawFn) -> dict[str, Register]:
    known = {
        "content": texts(min_size=1),
        "memory_type": st.sampled_from(["fact", "preference", "event", "summary"]),
        "importance": st.floats(0.0, 1.0).map(lambda number: number + 0.0),
        "status": st.sampled_from(["active", "archived", "superseded"]),
        "source_session": st.none() | texts(min_size=1),
        "created_at": st.integers(0, 2_000_000_000_000),
    }
    assert tuple(known) == SCALARS
    unknown = draw(st.dictionaries(st.sampled_from(UNKNOWN_NAMES), json_values, max_size=3))
    values = {name: draw(strategy) for name, strategy in known.items()} | unknown
    return {name: Register(draw(stamps), value) for name, value in values.items()}


@st.composite
def full_states(draw: st.DrawFn) -> State:
    """A live state that a store could hold: every known scalar, tags, keys, and fields of later versions."""
    common = draw(stamps)
    some_stamps = st.just(common) | stamps
    scalars = _scalars(draw)
    if draw(st.booleans()):
        scalars = {name: Register(common, register.value) for name, register in scalars.items()}
    return State(
        scalars=scalars,
        tags=draw(st.dictionaries(texts(min_size=1, max_size=8), st.builds(Register, some_stamps, st.booleans()))),
        metadata=draw(
            st.dictionaries(
                texts(max_size=8), st.builds(Register, some_stamps, json_values | st.just(ABSENT)), max_size=4
            )
        ),
        last_access=draw(st.none() | st.integers(0, 2_000_000_000_000)),
        accesses=draw(st.dictionaries(writers, st.integers(1, 2**53 - 1), max_size=3)),
    )


def _vector(data: bytes) -> Vector:
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


vectors = st.integers(1, 6).flatmap(lambda n: st.binary(min_size=4 * n, max_size=4 * n)).map(_vector)
"""Any bits at all: a record carries them as they are, admission judges them later."""


@st.composite
def records(draw: st.DrawFn) -> Record:
    """A record as a store exports it."""
    state = draw(full_states() | full_states() | st.builds(State, deleted=stamps))
    vector = draw(st.none() | vectors) if state.deleted is None else None
    return Record(
        memory_id=str(draw(st.uuids(version=4))),
        user_id=draw(st.sampled_from(USERS)),
        state=state,
        vector=vector,
        model=draw(texts(min_size=1)) if vector is not None else None,
        rev=draw(st.none() | st.integers(0, 2**63 - 1)),
    )


def exact(state: State) -> str:
    """A state written out so that True, 1 and 1.0, which are equal in Python, differ."""

    def written(registers: Any) -> dict[str, Any]:
        return {key: [str(r.stamp), "ABSENT" if r.value is ABSENT else [r.value]] for key, r in registers.items()}

    parts = {
        "scalars": written(state.scalars),
        "tags": written(state.tags),
        "metadata": written(state.metadata),
        "deleted": None if state.deleted is None else str(state.deleted),
        "last_access": state.last_access,
        "accesses": dict(state.accesses),
    }
    return json.dumps(parts, sort_keys=True)
