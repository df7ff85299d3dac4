"""Vertex as an engine: CustomJobs for tasks, and a process that uploads for boards."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from aboard.executors import batch_executor
from aboard.executors.base import (
    PYTHON,
    Batch,
    CommandState,
    ExecutorError,
    Resources,
    Spec,
    TaskState,
)
from aboard.executors.vertex import api as vertex_api
from aboard.executors.vertex.api import Location
from aboard.executors.vertex.engine import (
    VertexBatches,
    VertexExecutor,
    VertexSettings,
    machine_for,
)
from aboard.executors.vertex.upload import UPLOAD, Destination
from aboard.storage import NoSuchPath, open_storage
from tests.engines.command import Result, run_command
from tests.engines.fake_gcs import FakeGcs
from tests.engines.fake_vertex import LOCATION, PARENT, PROJECT, FakeVertex, Fault
from tests.engines.rigs import fetch, until_state
from tests.waiting import until

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vertex_api, "_FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(vertex_api, "_OPERATION_SECONDS", 0.01)


@pytest.fixture
def settings(vertex: FakeVertex, gcs_bucket: str) -> VertexSettings:
    return VertexSettings(
        project=PROJECT,
        location=LOCATION,
        endpoint=vertex.url,
        output=f"{gcs_bucket}/vertex/",
        image="europe-docker.pkg.dev/demo/train:1",
        service_account="trainer@demo.iam.gserviceaccount.com",
        tensorboard="team",
    )


@pytest.fixture
def batches(settings: VertexSettings) -> Iterator[VertexBatches]:
    made = VertexBatches({"": settings})
    yield made
    made.close()


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(
        job="sweep",
        numbers=(1, 2, 3),
        command=(PYTHON, "-P", "-m", "aboard.jobs.member"),
        payload=b'{"environment": {"KEY": "a secret"}}',
        directory=tmp_path / "jobs" / "sweep" / "1",
        workdir=tmp_path,
        resources=Resources(time=3600.0),
        outputs={number: f"gs://training-logs/runs/cifar10/sweep-{number}" for number in (1, 2, 3)},
    )


def test_each_task_is_a_custom_job(
    batches: VertexBatches, batch: Batch, vertex: FakeVertex, settings: VertexSettings
) -> None:
    handle = json.loads(json.dumps(batches.submit(batch)))
    assert sorted(handle["jobs"]) == ["1", "2", "3"]
    job = vertex.jobs[handle["jobs"]["2"]]
    assert job["displayName"] == "aboard-sweep-1-2"
    (board,) = vertex.tensorboards
    spec = job["jobSpec"]
    payload = spec["workerPoolSpecs"][0]["containerSpec"]["args"][0]
    place = r"gs://training-logs/vertex/aboard-sweep-1-[0-9a-f]{8}"
    assert re.fullmatch(rf"{place}/payload\.json", payload)
    assert spec == {
        "workerPoolSpecs": [
            {
                "machineSpec": {"machineType": "n1-standard-4"},
                "replicaCount": "1",
                "containerSpec": {
                    "imageUri": "europe-docker.pkg.dev/demo/train:1",
                    "command": ["python3", "-P", "-m", "aboard.jobs.member"],
                    "args": [payload, "2"],
                },
            }
        ],
        "baseOutputDirectory": {"outputUriPrefix": "gs://training-logs/runs/cifar10/sweep-2"},
        "scheduling": {"timeout": "3600s"},
        "serviceAccount": settings.service_account,
        "tensorboard": board,
    }
    held = open_storage(payload.rpartition("/")[0])
    assert held.read("payload.json") == batch.payload
    assert "a secret" not in json.dumps([one.body for one in vertex.recorded])
    batches.release(handle)
    with pytest.raises(NoSuchPath):
        held.read("payload.json")
    batches.release(handle)


def test_runs_in_another_cloud_do_not_promise_an_empty_tensorboard(
    batches: VertexBatches, batch: Batch, vertex: FakeVertex
) -> None:
    handle = batches.submit(replace(batch, outputs={}))
    spec = vertex.jobs[handle["jobs"]["2"]]["jobSpec"]
    output = spec["baseOutputDirectory"]["outputUriPrefix"]
    assert re.fullmatch(r"gs://training-logs/vertex/aboard-sweep-1-[0-9a-f]{8}/2", output)
    assert "tensorboard" not in spec
    assert not vertex.tensorboards


def test_a_submission_that_was_interrupted_is_completed(
    batches: VertexBatches, batch: Batch, vertex: FakeVertex
) -> None:
    first = batches.submit(replace(batch, numbers=(1, 2)))
    again = batches.submit(batch)
    assert len(vertex.jobs) == 3
    assert {one: again["jobs"][one] for one in "12"} == first["jobs"]
    assert batches.submit(batch) == again
    batches.submit(replace(batch, attempt=2, numbers=(3,)))
    assert len(vertex.jobs) == 4


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("customJobs", 403, "No rights.", times=1), "permission denied: No rights."),
        (Fault("customJobs", 400, "No such image.", times=1), "rejected: No such image."),
        (Fault("customJobs", 500, "Broken.", times=1, keeps=1.0), "status 500: Broken."),
        (
            Fault("customJobs", 429, "No CPUs left.", times=1, retry_after="600"),
            "quota exceeded: No CPUs left. Try later, or ask for more quota.",
        ),
    ],
)
def test_nothing_is_left_of_a_submission_that_fails(
    batches: VertexBatches, batch: Batch, vertex: FakeVertex, fault: Fault, said: str
) -> None:
    def fail(method: str, path: str, *others: object) -> dict[str, object]:
        if method == "POST" and path.endswith("customJobs") and len(vertex.jobs) == 2:
            vertex.faults.append(fault)
        return kept(method, path, *others)

    kept = vertex.answer
    vertex.answer = fail  # type: ignore[method-assign]
    with pytest.raises(ExecutorError, match=re.escape(said)):
        batches.submit(replace(batch, numbers=(1, 2, 3, 4, 5)))
    assert vertex.jobs
    assert {one["state"] for one in vertex.jobs.values()} == {"JOB_STATE_CANCELLED"}
    spec = next(iter(vertex.jobs.values()))["jobSpec"]["workerPoolSpecs"][0]
    place = spec["containerSpec"]["args"][0].rpartition("/")[0]
    with pytest.raises(NoSuchPath):
        open_storage(place).read("payload.json")


def test_states_come_with_one_query(
    batches: VertexBatches, batch: Batch, vertex: FakeVertex
) -> None:
    many = replace(batch, numbers=tuple(range(1, 9)))
    first, second = batches.submit(many), batches.submit(replace(batch, job="other"))
    states = [
        ("JOB_STATE_QUEUED", ""),
        ("JOB_STATE_RUNNING", ""),
        ("JOB_STATE_SUCCEEDED", ""),
        ("JOB_STATE_FAILED", "The replica workerpool0-0 exited with a non-zero status of 3."),
        ("JOB_STATE_FAILED", "Image not found: train:1."),
        ("JOB_STATE_CANCELLED", ""),
        ("JOB_STATE_EXPIRED", ""),
    ]
    for number, (state, error) in enumerate(states, 1):
        job = vertex.jobs[first["jobs"][str(number)]]
        job |= {"state": state, **({"error": {"code": 3, "message": error}} if error else {})}
    del vertex.jobs[first["jobs"]["8"]]
    before = len(vertex.recorded)
    found = batches.tasks({"a": first, "b": second})
    assert len(vertex.recorded) == before + 1
    assert {
        number: (one.state, one.exit_code, one.reason) for number, one in found["a"].items()
    } == {
        1: (TaskState.WAITING, None, "queued"),
        2: (TaskState.RUNNING, None, ""),
        3: (TaskState.ENDED, 0, ""),
        4: (TaskState.ENDED, 3, ""),
        5: (TaskState.ENDED, None, "Image not found: train:1."),
        6: (TaskState.ENDED, None, "cancelled"),
        7: (TaskState.ENDED, None, "it reached its time limit"),
        8: (TaskState.ENDED, None, "Vertex has no record of it"),
    }
    assert {one.state for one in found["b"].values()} == {TaskState.WAITING}
    assert found["a"][2].unit == first["jobs"]["2"].rpartition("/")[2]


def test_a_failed_query_is_unknown(
    batches: VertexBatches, batch: Batch, vertex: FakeVertex
) -> None:
    handle = batches.submit(batch)
    vertex.is_revoked = True
    vertex.expire_tokens()
    found = batches.tasks({"a": handle})["a"]
    assert {one.state for one in found.values()} == {TaskState.UNKNOWN}
    assert "credentials have expired" in found[1].reason


def test_some_tasks_are_cancelled(batches: VertexBatches, batch: Batch, vertex: FakeVertex) -> None:
    handle = batches.submit(batch)
    vertex.jobs[handle["jobs"]["1"]]["state"] = "JOB_STATE_SUCCEEDED"
    batches.cancel(handle, [2])
    states = {number: one.state for number, one in batches.tasks({"a": handle})["a"].items()}
    assert states == {1: TaskState.ENDED, 2: TaskState.ENDED, 3: TaskState.WAITING}
    batches.cancel(handle)
    assert vertex.jobs[handle["jobs"]["1"]]["state"] == "JOB_STATE_SUCCEEDED"
    assert vertex.jobs[handle["jobs"]["3"]]["state"] == "JOB_STATE_CANCELLED"


def test_the_log_says_where_it_is(batches: VertexBatches, batch: Batch) -> None:
    handle = batches.submit(batch)
    said = b"".join(batches.logs(handle, 2)).decode()
    job = handle["jobs"]["2"].rpartition("/")[2]
    assert f"job_id%3D%22{job}%22?project=demo" in said


def test_a_preview_asks_nothing(batches: VertexBatches, batch: Batch, vertex: FakeVertex) -> None:
    shown = batches.preview(replace(batch, numbers=(7,)))
    first, _, body = shown.partition("\n")
    assert first == f"POST {vertex.url}/v1/{PARENT}/customJobs"
    job = json.loads(body)
    assert job["jobSpec"]["tensorboard"] == f"{PARENT}/tensorboards/[team]"
    assert "a secret" not in shown
    assert vertex.recorded == []


@pytest.mark.parametrize(
    ("changes", "of_batch", "said"),
    [
        ({"project": ""}, {}, "Vertex needs a project. Set project in [executors.vertex]"),
        ({"image": ""}, {}, "needs an image. Name one"),
        ({"output": ""}, {}, "need a directory in a bucket. Set output"),
        (
            {},
            {"writes": (Path("/data/runs"),)},
            "cannot write to /data/runs. Use a root in a bucket",
        ),
        ({}, {"parallel": 2}, "Omit the number of parallel tasks"),
        ({}, {"resources": Resources(gpus=1)}, "GPUs need accelerator_type"),
        ({}, {"resources": Resources(tasks_per_node=4)}, "one process per node"),
        ({}, {"resources": Resources(cpus=200)}, "no machine type of the n1 family"),
        ({}, {"profile": "big"}, "vertex has no profile 'big'"),
    ],
)
def test_what_vertex_cannot_do_is_refused_at_once(
    settings: VertexSettings,
    batch: Batch,
    vertex: FakeVertex,
    changes: dict[str, str],
    of_batch: dict[str, object],
    said: str,
) -> None:
    batches = VertexBatches({"": replace(settings, **changes)})
    with pytest.raises(ExecutorError, match=re.escape(said)):
        batches.submit(replace(batch, **of_batch))  # type: ignore[arg-type]
    assert vertex.recorded == []


def test_machines_and_nodes(batches: VertexBatches, batch: Batch, settings: VertexSettings) -> None:
    assert machine_for(Resources(cpus=4, memory=16 * GIB)) == "n1-highmem-4"
    assert machine_for(Resources(cpus=5)) == "n1-standard-8"
    gpu = VertexBatches({"": replace(settings, accelerator_type="NVIDIA_L4", machine_type="g2")})
    resources = Resources(gpus=2, nodes=3)
    job = json.loads(
        gpu.preview(replace(batch, numbers=(1,), resources=resources)).partition("\n")[2]
    )
    pools = job["jobSpec"]["workerPoolSpecs"]
    assert [one["replicaCount"] for one in pools] == ["1", "2"]
    assert pools[1]["machineSpec"] == {
        "machineType": "g2",
        "acceleratorType": "NVIDIA_L4",
        "acceleratorCount": 2,
    }


def test_the_output_is_in_a_bucket() -> None:
    with pytest.raises(ValidationError, match="is not a directory in a bucket"):
        VertexSettings(output="/data/vertex")


def test_it_is_found_by_its_name() -> None:
    assert batch_executor("vertex") is VertexBatches


def test_a_board_leads_to_vertex(
    settings: VertexSettings, vertex: FakeVertex, tmp_path: Path
) -> None:
    from aboard import EventWriter

    with EventWriter(tmp_path / "runs" / "a") as writer:
        for step in range(3):
            writer.scalar("loss", float(step), step)
    executor = VertexExecutor({"": settings}, grace=5.0)
    options = ["--json", "--no-browser", "--engine", "fast", "--title", "My board"]
    command = (PYTHON, "-P", "-m", "aboard", "view", *options, "--", str(tmp_path / "runs"))
    handle = executor.start(Spec("b17", command, tmp_path / "board"))
    try:
        until_state(executor, handle, CommandState.RUNNING)
        address = executor.address(handle)
        assert address is not None
        assert fetch(address, None)[0] == 401
        assert fetch(address, address.token)[0] == 307
        until(lambda: vertex.points() == {"a": [(0, 0.0), (1, 1.0), (2, 2.0)]})
    finally:
        executor.stop(handle)
        until(lambda: executor.poll({"b": handle})["b"].state is CommandState.ENDED)
    (experiment,) = vertex.experiments.values()
    assert experiment["name"].endswith("/experiments/aboard-b17")
    assert experiment["displayName"] == "My board"
    log = b"".join(executor.logs(handle)).decode()
    assert "tensorboard.googleusercontent.com/experiment/projects+demo" in log
    assert len(vertex.tensorboards) == 1


def test_a_board_that_is_not_permitted_ends_with_one_line(
    vertex: FakeVertex, tmp_path: Path
) -> None:
    vertex.faults.append(Fault("tensorboards", 403, "Denied for aboard@demo.", times=99))
    place = Location(PROJECT, LOCATION, vertex.url)
    destination = Destination(place, "team", "aboard-b18", str(tmp_path / "board"))
    (tmp_path / "runs").mkdir()
    done = run_command(
        ["view", "--json", "--port", "0", "--", tmp_path / "runs"],
        env={**os.environ, UPLOAD: destination.to_json()},
        cwd=tmp_path,
        forked=True,
    )
    assert done.code == 1
    assert done.err.endswith(
        "aboard: Vertex, project demo in us-central1: permission denied: Denied for aboard@demo."
        " Ask for the role Vertex AI User (roles/aiplatform.user), and check that the project"
        " exists.\n"
    )


def test_a_probe_says_whether_it_answers(settings: VertexSettings, vertex: FakeVertex) -> None:
    executor = VertexExecutor({"": settings})
    report = executor.probe()
    assert (report.answers, report.resources) == (
        True,
        {"TensorBoard 'team'": "created by the first board"},
    )
    vertex.is_revoked = True
    vertex.expire_tokens()
    report = executor.probe()
    assert not report.answers
    assert "credentials have expired" in report.problem


def test_tokens_go_only_to_places_of_the_settings(
    vertex: FakeVertex, settings: VertexSettings, batches: VertexBatches, batch: Batch
) -> None:
    """A record below a shared root has any address in it that its author chose."""
    handle = batches.submit(batch)
    before = len(vertex.recorded)
    other = VertexBatches({"": replace(settings, endpoint="")})
    try:
        found = other.tasks({"a": handle})["a"]
        assert {one.state for one in found.values()} == {TaskState.UNKNOWN}
        assert "is not in the settings. Add it" in found[1].reason
        with pytest.raises(ExecutorError, match="is not in the settings"):
            other.cancel(handle)
    finally:
        other.close()
    assert len(vertex.recorded) == before


@pytest.fixture
def aboard_toml(
    settings: VertexSettings, environment: pytest.MonkeyPatch, tmp_path: Path
) -> VertexSettings:
    """Write the settings where commands find them."""
    lines = [f'{name} = "{value}"\n' for name, value in vars(settings).items() if value]
    (tmp_path / "aboard.toml").write_text(f"[executors.vertex]\n{''.join(lines)}")
    environment.setenv("ABOARD_CONFIG", str(tmp_path / "aboard.toml"))
    environment.setenv("ABOARD_STATE", str(tmp_path / "state"))
    environment.delenv("ABOARD_ROOT", raising=False)
    return settings


def type_command(*words: str, cwd: Path) -> Result:
    return run_command(words, env=dict(os.environ), cwd=cwd)


@pytest.mark.usefixtures("aboard_toml")
def test_a_dry_run_prints_the_custom_jobs(
    vertex: FakeVertex, gcs_bucket: str, tmp_path: Path
) -> None:
    words = ["--on", "vertex", "--root", f"{gcs_bucket}/runs", "--name", "dry", "--dry-run"]
    words += ["--sweep", "lr=0.1,0.01", "--env", "KEY=a secret", "--cpus", "6", "--time", "2h"]
    done = type_command("submit", *words, "--", "python", "train.py", "--lr", "{lr}", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.count(f"POST {vertex.url}/v1/{PARENT}/customJobs") == 2
    assert '"machineType": "n1-standard-8"' in done.out
    assert '"timeout": "7200s"' in done.out
    assert '"aboard-task": "2"' in done.out
    assert f'"outputUriPrefix": "{gcs_bucket}/runs/default/dry-2"' in done.out
    assert "a secret" not in done.out
    assert vertex.recorded == []


@pytest.mark.usefixtures("aboard_toml")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("customJobs", 403, "No act-as.", times=9), "permission denied: No act-as."),
        (Fault("tensorboards", 403, "No rights.", times=9), "permission denied: No rights."),
    ],
)
def test_nothing_is_left_of_a_job_that_is_refused(
    vertex: FakeVertex,
    gcs_server: FakeGcs,
    gcs_bucket: str,
    tmp_path: Path,
    fault: Fault,
    said: str,
) -> None:
    vertex.faults.append(fault)
    root = f"{gcs_bucket}/refused-{fault.path}"
    done = type_command(
        "submit", "--on", "vertex", "--root", root, "--", "python", "train.py", cwd=tmp_path
    )
    assert done.code == 1
    assert said in done.err
    assert done.err.count("\n") == 1
    assert vertex.jobs == {}
    assert objects_below(gcs_server, root) == []


def objects_below(server: FakeGcs, uri: str) -> list[str]:
    bucket, _, path = uri.removeprefix("gs://").partition("/")
    return [name for name in server.buckets[bucket].objects if name.startswith(f"{path}/")]


def run_on_vertex(vertex: FakeVertex, name: str, tmp_path: Path, pool: int = 0) -> None:
    """Do what Vertex does with a CustomJob, with this checkout in the place of the image.

    Only the first node of a worker pool does its work.
    """
    job = vertex.jobs[name]
    pools = job["jobSpec"]["workerPoolSpecs"]
    container = pools[pool]["containerSpec"]
    cluster = {
        f"workerpool{number}": [f"{number}-{node}:2222" for node in range(int(one["replicaCount"]))]
        for number, one in enumerate(pools)
    }
    output = job["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
    environment = {
        **os.environ,
        "AIP_TENSORBOARD_LOG_DIR": f"{output}/logs/",
        "CLOUD_ML_JOB_ID": name.rpartition("/")[2],
        "CLUSTER_SPEC": json.dumps(
            {"cluster": cluster, "task": {"type": f"workerpool{pool}", "index": 0}}
        ),
        "GOOGLE_APPLICATION_CREDENTIALS": "",
    }
    words = [sys.executable, *container["command"][1:], *container["args"]]
    job["state"] = "JOB_STATE_RUNNING"
    done = subprocess.run(words, env=environment, cwd=tmp_path, check=False)
    job["state"] = "JOB_STATE_FAILED" if done.returncode else "JOB_STATE_SUCCEEDED"
    if done.returncode:
        message = f"The replica workerpool0-0 exited with a non-zero status of {done.returncode}."
        job["error"] = {"code": 3, "message": message}


TRAINS = """
import os, sys, aboard
with aboard.init() as run:
    for step in range(3):
        run.log_metrics({"loss": float(sys.argv[1]) * step}, step=step)
