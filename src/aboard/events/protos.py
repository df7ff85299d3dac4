"""TensorBoard's own protobufs and migrations, imported when first used and without TensorFlow.

Where TensorFlow is installed, TensorBoard would import it: several seconds and half a gigabyte
for nothing we use. Every import of TensorBoard in this package goes through here.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple


class Protos(NamedTuple):
    """The modules of TensorBoard that know what an event means."""

    event_pb2: Any
    summary_pb2: Any
    data_compat: Any
    dataclass_compat: Any
    tensor_util: Any
    NotAMessage: type[Exception]
    """What parsing raises for bytes that are not a message."""


def keep_tensorflow_out() -> None:
    """Make TensorBoard, imported from now on, take TensorFlow for absent."""
    name = "tensorboard.compat.notf"
    sys.modules.setdefault(name, ModuleType(name))


@cache
def load() -> Protos:
    """Import what reads an event; the first call takes a good part of a second."""
    keep_tensorflow_out()
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard import data_compat, dataclass_compat
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.util import tensor_util

    return Protos(event_pb2, summary_pb2, data_compat, dataclass_compat, tensor_util, DecodeError)
