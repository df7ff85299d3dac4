"""The command that `aboard doctor --engine` runs on an engine: a board of a few points.

    python -P -m aboard.cli.trial [ROOT]...

First it writes a line of JSON about each root to its log: whether the root can be read there.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from aboard.cli.app import run
from aboard.events.writer import EventWriter

TAG, RUN, VALUES = "loss", "trial", (1.0, 0.5, 0.25)


def main() -> int:
    os.environ.pop("ABOARD_VERTEX", None)  # serve the points here, do not upload them
    for root in sys.argv[1:]:
        print(json.dumps({"root": root, "problem": _problem(Path(root))}), file=sys.stderr)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="aboard-trial-") as place:
        with EventWriter(Path(place) / RUN) as writer:
            for step, value in enumerate(VALUES):
                writer.scalar(TAG, value, step)
        print(json.dumps({"host": platform.node()}), file=sys.stderr, flush=True)  # noqa: T201
        return run(["view", "--json", "--no-browser", "--title", "A trial", "--", place])


def _problem(root: Path) -> str:
    try:
        with os.scandir(root) as entries:
            next(entries, None)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


if __name__ == "__main__":
    sys.exit(main())
