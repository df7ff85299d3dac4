"""What the writer leaves on the disk, as stock TensorBoard and a full disk see it."""

import argparse
import errno
import itertools
import math
import os
import re
import shutil
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.messages import decode, load_protos
from aboard.events.records import ends
from aboard.events.writer import (
    EventWriteError,
    EventWriter,
    Values,
    python_records,
    scalar_records,
)
from tests import summaries
from tests.framing import unframed

tensorboard = load_protos()

from tensorboard.backend.event_processing import (  # noqa: E402
    event_accumulator,
    plugin_event_accumulator,
)

KEEP_ALL = dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 0)


def files(directory):
    return sorted(Path(directory).iterdir())


def events(path):
    parse = tensorboard.event_pb2.Event.FromString
    return [parse(data) for _, data in unframed(path.read_bytes())]


def stock(directory):
    """Load a run as TensorBoard's own backend does, keeping everything."""
    return plugin_event_accumulator.EventAccumulator(
        str(directory), size_guidance={"tensors": 0}, purge_orphaned_data=False
    ).Reload()


def array_of(event):
    return tensorboard.tensor_util.make_ndarray(event.tensor_proto)


def test_a_file_is_named_and_opened_as_readers_expect(tmp_path):
    with EventWriter(tmp_path / "new" / "run", suffix=".v2") as writer:
        path = writer.path
    assert [path] == files(tmp_path / "new" / "run")
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\..+\.\d+\.\d{4,}\.v2", path.name)
    (version,) = events(path)
    assert version.file_version == "brain.Event:2"
    assert version.source_metadata.writer == "aboard.events.writer"


def test_stock_tensorboard_reads_every_scalar(tmp_path):
    numbers = [1.5, float("nan"), float("inf"), -0.0, *map(float, range(2000))]
    with EventWriter(tmp_path) as writer:
        for step, number in enumerate(numbers):
            writer.scalar("loss", number, step, wall_time=1000.0 + step)
        writer.scalars({"a": 1, "b": 2}, 7)
    loaded = event_accumulator.EventAccumulator(str(tmp_path), size_guidance=KEEP_ALL).Reload()
    scalars = loaded.Scalars("loss")
    assert [scalar.step for scalar in scalars] == list(range(len(numbers)))
    assert [scalar.wall_time for scalar in scalars] == [1000.0 + s for s in range(len(numbers))]
    np.testing.assert_array_equal([scalar.value for scalar in scalars], numbers)
    assert [loaded.Scalars(tag)[0].value for tag in "ab"] == [1.0, 2.0]


