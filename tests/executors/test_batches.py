"""What every engine promises of the tasks of a job, tested on each."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aboard.executors.base import Batch, BatchExecutor, Handle, TaskState, TaskStatus
from tests.engines.rigs import Rig, make_batch
from tests.waiting import until

ENDED, RUNNING, UNKNOWN, WAITING = (
    TaskState.ENDED,
    TaskState.RUNNING,
    TaskState.UNKNOWN,
    TaskState.WAITING,
)
EXITS = """
import sys
print("task", sys.argv[2], flush=True)
print("to the other stream", file=sys.stderr)
sys.exit({"1": 0, "2": 3, "3": 0}[sys.argv[2]])
"""
TELLS = """
import json, os, sys
with open(sys.argv[1]) as file:
    print(len(json.load(file)["secret"]), os.getcwd(), sys.argv[2])
"""
WAITS = """
import signal, sys, time

def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come twice, as `aboard run` knows
    print("asked to end", flush=True)
    time.sleep(2)  # Kubernetes deletes the log with the pod: time to read it
    sys.exit(7)

signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
while True:
    time.sleep(0.1)  # a signal just before a long sleep would be handled after it
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", flush=True)
time.sleep(600)
"""
ONCE = "print('begun', flush=True)"


@pytest.fixture
def engine(rig: Rig, place: Path) -> Rig:
    return rig.reading(place)


@pytest.fixture
def executor(engine: Rig) -> Iterator[BatchExecutor]:
    made = engine.make_batches()
    yield made
    made.close()


@pytest.fixture
def submit(executor: BatchExecutor, place: Path) -> Iterator[Callable[..., Handle]]:
    """Submit tasks, and let nothing run on after the test."""
    handles: list[Handle] = []

    def submit(script: str, job: str = "a", **options: object) -> Handle:
        handle = executor.submit(make_batch(place, script, job, **options))
        handles.append(json.loads(json.dumps(handle)))
        return handles[-1]

    yield submit
    for handle in handles:
        executor.cancel(handle, now=True)
    for handle in handles:
        until_tasks(executor, handle, all_ended)
        executor.release(handle)


def until_tasks(
    executor: BatchExecutor, handle: Handle, is_met: Callable[[dict[int, TaskStatus]], bool]
) -> dict[int, TaskStatus]:
    def tasks() -> dict[int, TaskStatus]:
        return executor.tasks({"one": handle})["one"]

    return until(lambda: found if is_met(found := tasks()) else None, tasks)


def all_ended(tasks: dict[int, TaskStatus]) -> bool:
    return all(one.state is ENDED for one in tasks.values())


def until_settled(engine: Rig, executor: BatchExecutor, handle: Handle) -> dict[int, TaskStatus]:
    """Wait until all tasks have ended after a cancellation, and the engine knows no more of them.

    Kubernetes deletes their pods then, and with them their exit codes, some time after the end.
    """
    is_forgotten = engine.name == "kubernetes"
    return until_tasks(
        executor,
        handle,
        lambda tasks: (
            all_ended(tasks)
            and not (is_forgotten and any(one.exit_code is not None for one in tasks.values()))
        ),
    )


def standings(tasks: dict[int, TaskStatus]) -> dict[int, tuple[TaskState, int | None, str]]:
    """Return how tasks stand, without the names of pods: those are deleted some time later."""
    return {number: (one.state, one.exit_code, one.reason) for number, one in tasks.items()}


def log_of(executor: BatchExecutor, handle: Handle, number: int, tail: int | None = None) -> bytes:
    return b"".join(executor.logs(handle, number, tail=tail))


def wait_for_log(executor: BatchExecutor, handle: Handle, number: int, text: bytes) -> None:
    def log() -> bytes:
        return log_of(executor, handle, number)

    until(lambda: text in log(), log)


def test_tasks_end_with_their_own_exit_codes_and_logs(executor, submit):
    handle = submit(EXITS)
    tasks = until_tasks(executor, handle, all_ended)
    assert {number: one.exit_code for number, one in tasks.items()} == {1: 0, 2: 3, 3: 0}
    assert tasks[1].reason == ""
    log = log_of(executor, handle, 2)
    assert b"task 2\n" in log
    assert b"to the other stream\n" in log
    assert b"task 1" not in log
    assert log_of(executor, handle, 2, tail=0) == b""
    assert len(log_of(executor, handle, 2, tail=1).splitlines()) == 1


def test_only_the_numbers_of_a_batch_run(executor, submit):
    handle = submit(EXITS, numbers=(2,), attempt=2)
    tasks = until_tasks(executor, handle, all_ended)
    assert {number: one.exit_code for number, one in tasks.items()} == {2: 3}


def test_the_payload_reaches_tasks_and_nothing_else_shows_it(executor, submit, place):
    secret = "hunter2-" * 4
    payload = json.dumps({"secret": secret}).encode()
    batch = make_batch(place, TELLS, numbers=(4,), payload=payload)
    assert secret not in repr(batch)
    preview = executor.preview(batch)
    assert batch.name in preview or str(batch.directory) in preview
    assert secret not in preview
    handle = submit(TELLS, numbers=(4,), payload=payload)
    assert secret not in json.dumps(handle)
    until_tasks(executor, handle, all_ended)
    assert log_of(executor, handle, 4).split()[:3] == [b"32", str(place).encode(), b"4"]
    for path in place.rglob("*"):
        if path.is_file() and secret.encode() in path.read_bytes():
            assert path.stat().st_mode & 0o077 == 0, path


def test_what_waits_says_why_and_is_cancelled_before_it_begins(engine, executor, submit):
    if engine.name == "kubernetes":
        pytest.skip("before Kubernetes 1.29 there is no limit of tasks at a time")
    handle = submit(WAITS, parallel=1)
    tasks = until_tasks(executor, handle, lambda tasks: tasks[1].state is RUNNING)
    assert tasks[2].state is WAITING
    executor.cancel(handle, [2])
    until_tasks(executor, handle, lambda tasks: tasks[2].state is ENDED)
    tasks = executor.tasks({"one": handle})["one"]
    assert tasks[1].state is RUNNING
    assert tasks[3].state is WAITING
    assert log_of(executor, handle, 2) == b""


def test_cancelling_reaches_all_and_those_that_run_may_end_by_themselves(engine, executor, submit):
    # Before Kubernetes 1.29 there is no limit; and it deletes the logs of what it ends.
    handle = submit(WAITS, parallel=None if engine.name == "kubernetes" else 2)
    for number in (1, 2):
        wait_for_log(executor, handle, number, b"begun\n")
    executor.cancel(handle)
    log = until(lambda: found if b"end\n" in (found := log_of(executor, handle, 1)) else None)
    tasks = until_settled(engine, executor, handle)
    assert tasks[1].exit_code in {7, None}
    assert log.count(b"asked to end") == 1
    assert log_of(executor, handle, 3) == b""
    executor.cancel(handle)
    executor.cancel(handle, [1], now=True)
    after = executor.tasks({"one": handle})["one"]
    assert standings(after) == standings(tasks)


def test_now_means_now(executor, submit):
    handle = submit(DEAF, numbers=(1,))
    wait_for_log(executor, handle, 1, b"begun\n")
    executor.cancel(handle, now=True)
    until_tasks(executor, handle, all_ended)


def test_many_batches_are_asked_at_once_and_do_not_mix(executor, submit):
    handles = {"exits": submit(EXITS, "a"), "waits": submit(WAITS, "b", numbers=(1,))}
    until_tasks(executor, handles["exits"], all_ended)
    until_tasks(executor, handles["waits"], lambda tasks: tasks[1].state is RUNNING)
    found = executor.tasks({**handles, "broken": {"other": "engine"}})
    assert {one.state for one in found["exits"].values()} == {ENDED}
    assert found["waits"][1].state is RUNNING
    assert {one.state for one in found["broken"].values()} <= {UNKNOWN}
    assert executor.tasks({}) == {}


def test_a_handle_is_all_that_another_executor_needs(engine, executor, submit):
    handle = submit(WAITS, numbers=(1,))
    adopting = engine.make_batches()
    wait_for_log(adopting, handle, 1, b"begun\n")
    adopting.cancel(handle)
    tasks = until_settled(engine, adopting, handle)
    assert standings(executor.tasks({"one": handle})["one"]) == standings(tasks)
    adopting.close()


def test_submitted_twice_it_runs_once(executor, submit):
    handle = submit(ONCE, numbers=(1,))
    assert submit(ONCE, numbers=(1,)) == handle
    until_tasks(executor, handle, all_ended)
    assert submit(ONCE, numbers=(1,)) == handle
    assert until_tasks(executor, handle, all_ended)[1].exit_code == 0
    assert log_of(executor, handle, 1).count(b"begun") == 1


@pytest.mark.soak
def test_a_submitter_that_is_killed_neither_loses_nor_doubles_tasks(
    engine, executor, submit, place, rounds
):
    is_here = engine.name == "process"
    for number in rounds(1 if is_here else 5):
        job = f"k{number}"
        arguments = json.dumps([engine.name, dict(engine.settings), job, str(place), ONCE])
        submitter = [sys.executable, "-m", "tests.engines.rigs", "batch", arguments]
        with subprocess.Popen(
            submitter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as killed:
            assert killed.stdout.readline() == "ready\n"
            killed.stdin.write("go\n")
            killed.stdin.flush()
            time.sleep(random.Random(number).uniform(0, 0.2 if is_here else 1.5))
            killed.kill()
            printed = killed.stdout.read()
        handle = submit(ONCE, job)
        if printed:
            assert json.loads(printed) == handle
        tasks = until_tasks(executor, handle, all_ended)
        assert {one.exit_code for one in tasks.values()} == {0}
        for one in tasks:
            assert log_of(executor, handle, one).count(b"begun") == 1


def test_what_has_been_released_is_ended_and_can_be_released_again(executor, submit):
    handle = submit(EXITS)
    until_tasks(executor, handle, all_ended)
    executor.release(handle)
    executor.release(handle)
    assert all_ended(executor.tasks({"one": handle})["one"])


def test_a_batch_says_its_name_on_the_engine(place):
    assert make_batch(place, ONCE, "k3x", attempt=2).name == "aboard-k3x-2"
    assert isinstance(make_batch(place, ONCE), Batch)
