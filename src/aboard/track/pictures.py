"""Images in every layout to `[height, width, channels]` levels: batches, grids and video frames.

A layout names the axes of an array in order: `CHW`, `HWC`, `HW`, `NCHW`, `NHWC`, ... (N is the
place in a batch, T in time). Drawing is left to `drawings`, encoding to `aboard.events.media`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.events.media import levels
from aboard.track.arrays import Array, to_reals

Levels = npt.NDArray[np.uint8]

_CHANNELS = (1, 3, 4)
_PILLOW_MODES = ("L", "LA", "RGB", "RGBA")


def picture(image: Any, layout: str | None = None) -> Levels:
    """Return an image as `[height, width, channels]` levels; floats span 0 to 1.

    Without a layout, the axis of 1, 3 or 4 elements is taken for the channels.

    Raises:
        ValueError: the layout does not fit, or cannot be guessed.
    """
    if _is_pillow(image):
        pixels, layout = _pillow_pixels(image), "HWC"
    else:
        pixels = to_reals(image)
    return levels(arranged(pixels, layout or guess_layout(pixels.shape), "HWC"))


def batch(images: Any, layout: str | None = None) -> list[Levels]:
    """Return the images of an array, or of a sequence, as `[height, width, channels]` levels."""
    if isinstance(images, list | tuple):
        one = layout.upper().replace("N", "") if layout else None
        pictures = [picture(image, one) for image in images]
    else:
        pixels = to_reals(images)
        layout = layout or guess_batch_layout(pixels.shape)
        pictures = list(levels(arranged(pixels, layout, "NHWC")))
    sizes = {one.shape[:2] for one in pictures}
    if len(sizes) != 1:
        raise ValueError(f"expected one or more images of one size, got {sorted(sizes)}")
    return pictures


def guess_layout(shape: tuple[int, ...]) -> str:
    """Tell the layout of an image from its shape, or say why that is impossible."""
    if len(shape) == 2:
        return "HW"
    if len(shape) == 3:
        return _guess(shape, "HWC", "CHW")
    if len(shape) == 4:
        raise ValueError(f"expected one image, got a batch of shape {shape}; log it as images")
    raise ValueError(f"expected the axes HW, HWC or CHW, got the shape {shape}")


def guess_batch_layout(shape: tuple[int, ...]) -> str:
    """Tell the layout of a batch of images from its shape, or say why that is impossible."""
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


def arranged(pixels: Array, layout: str, wanted: str) -> Array:
    """Transpose pixels from one layout to another that has the same axes, or C besides."""
    given = layout.upper()
    if len(set(given)) != len(given) or not set("HW") <= set(given) <= set(wanted):
        raise ValueError(f"dataformats={layout!r} is no layout; expected the axes {wanted}")
    if pixels.ndim != len(given):
        raise ValueError(
            f"dataformats={layout!r} has {len(given)} axes, the shape {pixels.shape} "
            f"has {pixels.ndim}"
        )
    if "C" not in given:
        pixels, given = pixels[..., None], given + "C"
    if set(given) != set(wanted):
        raise ValueError(f"dataformats={layout!r} lacks an axis of {wanted}")
    return pixels.transpose([given.index(axis) for axis in wanted])


def grid(pictures: Array, columns: int) -> Array:
    """Lay `[n, height, width, channels]` out in rows; places that are left over are black."""
    count, height, width, channels = pictures.shape
    columns = min(count, columns)
    rows = -(-count // columns)
    cells = np.zeros((rows * columns, height, width, channels), pictures.dtype)
    cells[:count] = pictures
    cells = cells.reshape(rows, columns, height, width, channels)
    return cells.swapaxes(1, 2).reshape(rows * height, columns * width, channels)


# What PyTorch's writer makes of pixels, which is not what `levels` does.


def torch_levels(pixels: Array) -> Levels:
    """Bring pixels to levels as PyTorch does: all but uint8 span 0 to 1, and are rounded down."""
    if pixels.dtype == np.uint8:
        return pixels
    shares = np.nan_to_num(pixels.astype(np.float32), nan=0.0).clip(0, 1)
    return np.asarray(shares * 255, np.uint8)


def torch_picture(image: Any, layout: str) -> Levels:
    """Return one image in color; a batch is laid out in a grid eight images wide."""
    pixels = to_reals(image)
    if "N" in layout.upper():
        whole = grid(_in_color(arranged(pixels, layout, "NHWC")), 8)
    else:
        whole = _in_color(arranged(pixels, layout, "HWC"))
    return torch_levels(whole)


def torch_frames(video: Any) -> Levels:
    """Return `[n, time, channels, height, width]` videos as frames that show all beside another.

    The rows and columns of that grid are powers of two.
    """
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


def _in_color(pixels: Array) -> Array:
    return np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels


def _is_pillow(image: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(image, pillow.Image)


def _pillow_pixels(image: Any) -> Array:
    if image.mode not in _PILLOW_MODES:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels
