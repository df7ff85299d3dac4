"""Samples in any layout to 16 bits a sample, `[frames, channels]`; the WAV is left to `media`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aboard.track.arrays import Array, to_numpy, to_whole

Samples = npt.NDArray[np.int16]
_OF_SAMPLES = (np.dtype("int16"), np.dtype("int32"), np.dtype("uint8"))
"""Integers that sounds are kept in; others are as large as they say."""
_FASTEST = 10**8


def clip_of(samples: Any) -> Samples:
    """Return one clip, mono or of several channels, the shorter axis; floats span -1 to 1.

    Raises:
        ValueError: it has no samples, or too many axes.
    """
    frames = to_numpy(samples)
    if frames.ndim not in (1, 2) or not frames.size:
        raise ValueError(f"expected [frames] or [frames, channels], got the shape {frames.shape}")
    if frames.ndim == 2 and frames.shape[0] < frames.shape[1]:
        frames = frames.T
    return _sixteen_bits(frames, np.round)


def torch_clip(samples: Any) -> Samples:
    """Return one mono clip as PyTorch does, which rounds towards zero."""
    frames = to_numpy(samples).squeeze()
    if frames.ndim != 1 or not frames.size:
        raise ValueError(f"expected the samples of one channel, got the shape {frames.shape}")
    if frames.dtype.kind in "biu" and frames.dtype not in _OF_SAMPLES:
        frames = frames.astype(np.float64)
    return _sixteen_bits(frames, np.trunc)


def frame_rate(rate: Any) -> int:
    """Return how many frames a second has.

    Raises:
        ValueError: it is no number that a WAV can have.
    """
    number = to_whole(rate, "the rate")
    if not 0 < number <= _FASTEST:
        raise ValueError(f"expected a rate from 1 to {_FASTEST} frames a second, got {number}")
    return number


def _sixteen_bits(frames: Array, rounded: Any) -> Samples:
    if frames.dtype == np.int16:
        return frames
    if frames.dtype == np.int32:
        return (frames >> 16).astype(np.int16)
    if frames.dtype == np.uint8:
        return (frames.astype(np.int16) - 128) << 8
    if frames.dtype.kind != "f":
        raise TypeError(f"expected floats, int16, int32 or uint8, got {frames.dtype}")
    return np.asarray(rounded(np.clip(np.nan_to_num(frames, nan=0.0), -1, 1) * 0x7FFF), np.int16)
