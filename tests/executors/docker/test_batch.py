"""Tasks as containers: what they see, what others see of them, and who ends them."""

import gc
import json
import os
import signal
from collections import Counter

import pytest

from aboard.executors.base import PAYLOAD, Batch, ExecutorError, Resources, TaskState
from aboard.executors.docker.batch import DockerBatches
from aboard.executors.docker.daemon import DockerSettings
from tests.executors.test_queue import (
    ended,
    in_state,
    kill_supervisor,
    look,
    supervisors,
    until,
)

pytestmark = [
    pytest.mark.engine("docker"),
    # docker-py leaves the socket of a refused connection to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECRET = "a-secret-that-nobody-may-read"
LOOKS = """
import json, os, sys
def writes(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return "written"
payload, place = sys.argv[1], os.path.dirname(os.getcwd())
print(json.dumps({
    "uid": os.getuid(), "payload": open(payload).read(), "number": sys.argv[2],
    "cwd": os.getcwd(), "colour": os.environ["COLOUR"], "own": writes(payload),
    "root": writes("/x"), "workdir": writes("x"), "written": writes(place + "/written/x"),
    "read": writes(place + "/read/x"), "temporary": writes(os.environ["TMPDIR"] + "/x"),
    "cache": writes(os.environ["ABOARD_SPOOL"] + "/x"),
    "shared": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
}))
"""


@pytest.fixture(autouse=True)
def collected():
    yield
    gc.collect()


@pytest.fixture
def make_executor(docker_engine):
    made = []

    def make(**settings):
        settings = {"host": docker_engine.host, "image": docker_engine.image, **settings}
        executor = DockerBatches({"": DockerSettings(**settings)})
        executor.grace = 1.0
        made.append(executor)
        return executor

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def executor(make_executor):
    return make_executor()


@pytest.fixture
def make(tmp_path, executor, docker_engine, monkeypatch):
    """Make a batch of shell scripts, which get the payload and their number; end it at last."""
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ABOARD_SPOOL", raising=False)
    made = []

    def make(script, numbers=(1,), **options):
        (tmp_path / "work").mkdir(exist_ok=True)
        batch = Batch(
            **{
                "job": "a",
                "numbers": tuple(numbers),
                "command": ("sh", "-c", script, "sh"),
                "payload": b"{}",
                "directory": tmp_path / "a" / "1",
                "workdir": tmp_path / "work",
                **options,
            }
        )
        made.append(batch)
        return batch

    yield make
    if not docker_engine.runs:
        docker_engine.start()
    for batch in made:
        if (batch.directory / "queue.json").exists():
            handle = json.loads((batch.directory / "queue.json").read_bytes())["handle"]
            executor.cancel(handle, now=True)
            ended(executor, handle)
        until(lambda batch=batch: not supervisors(batch.directory))
    assert not containers(docker_engine)


def containers(engine):
    return engine.docker("ps", "--all", "--format", "{{.Names}}").split()


def test_a_task_sees_the_machine_as_its_user_and_writes_where_it_may(
    make_executor, make, docker_engine, tmp_path
):
    executor = make_executor(environment={"COLOUR": SECRET}, labels={"team": "vision"})
    for name in ("read", "written"):
        (tmp_path / name).mkdir()
    command = ("python", "-S", "-c", f"{LOOKS}\nimport time; sys.stdout.flush(); time.sleep(600)")
    batch = make(
        "",
        command=command,
        payload=SECRET.encode(),
        reads=(tmp_path / "read",),
        writes=(tmp_path / "written",),
        resources=Resources(memory=256 << 20, cpus=0.5),
    )
    handle = executor.submit(batch)
    seen = json.loads(until(lambda: b"".join(executor.logs(handle, 1))))
    denied = "Read-only file system"
    assert (seen["uid"], seen["number"], seen["payload"]) == (os.getuid(), "1", SECRET)
    assert (seen["cwd"], seen["colour"]) == (str(tmp_path / "work"), SECRET)
    assert {seen[name] for name in ("own", "root", "read")} == {denied}
    assert {seen[name] for name in ("workdir", "written", "temporary", "cache")} == {"written"}
    assert seen["shared"] == 256 << 20
    (shown,) = json.loads(docker_engine.docker("inspect", "aboard-a-1-1"))
    assert SECRET not in json.dumps(shown)
    assert shown["Config"]["Labels"]["team"] == "vision"
    host = shown["HostConfig"]
    assert (host["Memory"], host["NanoCpus"], host["CapDrop"]) == (256 << 20, 500_000_000, ["ALL"])
    executor.cancel(handle, now=True)
    found = ended(executor, handle)
    assert (found[1].exit_code, found[1].reason, found[1].unit) == (
        -signal.SIGKILL,
        "it was stopped",
        "aboard-a-1-1",
    )
    until(lambda: not (batch.directory / PAYLOAD).exists())
    assert (tmp_path / "work" / "x").exists()


def test_containers_are_removed_once_their_exit_codes_are_known(executor, make, docker_engine):
    handle = executor.submit(make('echo "$2"; echo error >&2; exit "$2"', (3, 4), parallel=2))
    found = ended(executor, handle)
    assert [found[number].exit_code for number in (3, 4)] == [3, 4]
    assert b"".join(executor.logs(handle, 4)) == b"4\nerror\n"
    until(lambda: not containers(docker_engine))
    executor.release(handle)
    assert {one.exit_code for one in look(executor, handle).values()} == {3, 4}


def test_a_stop_reaches_those_that_run_and_those_that_wait(executor, make):
    script = "trap 'echo bye; exit 7' TERM; echo ready; sleep 600 & wait"
    handle = executor.submit(make(script, (1, 2), parallel=1))
    until(lambda: b"ready" in b"".join(executor.logs(handle, 1)))
    executor.cancel(handle)
    found = ended(executor, handle)
    assert (found[1].exit_code, found[1].reason) == (7, "it was stopped")
    assert (found[2].exit_code, found[2].reason) == (None, "it was stopped")


def test_limits_end_a_task_with_a_reason(executor, make):
    script = "head -c 100m /dev/zero | tail"
    limited = Resources(memory=32 << 20)
    handle = executor.submit(make(script, resources=limited))
    assert ended(executor, handle)[1].reason == "used more than its 32.0 MiB of memory"


def test_a_time_limit_ends_a_task(executor, make):
    handle = executor.submit(make("sleep 600", resources=Resources(time=1.0)))
    assert ended(executor, handle)[1].reason == "it reached its time limit of 1s"


def test_an_image_that_is_missing_is_an_error_and_nothing_is_left(executor, make, tmp_path):
    with pytest.raises(ExecutorError, match=r"Docker has no image no-such:1. Check: docker images"):
        executor.submit(make("true", image="no-such:1"))
    assert not (tmp_path / "a").exists()


def test_a_daemon_that_does_not_answer_is_an_error_and_nothing_is_left(
    make_executor, make, tmp_path
):
    executor = make_executor(host=f"unix://{tmp_path}/none.sock")
    with pytest.raises(ExecutorError, match=r"none.sock: Docker does not answer: no such file"):
        executor.submit(make("true"))
    assert not (tmp_path / "a").exists()


def test_an_image_without_aboard_is_named_with_what_to_do(executor, make, docker_engine):
    handle = executor.submit(make("true", image=docker_engine.base))
    status = ended(executor, handle)[1]
    base = docker_engine.base
    assert status.exit_code == 1
    assert status.reason == (
        f"image {base} has no Aboard for python3. "
        f"Add it: aboard image build --base {base} --tag NAME"
    )


def test_an_image_without_python_is_named_with_what_to_do(make_executor, make):
    executor = make_executor(python="/opt/nothing")
    handle = executor.submit(make("true"))
    status = ended(executor, handle)[1]
    assert status.exit_code == 127
    assert "has no Aboard for /opt/nothing. Add it: aboard image build" in status.reason


def test_containers_go_on_without_their_supervisor_and_are_adopted(executor, make, tmp_path):
    script = 'echo "$2" >>ran; while [ ! -e go ]; do sleep 0.1; done; exit "$2"'
    batch = make(script, (1, 2, 3), parallel=2)
    handle = executor.submit(batch)
    in_state(executor, handle, TaskState.RUNNING, 2)
    ran = batch.workdir / "ran"
    until(lambda: ran.exists() and len(ran.read_text().split()) == 2)
    kill_supervisor(batch.directory)
    (batch.workdir / "go").touch()
    found = ended(executor, handle)
    assert [found[number].exit_code for number in (1, 2, 3)] == [1, 2, 3]
    assert sorted(ran.read_text().split()) == ["1", "2", "3"]


def test_without_the_daemon_tasks_are_unknown_and_go_on_when_it_is_back(
    executor, make, docker_engine
):
    script = 'echo "$2" >>ran; while [ ! -e go ]; do sleep 0.1; done'
    batch = make(script, (1, 2), parallel=1)
    handle = executor.submit(batch)
    until((batch.workdir / "ran").exists)
    docker_engine.kill()
    status = in_state(executor, handle, TaskState.UNKNOWN)
    assert "Docker does not answer" in status.reason
    waits = look(executor, handle)[2]
    assert (waits.state, waits.reason) == (TaskState.WAITING, status.reason)
    docker_engine.start()
    in_state(executor, handle, TaskState.RUNNING)
    (batch.workdir / "go").touch()
    assert [one.exit_code for one in ended(executor, handle).values()] == [0, 0]
    assert (batch.workdir / "ran").read_text().split() == ["1", "2"]


def test_a_container_of_another_job_is_left_alone(executor, make, docker_engine):
    docker_engine.docker("create", "--name", "aboard-a-1-1", docker_engine.base, "true")
    handle = executor.submit(make("true"))
    reason = "container aboard-a-1-1 belongs to another job. Remove it: docker rm -f aboard-a-1-1"
    until(lambda: look(executor, handle)[1].reason == reason)
    docker_engine.docker("rm", "aboard-a-1-1")
    assert ended(executor, handle)[1].exit_code == 0


def test_gpus_are_requested_by_name(executor, make, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    handle = executor.submit(make("true", resources=Resources(gpus=1)))
    # There is none here, and Docker says so.
    until(lambda: "gpu" in look(executor, handle)[1].reason.lower())


def test_a_preview_shows_the_commands_and_asks_no_daemon(make_executor, make, tmp_path):
    executor = make_executor(host=f"unix://{tmp_path}/none.sock")
    shown = executor.preview(make("true", (1, 2), resources=Resources(memory=1 << 30))).splitlines()
    assert len(shown) == 2
    assert shown[1].startswith("docker run --name aboard-a-1-2 ")
    assert f" --mount type=bind,src={tmp_path}/work,dst={tmp_path}/work " in shown[1]
    assert " --read-only --tmpfs /tmp:size=64m,mode=1777 " in shown[1]
    with pytest.raises(ExecutorError, match="docker starts each member once"):
        executor.preview(make("true", resources=Resources(nodes=2)))


def test_each_task_runs_once_although_its_supervisor_is_killed(executor, make):
    script = 'echo "$2" >>ran; [ "$2" != 6 ] || while [ ! -e go ]; do sleep 0.1; done'
    batch = make(script, range(1, 7), parallel=2)
    handle = executor.submit(batch)
    ran = batch.workdir / "ran"
    for tasks in (1, 4):
        in_state(executor, handle, TaskState.ENDED, tasks)
        kill_supervisor(batch.directory)
    (batch.workdir / "go").touch()
    found = ended(executor, handle)
    assert {one.exit_code for one in found.values()} == {0}
    assert Counter(ran.read_text().split()) == Counter(map(str, range(1, 7)))
