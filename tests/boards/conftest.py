"""What the tests of boards share: a registry over each kind of database, a loop, and a clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aboard.boards.registry import Registry
from tests.boards.fake_executor import Clock, PretendExecutor
from tests.boards.scripted_hub import Hub


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(database, clock) -> Iterator[Registry]:
    with Registry(database, clock=clock) as opened:
        yield opened


@pytest.fixture
def executor(tmp_path: Path) -> PretendExecutor:
    return PretendExecutor(tmp_path / "boards")


@pytest.fixture
def hub(registry, executor, clock) -> Hub:
    return Hub(registry, executor, clock)
