"""What the index's tests share: a private index, and runs written in one line."""

import pytest

from aboard.events.writer import EventWriter
from aboard.index.logs import Logs


@pytest.fixture
def write(tmp_path):
    """Write scalars to a new file of a run: `write("run", loss=[(step, value), …])`."""

    def write(run=".", **tags):
        with EventWriter(str(tmp_path / "logs" / run)) as writer:
            for tag, points in tags.items():
                for step, value in points:
                    writer.scalar(tag, value, step, wall_time=1000.0 + step)
            return writer.path

    return write


@pytest.fixture
def logs(tmp_path, index):
    """Open the tree that `write` writes."""
    return lambda **options: Logs(tmp_path / "logs", index=index, **options)
