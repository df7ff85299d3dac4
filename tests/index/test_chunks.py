"""Arrays as blobs, merging, and what restarts leave."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aboard.index.chunks import CHUNK_POINTS, Columns, pack, survivors, to_merge, unpack

steps_lists = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20)


def as_stored(chunk):
    return chunk.points, *(np.asarray(blob).tobytes() for blob in chunk[1:])


@given(steps=steps_lists | st.builds(range, st.integers(0, 9), st.integers(10, 99)).map(list))
def test_chunks_are_read_back(steps):
    numbers = np.arange(len(steps)) / 3
    columns = Columns(np.array(steps, np.int64), numbers + 1, numbers)
    back = unpack(*as_stored(pack(columns, narrow=False)), form=0)
    for ours, theirs in ((back.steps, columns.steps), (back.walls, columns.walls)):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(back.payload, numbers)
    narrow = unpack(*as_stored(pack(columns, narrow=True)), form=0)
    np.testing.assert_array_equal(narrow.payload, numbers.astype(np.float32))


def test_pointers_are_read_back():
    payload = np.arange(12, dtype=np.int64).reshape(4, 3)
    columns = Columns(np.arange(4), np.zeros(4), payload)
    back = unpack(*as_stored(pack(columns, narrow=True)), form=1)
    np.testing.assert_array_equal(back.payload, payload)


def test_even_steps_take_no_room():
    columns = Columns(np.arange(0, 40960, 10), np.zeros(4096), np.zeros(4096))
    assert len(np.asarray(pack(columns, narrow=True).steps)) == 2


@given(st.lists(st.integers(1, 300), min_size=1, max_size=300))
def test_merging_keeps_chunks_few_and_small(additions):
    sizes: list[int] = []
    rewritten = 0
    for new in additions:
        merged = to_merge(sizes, new)
        total = new + sum(sizes[len(sizes) - merged :])
        rewritten += total
        del sizes[len(sizes) - merged :]
        sizes += [min(CHUNK_POINTS, total - at) for at in range(0, total, CHUNK_POINTS)]
    assert sum(sizes) == sum(additions)
    assert max(sizes) <= CHUNK_POINTS
    full = sum(additions) // CHUNK_POINTS
    assert len(sizes) <= 2 * full + 14
    assert rewritten <= sum(additions) * 16


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
