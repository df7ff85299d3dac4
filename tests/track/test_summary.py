"""`SummaryWriter` writes what PyTorch's writes: the same calls, read back by both readers."""

import inspect
import json
import subprocess
import sys
import types
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tensorboardX
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.summary.writer import event_file_writer
from torch.utils import tensorboard as theirs
from torch.utils.tensorboard import summary as torch_summary

import aboard
from aboard.events.encode import torch_histogram
from aboard.storage.base import open_storage
from aboard.track import summary
from aboard.track.summary import FileWriter
from tests.track.readers import assert_equal, read_ours, read_stock
from tests.track.training import train

NOW = 1_700_000_000.0
RNG = np.random.default_rng(1)


def methods(writer):
    return {
        name: inspect.signature(method)
        for name, method in vars(writer).items()
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_"))
    }


def test_every_method_has_the_parameters_of_pytorchs():
    expected, found = methods(theirs.SummaryWriter), methods(aboard.SummaryWriter)
    assert set(found) == {*expected, "use_metadata", "export_scalars_to_json"}  # tensorboardX's
    for name, signature in expected.items():
        for parameter in signature.parameters.values():
            own = found[name].parameters[parameter.name]
            assert own.kind == parameter.kind
            if (name, parameter.name) != ("__init__", "flush_secs"):
                assert own.default == parameter.default, (name, parameter.name)
        own = [one.name for one in found[name].parameters.values() if one.kind != one.KEYWORD_ONLY]
        assert own == list(signature.parameters)


@pytest.fixture
def twice(tmp_path, index):
    """Make the same calls to both writers, and compare what each reader finds."""

    def twice(call, *, times=False):
        for name, kind in (("theirs", theirs.SummaryWriter), ("ours", aboard.SummaryWriter)):
            with kind(str(tmp_path / name / "run")) as writer:
                call(writer)
        stock = read_stock(tmp_path / "ours")
        assert_equal(stock, read_stock(tmp_path / "theirs"), times=times)
        assert_equal(read_ours(tmp_path / "ours", index), stock)
        return stock

    return twice


def test_scalars(twice):
    numbers = [0.5, 3, np.float32(1.5), np.int64(7), np.array([2.5]), torch.tensor(0.25)]
    numbers += [torch.tensor([1.0], requires_grad=True), float("nan"), float("inf"), 1e300, True]
    numbers += ["1.5", "-2e3", b"2.5", np.str_("3"), np.array(["4.5"]), " nan "]

    def call(writer):
        for step, number in enumerate(numbers):
            writer.add_scalar("old", number, step, NOW + step)
            writer.add_scalar("new/style", number, step, NOW, new_style=True)
            writer.add_scalar("double", number, step, NOW, new_style=True, double_precision=True)
        writer.add_scalar("no step", 1.0, walltime=NOW)
        writer.add_scalar("steps", 1.0, torch.tensor(3), NOW)
        writer.add_scalar("steps", 1.0, np.int32(4), NOW)
        writer.add_scalar("steps", 1.0, "5", NOW)
        writer.add_text("note", "a", "6", NOW)

    with np.errstate(over="ignore"):
        assert len(twice(call, times=True)) == 6


def test_groups_of_scalars_are_runs_below(twice):
    def call(writer):
        for step in range(3):
            writer.add_scalars(
                "loss/of", {"train": step / 2, "eval": torch.tensor(step)}, step, NOW
            )

    assert {run for run, _ in twice(call, times=True)} == {"run/loss_of_train", "run/loss_of_eval"}


def test_tensors(twice):
    def call(writer):
        for kind in (torch.float32, torch.float64, torch.int64, torch.bool):
            tensor = torch.arange(6).reshape(2, 3).to(kind)
            writer.add_tensor(f"tensor of {kind}", tensor, 2, NOW)

    assert len(twice(call, times=True)) == 4


def test_tensors_that_pytorch_writes_wrongly(tmp_path, index):
    """Its 16 bits and bytes come back as something else, or not at all."""
    numbers = [1.5, -2.0]
    with aboard.SummaryWriter(tmp_path) as writer:
        for kind in (torch.float16, torch.bfloat16, torch.int8, torch.int16):
            writer.add_tensor(str(kind), torch.tensor(numbers).to(kind))
        writer.add_tensor("bytes", torch.tensor([1, 2], dtype=torch.uint8))
        writer.add_tensor("list", [[1, 2], [3, 4]])
    for found in (read_stock(tmp_path), read_ours(tmp_path, index)):
        values = {tag: one.points[0].value.tolist() for (_, tag), one in found.items()}
        assert values["torch.float16"] == values["torch.bfloat16"] == numbers
        assert values["torch.int8"] == values["torch.int16"] == [1, -2]
        assert (values["bytes"], values["list"]) == ([1, 2], [[1, 2], [3, 4]])


