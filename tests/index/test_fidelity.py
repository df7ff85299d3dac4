"""Every point of every tag is what TensorBoard's own readers read."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.messages import load_protos
from aboard.events.records import frame
from aboard.events.writer import EventWriter
from aboard.index import Index
from aboard.index import index as index_module
from aboard.index.logs import Logs
from tests import summaries
from tests.waiting import until

tensorboard = load_protos()

from tensorboard.backend.event_processing import plugin_event_accumulator  # noqa: E402

FIXTURES = Path(__file__).parent.parent / "fixtures"
RUNS = sorted({path.parent for path in FIXTURES.rglob("*tfevents*")})
RESTARTED = [
    run for run in RUNS if run.name == "restarted" or ("keras" in run.parts and run.name != "run")
]
NOT_IN_STOCK = {"bfloat16", "uint32", "uint64"}


def relative(path):
    return path.relative_to(FIXTURES).as_posix()


def assert_equals_stock(logs, run, directory):
    """Compare every tag of a run with TensorBoard's Python loader, nothing sampled."""
    stock = plugin_event_accumulator.EventAccumulator(
        str(directory), size_guidance={"tensors": 0}, purge_orphaned_data=False
    ).Reload()
    names = stock.Tags()["tensors"]
    assert sorted(one.name for one in logs.tags if one.run == run) == sorted(names)
    for name in names:
        expected = after_restarts(stock.Tensors(name))
        metadata = stock.summary_metadata.get(name, tensorboard.summary_pb2.SummaryMetadata())
        tag = logs.tag(run, name)
        assert tag.kind.plugin == metadata.plugin_data.plugin_name
        assert tag.kind.description == metadata.summary_description
        assert (tag.last_step, tag.last_wall_time) == (expected[-1].step, expected[-1].wall_time)
        if tag.is_scalar:
            series = logs.series(run, name)
            assert series.steps.tolist() == [event.step for event in expected]
            assert series.wall_times.tolist() == [event.wall_time for event in expected]
            if name not in NOT_IN_STOCK:
                numbers = [
                    tensorboard.tensor_util.make_ndarray(event.tensor_proto).item()
                    for event in expected
                ]
                np.testing.assert_array_equal(series.values, np.array(numbers, np.float64))
        else:
            values = list(logs.records(run, name))
            assert [(v.step, v.wall_time) for v in values] == [
                (event.step, event.wall_time) for event in expected
            ]
            assert [v.tensor_proto for v in values] == [event.tensor_proto for event in expected]
            if tag.kind.data_class == "blob_sequence":
                assert tag.rows == max(_rows(event.tensor_proto) for event in expected)


def after_restarts(events):
    """Drop what a later, lower or equal step makes void; that this is right, rustboard tells."""
    kept = []
    for event in events:
        while kept and kept[-1].step >= event.step:
            kept.pop()
        kept.append(event)
    return kept


def _rows(tensor):
    return tensor.tensor_shape.dim[0].size if tensor.tensor_shape.dim else 1


@pytest.mark.parametrize("run", RUNS, ids=relative)
def test_fixtures_of_real_writers(run, index):
    assert_equals_stock(Logs(run, index=index), ".", run)


@pytest.mark.parametrize("framework", ["torch", "keras", "tensorflow", "tensorboardx"])
def test_a_tree_has_the_runs_that_tensorboard_sees(framework, index):
    logs = Logs(FIXTURES / framework, index=index)
    root = FIXTURES / framework
    expected = [run.relative_to(root).as_posix() for run in RUNS if run.is_relative_to(root)]
    assert sorted(run.name for run in logs.runs) == sorted(expected)