print("trained with", sys.argv[1])
sys.exit(3 if sys.argv[1] == "2" else 0)
"""


@pytest.mark.engine("vertex")
@pytest.mark.usefixtures("aboard_toml")
def test_a_sweep_on_vertex_from_its_submission_to_its_end(
    vertex: FakeVertex, gcs_server: FakeGcs, gcs_bucket: str, tmp_path: Path
) -> None:
    root = f"{gcs_bucket}/swept"
    (tmp_path / "train.py").write_text(TRAINS)
    program = str(tmp_path / "train.py")
    done = type_command(
        *("submit", "--on", "vertex", "--root", root, "--experiment", "cifar10", "--name", "swept"),
        *("--sweep", "lr=1,2", "--env", "KEY=a secret", "--json"),
        *("--", sys.executable, program, "{lr}"),
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    assert len(vertex.jobs) == 2
    jobs = ("jobs", "show", "swept", "--root", root, "--json")
    assert type_command(*jobs, cwd=tmp_path).json["state"] == "pending"
    for name in vertex.jobs:
        run_on_vertex(vertex, name, tmp_path)
    shown = type_command(*jobs, cwd=tmp_path).json
    assert shown["state"] == "failed"
    assert [(one["state"], one["exit_code"]) for one in shown["members"]] == [
        ("completed", 0),
        ("failed", 3),
    ]
    for number, job in enumerate(vertex.jobs.values(), start=1):
        log_directory = f"{job['jobSpec']['baseOutputDirectory']['outputUriPrefix']}/logs"
        run = json.loads(open_storage(log_directory).read("run.json"))
        assert (run["experiment"], run["name"]) == ("cifar10", f"swept-{number}")
        assert job["jobSpec"]["tensorboard"] in vertex.tensorboards
        held = objects_below(gcs_server, log_directory)
        assert any("tfevents" in name for name in held)
        everywhere = objects_below(gcs_server, f"{root}/cifar10/swept-{number}")
        assert everywhere == held  # nothing of the run is in another place
    listed = type_command("runs", "job:swept", "--root", root, "--json", cwd=tmp_path).json
    assert [one["name"] for one in listed["runs"]] == ["swept-1", "swept-2"]
    log = type_command("jobs", "logs", "swept", "1", "--root", root, cwd=tmp_path)
    assert (log.code, log.out) == (0, "trained with 1\n")
    left = objects_below(gcs_server, f"{gcs_bucket}/vertex")
    assert not any("aboard-swept-1" in name for name in left)
    assert "a secret" not in json.dumps([one.body for one in vertex.recorded])
    again = type_command("jobs", "retry", "swept", "--root", root, cwd=tmp_path)
    assert again.code == 0, again.err
    assert len(vertex.jobs) == 3
    stopped = type_command("jobs", "stop", "swept", "--root", root, cwd=tmp_path)
    assert stopped.code == 0, stopped.err
    assert list(vertex.jobs.values())[-1]["state"] == "JOB_STATE_CANCELLED"


@pytest.mark.engine("vertex")
@pytest.mark.usefixtures("aboard_toml")
def test_of_several_nodes_the_first_one_logs(
    vertex: FakeVertex, gcs_bucket: str, tmp_path: Path
) -> None:
    root = f"{gcs_bucket}/nodes"
    (tmp_path / "train.py").write_text(TRAINS)
    words = ["--on", "vertex", "--root", root, "--name", "nodes", "--nodes", "2"]
    command = [sys.executable, str(tmp_path / "train.py"), "1"]
    done = type_command("submit", *words, "--", *command, cwd=tmp_path)
    assert done.code == 0, done.err
    (name,) = vertex.jobs
    for pool in (1, 0, 1):
        run_on_vertex(vertex, name, tmp_path, pool)
    run = json.loads(open_storage(f"{root}/default/nodes/logs").read("run.json"))
    assert (run["state"], len(run["attempts"])) == ("completed", 1)
    shown = type_command("jobs", "show", "nodes", "--root", root, "--json", cwd=tmp_path).json
    assert shown["state"] == "completed"


@pytest.mark.engine("vertex")
@pytest.mark.usefixtures("vertex")
@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_of_any_custom_job_lands_in_its_log_directory(
    gcs_server: FakeGcs, gcs_bucket: str, tmp_path: Path, recorded: bool
) -> None:
    """Log in a job that was not made by Aboard: by `aboard run`, or by `aboard.init` alone."""
    (tmp_path / "train.py").write_text(TRAINS)
    output = f"{gcs_bucket}/custom-{recorded}/7"
    command = [sys.executable, str(tmp_path / "train.py"), "1"]
    if recorded:
        command = [sys.executable, "-P", "-m", "aboard", "run", "--", *command]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "ABOARD_ROOT"},
        "AIP_TENSORBOARD_LOG_DIR": f"{output}/logs/",
        "CLOUD_ML_JOB_ID": "4711",
    }
    subprocess.run(command, env=environment, cwd=tmp_path, check=True)
    held = open_storage(f"{output}/logs")
    run = json.loads(held.read("run.json"))
    assert (run["state"], run["job"]) == ("completed", "4711")
    assert any("tfevents" in name for name in objects_below(gcs_server, f"{output}/logs"))