def test_stock_tensorboard_reads_every_kind(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    clip = np.linspace(-1, 1, 50)
    curve = np.arange(12).reshape(6, 2)
    vertices = np.ones((1, 4, 3))
    with EventWriter(tmp_path) as writer:
        for step in range(3):
            writer.scalar("double", 1 / 3 + step, step, dtype="float64")
            writer.add([encode.tensor("tensor", [[step, 2]], plugin="mine")], step)
            writer.add([encode.text("text", f"step {step}")], step)
            writer.add(
                [summaries.histogram("histogram", [step, step + 1.0, step + 1.0], buckets=2)], step
            )
            writer.add([summaries.images("images", [pixels, pixels])], step)
            writer.add([summaries.audio("audio", [clip], rate=8000, labels=["tone"])], step)
            writer.add([encode.pr_curve("pr", curve)], step)
            writer.add(
                encode.mesh("mesh", vertices, faces=[[[0, 1, 2]]], colors=vertices * 9), step
            )
        writer.add([encode.hparams_start({"lr": 0.1})], 0)
        writer.write(encode.graph(time.time(), b"\n\x05\n\x03one"))
        writer.add([encode.hparams_end()], 0)
        writer.add([encode.keras_graph("{}"), encode.custom_scalars(b"layout")], 0)
        writer.write(encode.tagged_run_metadata(1.0, 2, "traced", b"trace"))
    loaded = stock(tmp_path)
    metadata = loaded.AllSummaryMetadata()
    png = encode.png(pixels)
    expected = {
        "double": ("scalars", 1, 2 + 1 / 3),
        "tensor": ("mine", 2, [[2, 2]]),
        "text": ("text", 2, b"step 2"),
        "histogram": ("histograms", 2, [[2, 2.5, 1], [2.5, 3, 2]]),
        "images": ("images", 3, [b"4", b"2", png, png]),
        "audio": ("audio", 3, [encode.wav(clip, 8000)]),
        "pr": ("pr_curves", 2, curve.tolist()),
        "mesh_VERTEX": ("mesh", 2, vertices.tolist()),
        "mesh_FACE": ("mesh", 2, [[[0, 1, 2]]]),
        "mesh_COLOR": ("mesh", 2, (vertices * 9).tolist()),
        "_hparams_/session_start_info": ("hparams", 2, []),
        "_hparams_/session_end_info": ("hparams", 2, []),
        "keras": ("graph_keras_model", 3, [b"{}"]),
        "custom_scalars__config__": ("custom_scalars", 2, b"layout"),
        "__run_graph__": ("graphs", 3, [b"\n\x05\n\x03one"]),
        "traced": ("graph_tagged_run_metadata", 3, [b"trace"]),
    }
    read = {
        tag: (
            metadata[tag].plugin_data.plugin_name,
            metadata[tag].data_class,
            array_of(loaded.Tensors(tag)[-1]).tolist(),
        )
        for tag in loaded.Tags()["tensors"]
    }
    assert read == expected
    assert [event.step for event in loaded.Tensors("text")] == [0, 1, 2]


@pytest.fixture
def dashboards(tmp_path):
    """Stock TensorBoard over a run with every kind of data, answering HTTP."""
    with EventWriter(tmp_path / "run") as writer:
        writer.scalar("loss", 0.5, 1, wall_time=9.0)
        writer.scalar("double", 0.1, 1, dtype="float64", wall_time=9.0)
        writer.add([encode.text("text", "**bold**")], 1)
        writer.add([summaries.histogram("histogram", [1, 2, 3], buckets=2)], 1)
        writer.add([summaries.images("images", [np.zeros((2, 3, 3))])], 1)
        writer.add([summaries.audio("audio", [np.zeros(10)], rate=8000)], 1)
        writer.add([encode.pr_curve("pr", np.full((6, 2), 3))], 1)
        writer.add(encode.mesh("mesh", np.ones((1, 3, 3)), faces=[[[0, 1, 2]]]), 1)
        info = [encode.hparam_info("lr", kind=float)]
        writer.add([encode.hparams_experiment(info, [encode.metric_info("loss")])], 0)
        writer.add([encode.hparams_start({"lr": 0.1})], 0)
        writer.add([encode.hparams_end()], 0)
        writer.write(encode.graph(time.time(), b"\n\x05\n\x03one"))
        writer.add([encode.keras_graph("{}"), encode.custom_scalars(b"\x12\x03\x0a\x01c")], 0)
    return stock_server(tmp_path)


def stock_server(logdir):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "html5lib's sanitizer is deprecated")
        from tensorboard import default
    from tensorboard.backend import application
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from werkzeug.test import Client

    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(logdir))
    flags = argparse.Namespace(
        logdir=str(logdir), logdir_spec="", path_prefix="", samples_per_plugin={}, window_title=""
    )
    return Client(application.TensorBoardWSGIApp(flags, default.get_static_plugins(), provider))