def test_histograms(twice):
    samples = RNG.normal(size=500)

    def call(writer):
        writer.add_histogram("default", samples, 1, walltime=NOW)
        writer.add_histogram("tensor", torch.from_numpy(samples).to(torch.float32), 1, walltime=NOW)
        writer.add_histogram("auto", samples, 1, bins="auto", walltime=NOW)
        writer.add_histogram("seven", samples, 1, bins=7, walltime=NOW)
        writer.add_histogram("edges", samples, 1, bins=[-3, -1, 0, 3], walltime=NOW)
        writer.add_histogram("few", samples, 1, max_bins=20, walltime=NOW)
        writer.add_histogram("constant", np.ones(9), 1, walltime=NOW)
        writer.add_histogram("one", 3.5, 1, walltime=NOW)
        counts, limits = np.histogram(samples, 5)
        writer.add_histogram_raw(
            "raw", samples.min(), 3, 500, samples.sum(), 2.5, limits[1:], counts.tolist(), 2, NOW
        )

    assert len(twice(call, times=True)) == 9


@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e19, 1e19)),
    st.none() | st.integers(1, 2000),
)
def test_buckets_are_those_of_pytorch(numbers, most):
    edges = aboard.SummaryWriter.default_bins.fget(None)
    expected = torch_summary.make_histogram(numbers, edges, most)
    found = torch_histogram(numbers, most=most)
    assert found.limits.tolist() == list(expected.bucket_limit)
    assert found.counts.tolist() == list(expected.bucket)
    moments = [expected.min, expected.max, expected.num, expected.sum, expected.sum_squares]
    assert list(found.moments) == moments


def test_histograms_that_pytorch_stops_at(tmp_path, index):
    """Numbers that are none, or beyond its buckets, are no reason to end a training."""
    with aboard.SummaryWriter(tmp_path) as writer:
        writer.add_histogram("some", [1.0, 2.0, np.nan, np.inf])
        writer.add_histogram("none", torch.full((3,), torch.nan))
        writer.add_histogram("beyond", [1e30, 2e30])
        with pytest.raises(ValueError, match="histogram 'empty': expected at least one number"):
            writer.add_histogram("empty", [])
        with pytest.raises(ValueError, match=r"histogram 'raw': expected a count for each limit"):
            writer.add_histogram_raw("raw", 0, 1, 1, 1, 1, [1, 2], [1])
    for found in (read_stock(tmp_path), read_ours(tmp_path, index)):
        counts = {tag: one.points[0].value[:, 2].sum() for (_, tag), one in found.items()}
        assert counts == {"some": 2, "none": 0, "beyond": 2}


def test_images(twice):
    color = RNG.random((3, 5, 7)).astype(np.float32)
    levels = RNG.integers(0, 255, (5, 7, 3), np.uint8)

    def call(writer):
        writer.add_image("color", torch.from_numpy(color), 1, NOW)
        writer.add_image("levels", levels, 1, NOW, dataformats="HWC")
        writer.add_image("grey", color[0], 1, NOW, dataformats="HW")
        writer.add_image("one channel", color[:1], 1, NOW)
        writer.add_image("mask", levels[:, :, 0] > 99, 1, NOW, dataformats="HW")
        writer.add_image("integers", levels.astype(int) % 2, 1, NOW, dataformats="HWC")
        writer.add_image("transparent", np.concatenate([color, color[:1]]), 1, NOW)
        writer.add_images("batch", np.stack([color] * 10), 1, NOW)
        writer.add_images("last", np.stack([levels] * 3), 1, NOW, dataformats="NHWC")

    assert len(twice(call, times=True)) == 9


def test_images_with_boxes(twice):
    image = torch.from_numpy(RNG.random((3, 60, 90)).astype(np.float32))
    boxes = np.array([[5, 20, 45, 50], [30.5, 3.5, 80.0, 40.0]])

    def call(writer):
        writer.add_image_with_boxes("boxes", image, torch.from_numpy(boxes), 1, NOW)
        writer.add_image_with_boxes("named", image, boxes, 1, NOW, labels=["a cat", "dog"])
        writer.add_image_with_boxes("miscounted", image, boxes, 1, NOW, labels=["a cat"])
        writer.add_image_with_boxes("string", image, boxes[:1], 1, NOW, labels="a cat")

    assert len(twice(call, times=True)) == 4


