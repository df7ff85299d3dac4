"""What every executor promises, tested on each engine."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aboard.executors.base import CommandState, Executor, ExecutorError, Handle, Spec
from tests.engines.rigs import HUB, SERVES, Rig, command, fetch, until_state
from tests.hub.fronts import fronting
from tests.waiting import until

MIB = 1 << 20
SILENT = "import time; time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVES
FAILS = "import sys; print('starting'); sys.exit('aboard: nothing/here: there is no such file.')"
GROWS = SERVES.replace("server.serve_forever", "kept = b'x' * (300 << 20); server.serve_forever")
TELLS = """
import os, sys, time
secret = os.environ["ABOARD_TOKEN"]
print(os.environ["COLOUR"], len(secret) >= 16, os.environ["ABOARD_TIMEOUT"], file=sys.stderr)
sys.stderr.flush()
time.sleep(600)
"""

COUNTS = """
import sys, time
for i in range(3):
    print(i, file=sys.stderr, flush=True)
    time.sleep(0.3)
"""


GRACE = 5.0


@pytest.fixture
def executor(rig: Rig) -> Iterator[Executor]:
    yield from used(rig.make())


@pytest.fixture
def patient(rig: Rig) -> Iterator[Executor]:
    """Return an executor that gives commands some time to end by themselves."""
    yield from used(rig.make(grace=GRACE))


def used(executor: Executor) -> Iterator[Executor]:
    """Give an executor; what a failed test leaves on the engine is not for the next one."""
    try:
        yield executor
        for one in executor.found():
            executor.stop(one.handle, now=True)
        until(lambda: not executor.found())
    finally:
        executor.close()


@pytest.fixture
def start(executor: Executor, place: Path) -> Iterator[Callable[..., Handle]]:
    """Start a script, and let nothing run on after the test."""
    handles: list[Handle] = []

    def start(script: str, board: str = "a", **options: object) -> Handle:
        spec = Spec(board, command(script), place / board, **options)  # type: ignore[arg-type]
        handles.append(json.loads(json.dumps(executor.start(spec))))
        return handles[-1]

    yield start
    for handle in handles:
        executor.stop(handle, now=True)
    for handle in handles:
        until_state(executor, handle, CommandState.ENDED)
    assert executor.found() == []


def log_of(executor: Executor, handle: Handle, tail: int | None = None) -> bytes:
    return b"".join(executor.logs(handle, tail=tail))


def wait_for_log(executor: Executor, handle: Handle, text: bytes) -> None:
    def log() -> bytes:
        executor.poll({"one": handle})
        return log_of(executor, handle)

    until(lambda: text in log(), log)


def test_a_command_runs_once_it_has_told_its_address(executor, start):
    handle = start(SERVES)
    status = until_state(executor, handle, CommandState.RUNNING)
    assert status.exit_code is None
    assert status.memory is None or status.memory > MIB
    address = executor.address(handle)
    assert address.path == "/b/view/"
    assert len(address.token) >= 16
    assert fetch(address, address.token) == (200, b"hello")


def test_the_port_opens_with_the_token_only(executor, start):
    handle = start(SERVES)
    until_state(executor, handle, CommandState.RUNNING)
    address = executor.address(handle)
    assert fetch(address, None) == (401, b"token")
    assert fetch(address, "x" * len(address.token)) == (401, b"token")


def test_a_websocket_passes_through_the_hubs_proxy(executor, start):
    handle = start(SERVES)
    until_state(executor, handle, CommandState.RUNNING)

    async def script(connection):
        for text in ("hello", "grüß dich"):
            await connection.send_str(text)
            assert await connection.receive_str() == text
        await connection.close(code=4000)
        return connection.close_code

    with fronting() as front:
        front.boards["one"] = executor.address(handle)
        assert front.talk(script, path="") == 4000


def test_no_secret_is_in_the_handle_nor_shown_by_accident(executor, start, tmp_path):
    handle = start(SERVES, environment={"COLOUR": "a-secret"})
    until_state(executor, handle, CommandState.RUNNING)
    address = executor.address(handle)
    assert address.token not in json.dumps(handle)
    assert address.token not in repr(address)
    assert "a-secret" not in repr(Spec("a", (), tmp_path, environment={"COLOUR": "a-secret"}))


def test_the_environment_reaches_the_command_with_a_token_and_its_time(executor, start):
    handle = start(TELLS, environment={"COLOUR": "green"}, timeout=900)
    wait_for_log(executor, handle, b"green True 900\n")


def test_a_command_that_never_tells_is_starting_until_someone_stops_it(executor, start):
    handle = start(SILENT)
    for _ in range(5):
        assert executor.poll({"one": handle})["one"].state == CommandState.STARTING
    assert executor.address(handle) is None
    executor.stop(handle)
    assert until_state(executor, handle, CommandState.ENDED).reason == "it was stopped"


def test_one_that_fails_at_once_says_why(executor, start):
    handle = start(FAILS)
    status = until_state(executor, handle, CommandState.ENDED)
    assert status.exit_code == 1
    assert "before it could be reached" in status.reason
    assert "aboard: nothing/here: there is no such file." in status.reason
    assert executor.address(handle) is None


def test_a_program_that_does_not_exist_has_ended(executor, place):
    handle = executor.start(Spec("a", ("/no/such/program",), place / "a"))
    status = until_state(executor, handle, CommandState.ENDED)
    assert status.exit_code == 127
    assert "/no/such/program" in status.reason


def test_ended_stays_ended_for_every_executor(rig, executor, start):
    handle = start(FAILS)
    status = until_state(executor, handle, CommandState.ENDED)
    assert executor.poll({"one": handle})["one"] == status
    another = rig.make()
    assert another.poll({"one": handle})["one"] == status
    another.close()


def test_many_are_polled_at_once_and_do_not_mix(executor, start):
    handles = {
        "serves": start(SERVES, "a"),
        "silent": start(SILENT, "b"),
        "fails": start(FAILS, "c"),
    }
    until_state(executor, handles["serves"], CommandState.RUNNING)
    until_state(executor, handles["fails"], CommandState.ENDED)
    found = executor.poll(handles)
    assert {key: status.state for key, status in found.items()} == {
        "serves": CommandState.RUNNING,
        "silent": CommandState.STARTING,
        "fails": CommandState.ENDED,
    }
    assert executor.poll({}) == {}


def test_a_handle_of_another_executor_is_unknown_and_harms_no_other(executor, start):
    handle = start(SILENT)
    found = executor.poll({"broken": {"other": "executor"}, "good": handle})
    assert found["broken"].state == CommandState.UNKNOWN
    assert found["broken"].reason
    assert found["good"].state == CommandState.STARTING


def test_a_handle_is_all_that_another_executor_needs(rig, executor, start):
    handle = start(SERVES)
    until_state(executor, handle, CommandState.RUNNING)
    adopting = rig.make()
    assert adopting.reaches(handle)
    assert until_state(adopting, handle, CommandState.RUNNING)
    address = adopting.address(handle)
    assert address.token == executor.address(handle).token
    assert fetch(address, address.token) == (200, b"hello")
    wait_for_log(adopting, handle, b"third line\n")
    adopting.stop(handle)
    assert until_state(adopting, handle, CommandState.ENDED).reason == "it was stopped"
    adopting.close()


def test_started_twice_it_runs_once(executor, start):
    handle = start(SERVES)
    assert start(SERVES) == handle
    until_state(executor, handle, CommandState.RUNNING)
    assert start(SERVES) == handle


def test_a_board_that_has_ended_starts_again_where_it_was(executor, start):
    first = start(FAILS)
    until_state(executor, first, CommandState.ENDED)
    second = start(SERVES, attempt=2)
    assert second != first
    until_state(executor, second, CommandState.RUNNING)
    wait_for_log(executor, second, b"third line\n")
    assert b"there is no such file" in log_of(executor, second)
    assert executor.poll({"one": first})["one"].state == CommandState.ENDED
    assert executor.address(first) is None


def test_one_that_is_being_stopped_is_not_given_out_again(executor, start):
    first = start(DEAF)
    until_state(executor, first, CommandState.RUNNING)
    executor.stop(first)
    second = start(SERVES, attempt=2)
    assert second != first
    until_state(executor, first, CommandState.ENDED)
    until_state(executor, second, CommandState.RUNNING)


def test_one_that_ignores_the_signal_is_killed_after_the_time_of_grace(patient, place):
    handle = patient.start(Spec("a", command(DEAF), place / "a"))
    until_state(patient, handle, CommandState.RUNNING)
    sent = time.monotonic()
    patient.stop(handle)
    status = patient.poll({"one": handle})["one"]
    if time.monotonic() < sent + GRACE:  # a slow machine may have taken longer
        assert status.state == CommandState.RUNNING
    status = until_state(patient, handle, CommandState.ENDED)
    assert status.exit_code in {-9, None}
    assert status.reason == "it was stopped"


def test_now_means_now(executor, start):
    handle = start(DEAF)
    until_state(executor, handle, CommandState.RUNNING)
    executor.stop(handle, now=True)
    assert until_state(executor, handle, CommandState.ENDED).reason == "it was stopped"


def test_stopping_what_has_ended_is_no_error_and_changes_nothing(executor, start):
    handle = start(FAILS)
    status = until_state(executor, handle, CommandState.ENDED)
    executor.stop(handle)
    executor.stop(handle, now=True)
    assert executor.poll({"one": handle})["one"] == status


def test_one_that_uses_too_much_memory_is_ended_and_says_so(executor, start):
    handle = start(GROWS, memory=128 * MIB)
    status = until_state(executor, handle, CommandState.ENDED)
    assert "128.0 MiB" in status.reason
    assert "memory" in status.reason


def test_the_log_has_its_last_lines_and_outlives_the_command(executor, start):
    handle = start(SERVES)
    wait_for_log(executor, handle, b"third line\n")
    executor.stop(handle, now=True)
    until_state(executor, handle, CommandState.ENDED)
    assert log_of(executor, handle, 2) == b"second line\nthird line\n"
    assert log_of(executor, handle, 0) == b""
    assert log_of(executor, handle, 99) == log_of(executor, handle)


def test_following_a_log_ends_with_the_command(executor, start):
    handle = start(COUNTS)
    assert b"".join(executor.logs(handle, follow=True)) == b"0\n1\n2\n"


def test_a_client_that_follows_a_log_can_leave(executor, start):
    handle = start(SILENT)
    following = executor.logs(handle, follow=True)
    assert next(following) == b""
    following.close()


def test_a_start_that_is_impossible_is_reported_in_one_line(executor, place):
    (place / "file").write_text("")
    with pytest.raises(ExecutorError, match=r"board a cannot be started: .*Check") as raised:
        executor.start(Spec("a", ("true",), place / "file" / "a"))
    assert "\n" not in str(raised.value)


def test_an_engine_that_answers_says_which_it_is(executor):
    report = executor.probe()
    assert (report.answers, report.problem) == (True, "")
    assert report.version


def test_what_was_started_is_found_without_its_handle(rig, executor, start):
    handle = start(SERVES, attempt=3)
    (found,) = executor.found()
    assert (found.board, found.attempt) == ("a", 3)
    assert executor.is_same(found.handle, handle)
    another = rig.make(hub="another")
    assert another.found() == []
    another.close()
    executor.stop(found.handle, now=True)
    until_state(executor, handle, CommandState.ENDED)


@pytest.mark.soak
def test_a_hub_killed_while_it_starts_a_board_neither_loses_nor_doubles_it(
    rig, executor, start, place, rounds
):
    few = 2 if rig.name == "process" else 10
    for number in rounds(few):
        board = f"k{number}"
        arguments = json.dumps([rig.name, dict(rig.settings), HUB, board, str(place / board)])
        hub = [sys.executable, "-m", "tests.engines.rigs", arguments]
        with subprocess.Popen(
            hub, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as killed:
            assert killed.stdout.readline() == "ready\n"
            killed.stdin.write("go\n")
            killed.stdin.flush()
            time.sleep(random.Random(number).uniform(0, 0.5 if rig.name == "process" else 1.5))
            killed.kill()
            printed = killed.stdout.read()
        handle = start(SERVES, board)
        if printed:
            assert json.loads(printed) == handle
        until_state(executor, handle, CommandState.RUNNING)
        address = executor.address(handle)
        assert fetch(address, address.token) == (200, b"hello")
        assert len(executor.found()) == 1
        executor.stop(handle, now=True)
        until_state(executor, handle, CommandState.ENDED)