def test_every_dashboard_of_stock_tensorboard_shows_its_data(dashboards):
    def get(route, blob="", **query):
        query_string = blob or {"run": "run", **query}
        answer = dashboards.get(f"/data/plugin/{route}", query_string=query_string)
        assert answer.status_code == 200
        return answer

    assert get("scalars/scalars", tag="loss").json == [[9.0, 1, 0.5]]
    assert get("scalars/scalars", tag="double").json == [[9.0, 1, 0.1]]
    assert get("text/text", tag="text").json[0]["text"] == "<p><strong>bold</strong></p>"
    assert get("histograms/histograms", tag="histogram").json[0][2] == [[1, 2, 1], [2, 3, 2]]
    (image,) = get("images/images", tag="images", sample=0).json
    assert get("images/individualImage", image["query"]).data == encode.png(np.zeros((2, 3, 3)))
    (clip,) = get("audio/audio", tag="audio", sample=0).json
    assert get("audio/individualAudio", clip["query"]).data == encode.wav(np.zeros(10), 8000)
    assert get("pr_curves/pr_curves", tag="pr").json["run"][0]["recall"] == [3.0, 3.0]
    parts = get("mesh/meshes", tag="mesh", sample=0).json
    assert [(part["content_type"], part["data_shape"]) for part in parts] == [
        (1, [1, 3, 3]),
        (2, [1, 1, 3]),
    ]
    assert get("graphs/graph", conceptual="false").text == 'node {\n  name: "one"\n}\n'
    assert get("graphs/info").json["run"]["tags"]["keras"]["conceptual_graph"] is True
    assert get("custom_scalars/layout").json["category"][0]["title"] == "c"
    sessions = dashboards.post(
        "/data/plugin/hparams/session_groups",
        json={
            "startIndex": 0,
            "sliceSize": 10,
            "allowedStatuses": ["STATUS_SUCCESS"],
            "colParams": [{"hparam": "lr"}, {"metric": {"tag": "loss", "group": ""}}],
        },
    ).json
    (group,) = sessions["sessionGroups"]
    assert (group["hparams"], group["metricValues"][0]["value"]) == ({"lr": 0.1}, 0.5)


def test_metadata_comes_with_the_first_value_of_a_tag_only(tmp_path):
    with EventWriter(tmp_path) as writer:
        writer.add([encode.text("a", "one")], 0)
        writer.add([encode.text("a", "two"), encode.text("b", "three"), encode.text("b", "4")], 1)
        path = writer.path
    values = [value for event in events(path) for value in event.summary.value]
    described = [(value.tag, value.HasField("metadata")) for value in values]
    assert described == [("a", True), ("a", False), ("b", True), ("b", False)]


def test_a_value_that_could_not_be_encoded_leaves_its_tag_undescribed(tmp_path):
    with EventWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match="does not fit in 64 bits"):
            writer.add([encode.text("a", "one")], 2**64)
        writer.add([encode.text("a", "one")], 0)
        path = writer.path
    assert events(path)[1].summary.value[0].HasField("metadata")


def test_rotation_starts_files_that_sort_and_stand_alone(tmp_path):
    with EventWriter(tmp_path, max_bytes=400) as writer:
        written = []
        for step in range(100):
            writer.add([encode.text("notes", f"note {step}")], step)
            writer.flush()
            written.append(writer.path)
    paths = files(tmp_path)
    assert len(paths) > 10
    assert list(dict.fromkeys(written)) == paths
    for path in paths:
        version, first, *later = events(path)
        assert version.file_version == "brain.Event:2"
        assert first.summary.value[0].metadata.plugin_data.plugin_name == "text"
        assert not any(event.summary.value[0].HasField("metadata") for event in later)
        assert 400 <= path.stat().st_size < 600 or path is paths[-1]
    steps = [event.step for event in stock(tmp_path).Tensors("notes")]
    assert steps == list(range(100))


def test_a_rotated_file_sorts_after_its_predecessor_when_the_clock_goes_back(tmp_path, monkeypatch):
    clock = iter(range(2_000_000_000, 0, -1000))
    monkeypatch.setattr("aboard.events.files.time.time", lambda: float(next(clock)))
    with EventWriter(tmp_path, max_bytes=1) as writer:
        paths = []
        for step in range(20):
            writer.scalar("loss", 1.0, step, wall_time=0.0)
            writer.flush()
            paths.append(writer.path)
    assert paths == sorted(set(paths))


def test_a_file_sorts_behind_those_of_a_clock_that_is_ahead(tmp_path):
    year_ahead = int(time.time()) + 365 * 86400
    there = tmp_path / f"events.out.tfevents.{year_ahead}.zebra.9.9"
    there.touch()
    with EventWriter(tmp_path) as writer:
        assert writer.path.name > there.name
    with EventWriter(tmp_path / "other", after=year_ahead) as writer:
        assert writer.path.name > there.name