def test_an_image_that_is_scaled_says_its_size(tmp_path, index):
    with aboard.SummaryWriter(tmp_path) as writer:
        writer.add_image_with_boxes("half", np.zeros((3, 6, 8)), [[1, 1, 2, 2]], rescale=0.5)
    for found in (read_stock(tmp_path), read_ours(tmp_path, index)):
        width, height, pixels = found[".", "half"].points[0].value
        assert (width, height, pixels.shape) == (b"4", b"3", (3, 4, 3))


def test_figures(twice):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    def figure(height):
        drawn = pyplot.figure(figsize=(2, 1), dpi=50)
        drawn.add_subplot().plot([0, height])
        return drawn

    def call(writer):
        writer.add_figure("figure", figure(1), 3, walltime=NOW)
        writer.add_figure("figures", [figure(1), figure(2)], 3, walltime=NOW)
        kept = figure(1)
        writer.add_figure("kept", kept, 3, close=False, walltime=NOW)
        assert pyplot.get_fignums() == [kept.number]
        pyplot.close(kept)

    assert len(twice(call, times=True)) == 3


def test_videos(tmp_path, index, monkeypatch):
    """PyTorch needs moviepy for its GIF; compared are the frames it would hand over."""
    frames = []
    monkeypatch.setattr(torch_summary, "make_video", lambda tensor, fps: frames.extend(tensor))
    video = RNG.random((3, 4, 3, 5, 6)).astype(np.float32)
    torch_summary.video("video", torch.from_numpy(video))
    with aboard.SummaryWriter(tmp_path) as writer:
        writer.add_video("video", torch.from_numpy(video), 2, fps=8)
        with pytest.raises(ValueError, match=r"video 'flat': expected the axes NTCHW, got the sha"):
            writer.add_video("flat", video[0])
    for found in (read_stock(tmp_path), read_ours(tmp_path, index)):
        width, height, _ = found[".", "video"].points[0].value
        assert (int(width), int(height)) == frames[0].shape[1::-1]
    (value,) = aboard.open(tmp_path, index=index).records(".", "video")
    (tmp_path / "video.png").write_bytes(value.blobs[2])
    with Image.open(tmp_path / "video.png") as played:
        assert played.n_frames == len(frames)
        for place, frame in enumerate(frames):
            played.seek(place)
            np.testing.assert_array_equal(np.asarray(played), frame)


def test_sounds_and_texts(twice):
    sound = np.sin(np.arange(400) / 9)

    def call(writer):
        writer.add_audio("mono", torch.from_numpy(sound)[None], 1, 8000, NOW)
        writer.add_audio("default", sound, 1, walltime=NOW)
        writer.add_audio("whole numbers", torch.tensor([0, 1, -1, 5, -5]), 1, walltime=NOW)
        writer.add_text("note", "# Hello\n*wörld*", 1, NOW)
        writer.add_text("note", "", 2, NOW)

    assert len(twice(call, times=True)) == 4


def test_loud_sounds_are_clipped_and_16_bits_are_kept(tmp_path, index):
    samples = np.array([0, 99, -99, 32767], np.int16)
    with aboard.SummaryWriter(tmp_path) as writer:
        writer.add_audio("loud", [3.0, -3.0, 0.5])
        writer.add_audio("16 bits", samples)
        with pytest.raises(
            ValueError, match=r"audio 'stereo': expected the samples of one channel"
        ):
            writer.add_audio("stereo", np.zeros((2, 9)))
    for found in (read_stock(tmp_path), read_ours(tmp_path, index)):
        loud, kept = (found[".", tag].points[0].value[0][44:] for tag in ("loud", "16 bits"))
        assert np.frombuffer(loud, "<i2").tolist() == [32767, -32767, 16383]
        assert kept == samples.tobytes()


