"""Boards with real processes: started, killed, adopted by the next hub, and stopped."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aboard.boards.lifecycle import Lifecycle, Settings
from aboard.boards.model import BoardRecord, BoardState, Transition
from aboard.boards.registry import Registry
from aboard.executors.base import Spec
from aboard.executors.process import ProcessExecutor
from tests.waiting import until

BOARD = """
import sys, time
print("looking for runs", file=sys.stderr, flush=True)
if "broken" in sys.argv:
    sys.exit("there is no such directory")
print('{"address": "http://127.0.0.1:6006/b/"}', flush=True)
time.sleep(600)
"""


class Hub:
    def __init__(self, home: Path, database: Path | None = None) -> None:
        self.registry = Registry(database or home / "hub.db")
        self.home = home
        self.lifecycle = Lifecycle(
            self.registry,
            {"process": ProcessExecutor(hub=self.registry.hub_id, grace=30)},
            self.specify,
            settings=Settings(poll=0.05, poll_soon=0.02),
        )
        self.lifecycle.start()

    def specify(self, record: BoardRecord) -> Spec:
        command = (sys.executable, "-c", BOARD, *record.selectors)
        directory = self.home / "boards" / record.id
        return Spec(record.id, command, directory, attempt=record.attempt)

    def make(self, selector: str) -> BoardRecord:
        wanted = BoardRecord(owner="ann", selectors=(selector,), on="process")
        return self.lifecycle.create(wanted).board

    def state(self, board: BoardRecord) -> BoardState:
        return self.registry.get(board.id).state

    def close(self) -> None:
        self.lifecycle.close()
        self.registry.close()


def lives(board: BoardRecord) -> bool:
    try:
        os.kill(board.handle["pid"], 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def hub(tmp_path) -> Iterator[Hub]:
    opened = Hub(tmp_path)
    yield opened
    # Nothing that a test started may go on without it.
    for board in opened.registry.live():
        if board.handle is not None:
            ProcessExecutor().stop(board.handle, now=True)
    opened.close()


def test_a_process_is_started_and_stopped(hub):
    board = hub.make("a")
    until(lambda: hub.state(board) is BoardState.RUNNING)
    board = hub.registry.get(board.id)
    assert hub.lifecycle.address(board).path == "/b/"
    hub.lifecycle.stop(board.id, reason="stopped by ann")
    until(lambda: hub.state(board) is BoardState.STOPPED)
    assert not lives(board)


def test_one_that_dies_says_why(hub):
    board = hub.make("broken")
    until(lambda: hub.state(board) is BoardState.FAILED)
    failed = hub.registry.get(board.id)
    assert "there is no such directory" in failed.reason
    assert failed.exit_code == 1
    board = hub.make("a")
    until(lambda: hub.state(board) is BoardState.RUNNING)
    os.kill(hub.registry.get(board.id).handle["pid"], signal.SIGKILL)
    until(lambda: hub.state(board) is BoardState.FAILED)
    killed = hub.registry.get(board.id)
    assert "it was killed" in killed.reason
    assert killed.exit_code == -signal.SIGKILL


def test_the_next_hub_goes_on_with_what_runs(hub):
    board = hub.make("a")
    until(lambda: hub.state(board) is BoardState.RUNNING)
    board = hub.registry.get(board.id)
    hub.close()
    hub.__init__(hub.home)
    until(lambda: hub.lifecycle.known(board.id) is not None)
    assert hub.registry.get(board.id) == board
    assert lives(board)
    hub.lifecycle.restart(board.id)
    until(lambda: hub.registry.get(board.id).attempt == 2)
    until(lambda: hub.state(board) is BoardState.RUNNING)
    assert not lives(board)
    board = hub.registry.get(board.id)
    assert lives(board)
    assert board.exit_code is None


def test_a_start_of_a_killed_hub_with_another_directory_is_adopted(hub, tmp_path):
    hub.lifecycle.close()
    draft = BoardRecord(owner="ann", selectors=("a",), on="process")
    board = hub.registry.create(draft).board
    board = hub.registry.transition(board, Transition(BoardState.STARTING))
    # It is killed before it has stored this handle.
    handle = ProcessExecutor(hub=hub.registry.hub_id).start(hub.specify(board))
    other = Hub(tmp_path / "other", tmp_path / "hub.db")
    try:
        until(lambda: other.state(board) is BoardState.RUNNING)
        assert other.registry.get(board.id).handle == handle
        assert [one.handle for one in ProcessExecutor(hub=hub.registry.hub_id).found()] == [handle]
    finally:
        other.lifecycle.stop(board.id, now=True)
        until(lambda: other.state(board) is BoardState.STOPPED)
        other.close()
