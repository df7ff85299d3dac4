"""The events with which the fuzzers begin serve the tests, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "fuzz"))