def test_precision_and_recall(twice):
    labels = RNG.integers(0, 2, 200)
    predictions = RNG.random(200).astype(np.float32)

    def call(writer):
        writer.add_pr_curve("numpy", labels, predictions, 1, walltime=NOW)
        tensors = torch.from_numpy(labels), torch.from_numpy(predictions)
        writer.add_pr_curve("tensors", *tensors, 1, num_thresholds=11, walltime=NOW)
        writer.add_pr_curve("one", labels, predictions, 1, num_thresholds=1, walltime=NOW)
        writer.add_pr_curve("many", labels, predictions, 1, num_thresholds=500, walltime=NOW)
        writer.add_pr_curve("edges", np.array([0, 1]), np.array([0.0, 1.0]), 1, walltime=NOW)
        writer.add_pr_curve("weights", labels, predictions, 1, weights=predictions, walltime=NOW)
        rows = np.arange(6 * 127.0).reshape(6, 127)
        writer.add_pr_curve_raw("raw", *rows, 1, walltime=NOW)

    assert len(twice(call, times=True)) == 7


def test_meshes(twice):
    vertices = torch.from_numpy(RNG.random((2, 4, 3)).astype(np.float32))
    colors = torch.from_numpy(RNG.integers(0, 256, (2, 4, 3)))
    faces = torch.tensor([[[0, 1, 2]], [[1, 2, 3]]])

    def call(writer):
        config = {"camera": {"cls": "PerspectiveCamera", "fov": 75}}
        writer.add_mesh("whole", vertices, colors, faces, config, 1, NOW)
        writer.add_mesh("cloud", vertices, global_step=1, walltime=NOW)

    assert len(twice(call, times=True)) == 4


def test_colors_of_a_mesh_from_0_to_1(tmp_path, index):
    with aboard.SummaryWriter(tmp_path) as writer:
        writer.add_mesh("cloud", torch.zeros(1, 2, 3), torch.tensor([[[0, 0.5, 1], [1, 1, 1]]]))
    for found in (read_stock(tmp_path), read_ours(tmp_path, index)):
        colors = found[".", "cloud_COLOR"].points[0].value
        assert colors.tolist() == [[[0, 128, 255], [255, 255, 255]]]


def test_hyperparameters(twice):
    hparams = {"lr": 0.1, "layers": 3, "opt": "adam", "bias": True, "none": None}

    def call(writer):
        metrics = {"hparam/accuracy": 0.9, "hparam/loss": torch.tensor(0.5)}
        domains = {"opt": ["adam", "sgd"], "lr": [0.1, 0.2], "bias": [True, False]}
        writer.add_hparams(hparams, metrics, domains, run_name="first", global_step=4)
        writer.add_hparams({**hparams, "tensor": torch.tensor([2.0])}, metrics, run_name="second")

    found = twice(call)
    assert {run for run, _ in found} == {"run/first", "run/second"}
    assert len(found) == 10


def test_hyperparameters_without_a_name_get_a_run_each(tmp_path, index):
    with aboard.SummaryWriter(tmp_path) as writer:
        writer.add_hparams({"lr": np.float32(0.5), "flag": np.bool_(True)}, {"loss": 1})
        writer.add_hparams({"lr": 0.25}, {"loss": 2})
        with pytest.raises(TypeError, match="must be dictionaries"):
            writer.add_hparams([], {})
        with pytest.raises(TypeError, match=r"the hyperparameter 'lr' must be a bool, int, float"):
            writer.add_hparams({"lr": [1, 2]}, {})
        with pytest.raises(TypeError, match=r"hparam_domain_discrete\['lr'\] must list values"):
            writer.add_hparams({"lr": 0.5}, {}, {"lr": ["a"]})
    for found in (read_stock(tmp_path), read_ours(tmp_path, index)):
        starts = [
            one.content.session_start_info.hparams["lr"].number_value
            for (_, tag), one in sorted(found.items())
            if tag == "_hparams_/session_start_info"
        ]
        assert starts == [0.5, 0.25]


def test_custom_charts(tmp_path, twice):
    layout = {"A": {"x": ["Multiline", ["a", "b.*"]], "y": ["Margin", ["v", "l", "u"]]}, "B": {}}
    twice(lambda writer: writer.add_custom_scalars(layout))
    with aboard.SummaryWriter(tmp_path / "more") as writer:
        with pytest.raises(ValueError, match="the margin chart 'untitled' needs three tags"):
            writer.add_custom_scalars_marginchart(["a"])
        with pytest.raises(
            ValueError, match="the chart 'x' must be 'Multiline' or 'Margin', not 'Bar'"
        ):
            writer.add_custom_scalars({"A": {"x": ["Bar", []]}})


