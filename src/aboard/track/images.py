"""Conversion of images of any layout, batches, videos and figures to levels.

Levels have the shape `[height, width, channels]`. A layout names the axes of an array in order:
`CHW`, `HWC`, `HW`, `NCHW`, `NHWC`, ... (N is the position in a batch, T in time).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events.encode import levels
from aboard.track.arrays import Array, to_numpy, to_reals

Levels = npt.NDArray[np.uint8]

_CHANNELS = (1, 3, 4)
_PILLOW_MODES = ("L", "LA", "RGB", "RGBA")


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


# Drawing.


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
        raise ValueError(f"rescale={factor} leaves nothing of the shape {pixels.shape}")
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))
