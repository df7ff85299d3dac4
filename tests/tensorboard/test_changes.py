"""Files that grow, appear, vanish and change between two requests: never an error of ours."""

import json
import logging
import shutil
from urllib.parse import parse_qs

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.tensorboard import provider
from tests import summaries
from tests.tensorboard.every_kind import write_every_kind


@pytest.fixture(autouse=True)
def _nothing_reported_yet():
    provider._report.cache_clear()


@pytest.fixture
def logdir(tmp_path):
    return tmp_path / "logs"


def write(directory, *points, **more):
    with EventWriter(directory) as writer:
        for step, value in points:
            writer.scalar("loss", value, step, wall_time=1000.0 + step)
        for step, picture in more.get("images", ()):
            writer.add(
                [summaries.images("image", [np.full((2, 2), picture, np.uint8)])],
                step,
                wall_time=5.0,
            )
        for step, text in more.get("texts", ()):
            writer.add([encode.text("note", text)], step, wall_time=5.0)
    return writer.path


def images(ours, run="."):
    answer = ours.get("data/plugin/images/images", run=run, tag="image")
    return [parse_qs(image["query"])["blob_key"][0] for image in answer.json]


def open_image(ours, key):
    return ours.get("data/plugin/images/individualImage", blob_key=key)


def test_a_run_that_grows(logdir, serve):
    write(logdir, (0, 1.0))
    ours = serve(logdir)
    assert ours.points("loss") == [(0, 1.0)]
    write(logdir, (1, 2.0), images=[(1, 7)])
    assert ours.points("loss") == [(0, 1.0)]
    ours.refresh()
    assert ours.points("loss") == [(0, 1.0), (1, 2.0)]
    assert ours.get("data/plugin/images/tags").json["."]["image"]["samples"] == 1
    assert open_image(ours, images(ours)[0]).kind == "image/png"


def test_a_run_that_appears_and_one_that_is_deleted(logdir, serve):
    logdir.mkdir()
    ours = serve(logdir)
    assert ours.get("data/runs").json == []
    assert ours.get("data/plugins_listing").status == 200
    write(logdir / "one", (0, 1.0))
    write(logdir / "two", (0, 2.0))
    ours.refresh()
    assert ours.get("data/runs").json == ["one", "two"]
    shutil.rmtree(logdir / "one")
    ours.refresh()
    assert ours.get("data/runs").json == ["two"]
    assert ours.points("loss", "one") == []
    gone = ours.get("data/plugin/scalars/scalars", run="one", tag="loss")
    assert (gone.status, "No scalar data for run='one'" in gone.text) == (404, True)


def test_a_file_that_vanished_is_not_asked_for_twice(logdir, serve, caplog):
    path = write(logdir, images=[(0, 1), (1, 2)], texts=[(0, "a"), (1, "b")])
    write(logdir, texts=[(2, "kept")])
    ours = serve(logdir)
    keys = images(ours)
    path.unlink()
    with caplog.at_level(logging.WARNING):
        for key in keys * 2:
            answer = open_image(ours, key)
            assert answer.status == 404
            assert "'image' of run '.' can no longer be read at step" in answer.text
        shown = ours.get("data/plugin/text/text", run=".", tag="note").json
    assert [point["step"] for point in shown] == [2]
    assert sum("'image'" in message for message in caplog.messages) == 1
    assert all("is left out" in message for message in caplog.messages)
    ours.refresh()
    assert "image" not in ours.get("data/plugin/images/tags").json.get(".", {})


def test_a_file_that_was_replaced(logdir, serve):
    path = write(logdir, images=[(0, 1)])
    ours = serve(logdir)
    key = images(ours)[0]
    before = open_image(ours, key).body
    other = write(logdir.parent / "other", (0, 1.0), images=[(0, 200), (1, 3)])
    shutil.copy(other, path)
    # The index still points into the old file.
    assert open_image(ours, key).status == 404
    ours.refresh()
    assert open_image(ours, key).body != before
    assert len(images(ours)) == 2


def test_a_record_that_was_damaged_after_it_was_indexed(logdir, serve, caplog):
    path = write(logdir, texts=[(0, "first"), (1, "second"), (2, "third")])
    ours = serve(logdir)
    octets = path.read_bytes()
    path.write_bytes(octets.replace(b"second", b"sXcond"))
    shown = ours.get("data/plugin/text/text", run=".", tag="note").json
    assert [point["step"] for point in shown] == [0, 2]
    assert "is left out" in caplog.text