@pytest.mark.parametrize("chart", ["multiline", "margin"])
def test_a_custom_chart(twice, chart):
    def call(writer):
        add = getattr(writer, f"add_custom_scalars_{chart}chart")
        add(["a", "b", "c"], "category", "title")

    twice(call)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")  # theirs; ours is silent
def test_the_graph_of_a_module(twice):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    def call(writer):
        model.train()
        writer.add_graph(model, torch.zeros(1, 3))
        assert model.training

    found = twice(call)
    nodes = found["run", "__run_graph__"].points[0].value[0].node
    assert any("Linear[0]" in node.name for node in nodes)
    assert ("run", "step1") in found


def test_models_without_a_graph(tmp_path):
    with aboard.SummaryWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match="graph of a Linear is found by running it: pass an"):
            writer.add_graph(torch.nn.Linear(1, 1))
        with pytest.raises(
            TypeError, match=r"cannot create a graph of a builtins.int; expected a to"
        ):
            writer.add_graph(3)


def test_the_graph_of_an_onnx_file(twice, tmp_path, monkeypatch):
    """The package onnx is not installed: a stand-in gives both writers the same model."""
    named = types.SimpleNamespace

    def end(name):
        dims = [named(dim_value=size) for size in (1, 3)]
        tensor = named(elem_type=1, shape=named(dim=dims))
        return named(name=name, type=named(tensor_type=tensor))

    attribute = named(ListFields=lambda: [("name", "alpha"), ("f", 0.5)])
    node = named(output=["y"], op_type="Gemm", input=["x", "w"], attribute=[attribute])
    model = named(graph=named(input=[end("x")], output=[end("y")], node=[node]))
    monkeypatch.setitem(sys.modules, "onnx", named(load=lambda path: model))
    found = twice(lambda writer: writer.add_onnx_graph("model.onnx"))
    assert len(found["run", "__run_graph__"].points[0].value[0].node) == 3
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="needs the package onnx: pip install onnx"):
        aboard.SummaryWriter(tmp_path).add_onnx_graph("model.onnx")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.add_scalar("t", "x"), "scalar 't': could not convert string to float: 'x'"),
        (
            lambda w: w.add_scalar("t", [1, 2]),
            "scalar 't': expected a single number, got the shape",
        ),
        (lambda w: w.add_scalar("t", 10**400), "scalar 't': int too large to convert to float"),
        (lambda w: w.add_audio("t", [0.5] * 2, 0, 0), "audio 't': expected a rate from 1 to"),
        (lambda w: w.add_scalars("t", {"a": None}), "scalar 't': expected numbers, got a NoneType"),
        (lambda w: w.add_image("t", [[1]]), "image 't': dataformats='CHW' has 3 axes, the shape"),
        (
            lambda w: w.add_image("t", np.zeros((5, 2, 2))),
            "image 't': an image must have the shape",
        ),
        (
            lambda w: w.add_text("t", 3),
            "text 't': expected a string, or sequences of strings, not int",
        ),
        (lambda w: w.add_mesh("t", [[1, 2]]), "mesh 't': expected vertices of the shape"),
        (lambda w: w.add_pr_curve("t", [1], [0.5, 0.5]), "'t': expected a label for each predict"),
        (lambda w: w.add_figure("t", 3), "figure 't': expected a matplotlib figure, got a int"),
    ],
)
def test_bad_input_is_told_with_its_tag(tmp_path, call, message):
    with (
        aboard.SummaryWriter(tmp_path) as writer,
        pytest.raises((TypeError, ValueError)) as error,
    ):
        call(writer)
    assert message in str(error.value)


def test_writing_after_closing_goes_on_in_another_file(tmp_path, index):
    writer = aboard.SummaryWriter(tmp_path, filename_suffix=".mine")
    writer.add_scalar("a", 1, 1)
    writer.close()
    writer.close()
    writer.add_scalar("a", 2, 2)
    writer.add_scalars("b", {"c": 3}, 3)
    writer.close()
    assert writer.file_writer is None
    files = sorted(path.name for path in tmp_path.glob("*tfevents*"))
    assert len(files) == 2
    assert all(name.endswith(".mine") for name in files)
    assert read_ours(tmp_path, index)[".", "a"].points[1].step == 2


def test_flush_brings_everything_to_the_disk(tmp_path, index):
    writer = aboard.SummaryWriter(tmp_path, flush_secs=1000)
    writer.add_scalar("a", 1, 1)
    writer.add_scalars("b", {"c": 3}, 3)
    writer.flush()
    assert set(read_ours(tmp_path, index)) == {(".", "a"), ("b_c", "b")}
    writer.close()