def test_pytorch_writing_now(tmp_path, index):
    import torch
    from torch.utils.tensorboard import SummaryWriter

    generator = torch.Generator().manual_seed(1)
    with SummaryWriter(str(tmp_path / "run")) as writer:
        for step in range(300):
            writer.add_scalar("loss", torch.rand((), generator=generator), step)
            writer.add_scalar("new/style", step * 0.1, step, new_style=True)
            writer.add_scalar("double", step / 3, step, new_style=True, double_precision=True)
            if step % 100 == 0:
                writer.add_histogram("weights", torch.rand(50, generator=generator), step)
                writer.add_image("image", torch.rand(3, 4, 4, generator=generator), step)
                writer.add_text("note", f"step {step}", step)
    assert_equals_stock(Logs(tmp_path, index=index), "run", tmp_path / "run")


def test_tensorboardx_writing_now(tmp_path, index):
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(tmp_path / "run")) as writer:
        for step in range(300):
            writer.add_scalar("loss", step**0.5, step)
            if step % 100 == 0:
                writer.add_histogram("weights", np.arange(step + 2.0), step)
    assert_equals_stock(Logs(tmp_path, index=index), "run", tmp_path / "run")


def test_our_own_writer(tmp_path, index):
    with EventWriter(str(tmp_path / "run"), max_bytes=4000) as writer:
        for step in range(500):
            writer.scalar("loss", step / 7, step)
            writer.add([encode.scalar_tensor("wide", step / 7, "float64")], step)
            if step % 50 == 0:
                writer.add([encode.text("note", f"step {step}")], step)
                writer.add([summaries.histogram("weights", np.arange(step + 1.0))], step)
    assert len(list((tmp_path / "run").iterdir())) > 3
    assert_equals_stock(Logs(tmp_path, index=index), "run", tmp_path / "run")


@contextlib.contextmanager
def rustboard(logdir, port_file):
    """Serve a directory with tensorboard-data-server; give its client and its protos."""
    binary = pytest.importorskip("tensorboard_data_server").server_binary()
    if not binary:
        pytest.skip("tensorboard-data-server has no binary for this platform")
    import grpc
    from tensorboard.data.proto import data_provider_pb2, data_provider_pb2_grpc

    command = [binary, "--logdir", logdir, "--port", "0", "--port-file", port_file]
    command += ["--samples-per-plugin", "scalars=1000000", "--reload", "once"]

    def port():
        return port_file.exists() and port_file.read_text().strip()

    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: server.poll() is not None or port())
            with grpc.insecure_channel(f"localhost:{port()}") as channel:
                yield data_provider_pb2_grpc.TensorBoardDataProviderStub(channel), data_provider_pb2
        finally:
            server.kill()


def rustboard_series(client, pb):
    """Return {(run, tag): (steps, values)} as rustboard serves them now."""
    request = pb.ReadScalarsRequest(
        experiment_id="x",
        plugin_filter=pb.PluginFilter(plugin_name="scalars"),
        downsample=pb.Downsample(num_points=1000000),
    )
    return {
        (run.run_name, tag.tag_name): (list(tag.data.step), list(tag.data.value))
        for run in client.ReadScalars(request).runs
        for tag in run.tags
    }


def assert_equals_rustboard(logdir, port_file, index):
    logs = Logs(logdir, index=index)
    ours = {
        (tag.run, tag.name): logs.series(tag.run, tag.name) for tag in logs.tags if tag.is_scalar
    }
    assert ours
    expected = {key: series.steps.tolist() for key, series in ours.items()}
    served = {}

    def steps_served():
        served.update(rustboard_series(*server))
        return {key: steps for key, (steps, _) in served.items()}

    with rustboard(logdir, port_file) as server:
        until(lambda: steps_served() == expected, steps_served)  # it still reads
    for key, (steps, values) in served.items():
        np.testing.assert_array_equal(ours[key].values, np.array(values, np.float64))
        tag = logs.tag(*key)
        assert index.point_counts([tag]) == [len(steps)]
        assert (tag.first_step, tag.last_step) == (steps[0], steps[-1])


@pytest.mark.parametrize("run", RESTARTED, ids=relative)
def test_restarted_runs_are_what_rustboard_serves(run, tmp_path, index):
    assert_equals_rustboard(run, tmp_path / "port", index)


