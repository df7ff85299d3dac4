"""What a user gives as hyperparameters and tags, as a record holds it: plain values under names.

Where they are kept is left to `manifest`, and what must not be kept to `track`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace

    from _typeshed import DataclassInstance

    HParams = Mapping[str, object] | Namespace | SimpleNamespace | DataclassInstance

Tags = Mapping[str, object] | Iterable[str] | str


def plain_values(values: HParams) -> dict[str, Any]:
    """Return hyperparameters as JSON holds them: numbers, texts, truth values; the rest as text.

    What has names inside, such as a mapping, becomes names with dots: `optimizer.lr`.

    Raises:
        TypeError: there are no names in it.
    """
    named = _named(values)
    if named is None:
        raise TypeError(
            f"hyperparameters are a mapping from names to values, an argparse.Namespace or an "
            f"instance of a dataclass, not a {type(values).__name__}: {values!r:.60}"
        )
    plain: dict[str, Any] = {}
    for name, value in named.items():
        if _named(value) is not None:
            plain.update({f"{name}.{key}": one for key, one in plain_values(value).items()})
        else:
            plain[str(name)] = _plain(value)
    return plain


def plain_tags(tags: Tags | None) -> dict[str, Any]:
    """Return tags as a mapping; one without a value is simply true."""
    if tags is None:
        return {}
    if isinstance(tags, str):
        tags = [tags]
    if isinstance(tags, Mapping):
        return {str(name): _plain(value) for name, value in tags.items()}
    return {str(tag): True for tag in tags}


def _named(values: Any) -> Mapping[str, Any] | None:
    """Return what has names inside as a mapping, and None for anything else."""
    if isinstance(values, Mapping):
        return values
    if isinstance(values, SimpleNamespace):
        return vars(values)
    argparse = sys.modules.get("argparse")  # whoever has a Namespace has imported it
    if argparse is not None and isinstance(values, argparse.Namespace):
        return dict(vars(values))
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        return {one.name: getattr(values, one.name) for one in dataclasses.fields(values)}
    return None


def _plain(value: Any) -> object:
    if value is None or isinstance(value, (bool, str)):
        return value
    # A number of numpy, or a tensor; one of several elements refuses.
    if not callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        with contextlib.suppress(AttributeError, NotImplementedError):
            value = value.numpy()  # TensorFlow
    with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
        value = value.item()
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)
