"""Everything that a run logs besides numbers, TensorBoard's readers and ours read back equal."""

import io
import json
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils import tensorboard as theirs

import aboard
from aboard.events import encode
from aboard.track.media import graph_of, pr_curve
from tests.track.readers import read_stock

RNG = np.random.default_rng(1)


def pixels_of(point):
    width, height, *images = point.value
    assert all(image.shape[:2] == (int(height), int(width)) for image in images)
    return images


def test_an_image_of_every_kind(log, logged):
    levels = RNG.integers(0, 255, (5, 7, 3), np.uint8)
    for step, image in enumerate(
        [
            levels,
            levels.transpose(2, 0, 1),
            levels.tolist(),
            torch.from_numpy(levels),
            torch.from_numpy(levels).permute(2, 0, 1) / 255,
            levels.astype(np.int64),
            Image.fromarray(levels),
        ]
    ):
        log.log_image("image", image, step=step)
    log.log_image("image", levels.transpose(1, 2, 0), dataformats="WCH", step=torch.tensor(9))
    points = logged("image")
    assert [point.step for point in points] == [*range(7), 9]
    for point in points:
        np.testing.assert_array_equal(pixels_of(point), [levels])


def test_grey_and_transparent_images(log, logged):
    log.log_image("grey", RNG.random((5, 6)) > 0.5)
    log.log_image("transparent", np.zeros((5, 6, 4), np.uint8))
    assert [one.shape for one in pixels_of(logged("grey")[0])] == [(5, 6)]
    assert [one.shape for one in pixels_of(logged("transparent")[0])] == [(5, 6, 4)]


def test_several_images(log, logged):
    levels = RNG.integers(0, 255, (3, 5, 7, 3), np.uint8)
    log.log_images("images", levels, step=0)
    log.log_images("images", torch.from_numpy(levels).permute(0, 3, 1, 2), step=1)
    log.log_images("images", list(levels), step=2)
    log.log_images("images", levels.transpose(3, 0, 1, 2), dataformats="CNHW", step=3)
    for point in logged("images"):
        np.testing.assert_array_equal(pixels_of(point), levels)


def test_figures(log, logged):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(2, 1), dpi=50)
    figure.add_subplot().plot([0, 1])
    log.log_figure("figure", figure, step=0)
    log.log_figure("figure", [figure, figure], step=1)
    assert pyplot.fignum_exists(figure.number)
    log.log_figure("figure", figure, step=2, close=True)
    assert not pyplot.get_fignums()
    shown = [pixels_of(point) for point in logged("figure")]
    assert [len(images) for images in shown] == [1, 2, 1]
    assert shown[0][0].shape == (50, 100, 3)
    assert len(np.unique(shown[0][0])) > 5


def test_histograms(log, logged):
    numbers = RNG.normal(size=300)
    log.log_histogram("weights", numbers, step=0)
    log.log_histogram("weights", torch.from_numpy(numbers).requires_grad_(), step=1, buckets=7)
    log.log_histogram("weights", [np.nan, np.inf], step=2)
    first, second, none = logged("weights")
    np.testing.assert_array_equal(first.value, encode.histogram_buckets(numbers, 30))
    np.testing.assert_array_equal(second.value, encode.histogram_buckets(numbers, 7))
    assert none.value.shape == (0, 3)


def test_texts_with_steps_stages_and_descriptions(log, logged):
    log.log_text("note", "**wörld**", description="what *it* says")
    log.log_text("note", [["a", "b"], ["c", "d"]], step=8, description="too late")
    log.log_text("note", "other", stage="eval/best")
    points = logged("note")
    assert [point.step for point in points] == [7, 8]
    assert points[0].value == ["**wörld**".encode()]
    assert points[1].value == [b"a", b"b", b"c", b"d"]
    assert logged("note", "eval/best")[0].value == [b"other"]
    assert read_stock(Path(log.logdir))[".", "note"].description == "what *it* says"


@pytest.mark.parametrize(
    ("samples", "channels", "expected"),
    [
        (np.array([0.0, 0.5, -1, 3]), 1, [0, 16384, -32767, 32767]),
        (np.array([[0.0, 1], [0, 1], [0, 1]]), 2, [0, 32767] * 3),
        (torch.tensor([[0.0, 0, 0], [1, 1, 1]]), 2, [0, 32767] * 3),
        (np.array([1, -2], np.int16), 1, [1, -2]),
        (np.array([1 << 16, -(2 << 16)], np.int32), 1, [1, -2]),
        (np.array([0, 128, 255], np.uint8), 1, [-32768, 0, 127 << 8]),
    ],
)
def test_sounds(log, logged, samples, channels, expected):
    log.log_audio("sound", samples, 8000)
    [clip] = logged("sound")[0].value
    with wave.open(io.BytesIO(clip)) as played:
        assert (played.getframerate(), played.getnchannels()) == (8000, channels)
        frames = played.readframes(played.getnframes())
        assert np.frombuffer(frames, "<i2").tolist() == expected


