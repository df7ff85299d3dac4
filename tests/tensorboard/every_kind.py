"""A log tree with every kind of data that TensorBoard shows, in several runs."""

import json
from pathlib import Path

import numpy as np

from aboard.events import encode
from aboard.events.messages import keep_tensorflow_out
from aboard.events.writer import EventWriter
from tests import summaries

keep_tensorflow_out()

from tensorboard.compat.proto import config_pb2, graph_pb2  # noqa: E402
from tensorboard.plugins.custom_scalar import layout_pb2  # noqa: E402
from tensorboard.plugins.hparams import api_pb2  # noqa: E402

START = 1_700_000_000.0
STEPS = (0, 1, 5, 20)
RUNS = (".", "sweep/first", "sweep/first/eval", "sweep/second", "räum é/lauf #1", "empty")


def write_every_kind(root: Path) -> None:
    """Write the tree below `root`."""
    for place, run in enumerate(RUNS):
        with EventWriter(root / run) as writer:
            began = START + 100 * place
            if run == "empty":
                continue
            _scalars(writer, began, place)
            if run != "sweep/first/eval":
                _pictures_and_sounds(writer, began, place)
                _tensors(writer, began, place)
                _old_forms(writer, began)
            if run in (".", "sweep/first"):
                _graphs(writer, began)
                writer.add([encode.custom_scalars(_layout(run))], 0, wall_time=began)
            if run.startswith("sweep") and "eval" not in run:
                _session(writer, began, place)
    with EventWriter(root, suffix=".hparams") as writer:
        writer.add([_experiment()], 0, wall_time=START + 1)


def _scalars(writer: EventWriter, began: float, place: int) -> None:
    for step in STEPS:
        wall = began + step
        writer.scalars({"loss": 1 / (1 + step + place), "lr/group": 0.1}, step, wall_time=wall)
        writer.scalar("wide", np.pi / (1 + step), step, dtype="float64", wall_time=wall)
        writer.scalar("count", step * 3, step, dtype="int64", wall_time=wall)
        described = summaries.metadata(
            "scalars", display_name="Accuracy", description=f"# *Right* answers of {place % 2}"
        )
        value = encode.scalar_tensor("accuracy", step / 20, "float32")
        writer.add([value._replace(metadata=described)], step, wall_time=wall)
    odd = [float("nan"), float("inf"), float("-inf"), -0.0, 1e-45, 3e38]
    for step, number in enumerate(odd):
        writer.scalar("odd numbers", number, step, wall_time=began + step)
    newer = encode.metadata("scalars", b"\x08\x07")
    value = encode.scalar_tensor("of a later version", 1.0, "float32")._replace(metadata=newer)
    writer.add([value], 0, wall_time=began)


def _pictures_and_sounds(writer: EventWriter, began: float, place: int) -> None:
    for step in STEPS:
        wall = began + step
        samples = range(min(step + 1, 3))
        shades = [np.full((3, 4, 3), 20 * sample + step, np.uint8) for sample in samples]
        writer.add([summaries.images("pictures", shades)], step, wall_time=wall)
        writer.add(
            [summaries.images("grey/one", [np.full((2, 2), step + place, np.uint8)])],
            step,
            wall_time=wall,
        )
        clips = [np.sin(np.arange(50) * (sample + 1) / 9) for sample in range(2)]
        labels = ["a *low* tone", "a high tone"]
        writer.add(
            [summaries.audio("sound", clips, rate=8000, labels=labels)], step, wall_time=wall
        )


def _tensors(writer: EventWriter, began: float, place: int) -> None:
    spread = np.random.default_rng(place)
    for step in STEPS:
        wall = began + step
        writer.add(
            [summaries.histogram("weights", spread.normal(size=200) * (1 + step))],
            step,
            wall_time=wall,
        )
        writer.add([summaries.histogram("constant", np.ones(7))], step, wall_time=wall)
        writer.add(
            [encode.text("note", f"**step** {step}, <b>run</b> {place}")], step, wall_time=wall
        )
        writer.add([encode.text("table", [["a", "b"], ["1", f"`{step}`"]])], step, wall_time=wall)
        writer.add([encode.text("lines", ["one", "two"])], step, wall_time=wall)
        rates = np.linspace(1, 0, 5)
        curve = [100 * rates, 50 * rates, 50 * (1 - rates), 100 * (1 - rates), rates, rates]
        writer.add([encode.pr_curve("curve", curve)], step, wall_time=wall)
        writer.add(
            encode.mesh(
                "shape",
                spread.random((2, 4, 3)),
                faces=[[[0, 1, 2]]] * 2,
                colors=spread.integers(0, 255, (2, 4, 3)),
                config={"camera": {"fov": 60}},
            ),
            step,
            wall_time=wall,
        )
        writer.add(encode.mesh("cloud", spread.random((1, 5, 3))), step, wall_time=wall)