@pytest.mark.parametrize("odd", ["3.x", "9999999999.x", "17.x", "zebra", "99999999999.x.1.1"])
def test_a_name_without_a_time_does_not_count(tmp_path, odd):
    (tmp_path / f"events.out.tfevents.{odd}").touch()
    with EventWriter(tmp_path) as writer:
        assert abs(int(writer.path.name.split(".")[3]) - time.time()) < 100


def test_many_writers_in_one_second_have_files_of_their_own(tmp_path):
    writers = [EventWriter(tmp_path) for _ in range(50)]
    assert len({writer.path for writer in writers}) == 50
    for writer in writers:
        writer.close()


def test_names_that_are_taken_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("aboard.events.files._files_in_process", itertools.count(3))
    monkeypatch.setattr("aboard.events.files.time.time", lambda: 1_700_000_000.0)
    monkeypatch.setattr("aboard.events.files.EventFiles._latest", lambda _: "")  # not yet
    stem = f"events.out.tfevents.1700000000.{os.uname().nodename}.{os.getpid()}"
    taken = [tmp_path / f"{stem}.{number:04}" for number in range(3, 6)]
    for path in taken:
        path.write_bytes(b"mine")
    with EventWriter(tmp_path) as writer:
        assert writer.path.name.startswith(stem)
        assert writer.path not in taken
    assert [path.read_bytes() for path in taken] == [b"mine"] * 3


@pytest.mark.parametrize("closes", [False, True])
def test_a_directory_that_was_removed_is_made_again_for_what_follows(tmp_path, closes):
    run = tmp_path / "logs" / "run"
    writer = EventWriter(run, flush_secs=1000, close_after_flush=closes)
    writer.add([encode.text("notes", "gone")], 1)
    writer.flush()
    first = writer.path
    shutil.rmtree(tmp_path / "logs")
    for step in range(2, 7):
        writer.scalar("loss", float(step), step)
    writer.add([encode.text("notes", "kept")], 7)
    writer.flush()
    (path,) = run.iterdir()
    assert path == writer.path != first
    writer.add([encode.text("notes", "kept")], 8)
    writer.close()
    version, *rest = events(path)
    assert version.file_version == "brain.Event:2"
    assert [event.step for event in rest] == [2, 3, 4, 5, 6, 7, 8]
    described = [event for event in rest if event.summary.value[0].HasField("metadata")]
    assert 7 in [event.step for event in described]


def test_a_file_that_was_removed_is_not_written_anew_for_nothing(tmp_path):
    writer = EventWriter(tmp_path / "run", flush_secs=1000)
    shutil.rmtree(tmp_path / "run")
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_rotation_cuts_a_long_flush_into_files(tmp_path):
    with EventWriter(tmp_path, max_bytes=1000, flush_secs=1000) as writer:
        for step in range(300):
            writer.scalar("loss", 1.0, step)
            if step % 100 == 50:
                writer.add([encode.text("notes", "x")], step)
    paths = files(tmp_path)
    assert all(1000 <= path.stat().st_size < 1200 for path in paths[:-1])
    assert {events(path)[0].file_version for path in paths} == {"brain.Event:2"}
    read = [event for path in paths for event in events(path) if event.HasField("summary")]
    losses = [event.step for event in read if event.summary.value[0].tag == "loss"]
    assert losses == list(range(300))
    notes = [event for event in read if event.summary.value[0].tag == "notes"]
    assert all(event.summary.value[0].HasField("metadata") for event in notes)


def test_records_keep_their_order_whatever_their_kind(tmp_path):
    with EventWriter(tmp_path, flush_secs=1000) as writer:
        for step in range(0, 60, 6):
            writer.scalar("a", 1.0, step)
            writer.scalars({"a": 1, "b": 2}, step + 1)
            writer.add([encode.text("c", "x")], step + 2)
            writer.scalar("d", 1, step + 3, dtype="float64")
            writer.write(encode.event(1.0, step + 4, [encode.scalar("e", 1.0)]))
            writer.scalar("a", 2.0, step + 5)
        path = writer.path
    assert [event.step for event in events(path)[1:]] == list(range(60))


