"""`SummaryWriter` writes what PyTorch's writes: the same calls, read back by both readers."""

import inspect
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from reading import assert_equal, read_ours, read_stock
from torch.utils import tensorboard as theirs
from torch.utils.tensorboard import summary as torch_summary

import aboard
from aboard.track.curves import torch_histogram

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
    assert set(expected) == set(found)
    for name, signature in expected.items():
        for parameter in signature.parameters.values():
            own = found[name].parameters[parameter.name]
            assert own.kind == parameter.kind
            if (name, parameter.name) != ("__init__", "flush_secs"):
                assert own.default == parameter.default, (name, parameter.name)
        assert list(found[name].parameters) == list(signature.parameters)


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
    assert list(found[:5]) == moments


def test_histograms_that_pytorch_stops_at(tmp_path, index):
    """Numbers that are none, or beyond its buckets, are no reason to end a training."""
    with aboard.SummaryWriter(tmp_path) as writer:
        writer.add_histogram("some", [1.0, 2.0, np.nan, np.inf])
        writer.add_histogram("none", torch.full((3,), torch.nan))
        writer.add_histogram("beyond", [1e30, 2e30])
        with pytest.raises(ValueError, match="histogram 'empty': expected one number or more"):
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
        writer.add_pr_curve("many", labels, predictions, 1, num_thresholds=500, walltime=NOW)
        writer.add_pr_curve("edges", np.array([0, 1]), np.array([0.0, 1.0]), 1, walltime=NOW)
        writer.add_pr_curve("weights", labels, predictions, 1, weights=predictions, walltime=NOW)
        rows = np.arange(6 * 127.0).reshape(6, 127)
        writer.add_pr_curve_raw("raw", *rows, 1, walltime=NOW)

    assert len(twice(call, times=True)) == 6


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
        with pytest.raises(TypeError, match="should be dictionaries"):
            writer.add_hparams([], {})
        with pytest.raises(
            TypeError, match=r"the hyperparameter 'lr' should be a bool, int, float"
        ):
            writer.add_hparams({"lr": [1, 2]}, {})
        with pytest.raises(TypeError, match=r"hparam_domain_discrete\['lr'\] should list what"):
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
        with pytest.raises(ValueError, match="the chart 'x' is 'Multiline' or 'Margin', not 'Bar'"):
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
        with pytest.raises(ValueError, match="graph of a Linear is found by running it: give an"):
            writer.add_graph(torch.nn.Linear(1, 1))
        with pytest.raises(
            TypeError, match=r"cannot make a graph of a builtins.int; expected a to"
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.add_scalar("t", "x"), "scalar 't': expected numbers, got a str"),
        (
            lambda w: w.add_scalar("t", [1, 2]),
            "scalar 't': expected a single number, got the shape",
        ),
        (lambda w: w.add_scalar("t", 10**400), "scalar 't': int too large to convert to float"),
        (lambda w: w.add_audio("t", [0.5] * 2, 0, 0), "audio 't': expected a rate from 1 to"),
        (lambda w: w.add_scalars("t", {"a": None}), "scalar 't': expected numbers, got a NoneType"),
        (lambda w: w.add_image("t", [[1]]), "image 't': dataformats='CHW' has 3 axes, the shape"),
        (lambda w: w.add_image("t", np.zeros((5, 2, 2))), "image 't': an image has the shape"),
        (
            lambda w: w.add_text("t", 3),
            "text 't': expected a text, or sequences of texts, got a int",
        ),
        (lambda w: w.add_mesh("t", [[1, 2]]), "mesh 't': expected vertices of the shape"),
        (lambda w: w.add_pr_curve("t", [1], [0.5, 0.5]), "'t': expected as many labels as predict"),
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
