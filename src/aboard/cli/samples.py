"""How much of a series a board shows: what `--samples` of `aboard view` means."""

from __future__ import annotations

from collections.abc import Iterable

from aboard.cli.errors import WrongUsage

KINDS = ("scalars", "images", "audio", "histograms", "text", "pr_curves", "mesh")
"""Of data, by the names of their plugins."""


def parse_samples(texts: Iterable[str]) -> dict[str, int] | None:
    """Read numbers, such as `5000` for scalars and `images=100`; None where there are none."""
    samples: dict[str, int] = {}
    for text in texts:
        kind, equals, number = text.rpartition("=")
        kind = kind if equals else KINDS[0]
        if kind not in KINDS:
            known = ", ".join(KINDS)
            raise WrongUsage(f"--samples {text}: there is no kind {kind!r}. Known: {known}.")
        if not (number.isascii() and number.isdigit()):
            raise WrongUsage(
                f"--samples {text}: {number!r} is no number of values. Say how many, 0 for all,"
                " such as '--samples 5000' or '--samples images=100'."
            )
        samples[kind] = int(number)
    return samples or None