def test_values_that_are_not_what_they_say(logdir, serve, caplog):
    broken = encode.delimited(8, b"\x08\x01\x12\x04\x12\x02\x08\x05" + b"\x22\x02ab")
    with EventWriter(logdir) as writer:
        for tag, plugin in (("note", "text"), ("weights", "histograms"), ("image", "images")):
            described = encode.metadata(plugin)
            value = encode.EncodedValue(tag, encode.delimited(1, tag.encode()) + broken, described)
            writer.add([value], 0)
        writer.add([encode.text("note", "good")], 1)
        writer.add([encode.tensor("floats", [1.5, 2.5], plugin="images", data_class="")], 0)
    ours = serve(logdir)
    shown = ours.get("data/plugin/text/text", run=".", tag="note").json
    assert [point["step"] for point in shown] == [1]
    assert ours.get("data/plugin/histograms/histograms", run=".", tag="weights").status == 404
    for tag in ("image", "floats"):
        request = json.dumps([{"plugin": "images", "tag": tag, "run": ".", "sample": 0}])
        assert ours.get("data/plugin/timeseries/timeSeries", requests=request).status == 200


ROUTES = [
    ("custom_scalars/layout", {}),
    ("custom_scalars/scalars", {"run": ".", "tag": "loss"}),
    ("scalars/scalars", {"run": ".", "tag": "loss"}),
    ("images/images", {"run": ".", "tag": "pictures"}),
    ("audio/audio", {"run": ".", "tag": "sound"}),
    ("text/text", {"run": ".", "tag": "note"}),
    ("histograms/histograms", {"run": ".", "tag": "weights"}),
    ("distributions/distributions", {"run": ".", "tag": "weights"}),
    ("pr_curves/pr_curves", {"run": ".", "tag": "curve"}),
    ("mesh/tags", {}),
    ("mesh/meshes", {"run": ".", "tag": "shape"}),
    ("mesh/data", {"run": ".", "tag": "shape", "content_type": "VERTEX"}),
    ("graphs/info", {}),
    ("graphs/graph", {"run": "."}),
    ("graphs/graph", {"run": ".", "tag": "keras", "conceptual": "true"}),
    ("graphs/run_metadata", {"run": ".", "tag": "step 3"}),
    ("hparams/experiment", {"request": "{}"}),
    ("hparams/session_groups", {"request": "{}"}),
    (
        "timeseries/timeSeries",
        {"requests": json.dumps([{"plugin": "histograms", "tag": "weights", "run": "."}])},
    ),
]


@pytest.mark.parametrize("refreshed", [False, True], ids=["unnoticed", "noticed"])
def test_no_route_fails_when_all_files_are_gone(logdir, serve, refreshed):
    write_every_kind(logdir)
    ours = serve(logdir)
    assert {ours.get(f"data/plugin/{path}", **query).status for path, query in ROUTES} == {200}
    shutil.rmtree(logdir)
    logdir.mkdir()
    if refreshed:
        ours.refresh()
    for path, query in ROUTES:
        answer = ours.get(f"data/plugin/{path}", **query)
        assert answer.status in (200, 400, 404), (path, answer.text)
        assert answer.kind in ("application/json", "text/plain", "arraybuffer")


def test_no_route_fails_when_files_are_cut_short(logdir, serve):
    write_every_kind(logdir)
    ours = serve(logdir)
    for path in logdir.rglob("*tfevents*"):
        path.write_bytes(path.read_bytes()[:2000])
    for path, query in ROUTES:
        assert ours.get(f"data/plugin/{path}", **query).status in (200, 400, 404)
    ours.refresh()
    for path, query in ROUTES:
        assert ours.get(f"data/plugin/{path}", **query).status in (200, 400, 404)


def test_other_layouts_are_shown_when_one_cannot_be_read(logdir, serve):
    write_every_kind(logdir)
    ours = serve(logdir)
    both = ours.get("data/plugin/custom_scalars/layout").json
    shutil.rmtree(logdir / "sweep")
    one = ours.get("data/plugin/custom_scalars/layout").json
    assert len(both["category"][0]["chart"]) == 3
    assert len(one["category"][0]["chart"]) == 2
