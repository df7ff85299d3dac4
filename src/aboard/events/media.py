"""Pixels to PNG and samples to WAV, with the standard library alone.

Only what a training loop has at hand, numpy arrays, goes in; pictures and clips that are encoded
already need nothing from here.
"""

from __future__ import annotations

import io
import struct
import wave
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

_PNG_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def png(pixels: npt.ArrayLike) -> bytes:
    """Encode `[height, width]` or `[height, width, channels]` pixels, one to four channels.

    Integers are levels from 0 to 255; floats and booleans span 0 to 1. What lies outside is
    clipped, and NaN is black.
    """
    levels = _levels(np.asarray(pixels))
    if levels.ndim == 2:
        levels = levels[:, :, None]
    if levels.ndim != 3 or levels.shape[2] not in _PNG_COLOR_TYPES or not levels.size:
        raise ValueError(
            f"an image has the shape [height, width] or [height, width, 1 to 4 channels], "
            f"not {np.shape(pixels)}"
        )
    height, width, channels = levels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOR_TYPES[channels], 0, 0, 0)
    unfiltered = np.zeros((height, 1 + width * channels), np.uint8)
    unfiltered[:, 1:] = levels.reshape(height, -1)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(unfiltered.tobytes()))
        + _chunk(b"IEND", b"")
    )


def wav(samples: npt.ArrayLike, rate: int) -> bytes:
    """Encode `[frames]` or `[frames, channels]` samples as 16-bit PCM.

    Floats span -1 to 1, and what lies outside is clipped; `int16` is taken as it is.
    """
    frames = np.asarray(samples)
    if frames.ndim == 1:
        frames = frames[:, None]
    if frames.ndim != 2 or not frames.shape[1]:
        raise ValueError(
            f"audio has the shape [frames] or [frames, channels], not {np.shape(samples)}"
        )
    if frames.dtype.kind == "f":
        frames = np.round(np.clip(np.nan_to_num(frames, nan=0.0), -1, 1) * 0x7FFF)
    elif frames.dtype != np.int16:
        raise TypeError(f"audio is made of floats or int16, not {frames.dtype}")
    clip = io.BytesIO()
    with wave.open(clip, "wb") as out:
        out.setnchannels(frames.shape[1])
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(frames.astype("<i2").tobytes())
    return clip.getvalue()


def _levels(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if pixels.dtype.kind == "f":
        scaled = np.clip(np.nan_to_num(pixels, nan=0.0), 0, 1) * 255
        return np.asarray(np.round(scaled), np.uint8)
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind in "iu":
        return np.asarray(np.clip(pixels, 0, 255), np.uint8)
    raise TypeError(f"an image is made of numbers, not {pixels.dtype}")


def _chunk(name: bytes, payload: bytes) -> bytes:
    checksum = zlib.crc32(name + payload)
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", checksum)
