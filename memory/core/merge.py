"""The only place where two versions of a memory meet: file import, push and pull.

``merge`` is the join of a semilattice:

- commutative: ``merge(a, b) == merge(b, a)``
- associative: ``merge(a, merge(b, c)) == merge(merge(a, b), c)``
- idempotent: ``merge(a, a) == a``
- inflationary: no stamp and no counter of the result is below its inputs'

So replicas that have seen the same versions, in any order and any number of times, are equal.

| part | rule |
| --- | --- |
| scalar register, tag, metadata key | the larger stamp wins; equal stamps: the larger value digest |
| deleted | absorbs: the larger deleted stamp stays, everything else goes |
| access counts | one slot per writer, the larger number |
| last access | the later one |

A register that one side lacks means "no information", never "empty".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from memory.core.state import ABSENT, Register, State, same_value


def merge(a: State, b: State) -> State:
    """Join two versions of the same memory."""
    if a.deleted is not None or b.deleted is not None:
        return State(deleted=max(s.deleted for s in (a, b) if s.deleted is not None))
    return State(
        scalars=_join(a.scalars, b.scalars),
        tags=_join(a.tags, b.tags),
        metadata=_join(a.metadata, b.metadata),
        last_access=max((t for t in (a.last_access, b.last_access) if t is not None), default=None),
        accesses={w: max(a.accesses.get(w, 0), b.accesses.get(w, 0)) for w in {*a.accesses, *b.accesses}},
    )


def _join(a: Mapping[str, Register], b: Mapping[str, Register]) -> Mapping[str, Register]:
    joined = dict(a)
    for key, theirs in b.items():
        ours = joined.get(key)
        joined[key] = theirs if ours is None else _later(ours, theirs)
    return joined


def _later(a: Register, b: Register) -> Register:
    if a.stamp != b.stamp:
        return a if a.stamp > b.stamp else b
    if same_value(a.value, b.value):
        return a
    # Only forged or corrupted data gets here. The choice must not depend on who asks.
    return max(a, b, key=lambda register: _digest(register.value))


def _digest(value: Any) -> bytes:
    text = "" if value is ABSENT else json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).digest()
