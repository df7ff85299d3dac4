"""Readers of a log directory: TensorBoard's own loader, and our index."""

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from aboard.events.messages import load_protos
from aboard.index import Index
from aboard.index.logs import Logs

tensorboard = load_protos()

from tensorboard.backend.event_processing import plugin_event_accumulator  # noqa: E402
from tensorboard.compat.proto import graph_pb2  # noqa: E402
from tensorboard.plugins.hparams import plugin_data_pb2 as hparams_pb2  # noqa: E402
from tensorboard.plugins.mesh import plugin_data_pb2 as mesh_pb2  # noqa: E402
from tensorboard.plugins.pr_curve import plugin_data_pb2 as pr_curve_pb2  # noqa: E402

_CONTENTS = {
    "hparams": hparams_pb2.HParamsPluginData,
    "mesh": mesh_pb2.MeshPluginData,
    "pr_curves": pr_curve_pb2.PrCurvePluginData,
}


class Point(NamedTuple):
    step: int
    wall_time: float
    value: Any
    """An array; or a list of what its blobs mean: pixels, graphs, bytes."""


class Series(NamedTuple):
    plugin: str
    content: Any
    description: str
    points: list[Point]


def read_stock(root: Path) -> dict[tuple[str, str], Series]:
    """Read every series with TensorBoard's loader; the keys are run and tag."""
    found = {}
    for directory in sorted({path.parent for path in root.rglob("*tfevents*")}):
        run = directory.relative_to(root).as_posix()
        loader = plugin_event_accumulator.EventAccumulator(
            str(directory), size_guidance={"tensors": 0}
        ).Reload()
        for tag in loader.Tags()["tensors"]:
            metadata = loader.summary_metadata[tag]
            points = [
                Point(
                    one.step, one.wall_time, tensorboard.tensor_util.make_ndarray(one.tensor_proto)
                )
                for one in loader.Tensors(tag)
            ]
            found[run, tag] = _series(metadata, points)
    return found


def read_ours(root: Path, index: Index) -> dict[tuple[str, str], Series]:
    """Read every series with our index; the keys are run and tag."""
    logs = Logs(root, index=index)
    assert not logs.damage
    found = {}
    for tag in logs.tags:
        if tag.is_scalar:
            points = [
                Point(step, wall, np.asarray(value))
                for step, wall, value in zip(*logs.series(tag.run, tag.name), strict=True)
            ]
            plugin, content = tag.kind.plugin, b""
        else:
            values = list(logs.records(tag.run, tag.name))
            metadata = tensorboard.summary_pb2.SummaryMetadata.FromString(values[0].metadata)
            points = [Point(one.step, one.wall_time, one.tensor) for one in values]
            plugin, content = tag.kind.plugin, metadata.plugin_data.content
        found[tag.run, tag.name] = Series(
            plugin, _content(plugin, content), tag.kind.description, _meant(plugin, points)
        )
    return found


def _series(metadata: Any, points: list[Point]) -> Series:
    plugin = metadata.plugin_data.plugin_name
    content = _content(plugin, metadata.plugin_data.content)
    return Series(plugin, content, metadata.summary_description, _meant(plugin, points))


def _content(plugin: str, content: bytes) -> Any:
    return _CONTENTS[plugin].FromString(content) if plugin in _CONTENTS else None


def _meant(plugin: str, points: list[Point]) -> list[Point]:
    """Replace blobs by what they mean, since one picture has many encodings."""
    if points and points[0].value.dtype.kind in "SO":
        return [one._replace(value=[_blob(plugin, b) for b in one.value.ravel()]) for one in points]
    return points


def _blob(plugin: str, blob: bytes) -> Any:
    if blob.startswith(b"\x89PNG"):
        with Image.open(io.BytesIO(blob)) as image:
            return np.asarray(image)
    return graph_pb2.GraphDef.FromString(blob) if plugin == "graphs" else bytes(blob)


def assert_equal(
    found: dict[tuple[str, str], Series],
    expected: dict[tuple[str, str], Series],
    *,
    times: bool = False,
) -> None:
    """Compare two trees; the width of numbers is not compared, and times only if asked."""
    assert set(found) == set(expected)
    for name, series in expected.items():
        assert found[name][:3] == series[:3], name
        assert len(found[name].points) == len(series.points), name
        for one, other in zip(found[name].points, series.points, strict=True):
            assert one.step == other.step
            assert not times or one.wall_time == other.wall_time
            assert_same_value(one.value, other.value)


def assert_same_value(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_value(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected
