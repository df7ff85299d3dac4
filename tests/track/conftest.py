"""What tests of the training side share: a spool of their own, and short intervals."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def spool_root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every test off the developer's own spools, and off those of other tests."""
    root = tmp_path_factory.mktemp("spool")
    monkeypatch.setenv("ABOARD_SPOOL", str(root))
    monkeypatch.setenv("ABOARD_SHIP_SECS", "0.05")
    return root
