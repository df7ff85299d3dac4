"""What TensorBoard's plugins want to know of a tag, without reading a value of it.

For tensors that is what their metadata says. For values in an old form it is what
TensorBoard's migration makes of an empty value of that form.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from aboard.events import protos
from aboard.events.messages import Malformed, parse_metadata
from aboard.events.origins import ORIGIN_AUDIO, ORIGIN_HISTOGRAM, ORIGIN_IMAGE, ORIGIN_SIMPLE
from aboard.index import Tag

_OLD_FORMS = {ORIGIN_IMAGE: "image", ORIGIN_HISTOGRAM: "histo", ORIGIN_AUDIO: "audio"}


class Described(NamedTuple):
    """The words of a tag's metadata."""

    content: bytes
    display_name: str
    description: str


def describe(tag: Tag) -> Described:
    """Tell what the metadata of a tag says, migrated if it is in an old form."""
    return Described(plugin_content(tag), display_name(tag), tag.kind.description)


def display_name(tag: Tag) -> str:
    """Tell under what name a tag is shown; values in an old form go under their tag."""
    name = tag.kind.display_name
    old = tag.segments[0].origin in (*_OLD_FORMS, ORIGIN_SIMPLE)
    return name or tag.name if old else name


def plugin_content(tag: Tag) -> bytes:
    """Return what the metadata of a tag holds for its plugin."""
    return _content(tag.segments[0].origin, tag.metadata)


@lru_cache(maxsize=4096)
def _content(origin: int, metadata: bytes | None) -> bytes:
    if origin == ORIGIN_SIMPLE:
        return b""
    if origin in _OLD_FORMS:
        tensorboard = protos.load()
        value = tensorboard.summary_pb2.Summary.Value(tag="x")
        getattr(value, _OLD_FORMS[origin]).SetInParent()
        content: bytes = tensorboard.data_compat.migrate_value(value).metadata.plugin_data.content
        return content
    try:
        return parse_metadata(metadata or b"").content
    except Malformed:
        return b""
