"""Values for `EventWriter.add` from plain arrays, and with what only other writers describe."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.messages import HParam, keep_tensorflow_out, text_field


def images(tag: str, pictures: Sequence[npt.ArrayLike]) -> EncodedValue:
    """Build pictures of one size, each `[height, width]` or `[height, width, channels]`."""
    height, width = np.shape(pictures[0])[:2]
    return encode.images(tag, [encode.png(picture) for picture in pictures], width, height)


def audio(
    tag: str, clips: Sequence[npt.ArrayLike], rate: int, labels: Sequence[str] | None = None
) -> EncodedValue:
    """Build clips, each `[frames]` or `[frames, channels]`."""
    wavs = [encode.wav(clip, rate) for clip in clips]
    if not labels:
        return encode.audio(tag, wavs)
    rows = np.array([*zip(wavs, labels, strict=True)], dtype=object)
    content = b"\x10\x0b"  # the encoding: WAV
    return encode.tensor(tag, rows, plugin="audio", plugin_content=content, data_class="")


def histogram(tag: str, numbers: npt.ArrayLike, buckets: int = 30) -> EncodedValue:
    """Build the distribution of the finite numbers."""
    return encode.histogram(tag, encode.histogram_buckets(numbers, buckets))


def trace(tag: str, run_metadata: bytes) -> EncodedValue:
    """Build a traced step with its graph from a serialized `RunMetadata`, as TensorFlow 2 does."""
    plugin = "graph_run_metadata_graph"
    return encode.tensor(tag, run_metadata, plugin=plugin, plugin_content=b"1", data_class="")


def metadata(
    plugin: str,
    content: bytes = b"",
    *,
    data_class: str = "",
    display_name: str = "",
    description: str = "",
) -> bytes:
    """Encode a `SummaryMetadata` with texts for its reader."""
    described = encode.metadata(plugin, content, data_class=data_class)
    return described + text_field(2, display_name) + text_field(3, description)


def hparams(**content: Any) -> EncodedValue:
    """Build a value of the hparams plugin from a field of its `HParamsPluginData`."""
    keep_tensorflow_out()
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    return encode.tensor(
        f"_hparams_/{next(iter(content))}",
        np.zeros(0, np.float32),
        plugin="hparams",
        plugin_content=HParamsPluginData(**content).SerializeToString(),
        data_class="",
    )


def hparams_start(
    values: Mapping[str, HParam], *, group: str, start_time: float = 0.0
) -> EncodedValue:
    """Build the start of a session in a group."""
    keep_tensorflow_out()
    from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo

    info = SessionStartInfo(group_name=group, start_time_secs=start_time)
    for name, value in values.items():
        kind = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
        setattr(info.hparams[name], kind, value)
    return hparams(session_start_info=info)


def hparams_end(status: int, end_time: float) -> EncodedValue:
    """Build the end of a session at a time."""
    return hparams(session_end_info={"status": status, "end_time_secs": end_time})
