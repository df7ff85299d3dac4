"""Tasks as processes: who ends, who is killed, and what is known afterwards."""

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from aboard.executors import queue as queue_module
from aboard.executors.base import PAYLOAD, PYTHON, Batch, ExecutorError, Resources, TaskState
from aboard.executors.process import ProcessBatches
from tests.waiting import until

SECRET = "a-secret-that-nobody-may-read"
REPOSITORY = Path(__file__).parents[2]
DYING = """
import sys
sys.path.insert(0, {repository!r})
from tests.engines.line_killer import die_after
from aboard.executors import process, queue
die_after({lines}, ["executors/queue.py", "executors/process.py"])
queue.supervise()
"""
SUBMITTER = """
import json, os, signal, sys
from pathlib import Path
from aboard.executors.base import Batch
from aboard.executors.process import ProcessBatches
directory = Path(sys.argv[1])
batch = Batch(job="a", numbers=(1, 2), command=("/bin/sh", "-c", sys.argv[2], "sh"), payload=b"{}",
              directory=directory, workdir=Path("/tmp"), parallel=1)
print(json.dumps(ProcessBatches().submit(batch)), flush=True)
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture
def executor():
    executor = ProcessBatches()
    executor.grace = 0.3
    return executor


@pytest.fixture
def make(tmp_path, executor, monkeypatch):
    """Make a batch of shell scripts, which get the payload and their number; end it at last."""
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    made = []

    def make(script, numbers=(1,), job="a", **options):
        options = {"directory": tmp_path / job / "1", "payload": b"{}", **options}
        batch = Batch(
            job=job,
            numbers=tuple(numbers),
            command=("/bin/sh", "-c", script, "sh"),
            **{"workdir": tmp_path, **options},
        )
        made.append(batch)
        return batch

    yield make
    for batch in made:
        if (batch.directory / "queue.json").exists():
            handle = json.loads((batch.directory / "queue.json").read_bytes())["handle"]
            executor.cancel(handle, now=True)
            ended(executor, handle)
        until(lambda batch=batch: not supervisors(batch.directory))


def look(executor, handle):
    return executor.tasks({"one": handle})["one"]


def ended(executor, handle):
    def all_ended():
        found = look(executor, handle)
        return all(one.state is TaskState.ENDED for one in found.values()) and found

    return until(all_ended)


def in_state(executor, handle, state, number=1):
    return until(lambda: (now := look(executor, handle)[number]).state is state and now)


def supervisors(directory):
    """Return the processes that supervise a queue."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = os.fsdecode((place / "cmdline").read_bytes()).split("\0")
        except OSError:
            continue
        if str(directory) in words and "-c" in words and words[0] == sys.executable:
            found.append(int(place.name))
    return found


def kill_supervisor(directory):
    (pid,) = until(lambda: supervisors(directory))
    os.kill(pid, signal.SIGKILL)
    until(lambda: not exists(pid))  # only then its lock is free