def test_threads_share_a_writer(tmp_path):
    def log(name):
        for step in range(500):
            writer.add([encode.text(f"{name}/text", "x")], step)
            writer.scalar(f"{name}/scalar", step, step)

    with EventWriter(tmp_path, max_bytes=20_000, buffer_bytes=1000) as writer:
        threads = [threading.Thread(target=log, args=(f"thread{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    loaded = stock(tmp_path)
    for n in range(4):
        for kind in ("text", "scalar"):
            steps = [event.step for event in loaded.Tensors(f"thread{n}/{kind}")]
            assert steps == list(range(500))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("a", 1.0, 1.5), TypeError, "step must be an integer, not float: 1.5"),
        (("a", 1.0, None), TypeError, "step must be an integer, not NoneType: None"),
        (("a", 1.0, 2**63), ValueError, "the step 9223372036854775808 does not fit in 64 bits"),
        (("a", "1.0", 1), TypeError, "the value of 'a' is not a number: '1.0'"),
        (("a", None, 1), TypeError, "the value of 'a' is not a number: None"),
        (("a", [1.0], 1), TypeError, r"the value of 'a' is not a number: \[1.0\]"),
        ((7, 1.0, 1), TypeError, "tag must be a string, not int: 7"),
        (("\ud800", 1.0, 1), ValueError, "surrogates not allowed"),
    ],
)
def test_what_cannot_be_logged_is_refused_by_the_call(tmp_path, arguments, error, message):
    tag, number, step = arguments
    with EventWriter(tmp_path) as writer:
        with pytest.raises(error, match=message):
            writer.scalar(tag, number, step)
        with pytest.raises(error, match=message):
            writer.scalars({tag: number}, step)
        with pytest.raises(TypeError, match="encoding"):
            writer.write("not bytes")
        with pytest.raises(ValueError, match="could not convert"):
            writer.scalar("a", 1.0, 1, wall_time="now")
        path = writer.path
    assert len(events(path)) == 1


@pytest.mark.parametrize(
    ("number", "dtype", "message"),
    [
        (300, "int8", "the value of 'a' does not fit into int8: 300"),
        (-1, "uint16", "the value of 'a' does not fit into uint16: -1"),
        (2**63, "int64", "the value of 'a' does not fit into int64: 9223372036854775808"),
        (-(2**64), "uint64", "the value of 'a' does not fit into uint64"),
        (math.nan, "int32", "the value of 'a' does not fit into int32: nan"),
        (math.inf, "int32", "the value of 'a' does not fit into int32: inf"),
        (2.5, "int32", "the value of 'a' does not fit into int32: 2.5"),
        (2, "bool", "the value of 'a' does not fit into bool: 2"),
        (1j, "float32", "the value of 'a' does not fit into float32: 1j"),
        ([1, 2], "float64", "the value of 'a' must be one number, not 2"),
        ([], "float64", "the value of 'a' must be one number, not 0"),
        ("1", "float64", "the value of 'a' is not a number: '1'"),
        (1, "int128", "cannot write elements of type int128 to an event file"),
    ],
)
def test_a_number_that_its_type_cannot_hold_is_refused(tmp_path, number, dtype, message):
    with EventWriter(tmp_path) as writer, pytest.raises((TypeError, ValueError), match=message):
        writer.scalar("a", number, 1, dtype=dtype)
    assert len(events(writer.path)) == 1