def test_precision_and_recall(log, logged):
    labels, predictions = RNG.integers(0, 2, 90), RNG.random(90)
    log.log_pr_curve("curve", labels, predictions, step=0)
    log.log_pr_curve("curve", torch.from_numpy(labels) > 0, predictions, thresholds=300, step=1)
    first, second = logged("curve")
    assert (first.value.shape, second.value.shape) == ((6, 127), (6, 300))
    np.testing.assert_array_equal(first.value, pr_curve(labels, predictions).astype("f4"))


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1), st.integers(2, 20))
def test_a_curve_counts_what_each_threshold_gets_right(pairs, thresholds):
    labels, predictions = map(np.array, zip(*pairs, strict=True))
    tp, fp, tn, fn, precision, recall = pr_curve(labels, predictions, thresholds=thresholds)
    for place in range(thresholds):
        taken = np.floor(predictions * (thresholds - 1)) >= place
        assert (tp[place], fp[place]) == ((taken & labels).sum(), (taken & ~labels).sum())
        assert (fn[place], tn[place]) == ((~taken & labels).sum(), (~taken & ~labels).sum())
        assert precision[place] == tp[place] / max(1, taken.sum())
        assert recall[place] == tp[place] / max(1, labels.sum())


def test_weights_and_gaps_of_a_curve():
    curve = pr_curve([1, 0, 1], [0.9, 0.9, np.nan], [2.0, 3.0, 5.0], thresholds=2)
    assert curve[:2, 0].tolist() == [2.0, 3.0]
    with pytest.raises(
        ValueError, match=r"expected a weight for each label, got \(2,\) for \(3,\)"
    ):
        pr_curve([1, 0, 1], [0.9, 0.9, 0.1], [2.0, 3.0])


def test_meshes(log, logged):
    vertices = RNG.random((4, 3)).astype("f4")
    config = {"camera": {"fov": 60}}
    shades = np.array([[0.0, 0.5, 1.0]] * 4)
    log.log_mesh("mesh", vertices, faces=[[0, 1, 2]], colors=shades, config=config, step=3)
    np.testing.assert_array_equal(logged("mesh_VERTEX")[0].value, [vertices])
    np.testing.assert_array_equal(logged("mesh_FACE")[0].value, [[[0, 1, 2]]])
    np.testing.assert_array_equal(logged("mesh_COLOR")[0].value, [[[0, 128, 255]] * 4])
    content = read_stock(Path(log.logdir))[".", "mesh_FACE"].content
    assert json.loads(content.json_config) == config


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda log: log.log_image("t", np.zeros((3, 4, 3))), "image 't': cannot tell the layout"),
        (
            lambda log: log.log_image("t", np.zeros((5, 5, 7)), dataformats="HWC"),
            "image 't': an im",
        ),
        (lambda log: log.log_image("t", None), "image 't': expected numbers, got a NoneType"),
        (lambda log: log.log_images("t", []), "images 't': expected one or more images of one"),
        (lambda log: log.log_histogram("t", "abc"), "histogram 't': expected numbers, got a str"),
        (lambda log: log.log_histogram("t", [1], buckets=0), "'t': expected at least one bucket"),
        (lambda log: log.log_text("t", 3), "text 't': expected a string, or sequences of strings"),
        (lambda log: log.log_text("t", b"x"), "text 't': expected a string, or sequences of"),
        (lambda log: log.log_audio("t", np.zeros((2, 2, 2)), 8000), "audio 't': expected [frames]"),
        (lambda log: log.log_audio("t", [1, 2], 8000), "audio 't': expected floats, int16, int32"),
        (lambda log: log.log_audio("t", [0.5], 0), "audio 't': expected a rate from 1 to"),
        (lambda log: log.log_audio("t", [0.5], "fast"), "audio 't': the rate is 'fast', not a wh"),
        (lambda log: log.log_text("t", "a", step="7"), "the step is '7', not a whole number"),
        (lambda log: log.log_text("t", "a", stage=None), "the stage is None, not a string such as"),
        (lambda log: log.log_pr_curve("t", [0, 2], [0, 1]), "'t': expected labels that are 0 or 1"),
        (lambda log: log.log_pr_curve("t", [0, 1], [-3, 1]), "'t': expected predictions from 0 to"),
        (
            lambda log: log.log_pr_curve("t", [1], [1], thresholds=1),
            "expected at least two threshol",
        ),
        (
            lambda log: log.log_mesh("t", np.zeros((2, 4))),
            "mesh 't': expected vertices of the shap",
        ),
        (
            lambda log: log.log_mesh("t", np.zeros((2, 3)), colors=[[1, 2, 3]]),
            "a color for each ver",
        ),
        (lambda log: log.log_table("t", 3), "table 't': expected rows, columns or a data frame, g"),
        (
            lambda log: log.log_table("t", {"a": [1], "b": []}),
            "'t': expected columns of one length",
        ),
        (lambda log: log.log_table("t", [[1], [1, 2]]), "'t': row 1 has 2 cells for 1 columns"),
        (lambda log: log.log_table("t", [1, 2]), "'t': expected every row to be a sequence"),
        (
            lambda log: log.log_embedding("t", [1, 2]),
            "embedding 't': expected a matrix, one vector",
        ),
        (lambda log: log.log_graph(None), "cannot create a graph of a builtins.NoneType; expected"),
        (lambda log: log.log_figure("t", None), "figure 't': expected a matplotlib figure"),
    ],
)
def test_bad_input_is_told_with_its_tag_and_logs_nothing(log, call, message):
    with pytest.raises((TypeError, ValueError)) as error:
        call(log)
    assert message in str(error.value)
    log.finish()
    assert set(read_stock(Path(log.logdir))) == {(".", "loss")}


