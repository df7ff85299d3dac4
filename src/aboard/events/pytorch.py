"""The records that PyTorch's writer makes and `encode` has no builder for.

They are built from plain values; neither PyTorch nor protobuf is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events.encode import EncodedValue, hparam_info
from aboard.events.wire import delimited, varint

_DATA_TYPES = {str: 1, bool: 2, float: 3}
_PRODUCER = 22
"""The version of TensorFlow's graphs that PyTorch claims for its own."""


def histogram(
    tag: str, moments: Iterable[float], limits: npt.ArrayLike, counts: npt.ArrayLike
) -> EncodedValue:
    """Build a histogram: `counts` of buckets, each given by its upper limit.

    The moments of its numbers: lowest, highest, how many, their sum, the sum of their squares.
    """
    histo = b"".join(
        [
            varint(field << 3 | 1) + np.float64(moment).tobytes()
            for field, moment in enumerate(moments, 1)
        ]
    )
    histo += delimited(6, np.asarray(limits, "<f8").tobytes())
    histo += delimited(7, np.asarray(counts, "<f8").tobytes())
    return EncodedValue(tag, delimited(1, tag.encode()) + delimited(5, histo))


def typed_hparam(name: str, kind: type, domain: Sequence[Any] = ()) -> bytes:
    """Describe a hyperparameter of type `str`, `bool` or `float`, by its values if it has few."""
    if domain:
        return hparam_info(name, domain=domain)
    return hparam_info(name) + varint(4 << 3) + varint(_DATA_TYPES[kind])


def custom_scalars_layout(layout: Mapping[str, Mapping[str, Sequence[Any]]]) -> bytes:
    """Encode `{category: {chart: ["Multiline" or "Margin", tags]}}` as a `Layout`.

    Raises:
        ValueError: a chart is neither, or a margin chart has other than three tags.
    """
    categories = []
    for category, charts in layout.items():
        encoded = _text(1, category)
        for title, chart in charts.items():
            encoded += delimited(2, _text(1, title) + _chart(title, *chart))
        categories.append(delimited(2, encoded))
    return b"".join(categories)


def _chart(title: str, kind: str, tags: Sequence[str]) -> bytes:
    if kind == "Margin":
        if len(tags) != 3:
            raise ValueError(
                f"the margin chart {title!r} needs three tags, of a value, its lower and its upper "
                f"bound, not {len(tags)}"
            )
        series = b"".join([_text(field, tag) for field, tag in enumerate(tags, 1)])
        return delimited(3, delimited(1, series))
    if kind != "Multiline":
        raise ValueError(f"the chart {title!r} is 'Multiline' or 'Margin', not {kind!r}")
    return delimited(2, b"".join([_text(1, tag) for tag in tags]))


def graph_node(
    name: str, operation: str, inputs: Iterable[str], attributes: Mapping[str, bytes]
) -> bytes:
    """Encode a `NodeDef`; its attributes are those that the functions below make."""
    node = _text(1, name) + _text(2, operation) + b"".join([_text(3, one) for one in inputs])
    for key, value in attributes.items():
        node += delimited(5, _text(1, key) + delimited(2, value))
    return node


def text_attribute(text: str) -> bytes:
    """Encode an attribute of text."""
    return delimited(2, text.encode())


def type_attribute(number: int) -> bytes:
    """Encode an attribute that is a type of elements."""
    return varint(6 << 3) + varint(number)


def shape_attribute(sizes: Iterable[int]) -> bytes:
    """Encode an attribute that is a shape."""
    return delimited(7, b"".join([delimited(2, varint(1 << 3) + varint(size)) for size in sizes]))


def graph_def(nodes: Iterable[bytes]) -> bytes:
    """Encode a `GraphDef`."""
    versions = delimited(4, varint(1 << 3) + varint(_PRODUCER))
    return b"".join([delimited(1, node) for node in nodes]) + versions


def _text(field: int, text: str) -> bytes:
    return delimited(field, text.encode())
