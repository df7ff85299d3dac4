"""Anything that holds numbers to numpy: numbers, lists, arrays of PyTorch, TensorFlow and JAX.

No framework is imported: its objects only exist where it is imported already.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@contextmanager
def errors_named(kind: str, tag: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise named_error(kind, tag, error) from error


def named_error(kind: str, tag: str, error: Exception) -> Exception:
    error_type = TypeError if isinstance(error, TypeError) else ValueError
    return error_type(f"{kind} {tag!r}: {error}")


def to_numpy(values: Any) -> Array:
    """Return the numbers of anything array-like; types that numpy lacks become float32."""
    if isinstance(values, np.ndarray):
        return _numeric(values, values)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        if values.device.type == "meta":
            raise ValueError(f"{_described(values)} is on the meta device and has no values")
        return _converted(lambda: _from_torch(torch, values), values)
    if isinstance(values, list | tuple):
        return _from_sequence(values)
    if hasattr(values, "__cuda_array_interface__") and hasattr(values, "get"):
        return _numeric(values.get(), values)  # CuPy copies from the GPU only on request
    if callable(getattr(values, "numpy", None)):
        return _numeric(_converted(values.numpy, values), values)
    return _numeric(_converted(lambda: np.asarray(values), values), values)


def to_reals(values: Any) -> Array:
    array = to_numpy(values)
    if array.dtype.kind == "c":
        raise TypeError(f"expected real numbers, got {_described(values)}")
    return array


def to_number(value: Any) -> float:
    if type(value) is float or type(value) is int or isinstance(value, Real) or _is_decimal(value):
        return float(value)
    array = to_reals(value)
    if array.size != 1:
        raise ValueError(f"expected a single number, got the shape {array.shape}")
    return float(array.item())


def to_step(step: Any) -> int:
    """Return a step as PyTorch's writer takes it: a number, a string with one, or None for 0."""
    if step is None:
        return 0
    if isinstance(step, str):
        return int(step)
    try:
        return operator.index(step)
    except TypeError:
        return int(to_number(step))


def to_whole(number: Any, what: str) -> int:
    """Return a whole number, given as any kind of number; `what` names it in the error."""
    try:
        value = to_number(number)
        if value == int(value):
            return operator.index(number) if hasattr(number, "__index__") else int(value)
    except (TypeError, ValueError, OverflowError):  # NaN and infinity raise these, too
        pass
    raise ValueError(f"{what} is {number!r:.60}, not a whole number")


def _is_decimal(value: Any) -> bool:
    decimal = sys.modules.get("decimal")
    return decimal is not None and isinstance(value, decimal.Decimal)


def _from_torch(torch: Any, tensor: Any) -> Array:
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    elif tensor.is_floating_point() and tensor.dtype not in (
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def _from_sequence(values: list[Any] | tuple[Any, ...]) -> Array:
    if any(hasattr(value, "shape") or isinstance(value, list | tuple) for value in values):
        parts = [to_numpy(value) for value in values]
        shapes = {part.shape for part in parts}
        if len(shapes) > 1:
            raise ValueError(f"expected parts of one shape, got {sorted(shapes)}")
        return np.stack(parts)
    return _numeric(_converted(lambda: np.asarray(values), values), values)


def _converted(convert: Callable[[], Any], values: Any) -> Array:
    try:
        return np.asarray(convert())
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TypeError(f"cannot take numbers from {_described(values)}: {reason}") from error


def _numeric(array: Any, values: Any) -> Array:
    kind = array.dtype.kind
    if kind in "biufc":
        return np.asarray(array)
    if kind == "V" and array.dtype.names is None:  # bfloat16 and other types of ml_dtypes
        return _converted(lambda: array.astype(np.float32), values)
    raise TypeError(f"expected numbers, got {_described(values)}")


def _described(values: Any) -> str:
    kind = type(values)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    shape = getattr(values, "shape", None)
    if shape is None:
        return f"a {name} ({values!s:.40})" if isinstance(values, str) else f"a {name}"
    return f"a {name} of shape {tuple(shape)} and type {getattr(values, 'dtype', 'unknown')}"
