"""Every record of the event files that real frameworks wrote decodes to what TensorBoard reads."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from aboard.events.messages import DATA_CLASSES, Value, decode, load_protos
from tests.framing import unframed

tensorboard = load_protos()

from tensorboard.backend.event_processing import plugin_event_accumulator  # noqa: E402

FIXTURES = Path(__file__).parent.parent / "fixtures"
RUNS = sorted({path.parent for path in FIXTURES.rglob("*tfevents*")})
NOT_IN_STOCK = {"bfloat16", "uint32", "uint64"}


def decode_run(directory: Path, *, remember: str) -> dict[str, list[Value]]:
    """Decode a run, handing on each tag's first metadata as written or as migrated."""
    values = defaultdict(list)
    metadata: dict[str, bytes] = {}
    for path in sorted(directory.glob("*tfevents*")):
        for _, data in unframed(path.read_bytes()):
            for value in decode(data, metadata):
                values[value.tag].append(value)
                if remember == "migrated":
                    metadata.setdefault(value.tag, value.metadata)
            if remember == "written":
                for raw in tensorboard.event_pb2.Event.FromString(data).summary.value:
                    metadata.setdefault(raw.tag, raw.metadata.SerializeToString())
    return values


@pytest.mark.parametrize("remember", ["written", "migrated"])
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.relative_to(FIXTURES).as_posix())
def test_a_run_is_what_tensorboard_reads(run, remember):
    stock = plugin_event_accumulator.EventAccumulator(
        str(run), size_guidance={"tensors": 0}, purge_orphaned_data=False
    ).Reload()
    values = decode_run(run, remember=remember)
    assert list(values) == stock.Tags()["tensors"]
    for tag, series in values.items():
        expected = stock.Tensors(tag)
        metadata = stock.summary_metadata.get(tag, tensorboard.summary_pb2.SummaryMetadata())
        assert [(v.step, v.wall_time) for v in series] == [(e.step, e.wall_time) for e in expected]
        assert [v.tensor_proto for v in series] == [e.tensor_proto for e in expected]
        assert {v.plugin for v in series} == {metadata.plugin_data.plugin_name}
        assert {v.data_class for v in series} == {DATA_CLASSES[metadata.data_class]}
        assert series[0].metadata == metadata.SerializeToString()
        for value, event in zip(series, expected, strict=True):
            if tag not in NOT_IN_STOCK:
                array = tensorboard.tensor_util.make_ndarray(event.tensor_proto)
                np.testing.assert_array_equal(value.tensor, array)
            if value.data_class == "blob_sequence":
                assert value.blobs == list(event.tensor_proto.string_val)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_scalars_of_every_float_type_have_their_numbers(name):
    series = decode_run(FIXTURES / "tensorflow" / "scalar-types", remember="written")[name]
    assert [value.tensor.item() for value in series] == [0.0, 1.5, 3.0, 4.5]


@pytest.mark.parametrize(
    "name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
def test_scalars_of_every_integer_type_have_their_numbers(name):
    series = decode_run(FIXTURES / "tensorflow" / "scalar-types", remember="written")[name]
    assert [(value.tensor.dtype.name, value.tensor.item()) for value in series] == [
        (name, number) for number in (0, 3, 6, 9)
    ]


def test_the_fixtures_hold_every_kind_of_data():
    plugins = {
        (run.relative_to(FIXTURES).parts[0], value.plugin)
        for run in RUNS
        for series in decode_run(run, remember="written").values()
        for value in series
    }
    common = {"scalars", "images", "histograms", "audio", "text", "hparams", "graphs"}
    common |= {"pr_curves", "mesh", "custom_scalars", "graph_tagged_run_metadata"}
    for framework in ("torch", "tensorboardx", "tensorflow"):
        assert {(framework, plugin) for plugin in common} <= plugins
    assert ("tensorflow", "graph_run_metadata_graph") in plugins
    for plugin in ("scalars", "histograms", "images", "hparams", "graph_keras_model"):
        assert ("keras", plugin) in plugins
