"""Meshes and point clouds: vertices, faces and colors, all `[batch, n, 3]`."""

from __future__ import annotations

from typing import Any

import numpy as np

from aboard.track.arrays import Array, to_reals


def mesh_parts(
    vertices: Any, faces: Any = None, colors: Any = None
) -> tuple[Array, Array | None, Array | None]:
    """Return the parts of a batch of meshes; a single mesh may be given without the first axis.

    Colors are levels from 0 to 255; floats that span 0 to 1 are brought there.

    Raises:
        ValueError: a part has another shape, or there are not as many colors as vertices.
    """
    places = _part("vertices", vertices)
    corners = None if faces is None else _part("faces", faces)
    shades = None if colors is None else _part("colors", colors)
    if shades is not None:
        if shades.shape != places.shape:
            raise ValueError(
                f"expected a color for each vertex, got {shades.shape} for {places.shape}"
            )
        if shades.dtype.kind == "f" and shades.size and shades.max() <= 1:
            shades = np.round(shades * 255)
        shades = np.clip(shades, 0, 255)
    return places, corners, shades


def _part(name: str, values: Any) -> Array:
    part = to_reals(values)
    part = part[None] if part.ndim == 2 else part
    if part.ndim != 3 or part.shape[2] != 3:
        raise ValueError(f"expected {name} of the shape [batch, n, 3], got {part.shape}")
    return part
