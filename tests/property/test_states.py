"""New states: made directly they are what an edit of nothing leads to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory.core.clock import Stamp
from memory.core.state import SCALARS, Changes, State, created_state
from tests.property.strategies import exact, json_values, stamps, texts

tags = st.frozensets(texts(min_size=1, max_size=4), max_size=4)
changes = st.builds(
    Changes,
    scalars=st.dictionaries(st.sampled_from(SCALARS), json_values, max_size=6),
    tags=st.none() | tags,
    add_tags=tags,
    metadata=st.dictionaries(texts(max_size=6), json_values, max_size=4),
    remove_metadata=st.just(frozenset()),
)


@given(changes, stamps)
def test_a_created_state_is_a_written_one(given_changes: Changes, stamp: Stamp) -> None:
    made, written = created_state(stamp, given_changes), State().written(stamp, given_changes)
    assert exact(made) == exact(written)
    assert made == written
