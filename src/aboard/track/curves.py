"""Numbers sorted into buckets: precision-recall curves, and histograms as PyTorch makes them."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aboard.track.arrays import Array, to_reals

_SMALLEST_COUNT = 1e-7


def pr_curve(labels: Any, predictions: Any, weights: Any = None, thresholds: int = 127) -> Array:
    """Count what each threshold from 0 to 1 gets right and wrong.

    The rows: true positives, false positives, true negatives, false negatives, precision, recall.
    Predictions that are no number count nowhere.

    Raises:
        ValueError: the shapes differ, or there are fewer than two thresholds.
    """
    truths, guesses = to_reals(labels).astype(np.float64), to_reals(predictions)
    importance = to_reals(1.0 if weights is None else weights).astype(np.float64)
    if truths.shape != guesses.shape:
        raise ValueError(
            f"expected as many labels as predictions, got {truths.shape} and {guesses.shape}"
        )
    if importance.ndim and importance.shape != truths.shape:
        raise ValueError(
            f"expected a weight for each label, got {importance.shape} for {truths.shape}"
        )
    if thresholds < 2:
        raise ValueError(f"expected two thresholds or more, got {thresholds}")
    reached = np.floor(guesses * (thresholds - 1)).ravel()
    counts = (reached >= 0) & (reached < thresholds)
    places = reached[counts].astype(np.int64)
    positive = (truths * importance).ravel()[counts]
    negative = ((1.0 - truths) * importance).ravel()[counts]
    # At a threshold, everything that reaches it or a higher one is taken for positive.
    tp, fp = (
        np.bincount(places, weights=part, minlength=thresholds)[::-1].cumsum()[::-1]
        for part in (positive, negative)
    )
    fn, tn = tp[0] - tp, fp[0] - fp
    precision = tp / np.maximum(_SMALLEST_COUNT, tp + fp)
    recall = tp / np.maximum(_SMALLEST_COUNT, tp + fn)
    return np.stack((tp, fp, tn, fn, precision, recall))


def check_probabilities(labels: Any, predictions: Any) -> None:
    """Raise `ValueError` for labels other than 0 and 1, and predictions beyond them."""
    truths, guesses = to_reals(labels), to_reals(predictions)
    if not np.isin(truths, (0, 1)).all():
        raise ValueError(f"expected labels that are 0 or 1, got some like {truths.max()}")
    if (guesses < 0).any() or (guesses > 1).any():
        raise ValueError(
            f"expected predictions from 0 to 1, got {np.nanmin(guesses)} to {np.nanmax(guesses)}"
        )


class Histogram(NamedTuple):
    """Counts of buckets, each given by its upper limit, and the moments of the numbers."""

    low: float
    high: float
    number: float
    total: float
    squares: float
    limits: Array
    counts: Array


def torch_histogram(
    values: Any, bins: str | int | npt.ArrayLike = "tensorflow", most: int | None = None
) -> Histogram:
    """Sort the finite numbers into buckets as PyTorch does, at most `most` of them.

    `bins` is `tensorflow`, for buckets that grow by a tenth, or anything `numpy.histogram` takes.

    Raises:
        ValueError: there are no numbers at all.
    """
    numbers = to_reals(values).astype(np.float64).ravel()
    if not numbers.size:
        raise ValueError("expected one number or more, got none")
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return Histogram(0.0, 0.0, 0.0, 0.0, 0.0, np.zeros(1), np.zeros(1))
    edges = default_edges() if isinstance(bins, str) and bins == "tensorflow" else bins
    counts, limits = np.histogram(finite, bins=edges)
    if most is not None and len(counts) > most:
        counts, limits = _merged(counts, limits, most)
    filled = np.flatnonzero(counts)
    if filled.size:
        first, last = int(filled[0]), int(filled[-1])
        # An empty bucket in front tells where the first one begins.
        counts = np.concatenate([[0], counts[first : last + 1]])
        limits = limits[first : last + 2]
    else:  # all numbers lie beyond the buckets
        counts, limits = np.array([finite.size]), np.array([finite.max()])
    with np.errstate(over="ignore"):
        total, squares = float(finite.sum()), float(finite @ finite)
    low, high = float(finite.min()), float(finite.max())
    return Histogram(low, high, float(finite.size), total, squares, limits, counts)


@cache
def default_edges() -> Array:
    """Return edges from -1e20 to 1e20, each a tenth further from zero than the one before."""
    edges = []
    edge = 1e-12
    while edge < 1e20:
        edges.append(edge)
        edge *= 1.1
    above = np.array(edges)
    return np.concatenate([-above[::-1], [0.0], above])


def _merged(counts: Array, limits: Array, most: int) -> tuple[Array, Array]:
    """Join neighbouring buckets until there are about `most`."""
    each = len(counts) // most
    starts = np.arange(0, len(counts), each)
    return np.add.reduceat(counts, starts), np.append(limits[starts], limits[-1])