@pytest.mark.parametrize(
    ("number", "dtype", "stored"),
    [
        (-128, "int8", -128),
        (255.0, "uint8", 255),
        (2**64 - 1, "uint64", 2**64 - 1),
        (np.float32(3), "int64", 3),
        ([7], "int32", 7),
        (True, "bool", 1),
        (1e39, "float32", math.inf),
        (70000, "float16", math.inf),
        (0.1, "float64", 0.1),
    ],
)
def test_a_number_that_its_type_can_hold_is_kept(tmp_path, number, dtype, stored):
    with EventWriter(tmp_path) as writer:
        writer.scalar("a", number, 1, dtype=dtype)
    (value,) = decode(events(writer.path)[1].SerializeToString())
    assert value.tensor.item() == stored


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": 0}, "max_bytes must be at least 1, not 0"),
        ({"buffer_bytes": -1}, "buffer_bytes must be at least 0, not -1"),
        ({"keep_bytes": -1}, "keep_bytes must be at least 0, not -1"),
        ({"flush_secs": math.nan}, "flush_secs must be at least 0, not nan"),
    ],
)
def test_a_writer_checks_what_it_is_told(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        EventWriter(tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["s3://x/y", "gs://x", "file:///x", Path("s3://x/y")])
def test_a_uri_is_no_directory(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"EventWriter writes to a directory, not to a URI \("):
        EventWriter(place)
    assert list(tmp_path.iterdir()) == []


def test_what_a_kind_cannot_be_is_named(tmp_path):
    with EventWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match="buckets must be at least 1, not 0"):
            writer.add([summaries.histogram("h", [1.0], buckets=0)], 1)
        with pytest.raises(ValueError, match="rate must be at least 1, not 0"):
            writer.add([summaries.audio("a", [np.zeros(3)], rate=0)], 1)
        message = "the hyperparameter 'lr' is a NoneType, not a number, a bool or a string: None"
        with pytest.raises(TypeError, match=message):
            writer.add([encode.hparams_start({"lr": None})], 0)
        with pytest.raises(TypeError, match=r"step must be an integer, not float: 2\.0"):
            writer.add([encode.text("t", "x")], 2.0)
    assert len(events(writer.path)) == 1


def test_numbers_and_steps_of_any_type_are_logged(tmp_path):
    numbers = [1, True, np.float32(0.5), np.int64(3), np.array(4.0), 1e300, -(10**400), math.nan]
    with EventWriter(tmp_path) as writer:
        for step, number in enumerate(numbers):
            writer.scalar("one", number, np.int32(-step))
            writer.scalars({"many": number}, np.int64(-step))
        path = writer.path
    expected = [1.0, 1.0, 0.5, 3.0, 4.0, math.inf, -math.inf, math.nan]
    for tag in ("one", "many"):
        found = [
            (event.step, event.summary.value[0].simple_value)
            for event in events(path)[1:]
            if event.summary.value[0].tag == tag
        ]
        assert [step for step, _ in found] == [-step for step in range(len(numbers))]
        np.testing.assert_array_equal([number for _, number in found], expected)


def test_stock_tensorboard_drops_what_a_resumed_run_does_again(tmp_path):
    with EventWriter(tmp_path) as writer:
        for step in range(10):
            writer.scalar("loss", 1.0, step)
    with EventWriter(tmp_path, purge_step=6, max_bytes=200) as writer:
        first = writer.path
        for step in range(6, 20):
            writer.scalar("loss", 2.0, step)
    resumed = events(first)
    assert (resumed[0].file_version, resumed[1].step) == ("brain.Event:2", 6)
    assert resumed[1].session_log.status == resumed[1].session_log.START
    loaded = event_accumulator.EventAccumulator(str(tmp_path), size_guidance=KEEP_ALL).Reload()
    found = [(scalar.step, scalar.value) for scalar in loaded.Scalars("loss")]
    assert found == [(step, 1.0 if step < 6 else 2.0) for step in range(20)]


def test_records_wait_in_memory_until_flushed(tmp_path):
    writer = EventWriter(tmp_path, flush_secs=1000)
    writer.scalar("loss", 1.0, 1)
    assert len(events(writer.path)) == 1
    writer.flush()
    assert len(events(writer.path)) == 2
    writer.scalar("loss", 1.0, 2)
    writer.close()
    assert len(events(writer.path)) == 3
    writer.close()
    with pytest.raises(ValueError, match=f"the writer of {writer.path} is closed"):
        writer.scalar("loss", 1.0, 3)


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EventWriteError) as raised:
        EventWriter(tmp_path / "file" / "run")
    assert raised.value.errno == errno.ENOTDIR
    assert f"cannot create an event file in {tmp_path}/file/run: Not a directory" in str(
        raised.value
    )


def test_of_writers_in_one_second_the_later_one_sorts_last(tmp_path, monkeypatch):
    files = []
    for process in (9, 10, 11, 100):  # as texts, these sort the other way around
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        with EventWriter(tmp_path) as writer:
            files.append(writer.path)

    assert files == sorted(files)
    assert sorted(tmp_path.iterdir()) == files


