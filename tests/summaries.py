"""Values for `EventWriter.add` from plain arrays, and with what only other writers describe."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events import encode
from aboard.events.encode import EncodedValue
from aboard.events.messages import keep_tensorflow_out, text_field


def images(tag: str, pictures: Sequence[npt.ArrayLike]) -> EncodedValue:
    """Build pictures of one size, each `[height, width]` or `[height, width, channels]`."""
    height, width = np.shape(pictures[0])[:2]
    return encode.images(tag, [encode.png(picture) for picture in pictures], width, height)


def audio(
    tag: str, clips: Sequence[npt.ArrayLike], rate: int, labels: Sequence[str] | None = None
) -> EncodedValue:
    """Build clips, each `[frames]` or `[frames, channels]`."""
    return encode.audio(tag, [encode.wav(clip, rate) for clip in clips], labels)


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
    described = encode.metadata(plugin, content, data_class=data_class, description=description)
    return described + text_field(2, display_name)


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


def hparams_end(status: int, end_time: float) -> EncodedValue:
    """Build the end of a session at a time."""
    return hparams(session_end_info={"status": status, "end_time_secs": end_time})