@pytest.mark.parametrize("seed", range(5))
def test_random_restarts_are_what_rustboard_serves(seed, tmp_path, index):
    rng = np.random.default_rng(seed)
    logdir = tmp_path / "logs"
    for number in range(4):
        with EventWriter(str(logdir / "run"), suffix=f".{number}") as writer:
            step = int(rng.integers(0, 200))
            for _ in range(int(rng.integers(1, 300))):
                step = max(0, step - 50) if rng.random() < 0.02 else step + int(rng.integers(0, 3))
                for tag in ("a", "b"):
                    if rng.random() < 0.7:
                        writer.scalar(tag, float(np.float32(rng.random())), step)
        # The name's number counts up within a process; keep the files in order of writing.
        path = Path(writer.path)
        shutil.move(path, path.with_name(f"events.out.tfevents.{1700000000 + number}.host.1.0"))
    assert_equals_rustboard(logdir, tmp_path / "port", index)


def tensor_events(tag, first, shape, plugin="", data_class=0):
    """Return three events with one number each, described by metadata if a plugin is given."""
    summaries_ = []
    for step in range(first, first + 3):
        event = tensorboard.event_pb2.Event(step=step, wall_time=float(step))
        value = event.summary.value.add(tag=tag)
        value.tensor.dtype = 1
        value.tensor.float_val.append(step / 2)
        for size in shape:
            value.tensor.tensor_shape.dim.add(size=size)
        if plugin:
            value.metadata.plugin_data.plugin_name = plugin
            value.metadata.data_class = data_class
        summaries_.append(frame(event.SerializeToString()))
    return b"".join(summaries_)


@pytest.mark.parametrize("described", ["first", "second", "late", "once"])
@pytest.mark.parametrize(
    ("shape", "plugin", "data_class"),
    [([1], "scalars", 1), ([], "scalars", 1), ([1], "own", 2), ([], "own", 2), ([], "own", 1)],
)
@pytest.mark.parametrize("live", [False, True])
def test_metadata_counts_for_all_files_of_a_run(
    tmp_path, index, described, shape, plugin, data_class, live
):
    """Metadata may be in one file only, or come after the first values of its own file."""
    bare = tensor_events("a", 0, shape), tensor_events("a", 3, shape)
    told = [tensor_events("a", first, shape, plugin, data_class) for first in (0, 3)]
    other = tensor_events("b", 0, [2], "own", 2)
    contents = {
        "first": [told[0], other + bare[1]],
        "second": [bare[0] + other, told[1]],
        "late": [other + bare[0] + told[1]],
        "once": [told[0] + bare[1]],
    }[described]
    logs = None
    for number, content in enumerate(contents):
        path = tmp_path / f"events.out.tfevents.170000000{number}.host"
        for end in (len(content) // 2, len(content)) if live else (len(content),):
            path.write_bytes(content[:end])
            if live:
                logs = logs or Logs(tmp_path, index=index)
                logs.refresh()
    logs = logs or Logs(tmp_path, index=index)
    assert_equals_stock(logs, ".", tmp_path)
    assert logs.refresh().files_read == 0
    assert index.point_counts([logs.tag(".", "a")]) == [6]


def test_metadata_counts_for_a_file_that_another_process_reads_meanwhile(
    tmp_path, index, monkeypatch
):
    files = [tmp_path / f"events.out.tfevents.170000000{number}.host" for number in range(2)]
    files[0].write_bytes(tensor_events("a", 0, []))
    logs = Logs(tmp_path, index=index)
    files[1].write_bytes(tensor_events("a", 3, [], "own", 2))
    real = index_module.reread

    def reread(*arguments):
        plan = real(*arguments)
        monkeypatch.setattr(index_module, "reread", real)
        with files[0].open("ab") as file:
            file.write(frame(encode.event(0.0, 0, [encode.scalar("b", 1.0)])))
        with Index(index.path) as other:
            other.refresh(logs.source)
        return plan

    monkeypatch.setattr(index_module, "reread", reread)
    logs.refresh()
    assert index.point_counts([logs.tag(".", tag) for tag in "ab"]) == [6, 1]
