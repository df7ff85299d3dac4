"""What TensorBoard's plugins want to know of a tag, without reading a value of it.

For tensors that is what their metadata says. For values in an old form it is what
TensorBoard's migration makes of an empty value of that form.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from aboard.events import protos
from aboard.events.messages import Malformed, Metadata, parse_metadata
from aboard.events.scanner import ORIGIN_AUDIO, ORIGIN_HISTOGRAM, ORIGIN_IMAGE, ORIGIN_SIMPLE
from aboard.index import Tag

_OLD_FORMS = {ORIGIN_IMAGE: "image", ORIGIN_HISTOGRAM: "histo", ORIGIN_AUDIO: "audio"}


class Described(NamedTuple):
    """The words of a tag's metadata."""

    content: bytes
    display_name: str
    description: str


def describe(tag: Tag) -> Described:
    """Tell what the metadata of a tag says, migrated if it is in an old form."""
    origin = tag.segments[0].origin
    content, display_name, description = _describe(origin, tag.metadata)
    if origin in _OLD_FORMS or origin == ORIGIN_SIMPLE:
        display_name = display_name or tag.name
    return Described(content, display_name, description)


@lru_cache(maxsize=4096)
def _describe(origin: int, metadata: bytes | None) -> Described:
    try:
        parsed = parse_metadata(metadata or b"")
    except Malformed:
        parsed = Metadata()
    content = parsed.content
    if origin == ORIGIN_SIMPLE:
        content = b""
    elif origin in _OLD_FORMS:
        tensorboard = protos.load()
        value = tensorboard.summary_pb2.Summary.Value(tag="x")
        getattr(value, _OLD_FORMS[origin]).SetInParent()
        content = tensorboard.data_compat.migrate_value(value).metadata.plugin_data.content
    return Described(content, parsed.display_name, parsed.description)