def exists(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pids_in(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


# What tasks get, and how they end.


def test_tasks_get_the_payload_their_number_and_the_submitters_environment(
    executor, make, monkeypatch, tmp_path
):
    monkeypatch.setenv("COLOUR", "blue")
    script = 'cat "$1"; echo " $2 $COLOUR $(pwd)"; echo error >&2; exit $2'
    handle = executor.submit(make(script, (3, 5), payload=b'{"secret": 1}'))
    found = ended(executor, handle)
    assert {number: one.exit_code for number, one in found.items()} == {3: 3, 5: 5}
    assert {one.reason for one in found.values()} == {""}
    written = b"".join(executor.logs(handle, 5))
    assert written.decode() == f'{{"secret": 1}} 5 blue {tmp_path}\nerror\n'
    assert b"".join(executor.logs(handle, 5, tail=1)) == b"error\n"


@pytest.mark.engine("process")
def test_the_first_word_is_this_interpreter(executor, make, tmp_path):
    batch = Batch(
        job="a",
        numbers=(1,),
        command=(PYTHON, "-S", "-c", "import sys; print(sys.executable, sys.argv[2])"),
        payload=b"{}",
        directory=make("").directory,
        workdir=tmp_path,
    )
    handle = executor.submit(batch)
    ended(executor, handle)
    assert b"".join(executor.logs(handle, 1)).decode().split() == [sys.executable, "1"]


def test_only_some_run_at_a_time_and_the_others_say_why_they_wait(executor, make):
    handle = executor.submit(make("sleep 600", range(1, 5), parallel=2))
    in_state(executor, handle, TaskState.RUNNING, 2)
    found = look(executor, handle)
    assert [found[number].state for number in (1, 2, 3, 4)] == ["running"] * 2 + ["waiting"] * 2
    assert found[4].reason == "at most 2 of this job run at a time"
    assert exists(int(found[1].unit))


def test_a_task_that_is_about_to_start_waits_for_no_other(executor, make, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(queue_module.Queue, "supervise", lambda _: True)
        found = look(executor, executor.submit(make("true", (1, 2), parallel=2)))
    assert [one.reason for one in found.values()] == ["", ""]


def test_more_memory_than_the_machine_has_is_refused(executor, make):
    batch = make("true", (1,), resources=Resources(memory=1 << 50))
    with pytest.raises(ExecutorError, match=r"1048576\.0 GiB of memory, but this machine has"):
        executor.submit(batch)
    assert not batch.directory.exists()


def test_nothing_secret_is_in_command_lines_or_files_of_others(
    executor, make, monkeypatch, tmp_path
):
    monkeypatch.setenv("PASSWORD", SECRET)
    batch = make("sleep 600", (1, 2), parallel=1, payload=SECRET.encode())
    handle = executor.submit(batch)
    pid = int(in_state(executor, handle, TaskState.RUNNING).unit)
    shown = [
        Path(f"/proc/{one}/cmdline").read_bytes() for one in (pid, *supervisors(batch.directory))
    ]
    assert SECRET.encode() not in b"".join([*shown, json.dumps(handle).encode()])
    holders = [file for file in batch.directory.rglob("*") if file.is_file()]
    holders = [file for file in holders if SECRET.encode() in file.read_bytes()]
    assert {file.name for file in holders} == {PAYLOAD, "environment.json"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in holders} == {0o600}
    executor.cancel(handle, now=True)
    ended(executor, handle)
    until(lambda: not any(file.exists() for file in holders))


def test_a_stop_reaches_all_that_a_task_started_and_those_that_wait(executor, make, tmp_path):
    # One child ignores the signal, and one has left the group, as workers of torchrun do.
    script = f"""
    trap '' TERM
    sleep 601 & echo $! >>{tmp_path}/pids
    setsid sleep 602 & echo $! >>{tmp_path}/pids
    wait; wait
    """
    handle = executor.submit(make(script, (1, 2), parallel=1))
    pids = until(lambda: len(found := pids_in(tmp_path / "pids")) == 2 and found)
    executor.cancel(handle)
    found = ended(executor, handle)
    assert [found[number].reason for number in (1, 2)] == ["it was stopped"] * 2
    assert (found[1].exit_code, found[2].exit_code) == (-9, None)
    until(lambda: not any(map(exists, pids)))


@pytest.mark.engine("process")
def test_some_tasks_can_be_stopped_and_end_by_themselves(executor, make):
    script = "trap 'echo bye; exit 7' TERM; sleep 600 & wait"
    handle = executor.submit(make(script, (1, 2, 3), parallel=2))
    in_state(executor, handle, TaskState.RUNNING, 2)
    executor.cancel(handle, [1])
    in_state(executor, handle, TaskState.RUNNING, 3)
    found = look(executor, handle)
    assert (found[1].exit_code, found[1].reason) == (7, "it was stopped")
    assert found[2].state is TaskState.RUNNING
    assert b"".join(executor.logs(handle, 1)) == b"bye\n"


@pytest.mark.engine("process")
def test_what_a_task_leaves_behind_ends_with_it(executor, make, tmp_path):
    handle = executor.submit(make(f"sleep 600 & echo $! >{tmp_path}/pids"))
    assert ended(executor, handle)[1].exit_code == 0
    until(lambda: not any(map(exists, pids_in(tmp_path / "pids"))))


@pytest.mark.engine("process")
def test_a_signal_is_named(executor, make):
    handle = executor.submit(make("kill -USR1 $$"))
    status = ended(executor, handle)[1]
    assert (status.exit_code, status.reason) == (-signal.SIGUSR1, "it was killed by SIGUSR1")


@pytest.mark.engine("process")
def test_a_time_limit_ends_a_task_also_after_its_supervisor_was_killed(executor, make):
    batch = make("sleep 600", resources=Resources(time=3.0))
    handle = executor.submit(batch)
    in_state(executor, handle, TaskState.RUNNING)
    kill_supervisor(batch.directory)
    status = ended(executor, handle)[1]
    assert status.exit_code == -signal.SIGTERM
    assert status.reason == "it reached its time limit of 3s"


@pytest.mark.engine("process")
def test_a_memory_limit_counts_what_a_task_started(executor, make):
    fills = "kept = b'x' * (200 << 20); import time; time.sleep(600)"
    script = f'{sys.executable} -S -c "{fills}"; sleep 600'
    handle = executor.submit(make(script, resources=Resources(memory=150 << 20)))
    status = ended(executor, handle)[1]
    assert status.reason.startswith("used ")
    assert status.reason.endswith(" of 150.0 MiB memory")


# GPUs.


@pytest.mark.engine("process")
def test_each_task_has_gpus_of_its_own_also_of_several_jobs(executor, make, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    script = 'echo "$CUDA_VISIBLE_DEVICES"; sleep 600'
    one = make(script, (1, 2), "one", resources=Resources(gpus=1))
    first = executor.submit(one)
    names = [until(lambda n=n: b"".join(executor.logs(first, n))) for n in (1, 2)]
    kill_supervisor(one.directory)  # its tasks still use them
    other = executor.submit(make(script, (1, 2), "other", resources=Resources(gpus=1)))
    in_state(executor, other, TaskState.RUNNING)
    waits = until(lambda: "GPU" in (now := look(executor, other)[2]).reason and now)
    assert (waits.state, waits.reason) == (
        "waiting",
        "it waits for a GPU: other jobs use all of them",
    )
    names.append(until(lambda: b"".join(executor.logs(other, 1))))
    assert sorted(names) == [b"0\n", b"1\n", b"2\n"]
    executor.cancel(first, [1], now=True)
    in_state(executor, other, TaskState.RUNNING, 2)
    assert until(lambda: b"".join(executor.logs(other, 2))) == names[0]


@pytest.mark.engine("process")
def test_a_gpu_is_used_that_a_container_has_whose_supervisor_was_killed(
    executor, make, monkeypatch, tmp_path
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    one = make("sleep 600", job="one")
    first = executor.submit(one)
    in_state(executor, first, TaskState.RUNNING)
    kill_supervisor(one.directory)
    (tmp_path / "cache" / "gpus").mkdir(parents=True)  # as the runner of containers leaves it
    (tmp_path / "cache" / "gpus" / "0").write_text(f"{one.directory}:1")
    other = executor.submit(make("true", job="other", resources=Resources(gpus=1)))
    until(
        lambda: look(executor, other)[1].reason == "it waits for a GPU: other jobs use all of them"
    )
    until(lambda: supervisors(one.directory))
    executor.cancel(first, now=True)
    assert ended(executor, other)[1].exit_code == 0


@pytest.mark.engine("process")
def test_gpus_are_found_by_nvidia_smi(executor, make, monkeypatch, tmp_path):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    listed = "".join(f"GPU {n}: NVIDIA A100-SXM4-40GB (UUID: GPU-{n}{n})\n" for n in range(2))
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{listed}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    batch = make('echo "$CUDA_VISIBLE_DEVICES"', resources=Resources(gpus=2))
    handle = executor.submit(batch)
    ended(executor, handle)
    assert b"".join(executor.logs(handle, 1)) == b"GPU-00,GPU-11\n"
    for ask in (executor.submit, executor.preview):
        with pytest.raises(ExecutorError, match=r"each member requests 3 GPUs, but .* show 2\."):
            ask(make("true", job="b", resources=Resources(gpus=3)))


# What cannot be submitted.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resources": Resources(cpus=100_000)}, r"100000 CPUs, but this machine has \d+\."),
        ({"resources": Resources(nodes=2)}, "process starts each member once, on this machine"),
        ({"image": "python:3"}, r"cannot use an image \(python:3\). Submit the job to docker"),
        ({"workdir": Path("/no/such/place")}, "/no/such/place: working directory not found"),
        ({"directory": Path("/proc/nothing")}, "/proc/nothing: job a cannot be submitted: no such"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_and_leaves_nothing(
    executor, make, tmp_path, options, message
):
    batch = make("true", **options)
    with pytest.raises(ExecutorError, match=message) as refused:
        executor.submit(batch)
    assert "\n" not in str(refused.value)
    assert " --" not in str(refused.value).removesuffix("torchrun --nproc-per-node N")
    assert not list(tmp_path.rglob("a"))


def test_a_preview_shows_the_commands_and_starts_nothing(executor, make, tmp_path):
    batch = make("true", (1, 2))
    payload = batch.directory / PAYLOAD
    shown = executor.preview(batch).splitlines()
    assert shown[0] == f"cd {tmp_path}"
    assert shown[2] == f"/bin/sh -c true sh {payload} 2"
    assert not batch.directory.exists()


# What is known after kills, restarts and removals.


def test_a_batch_outlives_its_submitter_and_a_second_submission_finds_it(executor, make, tmp_path):
    script = f'sleep 0.2; echo "$2" >>{tmp_path}/ran'
    directory = make(script).directory
    command = [sys.executable, "-c", SUBMITTER, directory, script]
    done = subprocess.run(command, capture_output=True, check=False, process_group=0)
    assert done.returncode == -signal.SIGKILL, done.stderr
    handle = json.loads(done.stdout)
    assert executor.submit(make(script, (1, 2), directory=directory)) == handle
    assert {one.exit_code for one in ended(executor, handle).values()} == {0}
    assert executor.submit(make(script, (1, 2), directory=directory)) == handle
    assert sorted((tmp_path / "ran").read_text().split()) == ["1", "2"]


def test_a_task_goes_on_without_its_supervisor_and_its_exit_code_is_kept(executor, make, tmp_path):
    batch = make(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 3", (1, 2), parallel=1)
    handle = executor.submit(batch)
    pid = int(in_state(executor, handle, TaskState.RUNNING).unit)
    kill_supervisor(batch.directory)
    (tmp_path / "go").touch()
    until(lambda: not exists(pid))
    found = ended(executor, handle)
    assert [one.exit_code for one in found.values()] == [3, 3]


@pytest.mark.engine("process")
def test_a_query_answers_where_no_supervisor_can_be_started(executor, make, monkeypatch):
    batch = make("sleep 600", (1, 2), parallel=1)
    handle = executor.submit(batch)
    in_state(executor, handle, TaskState.RUNNING)
    kill_supervisor(batch.directory)

    def refused(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(queue_module.system, "spawn", refused)
        found = look(executor, handle)
        assert (found[1].state, found[2].state) == (TaskState.RUNNING, TaskState.WAITING)
        assert found[2].reason == "its queue is blocked: resource temporarily unavailable"
        with pytest.raises(ExecutorError, match="job a cannot be stopped: resource temporarily"):
            executor.cancel(handle)
    assert ended(executor, handle)[1].reason == "it was stopped"  # it was noted all the same


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_what_others_could_have_written_is_not_run(executor, make, mode):
    """The handle of a job below a shared root names any directory that its author chose."""
    batch = make("sleep 600", (1, 2), parallel=1)
    handle = executor.submit(batch)
    in_state(executor, handle, TaskState.RUNNING)
    kill_supervisor(batch.directory)
    batch.directory.chmod(mode)
    found = look(executor, handle)
    assert (found[1].state, found[2].state) == (TaskState.RUNNING, TaskState.WAITING)
    assert found[2].reason.endswith("it waits for the user who submitted it")
    assert not supervisors(batch.directory)
    batch.directory.chmod(0o700)


@pytest.mark.parametrize("change", [{"host": "other", "boot": "another"}, {"pids": 1}])
def test_what_runs_elsewhere_is_unknown_here(executor, make, change):
    handle = executor.submit(make("sleep 600"))
    elsewhere = handle | change
    status = look(executor, elsewhere)[1]
    assert status.state is TaskState.UNKNOWN
    assert status.reason == f"it runs on {elsewhere['host']}; use that machine"
    with pytest.raises(ExecutorError, match="use that machine"):
        executor.cancel(elsewhere)
    elsewhere["directory"] = "/not/here"
    assert look(executor, elsewhere)[1] == status


def test_after_a_restart_of_the_machine_what_ran_has_ended_and_what_waited_goes_on(
    executor, make, tmp_path
):
    batch = make(f'echo "$2" >>{tmp_path}/ran; [ "$2" = 2 ] || sleep 600', (1, 2), parallel=1)
    handle = executor.submit(batch)
    pid = int(in_state(executor, handle, TaskState.RUNNING).unit)
    until(lambda: (tmp_path / "ran").exists() and (tmp_path / "ran").read_text())
    kill_supervisor(batch.directory)
    os.killpg(pid, signal.SIGKILL)
    journal = batch.directory / "journal"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    journal.write_text(journal.read_text().replace(boot, "before"))
    found = look(executor, handle)
    assert (found[1].reason, found[2].state) == ("the machine was restarted", TaskState.WAITING)
    found = ended(executor, handle)
    assert (found[1].exit_code, found[1].reason) == (None, "the machine was restarted")
    assert (found[2].exit_code, found[2].reason) == (0, "")
    assert sorted((tmp_path / "ran").read_text().split()) == ["1", "2"]


@pytest.mark.engine("process")
def test_tasks_end_when_their_directory_is_removed(executor, make):
    batch = make("sleep 600", (1, 2), parallel=1)
    handle = executor.submit(batch)
    pid = int(in_state(executor, handle, TaskState.RUNNING).unit)
    subprocess.run(["rm", "-r", batch.directory], check=True)
    found = look(executor, handle)
    assert {one.state for one in found.values()} == {TaskState.ENDED}
    assert found[1].reason == f"{batch.directory}: the files were removed"
    until(lambda: not exists(pid))
    until(lambda: not supervisors(batch.directory))


@pytest.mark.engine("process")
def test_on_a_full_disk_tasks_wait_and_say_why(executor, tiny_disk, make):
    script = '[ "$2" = 2 ] || sleep 600'
    batch = make(script, (1, 2), parallel=1, directory=tiny_disk / "a")
    handle = executor.submit(batch)
    pid = int(in_state(executor, handle, TaskState.RUNNING).unit)
    kill_supervisor(batch.directory)
    with (batch.directory / "journal").open("ab") as journal:  # up to the end of its page
        journal.write(b'["again",9' + b" " * (4096 - journal.tell() - 12) + b"]\n")
    with suppress(OSError), (tiny_disk / "full").open("wb", 0) as file:
        while True:
            file.write(bytes(4096))
    os.killpg(pid, signal.SIGKILL)
    full = "no space left on device"
    waiting = until(lambda: (now := look(executor, handle)[2]).reason == full and now)
    assert waiting.state is TaskState.WAITING
    (tiny_disk / "full").unlink()
    assert [one.exit_code for one in ended(executor, handle).values()] == [None, 0]


def test_a_damaged_handle_or_journal_raises_nothing(executor, make):
    assert executor.tasks({"one": {"numbers": "1-2"}})["one"][2].state is TaskState.UNKNOWN
    batch = make("true", (1, 2, 3))
    handle = executor.submit(batch)
    ended(executor, handle)
    journal = batch.directory / "journal"
    until(lambda: not supervisors(batch.directory))
    journal.write_bytes(journal.read_bytes() + b'\0\0\0\n["end",')
    assert {one.exit_code for one in look(executor, handle).values()} == {0}
    (batch.directory / "queue.json").write_text("[]")
    status = look(executor, handle)[3]
    assert (status.state, "the files are damaged" in status.reason) == (TaskState.UNKNOWN, True)
    (batch.directory / "queue.json").unlink()


# Kills of the supervisor.


@pytest.mark.soak
def test_each_task_runs_once_wherever_its_supervisor_is_killed(
    executor, make, rounds, monkeypatch, tmp_path
):
    for seed in rounds(1):
        chance = random.Random(seed)
        deaths = [chance.randrange(1, 400) for _ in range(3)]
        run_while_killed(executor, make, monkeypatch, tmp_path / str(seed), 20, deaths)


@pytest.mark.slow
def test_each_of_200_tasks_runs_once_with_kills_at_random_moments(executor, make, tmp_path):
    ran = tmp_path / "ran"
    chance = random.Random(1)
    waits = f'[ "$2" != 200 ] || while [ ! -e {tmp_path}/go ]; do sleep 0.1; done'
    batch = make(f'echo "$2" >>{ran}; sleep 0.2; {waits}', range(1, 201), parallel=8)
    handle = executor.submit(batch)
    for _ in range(10):
        time.sleep(chance.uniform(0.1, 0.5))
        look(executor, handle)
        kill_supervisor(batch.directory)
    (tmp_path / "go").touch()
    found = ended(executor, handle)
    assert {one.exit_code for one in found.values()} == {0}
    assert Counter(ran.read_text().split()) == Counter(map(str, range(1, 201)))


def run_while_killed(executor, make, monkeypatch, place, tasks, deaths):
    """Run tasks with supervisors that die after some lines; the last one goes on."""
    place.mkdir()
    ran = place / "ran"
    batch = make(f'echo "$2" >>{ran}; sleep 0.05', range(1, tasks + 1), place.name, parallel=8)
    with monkeypatch.context() as patched:
        for lines in deaths:
            dying = DYING.format(repository=str(REPOSITORY), lines=lines)
            patched.setattr(queue_module, "_SUPERVISE", dying)
            handle = executor.submit(batch)
            until(lambda: not supervisors(batch.directory))
    found = ended(executor, handle)
    assert {one.exit_code for one in found.values()} == {0}
    assert Counter(ran.read_text().split()) == Counter(map(str, range(1, tasks + 1)))
