"""How many points of a series are sent to the browser; `aboard.index.series` reduces a series."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

# TensorBoard's own number. Other kinds have TensorBoard's limits unless the user sets one.
POINTS_PER_CURVE = 1000
KINDS = ("scalars", "images", "audio", "histograms", "text", "pr_curves", "mesh")


class BadSamples(ValueError):  # noqa: N818 - named by what is wrong
    """A limit that cannot be parsed."""


def parse_samples(texts: Iterable[str]) -> dict[str, int] | None:
    """Parse limits such as `5000`, for scalars, and `images=100`; None where there are none."""
    samples: dict[str, int] = {}
    for text in texts:
        kind, equals, number = text.rpartition("=")
        kind = kind if equals else KINDS[0]
        if kind not in KINDS:
            known = ", ".join(KINDS)
            raise BadSamples(f"--samples {text}: there is no kind {kind!r}. Known: {known}.")
        if not (number.isascii() and number.isdigit()):
            raise BadSamples(
                f"--samples {text}: {number!r} is not a number of values. Write how many, 0 for"
                " all: '--samples 5000' or '--samples images=100'."
            )
        samples[kind] = int(number)
    return samples or None


def limits(samples: Mapping[str, int] | None) -> dict[str, int]:
    """Return the limit of each plugin that has one; 0 in `samples` means no limit."""
    return {plugin: limit or sys.maxsize for plugin, limit in (samples or {}).items()}
