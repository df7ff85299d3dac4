"""Images, audio and histograms from plain arrays, and traces, for `EventWriter.add`."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aboard.events import encode
from aboard.events.encode import EncodedValue


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