def test_a_directory_that_cannot_be_listed_is_written_to(tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("aboard.events.files.Path.iterdir", refused)
    with EventWriter(tmp_path) as writer:
        writer.scalar("a", 1.0, 1)
    assert writer.path.stat().st_size > 0


def test_a_file_from_the_future_is_not_followed(tmp_path):
    (tmp_path / "events.out.tfevents.9999999999.elsewhere").touch()

    with EventWriter(tmp_path) as writer:
        assert writer.path.name < "events.out.tfevents.9"


# The two encoders of queued scalars.


event_pb2 = load_protos().event_pb2

TAG = st.text(st.characters(exclude_categories=["Cs"]))
STEP = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
ONE = st.tuples(TAG, st.floats(), STEP, st.floats())
MANY = st.dictionaries(TAG, st.floats(), max_size=30).flatmap(
    lambda numbers: st.tuples(
        st.just(tuple(numbers)), st.just(tuple(numbers.values())), STEP, st.floats()
    )
)
OTHER = st.sampled_from([b"event", Values([encode.text("a", "b")], 1, 2.0)])


@settings(max_examples=40)
@given(st.lists(ONE | MANY | OTHER), st.integers(0, 3))
def test_both_encoders_give_the_same_bytes_and_stop_at_the_same_entry(entries, start):
    core = pytest.importorskip("aboard.events._encoder", reason="the C core was not compiled")
    assert core.records(entries, start) == python_records(entries, start)


@settings(max_examples=40)
@given(st.lists(ONE | MANY))
def test_protobuf_reads_what_was_queued(entries):
    records, stop = scalar_records(entries, 0)
    assert stop == len(entries)
    read = [event_pb2.Event.FromString(data) for _, data in unframed(records)]
    assert len(read) == len(entries)
    for event, (tags, _, step, _) in zip(read, entries, strict=True):
        assert event.step == step
        assert [value.tag for value in event.summary.value] == (
            [tags] if isinstance(tags, str) else list(tags)
        )


def test_a_tag_of_any_length_has_room():
    for length in (0, 1, 100, 127, 128, 16383, 16384, 3_000_000):
        entries = [("x" * length, 1.0, 2, 3.0)] * 2
        assert scalar_records(entries, 0) == python_records(entries, 0)


@given(st.lists(ONE, max_size=5))
def test_the_ends_are_those_of_the_records(entries):
    records, _ = python_records(entries, 0)
    starts = [offset for offset, _ in unframed(records)]
    assert [0, *ends(records)] == [*starts, len(records)]


@pytest.mark.parametrize("entry", [(1, 2.0, 3, 4.0), ("a", None, 3, 4.0), ("a", 1.0, 2**64, 4.0)])
def test_the_core_survives_what_is_never_queued(entry):
    core = pytest.importorskip("aboard.events._encoder", reason="the C core was not compiled")
    with pytest.raises((TypeError, SystemError, OverflowError)):
        core.records([("a", 1.0, 1, 1.0), entry], 0)


def test_the_core_refuses_a_start_before_the_first_entry():
    core = pytest.importorskip("aboard.events._encoder", reason="the C core was not compiled")
    for start in (-1, -(2**62)):
        with pytest.raises(ValueError, match=f"records start at 0 or later, not at {start}"):
            core.records([("a", 1.0, 1, 1.0)], start)


def test_the_core_survives_a_list_that_becomes_shorter():
    core = pytest.importorskip("aboard.events._encoder", reason="the C core was not compiled")

    class Shortening:
        def __float__(self):
            del entries[1:]
            return 1.0

    entries = [("a", Shortening(), 1, 1.0), ("a", 1.0, 2, 1.0)]
    with pytest.raises(IndexError):
        core.records(entries, 0)


@given(st.lists(ONE, min_size=1, max_size=5), st.data())
def test_the_ends_are_those_between_two_records(entries, data):
    records, _ = python_records(entries, 0)
    bounds = [0, *ends(records)]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(entries))] * 2)))
    assert list(ends(records, bounds[start], bounds[stop])) == bounds[start + 1 : stop + 1]