def test_a_purged_step(tmp_path, index, monkeypatch):
    # PyTorch's file names end in a counter; files of one second sort wrong when it reaches 10.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for name, kind in (("theirs", theirs.SummaryWriter), ("ours", aboard.SummaryWriter)):
        for purge_step, numbers in ((None, range(5)), (2, range(2, 4))):
            with kind(str(tmp_path / name), purge_step=purge_step) as writer:
                for step in numbers:
                    writer.add_scalar("a", step * (purge_step or 1), step)
        found = read_ours(tmp_path / name, index)
        assert [(one.step, one.value) for one in found[".", "a"].points] == [
            (0, 0),
            (1, 1),
            (2, 4),
            (3, 6),
        ]
        assert session_starts(tmp_path / name) == [2]


def session_starts(directory):
    events = (
        event
        for path in directory.glob("*tfevents*")
        for event in event_file_loader.EventFileLoader(str(path)).Load()
    )
    return [event.step for event in events if event.session_log.status == SessionLog.START]


def test_where_logs_go_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ABOARD_LOGDIR", "PAI_OUTPUT_TENSORBOARD", "AIP_TENSORBOARD_LOG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XT_OUTPUT_MNT", raising=False)
    with aboard.SummaryWriter(comment="_more") as ours, theirs.SummaryWriter() as plain:
        assert Path(ours.log_dir).parent == Path(plain.log_dir).parent == Path("runs")
        assert Path(ours.log_dir).name.endswith(Path(plain.log_dir).name[14:] + "_more")
        assert list(Path(ours.get_logdir()).glob("*tfevents*"))
    monkeypatch.setenv("AIP_TENSORBOARD_LOG_DIR", str(tmp_path / "platform"))
    with aboard.SummaryWriter(comment="ignored") as writer:
        assert writer.get_logdir() == str(tmp_path / "platform")
    monkeypatch.setenv("ABOARD_LOGDIR", str(tmp_path / "ours"))
    with aboard.SummaryWriter() as writer:
        assert writer.get_logdir() == str(tmp_path / "ours")
    with aboard.SummaryWriter(tmp_path / "told") as writer:
        assert writer.get_logdir() == tmp_path / "told"
    with aboard.SummaryWriter(f"file://{tmp_path}/uri") as writer:
        writer.add_scalar("a", 1)
    assert list((tmp_path / "uri").glob("*tfevents*"))


def test_protobufs_of_their_own_makers(tmp_path, index):
    """Loggers on top of PyTorch's writer build summaries and hand them to its file writer."""
    from tensorboard.compat.proto import event_pb2

    records = torch_summary.hparams({"lr": 0.1}, {"loss": 1.0})
    for name, kind in (("theirs", theirs.SummaryWriter), ("ours", aboard.SummaryWriter)):
        with kind(str(tmp_path / name)) as writer:
            for record in records:
                writer.file_writer.add_summary(record)
            writer._get_file_writer().add_summary(torch_summary.scalar("loss", 2.0), 5, NOW)
            event = event_pb2.Event(summary=torch_summary.text("note", "hello"))
            writer.file_writer.add_event(event, torch.tensor(7), NOW)
            event = event_pb2.Event(summary=torch_summary.scalar("raw", 4.0), step=8, wall_time=NOW)
            writer.file_writer.event_writer.add_event(event)
            with pytest.raises(TypeError, match=r"[Ee]xpected an"):
                writer.file_writer.event_writer.add_event("loss")
            assert writer.file_writer.event_writer.get_logdir() == str(tmp_path / name)
            writer.file_writer.flush()
            writer.file_writer.add_summary(torch_summary.scalar("loss", 3.0), 6, NOW)
            assert writer.file_writer.get_logdir() == str(tmp_path / name)
    found = read_stock(tmp_path / "ours")
    assert_equal(found, read_stock(tmp_path / "theirs"))
    assert_equal(read_ours(tmp_path / "ours", index), found)


def test_a_file_writer_is_reopened(tmp_path, index):
    writer = FileWriter(tmp_path, flush_secs=1000)
    writer.add_summary(torch_summary.scalar("a", 1.0), 1)
    writer.reopen()
    writer.close()
    writer.reopen()
    writer.add_summary(torch_summary.scalar("a", 2.0), 2)
    writer.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert [one.step for one in read_ours(tmp_path, index)[".", "a"].points] == [1, 2]