class KerasModel:
    """What a Keras model has; it need not be installed."""

    def get_config(self):
        return {}

    def to_json(self):
        return '{"class_name": "Sequential", "config": {"name": "net", "layers": []}}'


def test_graphs(log, logged):
    from tensorboard.compat.proto import graph_pb2

    graph = graph_pb2.GraphDef()
    graph.node.add(name="a", op="Const")
    log.log_graph(graph, stage="proto")
    log.log_graph(graph.SerializeToString(), stage="bytes")
    log.log_graph(KerasModel(), stage="keras")
    log.log_graph(torch.nn.Linear(2, 1), torch.zeros(1, 2), stage="torch")
    for run in ("proto", "bytes"):
        assert logged("__run_graph__", run)[0].value == [graph]
    assert any("Linear" in node.name for node in logged("__run_graph__", "torch")[0].value[0].node)
    assert logged("keras", "keras")[0].value == [KerasModel().to_json().encode()]


def test_an_unknown_model_is_an_error():
    with pytest.raises(TypeError, match="cannot create a graph of a builtins"):
        graph_of("model")


def test_embeddings(tmp_path):
    matrix = torch.from_numpy(RNG.normal(size=(5, 3)).astype(np.float32))
    pictures = torch.from_numpy(RNG.random((5, 3, 4, 6)).astype(np.float32))
    for name, kind in (("theirs", theirs.SummaryWriter), ("ours", aboard.SummaryWriter)):
        with kind(str(tmp_path / name)) as writer:
            writer.add_embedding(matrix, list("abcde"), pictures, 3, "a/b")
            writer.add_embedding(
                matrix, [[n, n / 2] for n in range(5)], None, 4, "t", ["n", "half"]
            )
            writer.add_embedding(matrix, label_img=pictures[:, :1])

    def files(root):
        found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
        return {path: at for path, at in found.items() if "tfevents" not in path.name}

    expected, found = files(tmp_path / "theirs"), files(tmp_path / "ours")
    assert set(found) == set(expected)
    for path, at in expected.items():
        if path.suffix == ".png":
            with Image.open(at) as one, Image.open(found[path]) as other:
                np.testing.assert_array_equal(np.asarray(other), np.asarray(one))
        else:
            assert found[path].read_text() == at.read_text()


def test_embeddings_that_do_not_fit(tmp_path):
    with aboard.SummaryWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match="embedding 'e': expected labels for 2 vectors, got 1"):
            writer.add_embedding(np.zeros((2, 2)), ["a"], tag="e")
        with pytest.raises(ValueError, match="'default': expected images for 2 vectors, got 1"):
            writer.add_embedding(np.zeros((2, 2)), label_img=np.zeros((1, 3, 2, 2)))
        with pytest.raises(ValueError, match=r"expected a matrix, one vector a row, got the shape"):
            writer.add_embedding(np.zeros(2))
    assert not (tmp_path / "projector_config.pbtxt").exists()
