"""What tests of the training side share: a spool of their own, and short intervals."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def spool_root(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Keep every test off the developer's own spools, and off those of other tests.

    A shipper whose bucket never answers would try for ever: whoever is left goes with the test.
    """
    root = tmp_path_factory.mktemp("spool")
    monkeypatch.setenv("ABOARD_SPOOL", str(root))
    monkeypatch.setenv("ABOARD_SHIP_SECS", "0.05")
    yield root
    if any(root.iterdir()):
        _end_processes_about(root)


def _end_processes_about(root: Path) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{root}/".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
