"""What a tag holds: its plugin, its class of data, and what its author said of it.

TensorBoard's `dataclass_compat` decides this value by value while it converts
them; the index needs the outcome alone, from the metadata of a tag's first
value, without decoding anything. A test compares the two on every plugin.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from aboard.events.messages import Malformed, Metadata, parse_metadata
from aboard.events.origins import (
    ORIGIN_AUDIO,
    ORIGIN_GRAPH,
    ORIGIN_HISTOGRAM,
    ORIGIN_IMAGE,
    ORIGIN_RUN_METADATA,
    ORIGIN_SIMPLE,
)

DataClass = Literal["scalar", "tensor", "blob_sequence", ""]

_CLASSES: tuple[DataClass, ...] = ("", "scalar", "tensor", "blob_sequence")
_PLUGINS: dict[int, str] = {
    ORIGIN_SIMPLE: "scalars",
    ORIGIN_IMAGE: "images",
    ORIGIN_HISTOGRAM: "histograms",
    ORIGIN_AUDIO: "audio",
    ORIGIN_GRAPH: "graphs",
    ORIGIN_RUN_METADATA: "graph_tagged_run_metadata",
}
_CLASS_OF_PLUGIN: dict[str, DataClass] = {
    "scalars": "scalar",
    "histograms": "tensor",
    "text": "tensor",
    "hparams": "tensor",
    "pr_curves": "tensor",
    "mesh": "tensor",
    "custom_scalars": "tensor",
    "images": "blob_sequence",
    "audio": "blob_sequence",
    "graph_run_metadata": "blob_sequence",
    "graph_run_metadata_graph": "blob_sequence",
    "graph_keras_model": "blob_sequence",
}


class Kind(NamedTuple):
    """What the values of a tag are."""

    plugin: str
    data_class: DataClass
    display_name: str
    description: str


@lru_cache(maxsize=4096)
def kind_of(origin: int, metadata: bytes | None) -> Kind:
    """Tell the kind of a tag from where its first value was stored and its metadata."""
    try:
        parsed = parse_metadata(metadata or b"")
    except Malformed:
        parsed = Metadata()
    plugin = _PLUGINS.get(origin, parsed.plugin)
    data_class: DataClass = ""
    if origin in (ORIGIN_GRAPH, ORIGIN_RUN_METADATA):
        data_class = "blob_sequence"
    elif origin not in _PLUGINS and 0 < parsed.data_class < len(_CLASSES):
        data_class = _CLASSES[parsed.data_class]
    return Kind(
        plugin,
        data_class or _CLASS_OF_PLUGIN.get(plugin, ""),
        parsed.display_name,
        parsed.description,
    )
