"""What the tests of boards share: a registry over each kind of database, a loop, and a clock."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aboard.boards.registry import Registry
from tests.boards.keeping import Hub
from tests.boards.pretending import Clock, PretendExecutor


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


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is so."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            assert time.monotonic() < deadline, "it did not come to be so"
            time.sleep(0.01)

    return wait
