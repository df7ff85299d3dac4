"""What every executor promises, asked of each of them."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aboard.executors import Executor, ExecutorError, Handle, Spec, State, Status
from aboard.executors.process import ProcessExecutor

MIB = 1 << 20
SERVES = """
import json, sys, time
print("a plugin says hello")
document = {"url": "http://localhost:7000/b/view/?key=k", "address": "http://localhost:7000/b/view/"}
print(json.dumps(document), flush=True)
print("first line\\nsecond line\\nthird line", file=sys.stderr, flush=True)
time.sleep(600)
"""
SILENT = "import time; time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVES
FAILS = "import sys; print('starting'); sys.exit('aboard: nothing/here: there is no such file.')"
GROWS = SERVES.replace("time.sleep(600)", "kept = b'x' * (300 << 20); time.sleep(600)")
TELLS = """
import os, sys, time
print(os.environ["COLOUR"], len(os.environ["ABOARD_TOKEN"]) >= 16, file=sys.stderr, flush=True)
time.sleep(600)
"""

COUNTS = """
import sys, time
for i in range(3):
    print(i, file=sys.stderr, flush=True)
    time.sleep(0.3)
"""

MakeExecutor = Callable[[], Executor]


@pytest.fixture(params=["process"])
def make_executor(request: pytest.FixtureRequest) -> MakeExecutor:
    """Give what makes executors of a kind, each as a hub that was started anew would have it."""
    return {"process": lambda: ProcessExecutor(grace=1.0)}[request.param]


@pytest.fixture
def executor(make_executor: MakeExecutor) -> Iterator[Executor]:
    made = make_executor()
    yield made
    made.close()


@pytest.fixture
def start(executor: Executor, tmp_path: Path) -> Iterator[Callable[..., Handle]]:
    """Start a script, and let nothing run on after the test."""
    handles: list[Handle] = []

    def start(script: str, board: str = "a", **options: object) -> Handle:
        command = (sys.executable, "-S", "-c", script)
        spec = Spec(board, command, tmp_path / board, **options)  # type: ignore[arg-type]
        handles.append(json.loads(json.dumps(executor.start(spec))))
        return handles[-1]

    yield start
    for handle in handles:
        executor.stop(handle, now=True)
        until(executor, handle, State.ENDED)


def until(executor: Executor, handle: Handle, wanted: State, seconds: float = 120.0) -> Status:
    deadline = time.monotonic() + seconds
    while (status := executor.poll({"one": handle})["one"]).state != wanted:
        assert time.monotonic() < deadline, status
        assert status.state != State.ENDED, status
        time.sleep(0.05)
    return status


def log_of(executor: Executor, handle: Handle, tail: int | None = None) -> bytes:
    return b"".join(executor.logs(handle, tail=tail))


def test_a_command_runs_once_it_has_told_its_address(executor, start):
    handle = start(SERVES)
    status = until(executor, handle, State.RUNNING)
    assert status.exit_code is None
    assert status.memory is None or status.memory > MIB
    address = executor.address(handle)
    assert (address.host, address.port, address.path) == ("127.0.0.1", 7000, "/b/view/")
    assert len(address.token) >= 16


def test_no_secret_is_in_the_handle_nor_shown_by_accident(executor, start, tmp_path):
    handle = start(SERVES, environment={"COLOUR": "a-secret"})
    until(executor, handle, State.RUNNING)
    address = executor.address(handle)
    assert address.token not in json.dumps(handle)
    assert address.token not in repr(address)
    assert "a-secret" not in repr(Spec("a", (), tmp_path, {"COLOUR": "a-secret"}))


def test_the_environment_reaches_the_command_with_a_token(executor, start):
    handle = start(TELLS, environment={"COLOUR": "green"})
    wait_for_log(executor, handle, b"green True\n")


def wait_for_log(executor: Executor, handle: Handle, text: bytes) -> None:
    deadline = time.monotonic() + 120
    while text not in (log := log_of(executor, handle)):
        assert time.monotonic() < deadline, log
        time.sleep(0.05)


def test_a_command_that_never_tells_is_starting_until_someone_stops_it(executor, start):
    handle = start(SILENT)
    for _ in range(5):
        assert executor.poll({"one": handle})["one"].state == State.STARTING
    assert executor.address(handle) is None
    executor.stop(handle)
    assert until(executor, handle, State.ENDED).reason == "it was stopped"


def test_one_that_fails_at_once_says_why(executor, start):
    handle = start(FAILS)
    status = until(executor, handle, State.ENDED)
    assert status.exit_code == 1
    assert "before it could be reached" in status.reason
    assert "aboard: nothing/here: there is no such file." in status.reason
    assert executor.address(handle) is None


def test_a_program_that_does_not_exist_has_ended(executor, tmp_path):
    handle = executor.start(Spec("a", ("/no/such/program",), tmp_path / "a"))
    status = until(executor, handle, State.ENDED)
    assert status.exit_code == 127
    assert "/no/such/program" in status.reason


def test_ended_stays_ended_for_every_executor(make_executor, executor, start):
    handle = start(FAILS)
    status = until(executor, handle, State.ENDED)
    assert executor.poll({"one": handle})["one"] == status
    assert make_executor().poll({"one": handle})["one"] == status


def test_many_are_asked_at_once_and_do_not_mix(executor, start):
    handles = {
        "serves": start(SERVES, "a"),
        "silent": start(SILENT, "b"),
        "fails": start(FAILS, "c"),
    }
    until(executor, handles["serves"], State.RUNNING)
    until(executor, handles["fails"], State.ENDED)
    found = executor.poll(handles)
    assert {key: status.state for key, status in found.items()} == {
        "serves": State.RUNNING,
        "silent": State.STARTING,
        "fails": State.ENDED,
    }
    assert executor.poll({}) == {}


def test_what_cannot_be_asked_is_unknown_and_harms_no_other(executor, start):
    handle = start(SILENT)
    found = executor.poll({"broken": {"other": "executor"}, "good": handle})
    assert found["broken"].state == State.UNKNOWN
    assert found["broken"].reason
    assert found["good"].state == State.STARTING


def test_a_handle_is_all_that_another_executor_needs(make_executor, executor, start):
    handle = start(SERVES)
    until(executor, handle, State.RUNNING)
    adopting = make_executor()
    assert adopting.poll({"one": handle})["one"].state == State.RUNNING
    assert adopting.address(handle) == executor.address(handle)
    wait_for_log(adopting, handle, b"third line\n")
    adopting.stop(handle)
    assert until(adopting, handle, State.ENDED).reason == "it was stopped"


def test_started_twice_it_runs_once(make_executor, executor, start):
    handle = start(SERVES)
    assert start(SERVES) == handle
    until(executor, handle, State.RUNNING)
    assert start(SERVES) == handle


def test_a_board_that_has_ended_starts_anew_where_it_was(executor, start):
    first = start(FAILS)
    until(executor, first, State.ENDED)
    second = start(SERVES)
    assert second != first
    until(executor, second, State.RUNNING)
    wait_for_log(executor, second, b"third line\n")
    assert b"there is no such file" in log_of(executor, second)
    assert executor.poll({"one": first})["one"].state == State.ENDED
    assert executor.address(first) is None


def test_one_that_is_being_stopped_is_not_given_out_again(executor, start):
    first = start(DEAF)
    until(executor, first, State.RUNNING)
    executor.stop(first)
    second = start(SERVES)
    assert second != first
    assert executor.poll({"one": first})["one"].state == State.ENDED
    until(executor, second, State.RUNNING)


def test_who_does_not_listen_is_killed_after_the_time_of_grace(executor, start):
    handle = start(DEAF)
    until(executor, handle, State.RUNNING)
    executor.stop(handle)
    assert executor.poll({"one": handle})["one"].state == State.RUNNING
    status = until(executor, handle, State.ENDED)
    assert (status.exit_code, status.reason) == (-9, "it was stopped")


def test_now_means_now(executor, start):
    handle = start(DEAF)
    until(executor, handle, State.RUNNING)
    executor.stop(handle, now=True)
    assert until(executor, handle, State.ENDED).reason == "it was stopped"


def test_stopping_what_has_ended_is_no_error_and_changes_nothing(executor, start):
    handle = start(FAILS)
    status = until(executor, handle, State.ENDED)
    executor.stop(handle)
    executor.stop(handle, now=True)
    assert executor.poll({"one": handle})["one"] == status


def test_one_that_uses_too_much_memory_is_ended_and_says_so(executor, start):
    handle = start(GROWS, memory=128 * MIB)
    status = until(executor, handle, State.ENDED)
    found = re.fullmatch(r"used ([0-9.]+) MiB of 128.0 MiB memory", status.reason)
    assert found
    assert float(found[1]) > 128


def test_the_log_has_its_last_lines_and_outlives_the_command(executor, start):
    handle = start(SERVES)
    wait_for_log(executor, handle, b"third line\n")
    executor.stop(handle, now=True)
    until(executor, handle, State.ENDED)
    assert log_of(executor, handle, 2) == b"second line\nthird line\n"
    assert log_of(executor, handle, 0) == b""
    assert log_of(executor, handle, 99) == log_of(executor, handle)


def test_following_a_log_ends_with_the_command(executor, start):
    handle = start(COUNTS)
    assert b"".join(executor.logs(handle, follow=True)) == b"0\n1\n2\n"


def test_who_follows_a_log_can_leave(executor, start):
    handle = start(SILENT)
    following = executor.logs(handle, follow=True)
    assert next(following) == b""
    following.close()


def test_a_start_that_is_impossible_is_told_in_one_line(executor, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExecutorError, match=r"board a cannot be started: .*Check") as raised:
        executor.start(Spec("a", ("true",), tmp_path / "file" / "a"))
    assert "\n" not in str(raised.value)
