"""Pixels to PNG, also animated, and samples to WAV, with numpy and the standard library alone."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from collections.abc import Sequence
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def png(pixels: npt.ArrayLike) -> bytes:
    """Encode `[height, width]` or `[height, width, channels]` pixels, one to four channels.

    Integers are levels from 0 to 255; floats and booleans span 0 to 1. What lies outside is
    clipped, and NaN is black.
    """
    shades = _channels_last(levels(np.asarray(pixels)), np.shape(pixels))
    return (
        _SIGNATURE
        + _chunk(b"IHDR", _header(shades))
        + _chunk(b"IDAT", _compressed(shades))
        + _chunk(b"IEND", b"")
    )


def animated_png(frames: Sequence[npt.ArrayLike], rate: float) -> bytes:
    """Encode frames of one size, each as `png` takes it, shown `rate` a second in a loop."""
    sizes = {np.shape(frame) for frame in frames}
    if len(sizes) != 1:
        raise ValueError(f"the frames of a video share one shape, not {sorted(sizes)}")
    if not 0.02 <= rate <= 1000:
        raise ValueError(f"a video shows 0.02 to 1000 frames a second, not {rate}")
    pictures = [_channels_last(levels(np.asarray(frame)), np.shape(frame)) for frame in frames]
    height, width, _ = pictures[0].shape
    pause = Fraction(1 / rate).limit_denominator(1000)  # 50 seconds still fit 16 bits
    chunks = [_chunk(b"IHDR", _header(pictures[0]))]
    chunks.append(_chunk(b"acTL", struct.pack(">II", len(pictures), 0)))
    numbers = count()
    for place, picture in enumerate(pictures):
        control = struct.pack(">IIIII", next(numbers), width, height, 0, 0)
        control += struct.pack(">HHBB", pause.numerator, pause.denominator, 0, 0)
        chunks.append(_chunk(b"fcTL", control))
        if place:
            number = struct.pack(">I", next(numbers))
            chunks.append(_chunk(b"fdAT", number + _compressed(picture)))
        else:
            chunks.append(_chunk(b"IDAT", _compressed(picture)))
    return _SIGNATURE + b"".join(chunks) + _chunk(b"IEND", b"")


def wav(samples: npt.ArrayLike, rate: int) -> bytes:
    """Encode `[frames]` or `[frames, channels]` samples as 16-bit PCM.

    Floats span -1 to 1, and what lies outside is clipped; `int16` is taken as it is.
    """
    if rate < 1:
        raise ValueError(f"rate is at least 1, not {rate}")
    frames = np.asarray(samples)
    if frames.ndim == 1:
        frames = frames[:, None]
    if frames.ndim != 2 or not frames.shape[1]:
        shape = np.shape(samples)
        raise ValueError(f"audio has the shape [frames] or [frames, channels], not {shape}")
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


def levels(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if pixels.dtype.kind == "f":
        scaled = np.clip(np.nan_to_num(pixels, nan=0.0), 0, 1) * 255
        return np.asarray(np.round(scaled), np.uint8)
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind in "iu":
        return np.asarray(np.clip(pixels, 0, 255), np.uint8)
    raise TypeError(f"an image is made of numbers, not {pixels.dtype}")


def _channels_last(shades: npt.NDArray[np.uint8], given: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    if shades.ndim == 2:
        shades = shades[:, :, None]
    if shades.ndim != 3 or shades.shape[2] not in _PNG_COLOR_TYPES or not shades.size:
        raise ValueError(
            f"an image has the shape [height, width] or [height, width, 1 to 4 channels], "
            f"not {given}"
        )
    return shades


def _header(shades: npt.NDArray[np.uint8]) -> bytes:
    height, width, channels = shades.shape
    return struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOR_TYPES[channels], 0, 0, 0)


def _compressed(shades: npt.NDArray[np.uint8]) -> bytes:
    height, width, channels = shades.shape
    unfiltered = np.zeros((height, 1 + width * channels), np.uint8)
    unfiltered[:, 1:] = shades.reshape(height, -1)
    return zlib.compress(unfiltered.tobytes())


def _chunk(name: bytes, payload: bytes) -> bytes:
    checksum = zlib.crc32(name + payload)
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", checksum)