def test_a_bucket(tmp_path, index, s3_bucket, monkeypatch):
    monkeypatch.setenv("ABOARD_SHIP_SECS", "0.1")
    place = f"{s3_bucket}/{tmp_path.name}"
    with aboard.SummaryWriter(place) as writer:
        writer.add_scalar("a", 1.0, 1)
        writer.add_scalars("b", {"c": 2.0}, 1)
        writer.add_embedding(np.zeros((2, 2)))
        assert writer.log_dir == place
        spool = Path(writer.get_logdir())
        (spool / "more.txt").write_text("mine")
    assert not spool.exists()
    storage = open_storage(place)
    assert storage.read("more.txt") == b"mine"
    assert b"tensors.tsv" in storage.read("projector_config.pbtxt")
    assert set(read_ours(place, index)) == {(".", "a"), ("b_c", "b")}


def test_a_bucket_has_everything_when_a_program_ends_without_closing(tmp_path, index, s3_bucket):
    place = f"{s3_bucket}/{tmp_path.name}"
    code = f"w = aboard.SummaryWriter({place!r}); w.add_scalar('a', 1.0, 1)"
    assert train(code, tmp_path).code == 0
    assert set(read_ours(place, index)) == {(".", "a")}


def test_a_disk_that_cannot_be_written_stops_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with aboard.SummaryWriter(tmp_path / "file" / "run") as writer:
        writer.add_scalar("a", 1)
        writer.add_scalars("b", {"c": 2})
        writer.add_hparams({"lr": 1}, {"loss": 1})
        writer.add_embedding(np.zeros((2, 2)))
        writer.flush()
    said = capsys.readouterr().err.splitlines()
    assert said
    assert all(line.startswith("aboard: ") for line in said)
    assert any("the embedding 'default' was not written" in line for line in said)
    assert not any("written again" in line for line in said)
    (tmp_path / "file").unlink()


# tensorboardX.


def test_the_arguments_of_tensorboardx(tmp_path, index):
    for name, kind in (("theirs", tensorboardX.SummaryWriter), ("ours", aboard.SummaryWriter)):
        with kind(logdir=str(tmp_path / name)) as writer:
            with writer.use_metadata(global_step=7, walltime=NOW) as same:
                assert same is writer
                writer.add_scalar("a", 1.0)
                writer.add_scalar("a", 2.0, 8)
                writer.add_histogram("h", np.arange(5.0), walltime=NOW + 1)
            with writer.file_writer.use_metadata(global_step=9, walltime=NOW + 2):
                writer.file_writer.add_summary(tensorboardX.summary.scalar("a", 3.0))
            writer.add_scalar("a", 4.0, 10, NOW)
            writer.add_hparams({"lr": 0.1}, {"loss": 1.0}, name="trial", global_step=3)
    ours, expected = read_stock(tmp_path / "ours"), read_stock(tmp_path / "theirs")
    points = {key: [(p.step, p.wall_time) for p in one.points] for key, one in ours.items()}
    assert points[".", "a"] == [(7, NOW), (8, NOW), (9, NOW + 2), (10, NOW)]
    assert points[".", "h"] == [(7, NOW + 1)]
    assert_equal(
        {key: ours[key] for key in points if key[0] == "."},
        {key: expected[key] for key in points if key[0] == "."},
        times=True,
    )
    assert set(ours) == set(expected)
    assert_equal(read_ours(tmp_path / "ours", index), ours)


def test_metadata_ends_with_its_block(tmp_path, index):
    with aboard.SummaryWriter(tmp_path) as writer:
        with suppress(KeyError), writer.use_metadata(global_step=5):
            writer.add_scalars("group", {"x": 1.0})
            writer.add_text("note", "hello")
            raise KeyError
        writer.add_scalar("a", 1.0)
        with pytest.raises(ValueError, match="needs a global_step"), writer.use_metadata():
            pass
    found = read_ours(tmp_path, index)
    steps = {key: [point.step for point in one.points] for key, one in found.items()}
    assert steps == {(".", "a"): [0], (".", "note/text_summary"): [5], ("group_x", "group"): [5]}


