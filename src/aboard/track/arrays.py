"""Conversion of logged values, from any framework, to numpy arrays, tables and pixels.

No framework is imported: its objects exist only if it is already imported.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.events.encode import levels

Array = npt.NDArray[Any]
Levels = npt.NDArray[np.uint8]

MOST_ROWS = 1000  # of a table; browsers are slow with more
MOST_COLUMNS = 100
_CHANNELS = (1, 3, 4)
_PILLOW_MODES = ("L", "LA", "RGB", "RGBA")


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
    """Convert a step as PyTorch's writer does: a number, a string with one, or None for 0."""
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
    except (TypeError, ValueError, OverflowError):  # also raised for NaN and infinity
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


# Tables of any form: rows and columns, Markdown.


class Table(NamedTuple):
    columns: list[str]
    rows: list[list[Any]]


def table_of(given: Any, columns: Sequence[str] | None = None) -> Table:
    if hasattr(given, "columns") and hasattr(given, "__getitem__"):
        given = {str(name): list(given[name]) for name in given.columns}
    if isinstance(given, Mapping):
        return _from_columns(given)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"expected rows, columns or a data frame, got a {type(given).__name__}")
    rows = given.tolist() if hasattr(given, "tolist") else list(given)
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = list(columns or dict.fromkeys(name for row in rows for name in row))
        return Table([*map(str, names)], [[row.get(name, "") for name in names] for row in rows])
    if not all(
        isinstance(row, Sequence | np.ndarray) and not isinstance(row, str | bytes) for row in rows
    ):
        raise TypeError("expected every row to be a sequence, or every row to be a mapping")
    rows = [list(row) for row in rows]
    names = list(columns or range(len(rows[0]) if rows else 0))
    for place, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError(f"row {place} has {len(row)} cells for {len(names)} columns")
    return Table([*map(str, names)], rows)


def texts_of(given: Any) -> Any:
    if np.asarray(given, dtype=object if isinstance(given, bytes) else None).dtype.kind not in "UT":
        raise TypeError(f"expected a string, or sequences of strings, not {type(given).__name__}")
    return given


def markdown(table: Table) -> str:
    """Return a table in Markdown; a line below a large table says what is not shown."""
    shown = slice(MOST_COLUMNS)
    lines = [table.columns[shown], ["---"] * len(table.columns[shown])]
    lines += [row[shown] for row in table.rows[:MOST_ROWS]]
    text = "\n".join([f"| {' | '.join(map(_cell, line))} |" for line in lines])
    missing = [
        f"{count - most} more {what}"
        for count, most, what in (
            (len(table.rows), MOST_ROWS, "rows"),
            (len(table.columns), MOST_COLUMNS, "columns"),
        )
        if count > most
    ]
    return f"{text}\n\n*Not shown: {' and '.join(missing)}.*" if missing else text


def _from_columns(given: Mapping[Any, Any]) -> Table:
    cells = {
        str(name): column.tolist() if hasattr(column, "tolist") else list(column)
        for name, column in given.items()
    }
    lengths = {name: len(column) for name, column in cells.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"expected columns of one length, got {lengths}")
    return Table([*cells], [list(row) for row in zip(*cells.values(), strict=True)])


def _cell(content: Any) -> str:
    if isinstance(content, float | np.floating):
        return f"{content:.6g}"
    text = "" if content is None else str(content)
    return "<br>".join(text.replace("\\", "\\\\").replace("|", "\\|").splitlines())


# Images, batches, videos and figures as levels of the shape `[height, width, channels]`. A layout
# names the axes of an array in order: `CHW`, `HWC`, `HW`, `NCHW`, `NHWC`, ... (N is the position
# in a batch, T in time).


def image_levels(image: Any, layout: str | None = None) -> Levels:
    """Return levels; without a layout, the axis with 1, 3 or 4 elements has the channels."""
    if _is_pillow(image):
        pixels, layout = _pillow_pixels(image), "HWC"
    else:
        pixels = to_reals(image)
    return levels(arranged(pixels, layout or guess_layout(pixels.shape), "HWC"))


def batch_levels(images: Any, layout: str | None = None) -> list[Levels]:
    if isinstance(images, list | tuple):
        one = layout.upper().replace("N", "") if layout else None
        pictures = [image_levels(image, one) for image in images]
    else:
        pixels = to_reals(images)
        layout = layout or guess_batch_layout(pixels.shape)
        pictures = list(levels(arranged(pixels, layout, "NHWC")))
    sizes = {one.shape[:2] for one in pictures}
    if len(sizes) != 1:
        raise ValueError(f"expected one or more images of one size, got {sorted(sizes)}")
    return pictures


def guess_layout(shape: tuple[int, ...]) -> str:
    if len(shape) == 2:
        return "HW"
    if len(shape) == 3:
        return _guess(shape, "HWC", "CHW")
    if len(shape) == 4:
        raise ValueError(f"expected one image, got a batch of shape {shape}; log it as images")
    raise ValueError(f"expected the axes HW, HWC or CHW, got the shape {shape}")


def guess_batch_layout(shape: tuple[int, ...]) -> str:
    if len(shape) == 3 and shape[2] not in _CHANNELS:
        return "NHW"
    if len(shape) == 4:
        return _guess(shape, "NHWC", "NCHW")
    raise ValueError(
        f"cannot tell the layout of the shape {shape}; give dataformats, as 'NHWC', 'NCHW' or 'NHW'"
    )


