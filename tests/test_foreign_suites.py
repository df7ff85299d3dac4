"""`tools/foreign_suites.py`, with a small suite in place of another project's."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUITE = """
from tensorboardX import SummaryWriter


def test_scalars(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", 1.0, 1)


def test_private(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        assert writer.file_writer.event_writer._ev_writer


def test_flush(tmp_path):
    test_private(tmp_path)


def test_broken(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_nothing()


def test_of_something_else():
    assert 1 + 1 == 2
"""


@pytest.mark.slow
def test_tests_that_fail_only_with_our_class_are_listed(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_writer.py").write_text(SUITE)
    command = [sys.executable, "-m", "tools.foreign_suites", "tensorboardx", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    first, broken, deliberate, unexpected, share = done.stdout.splitlines()
    assert first == "tensorboardx: 5 tests, 4 with the class that is replaced by ours"
    assert broken.startswith("  1 do not pass with their own class here")
    assert deliberate.startswith("  deliberate: test_writer.py::test_flush: takes the name")
    assert unexpected.startswith("  UNEXPECTED: test_writer.py::test_private: AttributeError: ")
    assert share == "  1 of 3 pass with ours, 1 are deliberate differences"
    assert done.returncode == 1