def test_scalars_are_exported_once(tmp_path, capsys, monkeypatch):
    documents = {}
    for name, kind in (("theirs", tensorboardX.SummaryWriter), ("ours", aboard.SummaryWriter)):
        with kind(logdir=str(tmp_path / name)) as writer:
            for step in range(3):
                writer.add_scalars("group", {"x": step / 2, "y": float("inf")}, step, NOW + step)
            writer.add_scalar("alone", 1.0, 1)
            writer.export_scalars_to_json(tmp_path / "all.json")
            documents[name] = json.loads((tmp_path / "all.json").read_text())
            writer.export_scalars_to_json(tmp_path / "all.json")
            assert json.loads((tmp_path / "all.json").read_text()) == {}
    assert set(documents["ours"]) == {f"{tmp_path}/ours/group_x", f"{tmp_path}/ours/group_y"}
    assert list(documents["ours"].values()) == list(documents["theirs"].values())
    monkeypatch.setattr(summary, "_MOST_EXPORTED", 2)
    with aboard.SummaryWriter(tmp_path / "many") as writer:
        for step in range(3):
            writer.add_scalars("group", {"x": 1.0}, step, NOW)
        writer.export_scalars_to_json(tmp_path / "many.json")
    assert len(json.loads((tmp_path / "many.json").read_text())[f"{tmp_path}/many/group_x"]) == 2
    assert "has the first 2 points; the event files have all." in capsys.readouterr().err


def test_a_writer_that_writes_nothing(tmp_path, s3_bucket):
    for place in (tmp_path / "run", f"{s3_bucket}/{tmp_path.name}"):
        with aboard.SummaryWriter(place, write_to_disk=False, purge_step=3) as writer:
            writer.add_scalar("a", 1.0, 1)
            writer.add_scalars("b", {"c": 2.0})
            writer.add_histogram("h", [1, 2])
            writer.add_hparams({"lr": 0.1}, {"loss": 1.0})
            writer.add_embedding(np.zeros((2, 2)))
            writer.add_graph(b"")
            writer.file_writer.add_summary(torch_summary.scalar("a", 3.0))
            writer.flush()
            assert writer.get_logdir() == place
            with pytest.raises(ValueError, match="scalar 'a'"):
                writer.add_scalar("a", "x")
        writer.add_scalar("a", 2.0, 2)
        writer.export_scalars_to_json(tmp_path / "b.json")
    assert not (tmp_path / "run").exists()
    assert list(open_storage(s3_bucket).list(tmp_path.name)) == []


ALONE = """
import sys
for name in ("torch", "tensorflow", "jax", "matplotlib", "tensorboard", "google.protobuf", "PIL"):
    sys.modules[name] = None
import aboard
with aboard.SummaryWriter(sys.argv[1]) as w:
    w.add_scalar("scalar", 1.0, 1)
    w.add_histogram("histogram", [1, 2, 3])
    w.add_image("image", [[[0.5]], [[0.5]], [[0.5]]])
    w.add_video("video", [[[[[0.5]]]]])
    w.add_audio("audio", [0.5, 0.5])
    w.add_text("text", "hello")
    w.add_pr_curve("curve", [0, 1], [0.1, 0.9])
    w.add_mesh("mesh", [[[1, 2, 3]]])
    w.add_custom_scalars_multilinechart(["a"])
    w.add_embedding([[1, 2], [3, 4]], ["a", "b"], [[[[0.5]]], [[[0.5]]]])
    w.add_graph(b"")
    w.add_hparams({"lr": 1}, {"loss": 1}, run_name=".")
"""


def test_nothing_else_needs_to_be_installed(tmp_path, index):
    subprocess.run([sys.executable, "-c", ALONE, tmp_path], check=True)
    assert {tag for _, tag in read_ours(tmp_path, index)} == {
        "scalar",
        "histogram",
        "image",
        "video",
        "audio",
        "text/text_summary",
        "curve",
        "mesh_VERTEX",
        "custom_scalars__config__",
        "__run_graph__",
        "_hparams_/experiment",
        "_hparams_/session_start_info",
        "_hparams_/session_end_info",
        "loss",
    }


def test_images_in_a_list_whose_axes_are_named_for_each(tmp_path, index):
    images = [RNG.random((3, 10, 12)) for _ in range(3)]
    for name, kind in (("theirs", tensorboardX.SummaryWriter), ("ours", aboard.SummaryWriter)):
        with kind(str(tmp_path / name)) as writer:
            writer.add_images("list", images, 1, NOW, dataformats="CHW")
    assert_equal(read_ours(tmp_path / "ours", index), read_stock(tmp_path / "theirs"))
