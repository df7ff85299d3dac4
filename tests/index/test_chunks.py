"""What restarts leave of a series."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aboard.index.chunks import survivors


@given(st.lists(st.integers(0, 12), max_size=30))
def test_survivors_are_those_that_dropping_one_by_one_leaves(steps):
    kept: list[int] = []
    for place, step in enumerate(steps):
        while kept and steps[kept[-1]] >= step:
            kept.pop()
        kept.append(place)
    mask = survivors(np.array(steps, np.int64))
    found = list(range(len(steps))) if mask is None else np.flatnonzero(mask).tolist()
    assert found == kept
