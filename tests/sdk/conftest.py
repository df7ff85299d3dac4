"""A user's own hub over a few runs, started once for all tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aboard.sdk.client import Client
from tests.engines.real_hub import log_run, own_hub


@pytest.fixture(autouse=True)
def _no_hub_of_the_developer(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("ABOARD_HUB", "ABOARD_HUB_TOKEN", "ABOARD_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    log_run(root, "cifar10/run1", [1.0, 0.5])
    log_run(root, "cifar10/run2", [2.0, 1.5, 1.25])
    log_run(root, "mnist/run1", [3.0])
    return root


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Path]:
    with own_hub(tmp_path_factory.mktemp("own-hub"), root) as directory:
        yield directory


@pytest.fixture
def client(state: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("ABOARD_STATE", str(state))
    return Client(start=False)
