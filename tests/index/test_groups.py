"""The curves of a group are numpy's statistics of its members, also while these change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events.writer import EventWriter
from aboard.index import Source, UnknownName
from aboard.index import groups as module
from aboard.index.groups import compute
from aboard.index.series import Series
from aboard.index.tags import GroupTag
from aboard.runs.groups import Band, Line


def write(directory, values, steps=None):
    with EventWriter(directory) as writer:
        for step, value in zip(steps or range(len(values)), values, strict=True):
            writer.scalar("loss", value, step, wall_time=100.0 + step, dtype="float64")


def tags(index, *directories):
    for one in directories:
        index.refresh(Source(str(one)))
    return [index.find_tag(Source(str(one)), ".", "loss") for one in directories]


def delete(index, directory):
    for path in directory.iterdir():
        path.unlink()
    index.refresh(Source(str(directory)))


def line(index, members, line=Line.MIDDLE, band=Band.STD):
    series = index.series(GroupTag.of(members, band, line))
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_lines_of_each_band(tmp_path, index):
    for number in range(4):
        write(tmp_path / str(number), [float(number), 2.0 * number])
    members = tags(index, *(tmp_path / str(number) for number in range(4)))
    values = [0.0, 1.0, 2.0, 3.0]
    std = np.std(values, ddof=1)
    expected = {
        Band.STD: (1.5, 1.5 + std, 1.5 - std),
        Band.SEM: (1.5, 1.5 + std / 2, 1.5 - std / 2),
        Band.MINMAX: (1.5, 3.0, 0.0),
        Band.QUARTILES: (1.5, *np.quantile(values, [0.75, 0.25])),
    }
    for band, numbers in expected.items():
        for one, number in zip((Line.MIDDLE, Line.UPPER, Line.LOWER), numbers, strict=True):
            found = line(index, members, one, band)
            assert found == {0: pytest.approx(number), 1: pytest.approx(2 * number)}
    assert line(index, members, Line.COUNT) == {0: 4, 1: 4}


def test_steps_that_differ_are_interpolated_and_members_counted(tmp_path, index):
    write(tmp_path / "a", [0.0, 4.0, 8.0], [0, 2, 4])
    write(tmp_path / "b", [1.0, 3.0], [1, 3])
    members = tags(index, tmp_path / "a", tmp_path / "b")
    assert line(index, members) == {0: 0.0, 1: 1.5, 2: 3.0, 3: 4.5, 4: 8.0}
    assert line(index, members, Line.COUNT) == {0: 1, 1: 2, 2: 2, 3: 2, 4: 1}
    # One member alone has no deviation.
    assert list(line(index, members, Line.UPPER)) == [1, 2, 3]


def test_new_points_and_deleted_members(tmp_path, index):
    write(tmp_path / "a", [1.0])
    write(tmp_path / "b", [3.0])
    before = tags(index, tmp_path / "a", tmp_path / "b")
    assert line(index, before) == {0: 2.0}
    write(tmp_path / "b", [5.0], [1])
    assert line(index, tags(index, tmp_path / "a", tmp_path / "b")) == {0: 2.0, 1: 5.0}
    delete(index, tmp_path / "a")
    assert line(index, before) == {0: 3.0}
    delete(index, tmp_path / "b")
    with pytest.raises(UnknownName):
        line(index, before)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), min_size=1, max_size=5))
def test_long_curves_are_computed_in_blocks_and_thinned(members):
    series = [
        Series(np.arange(len(one)), np.arange(len(one)) * 1.0, np.array(one)) for one in members
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_BLOCK_VALUES", 7)
        patched.setattr(module, "KEPT_POINTS", 20)
        found = compute(series)
    longest = max(map(len, members))
    assert len(found.steps) == min(longest, 20)
    for place, step in enumerate(found.steps.tolist()):
        values = [one[step] for one in members if step < len(one)]
        assert found.statistics.count[place] == len(values)
        assert found.statistics.mean[place] == pytest.approx(np.mean(values), abs=1e-6)
    if len(members) == 1:
        assert found.statistics.max.max() == max(members[0])


def test_members_with_very_many_points_are_sampled(tmp_path, index, monkeypatch):
    monkeypatch.setattr(module, "MOST_POINTS", 20)
    for name, spike in (("a", 70), ("b", 30)):
        values = np.zeros(100)
        values[spike] = 8.0
        write(tmp_path / name, values.tolist())
    members = tags(index, tmp_path / "a", tmp_path / "b")
    found = line(index, members, Line.UPPER, Band.MINMAX)
    assert len(found) <= 20
    assert {found[30], found[70]} == {8.0}
