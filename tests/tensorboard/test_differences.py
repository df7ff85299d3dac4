"""Where we answer otherwise than TensorBoard on purpose; each is told in differences.md."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.writer import EventWriter
from tests import summaries
from tests.tensorboard.servers import Stock

FIXTURES = Path(__file__).parent.parent / "fixtures"


def write(directory, points, **options):
    with EventWriter(directory, **options) as writer:
        for step, value in points:
            writer.scalar("loss", value, step, wall_time=1000.0 + step)
    return writer.path


@pytest.fixture
def logdir(tmp_path):
    return tmp_path / "logs"


def test_what_a_restart_made_void_is_not_drawn(logdir, serve):
    write(logdir, [(0, 0.0), (1, 1.0), (2, 2.0)])
    write(logdir, [(1, 10.0), (2, 20.0)])
    assert serve(logdir).points("loss") == [(0, 0.0), (1, 10.0), (2, 20.0)]
    assert len(Stock(str(logdir)).points("loss")) == 5


@pytest.mark.parametrize("tree", ["torch", "tensorboardx", "tensorflow"])
def test_steps_of_restarted_runs_only_rise(tree, serve):
    logdir = FIXTURES / tree / "restarted"
    ours, stock = serve(logdir), Stock(str(logdir))
    tags = ours.get("data/plugin/scalars/tags").json["."]
    assert tags == stock.get("data/plugin/scalars/tags").json["."]
    for tag in tags:
        mine, theirs = ours.points(tag), stock.points(tag)
        steps = [step for step, _ in mine]
        assert steps == sorted(set(steps))
        assert set(mine) < set(theirs)
        assert mine[-1] == theirs[-1]


def test_every_type_of_number_is_shown(logdir, serve):
    forms = [("bfloat16", True), ("bfloat16", False), ("uint32", False), ("uint64", False)]
    with EventWriter(logdir) as writer:
        for dtype, content in forms:
            tag = f"{dtype} {content}"
            writer.add([encode.scalar_tensor(tag, 3, dtype, content=content)], 0, wall_time=1.0)
    ours, stock = serve(logdir), Stock(str(logdir))
    for dtype, content in forms:
        assert ours.points(f"{dtype} {content}") == [(0, 3.0)]
        with pytest.raises((TypeError, ValueError)):
            stock.points(f"{dtype} {content}")


def test_types_that_tensorboard_reads_are_read_alike(serve):
    logdir = FIXTURES / "tensorflow" / "scalar-types"
    ours, stock = serve(logdir), Stock(str(logdir))
    tags = set(ours.get("data/plugin/scalars/tags").json["."])
    assert len(tags) > 8
    for tag in tags - {"bfloat16"}:
        assert ours.points(tag) == stock.points(tag)


def test_whole_numbers_and_truth_values_are_numbers_with_a_point(logdir, serve):
    with EventWriter(logdir) as writer:
        writer.scalar("true", True, 0, dtype="bool", wall_time=1.0)
        writer.scalar("three", 3, 0, dtype="int64", wall_time=1.0)
    ours, stock = serve(logdir), Stock(str(logdir))
    path = "data/plugin/scalars/scalars"
    assert ours.get(path, run=".", tag="true").text == "[[1.0, 0, 1.0]]"
    assert stock.get(path, run=".", tag="true").text == "[[1.0, 0, true]]"
    assert ours.get(path, run=".", tag="three").text == "[[1.0, 0, 3.0]]"
    assert stock.get(path, run=".", tag="three").text == "[[1.0, 0, 3]]"


def test_damage_costs_what_is_damaged_and_no_more(logdir, serve, caplog):
    path = write(logdir, [(step, float(step)) for step in range(100)])
    octets = bytearray(path.read_bytes())
    octets[len(octets) // 2] ^= 0xFF
    path.write_bytes(octets)
    assert len(serve(logdir).points("loss")) == 99
    assert len(Stock(str(logdir)).points("loss")) < 60


def test_spikes_survive_down_sampling(logdir, serve):
    spike = (6_790, 99.0)
    points = [(step, 99.0 if step == spike[0] else 1.0) for step in range(10_000)]
    write(logdir, points)
    mine = serve(logdir).points("loss")
    theirs = Stock(str(logdir), samples={"scalars": 1000}).points("loss")
    assert len(mine) <= len(theirs) == 1000
    assert spike in mine
    assert spike not in theirs
    assert (mine[0], mine[-1]) == (points[0], points[-1])


def test_what_is_left_of_images_histograms_and_texts_is_spread_evenly(logdir, serve):
    with EventWriter(logdir) as writer:
        for step in range(100):
            writer.add([summaries.images("shade", [np.full((2, 2), step, np.uint8)])], step)
            writer.add([encode.text("note", f"step {step}")], step)
            writer.add([summaries.histogram("weights", [float(step)])], step)
    limits = dict.fromkeys(("images", "text", "histograms"), 10)
    servers = serve(logdir, samples=limits), Stock(str(logdir), samples=limits)
    for path, tag in (
        ("images/images", "shade"),
        ("text/text", "note"),
        ("histograms/histograms", "weights"),
    ):
        mine, theirs = (
            [
                one["step"] if isinstance(one, dict) else one[1]
                for one in server.get(f"data/plugin/{path}", run=".", tag=tag).json
            ]
            for server in servers
        )
        assert (mine[0], mine[-1]) == (0, 99)
        assert len(mine) == len(theirs) < 60
        mine_apart, theirs_apart = (
            {later - sooner for sooner, later in pairwise(steps)} for steps in (mine, theirs)
        )
        assert max(mine_apart) - min(mine_apart) <= 1
        assert max(theirs_apart) - min(theirs_apart) > 1


def test_of_values_without_a_step_the_last_is_shown(logdir, serve):
    # A writer that is told no step writes 0.
    with EventWriter(logdir) as writer:
        writer.add([encode.text("note", "first")], 0)
        writer.add([encode.text("note", "second")], 0)
    path, query = "data/plugin/text/text", {"run": ".", "tag": "note"}
    mine, theirs = (
        server.get(path, **query).json for server in (serve(logdir), Stock(str(logdir)))
    )
    assert [one["text"] for one in mine] == ["<p>second</p>"]
    assert [one["text"] for one in theirs] == ["<p>first</p>", "<p>second</p>"]


def test_no_samples_means_all_points(logdir, serve):
    write(logdir, [(step, 1.0) for step in range(2_000)])
    ours = serve(logdir, samples={"scalars": 0})
    assert len(ours.points("loss")) == 2_000
    assert len(ours.get("data/plugin/scalars/scalars", run=".", tag="loss").json) == 2_000
    assert Stock(str(logdir), samples={"scalars": 0}).points("loss") == []


def test_a_replaced_file_is_read_anew(logdir, serve):
    path = write(logdir, [(0, 1.0), (1, 2.0)])
    ours, stock = serve(logdir), Stock(str(logdir))
    old = ours.points("loss")
    assert old == stock.points("loss")
    shutil.copy(write(logdir.parent / "other", [(0, 5.0)]), path)
    ours.refresh()
    stock.reload()
    assert ours.points("loss") == [(0, 5.0)]
    assert stock.points("loss") == old


def test_a_board_has_a_title_and_tells_nothing_of_the_process(logdir, serve):
    write(logdir, [(0, 1.0)])
    ours, stock = serve(logdir), Stock(str(logdir))
    mine, theirs = (server.get("data/environment").json for server in (ours, stock))
    assert (mine["window_title"], mine["experiment_name"]) == ("A board", "A board")
    assert (theirs["window_title"], theirs["experiment_name"]) == ("", "")
    assert "debug" in theirs
    assert "debug" not in mine
    assert ours.get("data/logdir").json == {"logdir": ""}


BROKEN_PATTERN = {
    "colParams": [{"hparam": "optimizer", "filterRegexp": "["}],
    "allowedStatuses": ["STATUS_SUCCESS", "STATUS_FAILURE"],
    "sliceSize": 9,
}


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("timeseries/timeSeries", {"requests": "[1]"}, 400),
        ("images/images", {"run": ".", "tag": "pictures", "sample": "x"}, 400),
        ("audio/audio", {"run": ".", "tag": "sound", "sample": "2"}, 404),
        ("graphs/graph", {"run": ".", "limit_attr_size": "-1"}, 400),
        ("mesh/data", {"run": ".", "tag": "shape", "content_type": "FACE", "sample": "9"}, 404),
        ("timeseries/imageData", {"imageId": "made-up"}, 404),
        ("hparams/download_data", {"request": "{}"}, 400),
        ("hparams/session_groups", {"request": json.dumps(BROKEN_PATTERN)}, 400),
        (
            "timeseries/timeSeries",
            {"requests": '[{"plugin": "scalars", "tag": "loss", "run": 5}]'},
            400,
        ),
    ],
)
def test_a_bad_request_is_answered(every_kind, serve, path, query, status):
    ours, stock = serve(every_kind), Stock(str(every_kind))
    answer = ours.get(f"data/plugin/{path}", **query)
    assert (answer.status, answer.kind) == (status, "text/plain")
    with pytest.raises((LookupError, ValueError, TypeError, AttributeError, re.error)):
        stock.get(f"data/plugin/{path}", **query)


def test_a_series_that_cannot_be_told_costs_no_other(logdir, serve):
    with EventWriter(logdir) as writer:
        writer.add([summaries.histogram("mixed", [1.0, 2.0])], 0)
        writer.add([summaries.images("mixed", [np.zeros((2, 2), np.uint8)])], 1)
        writer.add([summaries.histogram("sound", [1.0, 2.0])], 0)
    path = "data/plugin/timeseries/timeSeries"
    asked = [{"plugin": "histograms", "tag": tag, "run": "."} for tag in ("mixed", "sound")]
    mixed, sound = serve(logdir).get(path, requests=json.dumps(asked)).json
    assert mixed.pop("error").startswith("TensorBoard cannot answer this: ")
    assert mixed == asked[0]
    assert len(sound["runToSeries"]["."]) == 1


def test_keys_of_images_are_signed(every_kind, serve):
    request = json.dumps([{"plugin": "images", "tag": "pictures", "run": ".", "sample": 0}])
    path = "data/plugin/timeseries/timeSeries"
    for server, signed in ((serve(every_kind), True), (Stock(str(every_kind)), False)):
        (answer,) = server.get(path, requests=request).json
        first, other = (point["imageId"] for point in answer["runToSeries"]["."][:2])
        assert (first[:16] != other[:16]) is signed
