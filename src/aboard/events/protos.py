"""TensorBoard's protobufs and migrations, imported on first use and without TensorFlow.

If TensorFlow is installed, TensorBoard would import it, which takes several seconds and half a
gigabyte. Every import of TensorBoard in this package goes through here. None of these modules is a
public interface; `make compat` tests them with TensorBoard 2.15 and later.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from aboard.system import require


class Protos(NamedTuple):
    event_pb2: Any
    summary_pb2: Any
    data_compat: Any
    dataclass_compat: Any
    tensor_util: Any
    NotAMessage: type[Exception]  # what parsing raises for bytes that are not a message


def keep_tensorflow_out() -> None:
    """Make `tensorboard.compat`, which looks for this module, treat TensorFlow as missing."""
    require("tensorboard")
    name = "tensorboard.compat.notf"
    sys.modules.setdefault(name, ModuleType(name))
    _check_versions()


@cache
def _check_versions() -> None:
    """Raise ImportError for versions that old TensorBoards allow but do not work with."""
    from google import protobuf
    from numpy import __version__ as numpy_version
    from tensorboard import version

    if _numbers(version.VERSION) >= (2, 17):
        return
    for package, found, newer in (
        ("numpy", numpy_version, (2,)),
        ("protobuf", protobuf.__version__, (5,)),
    ):
        if _numbers(found) >= newer:
            raise ImportError(
                f"TensorBoard {version.VERSION} does not work with {package} {found}: "
                "pip install 'tensorboard>=2.17', or 'numpy<2' 'protobuf<5'"
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@cache
def static_plugins() -> list[Any]:
    """Return TensorBoard's own plugins.

    Before TensorBoard 2.21 their module imports `pkg_resources`, which setuptools 82 removed. It is
    only used to find plugins of other packages, which is not needed here.
    """
    keep_tensorflow_out()
    try:
        with warnings.catch_warnings(action="ignore"):
            from tensorboard import default
    except ModuleNotFoundError as error:
        if error.name != "pkg_resources":
            raise
        sys.modules["pkg_resources"] = ModuleType("pkg_resources")
        try:
            from tensorboard import default
        finally:
            del sys.modules["pkg_resources"]
    found: list[Any] = default.get_static_plugins()
    return found


@cache
def load() -> Protos:
    """Import the modules that read an event; the first call takes most of a second."""
    keep_tensorflow_out()
    from google.protobuf.message import DecodeError
    from tensorboard import data_compat, dataclass_compat
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.util import tensor_util

    return Protos(event_pb2, summary_pb2, data_compat, dataclass_compat, tensor_util, DecodeError)
