"""`aboard.open`: what a Python user sees."""

import errno
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

import aboard
from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index.logs import UnknownName
from tests import summaries


@pytest.fixture
def tree(tmp_path):
    for run, rate in (("slow", 0.1), ("fast", 0.5)):
        with EventWriter(str(tmp_path / run)) as writer:
            for step in range(50):
                writer.scalar("train/loss", np.exp(-rate * step), step, wall_time=100.0 + step)
                writer.scalar("train/rate", rate, step)
            writer.add([encode.text("note", f"this is {run}")], 3)
            writer.add([summaries.histogram("weights", np.arange(100.0))], 7)
    return tmp_path


@pytest.mark.parametrize("source", [5, None, b"logs", ["logs"]])
def test_a_source_of_the_wrong_type_is_an_error(source):
    with pytest.raises(TypeError, match=r"^source is .*, not a path or URI$"):
        aboard.open(source)


def test_open_gives_runs_tags_and_arrays(tree):
    with aboard.open(tree) as logs:
        assert [run.name for run in logs.runs] == ["fast", "slow"]
        names = [(tag.run, tag.name, tag.kind.plugin) for tag in logs.tags]
        assert names[:4] == [
            ("fast", "note", "text"),
            ("fast", "train/loss", "scalars"),
            ("fast", "train/rate", "scalars"),
            ("fast", "weights", "histograms"),
        ]
        series = logs.series("slow", "train/loss")
        assert series.steps.tolist() == list(range(50))
        assert series.wall_times[0] == 100.0
        np.testing.assert_allclose(series.values, np.exp(-0.1 * np.arange(50)), rtol=1e-6)
        assert len(logs.series("slow", "train/loss", samples=8).steps) <= 8


def test_records_are_read_from_their_files(tree):
    with aboard.open(str(tree)) as logs:
        (note,) = logs.records("fast", "note")
        assert note.step == 3
        assert note.tensor.item() == b"this is fast"
        (histogram,) = logs.records("slow", "weights")
        assert histogram.tensor[:, 2].sum() == 100


def test_to_pandas_selects_by_pattern(tree):
    with aboard.open(tree) as logs:
        frame = logs.to_pandas(run="s*", tag="train/*")
        assert frame.columns.tolist() == ["run", "tag", "step", "wall_time", "value"]
        assert frame.groupby("tag").size().to_dict() == {"train/loss": 50, "train/rate": 50}
        assert set(frame["run"]) == {"slow"}
        assert len(logs.to_pandas(samples=5)) <= 20


def test_unknown_names_are_told_with_the_nearest(tree):
    with aboard.open(tree) as logs:
        with pytest.raises(UnknownName, match=r"no run 'slwo' in .*; did you mean 'slow'\?"):
            logs.series("slwo", "train/loss")
        with pytest.raises(UnknownName, match=r"no tag 'train/los' .* did you mean 'train/loss'\?"):
            logs.series("slow", "train/los")
        with pytest.raises(UnknownName, match="no tag 'zzz' in run 'slow'; it has 'note'"):
            logs.series("slow", "zzz")
        with pytest.raises(UnknownName, match="is not a scalar but a tensor of plugin 'text'"):
            logs.series("slow", "note")


def test_without_a_refresh_only_what_is_known_is_served(tree):
    with aboard.open(tree, refresh=False) as logs:
        assert logs.runs == []


def test_importing_aboard_imports_nothing_heavy():
    code = (
        "import sys, aboard; heavy = {'numpy', 'tensorboard', 'obstore', 'sqlite3', 'google'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_attributes_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        aboard.opne  # noqa: B018
    assert "Logs" in dir(aboard)
    assert aboard.Logs is not None


def test_a_last_value_that_is_no_number(tmp_path):
    with EventWriter(str(tmp_path)) as writer:
        writer.scalar("loss", float("nan"), 1)
    with aboard.open(tmp_path) as logs:
        assert np.isnan(logs.tag(".", "loss").last_value)


def test_a_last_wall_time_that_is_no_number(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.scalar("loss", 1.0, 1, wall_time=5.0)
        writer.scalar("loss", 2.0, 2, wall_time=float("nan"))
    with aboard.open(tmp_path) as logs:
        (tag,) = logs.tags
        assert math.isnan(tag.last_wall_time)
        assert tag.max_wall_time == 5.0


def test_a_negative_zero_keeps_its_sign(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.scalar("loss", -0.0, 1, wall_time=-0.0)
    with aboard.open(tmp_path) as logs:
        (tag,) = logs.tags
        assert math.copysign(1, tag.last_value) == -1
        assert math.copysign(1, tag.last_wall_time) == -1


@pytest.mark.parametrize("count", [1, 2, 100, 5000])
@pytest.mark.parametrize("stride", ["even", "uneven"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_belong_to_whoever_asked(tmp_path, count, stride, dtype):
    steps = range(count) if stride == "even" else [step * step for step in range(count)]
    with EventWriter(tmp_path, flush_secs=1e9) as writer:
        for step in steps:
            writer.scalar("loss", 0.5, step, dtype=dtype)
    with aboard.open(tmp_path) as logs:
        for samples in (None, 50, 10**6):
            for column in logs.series(".", "loss", samples=samples):
                column[:] = 7
        assert logs.series(".", "loss").values.tolist() == [0.5] * count


def test_a_data_frame_of_nothing_has_the_columns_of_one_of_something(tree):
    with aboard.open(tree) as logs:
        some, none = logs.to_pandas(), logs.to_pandas(tag="nothing")
    assert len(none) == 0
    assert none.dtypes.to_dict() == some.dtypes.to_dict()
    assert none["step"].dtype == np.int64


def test_what_open_raises_is_public(tmp_path):
    with pytest.raises(aboard.StorageError, match="file or directory not found"):
        aboard.open(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError) as missing:
        aboard.open(tmp_path / "nothing")
    assert missing.value.filename == str(tmp_path / "nothing")
    assert missing.value.errno == errno.ENOENT
    with pytest.raises(aboard.StorageError, match="the name is too long"):
        aboard.open(tmp_path / ("x" * 300))
    with pytest.raises(aboard.UnknownName), aboard.open(tmp_path) as logs:
        logs.tag(".", "loss")


def test_an_error_survives_its_way_between_processes(tmp_path):
    with pytest.raises(aboard.StorageError) as missing:
        aboard.open(tmp_path / "two  spaces")
    again = pickle.loads(pickle.dumps(missing.value))
    assert type(again) is type(missing.value)
    assert (str(again), again.place) == (str(missing.value), str(tmp_path / "two  spaces"))