def _old_forms(writer: EventWriter, began: float) -> None:
    for step in STEPS:
        wall = began + step
        picture = encode.png(np.full((2, 3), step, np.uint8))
        clip = encode.wav(np.zeros(20) + step / 50, 8000)
        values = [
            encode.legacy_image("old/image", picture, 3, 2, 1),
            encode.legacy_audio("old/audio", clip, 8000.0, 1, 20),
            encode.legacy_histogram("old/histogram", (0, 2, 3, 3, 5), [0.5, 1.5, 2.5], [1, 1, 1]),
        ]
        writer.add(values, step, wall_time=wall)


def _graphs(writer: EventWriter, began: float) -> None:
    graph = graph_pb2.GraphDef()
    node = graph.node.add(name="a/const", op="Const", device="/device:GPU:0")
    node.attr["value"].tensor.string_val.append(b"long " * 300)
    graph.node.add(name="b", op="Identity", input=["a/const"])
    writer.write(encode.graph(began, graph.SerializeToString()))
    profile = config_pb2.RunMetadata()
    device = profile.step_stats.dev_stats.add(device="/device:GPU:0")
    device.node_stats.add(node_name="b", all_start_micros=5, all_end_rel_micros=7)
    traced = config_pb2.RunMetadata()
    traced.function_graphs.add().pre_optimization_graph.CopyFrom(graph)
    writer.write(encode.tagged_run_metadata(began, 3, "step 3", profile.SerializeToString()))
    writer.add([summaries.trace("traced", traced.SerializeToString())], 0, wall_time=began)
    both = config_pb2.RunMetadata()
    both.CopyFrom(traced)
    both.MergeFrom(profile)
    profiled = encode.tensor(
        "profiled",
        both.SerializeToString(),
        plugin="graph_run_metadata",
        plugin_content=b"1",
        data_class="",
    )
    writer.add([profiled], 4, wall_time=began)
    layer = {"class_name": "Dense", "config": {"name": "dense", "units": 1}, "name": "dense"}
    model = {"class_name": "Sequential", "config": {"name": "net", "layers": [layer]}}
    writer.add([encode.keras_graph(json.dumps(model))], 0, wall_time=began)


def _layout(run: str) -> bytes:
    layout = layout_pb2.Layout()
    category = layout.category.add(title="Losses")
    category.chart.add(title="loss").multiline.tag.extend(["loss", "l.*"])
    bands = category.chart.add(title=f"band of {run}").margin.series.add()
    bands.value, bands.lower, bands.upper = "loss", "lr/group", "accuracy"
    return layout.SerializeToString()


def _experiment() -> encode.EncodedValue:
    rate = api_pb2.HParamInfo(name="lr", display_name="rate", type=api_pb2.DATA_TYPE_FLOAT64)
    rate.domain_interval.max_value = 1.0
    optimizer = encode.hparam_info("optimizer", domain=["adam", "sgd"])
    bias = encode.hparam_info("bias", domain=[True, False])
    experiment = api_pb2.Experiment(name="sweep", user="ada", time_created_secs=START)
    experiment.hparam_infos.append(rate)
    experiment.hparam_infos.extend(map(api_pb2.HParamInfo.FromString, (optimizer, bias)))
    experiment.metric_infos.add(name={"tag": "loss"})
    experiment.metric_infos.add(name={"tag": "loss", "group": "eval"})
    return summaries.hparams(experiment=experiment)


def _session(writer: EventWriter, began: float, place: int) -> None:
    hparams = {"lr": 0.1 / place, "optimizer": ["adam", "sgd"][place % 2], "bias": place > 2}
    start = encode.hparams_start(hparams, group=f"group {place % 2}", start_time=began)
    end = summaries.hparams_end(1 if place > 2 else 2, began + 50)
    writer.add([start, end], 0, wall_time=began)
