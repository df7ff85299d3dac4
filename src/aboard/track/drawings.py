"""Figures of matplotlib to pixels, and boxes and sizes of images, drawn with Pillow.

Either is imported only to draw. Which axis of an image is which is left to `pictures`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from aboard.track.arrays import to_numpy
from aboard.track.pictures import Levels


def figure_pixels(figure: Any, *, close: bool = False) -> Levels:
    """Draw a matplotlib figure as `[height, width, 3]` levels, and leave it as it was.

    Raises:
        TypeError: it is no figure.
    """
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
        if pyplot is not None:  # without it, nothing keeps the figure
            pyplot.close(figure)
    return pixels


def with_boxes(pixels: Levels, boxes: Any, labels: Sequence[str] | None = None) -> Levels:
    """Draw a red frame for each box `x1, y1, x2, y2`, with its label at the bottom left.

    Raises:
        ValueError: the boxes are no `[n, 4]` array.
    """
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
    """Scale an image by a factor."""
    if factor == 1:
        return pixels
    from PIL import Image

    height, width = (int(size * factor) for size in pixels.shape[:2])
    if not (height and width):
        raise ValueError(f"rescale={factor} leaves nothing of the shape {pixels.shape}")
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))