def _guess(shape: tuple[int, ...], *layouts: str) -> str:
    fitting = [layout for layout in layouts if shape[layout.index("C")] in _CHANNELS]
    if len(fitting) == 1:
        return fitting[0]
    reason = "two axes have" if fitting else "no axis at either end has"
    known = " or ".join([repr(layout) for layout in layouts])
    raise ValueError(
        f"cannot tell the layout of the shape {shape}: {reason} the size of channels, 1, 3 or 4; "
        f"give dataformats={known}"
    )


def arranged(pixels: Array, layout: str, target: str) -> Array:
    """Transpose pixels from one layout to another with the same axes, or C in addition."""
    given = layout.upper()
    if len(set(given)) != len(given) or not set("HW") <= set(given) <= set(target):
        raise ValueError(f"dataformats={layout!r} is not a layout; expected the axes {target}")
    if pixels.ndim != len(given):
        raise ValueError(
            f"dataformats={layout!r} has {len(given)} axes, the shape {pixels.shape} "
            f"has {pixels.ndim}"
        )
    if "C" not in given:
        pixels, given = pixels[..., None], given + "C"
    if set(given) != set(target):
        raise ValueError(f"dataformats={layout!r} lacks an axis of {target}")
    return pixels.transpose([given.index(axis) for axis in target])


def grid(pictures: Array, columns: int) -> Array:
    count, height, width, channels = pictures.shape
    columns = min(count, columns)
    rows = -(-count // columns)
    cells = np.zeros((rows * columns, height, width, channels), pictures.dtype)
    cells[:count] = pictures
    cells = cells.reshape(rows, columns, height, width, channels)
    return cells.swapaxes(1, 2).reshape(rows * height, columns * width, channels)


# Pixels as PyTorch's writer converts them, which differs from `levels`.


def torch_levels(pixels: Array) -> Levels:
    """Return levels as PyTorch does: all types but uint8 span 0 to 1 and are rounded down."""
    if pixels.dtype == np.uint8:
        return pixels
    shares = np.nan_to_num(pixels.astype(np.float32), nan=0.0).clip(0, 1)
    return np.asarray(shares * 255, np.uint8)


def torch_image(image: Any, layout: str) -> Levels:
    pixels = to_reals(image)
    if "N" in layout.upper():
        whole = grid(in_color(arranged(pixels, layout, "NHWC")), 8)
    else:
        whole = in_color(arranged(pixels, layout, "HWC"))
    return torch_levels(whole)


def torch_frames(video: Any) -> Levels:
    """Return videos as frames that each show all of them, in a grid of powers of two."""
    videos = torch_levels(to_reals(video))
    if videos.ndim != 5 or not videos.size:
        raise ValueError(f"expected the axes NTCHW, got the shape {videos.shape}")
    count = videos.shape[0]
    cells = 1 << (count - 1).bit_length()
    rows = 1 << (count.bit_length() - 1) // 2
    padded = np.zeros((cells, *videos.shape[1:]), np.uint8)
    padded[:count] = videos
    in_time = padded.transpose(1, 0, 3, 4, 2)
    return np.stack([grid(frame, cells // rows) for frame in in_time])


def in_color(pixels: Array) -> Array:
    return np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels


def _is_pillow(image: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(image, pillow.Image)


def _pillow_pixels(image: Any) -> Array:
    if image.mode not in _PILLOW_MODES:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


# Drawn images.


def figure_pixels(figure: Any, *, close: bool = False) -> Levels:
    """Draw a matplotlib figure as `[height, width, 3]` levels; the figure keeps its canvas."""
    if not (hasattr(figure, "savefig") and hasattr(figure, "canvas")):
        raise TypeError(f"expected a matplotlib figure, got a {type(figure).__name__}")
    drawing = import_module("matplotlib.backends.backend_agg")
    shown_on = figure.canvas
    try:
        canvas = drawing.FigureCanvasAgg(figure)
        canvas.draw()
        pixels = np.array(canvas.buffer_rgba(), np.uint8)[:, :, :3]
    finally:
        figure.set_canvas(shown_on)
    if close:
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None:  # otherwise nothing holds the figure
            pyplot.close(figure)
    return pixels


def with_boxes(pixels: Levels, boxes: Any, labels: Sequence[str] | None = None) -> Levels:
    from PIL import Image, ImageDraw, ImageFont

    corners = to_numpy(boxes)
    if corners.ndim != 2 or corners.shape[1] != 4:
        raise ValueError(f"expected boxes of the shape [n, 4], got {corners.shape}")
    image = Image.fromarray(pixels)
    brush = ImageDraw.Draw(image)
    font = ImageFont.load_default()
    for place, (left, top, right, bottom) in enumerate(corners.tolist()):
        frame = [(left, top), (left, bottom), (right, bottom), (right, top), (left, top)]
        brush.line(frame, fill="red", width=2)
        if labels:
            x1, y1, x2, y2 = font.getbbox(labels[place])
            margin = np.ceil(0.05 * (y2 - y1))
            upper = bottom - (y2 - y1) - 2 * margin
            brush.rectangle([(left, upper), (left + x2 - x1, bottom)], fill="red")
            brush.text((left + margin, upper + margin), labels[place], fill="black", font=font)
    return np.asarray(image)


def resized(pixels: Levels, factor: float) -> Levels:
    if factor == 1:
        return pixels
    from PIL import Image

    height, width = (int(size * factor) for size in pixels.shape[:2])
    if not (height and width):
        raise ValueError(f"rescale={factor} is too small for the shape {pixels.shape}")
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))
