"""Jobs on Kubernetes: on a real cluster, and the documents of versions that are not here."""

import base64
import gzip
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from aboard.executors.base import (
    PYTHON,
    Batch,
    ExecutorError,
    Handle,
    Resources,
    TaskState,
    TaskStatus,
    format_ranges,
    parse_ranges,
)
from aboard.executors.kubernetes.api import KubernetesApi
from aboard.executors.kubernetes.batch import (
    INDEXED,
    KubernetesBatches,
    find_tasks,
    make_handle,
    make_jobs,
    make_secret,
    must_restart,
    next_job,
    read_status,
)
from aboard.executors.kubernetes.pod import KubernetesSettings, Volume
from tests.engines.kubernetes import NODE, Cluster
from tests.engines.rigs import Rig
from tests.executors.kubernetes.test_boards import heartbeat
from tests.waiting import until

SECRET = "s3cr3t-of-the-training"
TASK = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
payload, number = json.load(open(sys.argv[1])), sys.argv[2]
print("task", number, "of", os.getcwd(), flush=True)
print("an error", file=sys.stderr, flush=True)
with open(os.path.join(payload["out"], number), "a") as file:
    file.write(payload["secret"] + "\\n")
if number in payload.get("wait", ""):
    while not os.path.exists(os.path.join(payload["out"], "go")):
        time.sleep(0.05)
sys.exit(payload.get("codes", {}).get(number, 0))
"""
engine = pytest.mark.engine("kubernetes")


def batch_in(place: Path, numbers: tuple[int, ...] = (1, 2, 3), **options: Any) -> Batch:
    payload = {"secret": SECRET, "out": str(place), **options.pop("payload", {})}
    return Batch(
        **{
            "job": "sweep",
            "numbers": numbers,
            "command": (PYTHON, "-S", "-c", TASK),
            "payload": json.dumps(payload).encode(),
            "directory": place / ".jobs" / "sweep" / "1",
            "workdir": place,
            "writes": (place,),
            **options,
        }
    )


def settings_of(place: Path, **options: Any) -> KubernetesSettings:
    return KubernetesSettings(volumes=(Volume(path=str(place), claim="runs"),), **options)


def jobs_of(batch: Batch, settings: KubernetesSettings, version: tuple[int, int]) -> list[Any]:
    handle = make_handle(batch, "", "", indexed=version >= INDEXED)
    return make_jobs(batch, settings, handle, version)


class TestDocuments:
    def test_a_sweep_is_one_indexed_job_where_that_has_all_it_needs(self, tmp_path):
        batch = batch_in(tmp_path, (3, 7, 8), parallel=2, attempt=2)
        (job,) = jobs_of(batch, settings_of(tmp_path), INDEXED)
        assert job["metadata"]["name"] == "aboard-sweep-2"
        spec = job["spec"]
        assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == (
            "Indexed",
            3,
            2,
        )
        # One task that fails does not end the others, and a lost pod is not a failure.
        assert spec["backoffLimitPerIndex"] == 0
        assert "backoffLimit" not in spec
        (rule,) = spec["podFailurePolicy"]["rules"]
        assert rule["action"] == "Ignore"
        assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        assert spec["ttlSecondsAfterFinished"] == 7 * 24 * 3600
        pod = spec["template"]["spec"]
        assert pod["restartPolicy"] == "Never"
        assert pod["containers"][0]["command"][-2:] == [TASK, "/run/aboard/payload.json"]
        assert "args" not in pod["containers"][0]

    def test_before_that_each_task_is_a_job(self, tmp_path):
        jobs = jobs_of(batch_in(tmp_path, (3, 7)), settings_of(tmp_path), (1, 26))
        assert [one["metadata"]["name"] for one in jobs] == ["aboard-sweep-1-3", "aboard-sweep-1-7"]
        assert [one["spec"]["template"]["spec"]["containers"][0]["args"] for one in jobs] == [
            ["3"],
            ["7"],
        ]
        for job in jobs:
            assert job["spec"]["backoffLimit"] == 0
            assert "podFailurePolicy" in job["spec"]
            assert "completionMode" not in job["spec"]
        (old, _) = jobs_of(batch_in(tmp_path, (3, 7)), settings_of(tmp_path), (1, 25))
        assert "podFailurePolicy" not in old["spec"]

    def test_resources_and_volumes(self, tmp_path):
        resources = Resources(gpus=2, cpus=4, memory=1 << 30, time=90.5)
        settings = KubernetesSettings(
            volumes=(
                Volume(path=str(tmp_path), claim="runs"),
                Volume(path="/data", nfs="files:/export"),
            ),
            gpu_resource="amd.com/gpu",
        )
        batch = batch_in(
            tmp_path, (1,), resources=resources, image="train:1", reads=(Path("/data/x"),)
        )
        (job,) = jobs_of(batch, settings, INDEXED)
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        amounts = {"cpu": "4", "memory": str(1 << 30), "amd.com/gpu": "2"}
        assert container["resources"] == {"requests": amounts, "limits": amounts}
        assert container["image"] == "train:1"
        assert container["workingDir"] == str(tmp_path)
        # A time limit counts from the start of a pod, not while it waits.
        assert pod["activeDeadlineSeconds"] == 91
        assert "activeDeadlineSeconds" not in job["spec"]
        runs, data = container["volumeMounts"][:2]
        assert "readOnly" not in runs
        assert data["readOnly"] is True
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert "/dev/shm" in [one["mountPath"] for one in container["volumeMounts"]]

    def test_a_template_has_a_container_for_boards_and_one_for_tasks(self, tmp_path):
        template = {
            "spec": {
                "schedulerName": "queue",
                "containers": [
                    {"name": "board", "env": [{"name": "OF", "value": "board"}]},
                    {"name": "task", "env": [{"name": "OF", "value": "task"}]},
                ],
            }
        }
        (job,) = jobs_of(batch_in(tmp_path), settings_of(tmp_path, pod_template=template), INDEXED)
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["schedulerName"] == "queue"
        assert {"name": "OF", "value": "task"} in container["env"]

    def test_a_preview_has_all_but_the_payload(self, tmp_path):
        executor = KubernetesBatches({"": settings_of(tmp_path)})
        shown = executor.preview(batch_in(tmp_path))
        secret, job = yaml.safe_load_all(shown)
        assert (secret["kind"], job["kind"]) == ("Secret", "Job")
        assert secret["data"]["payload.json"].endswith(" bytes)")
        assert SECRET not in shown
        assert base64.b64encode(SECRET.encode()).decode()[:-4] not in shown
        assert "&id" not in shown

    def test_a_long_payload_is_compressed(self, tmp_path):
        batch = batch_in(tmp_path, payload={"members": [{"lr": 0.1}] * 20_000})
        handle = make_handle(batch, "", "", indexed=True)
        data = make_secret(batch, handle)["data"]
        assert data.keys() == {"payload.json.gz", "numbers.json"}
        packed = base64.b64decode(data["payload.json.gz"])
        assert gzip.decompress(packed) == batch.payload
        (job,) = make_jobs(batch, settings_of(tmp_path), handle, INDEXED)
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command[-1] == "/run/aboard/payload.json.gz"

    def test_one_that_is_too_long_is_refused(self, tmp_path):
        batch = replace(batch_in(tmp_path), payload=os.urandom(2 << 20))
        with pytest.raises(ExecutorError, match="a Secret holds at most 1024000"):
            KubernetesBatches({"": settings_of(tmp_path)}).preview(batch)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (
                {"resources": Resources(nodes=2)},
                "only slurm supports several nodes and tasks per node",
            ),
            ({"image": "Not An Image"}, "invalid image 'Not An Image'"),
            ({"writes": (Path("/elsewhere"),)}, "/elsewhere is not in a volume of the pod"),
            ({"workdir": Path("/home/me")}, "/home/me is not in a volume of the pod"),
        ],
    )
    def test_what_cannot_run_is_refused_before_the_cluster_is_asked(self, tmp_path, options, words):
        executor = KubernetesBatches({"": settings_of(tmp_path, kubeconfig="/nowhere")})
        for verb in (executor.submit, executor.preview):
            with pytest.raises(ExecutorError, match=words) as raised:
                verb(batch_in(tmp_path, **options))
            assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        "image",
        ["aboard:0.1.0", "host:5000/team/train", f"train@sha256:{'0' * 64}", "a/b_c-d:v_1.2"],
    )
    def test_names_of_images(self, tmp_path, image):
        batch = batch_in(tmp_path, image=image, workdir=Path("/of/the/image"))
        shown = KubernetesBatches({"": settings_of(tmp_path)}).preview(batch)
        container = list(yaml.safe_load_all(shown))[1]["spec"]["template"]["spec"]["containers"][0]
        assert container["image"] == image
        assert "workingDir" not in container  # the task changes to it

    def test_names_that_kubernetes_does_not_allow(self, tmp_path):
        names = ["Big Sweep", "big sweep", "x" * 200, "x" * 201, "äöü"]
        made = {make_handle(batch_in(tmp_path, job=n), "", "", indexed=True)["name"] for n in names}
        assert len(made) == len(names)
        for name in made:
            assert name.isascii()
            assert len(name) <= 45
            assert name == name.lower()

    def test_ranges(self):
        for numbers in ([], [1], [1, 2, 3], [3, 7, 8, 9], [9, 1, 2]):
            assert parse_ranges(format_ranges(numbers)) == numbers
        assert format_ranges([1, 2, 3, 7]) == "1-3,7"


def pod_of(index: int, phase: str, name: str = "p", **status: Any) -> dict[str, Any]:
    notes = {"batch.kubernetes.io/job-completion-index": str(index)}
    stamp = "2026-01-01T00:00:00Z"
    metadata = {"name": name, "annotations": notes, "labels": {}, "creationTimestamp": stamp}
    return {"metadata": metadata, "status": {"phase": phase, **status}}


def exited(code: int) -> list[dict[str, Any]]:
    return [{"name": "task", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}]


def failed(reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": "Failed",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


class TestStatesOfAnIndexedJob:
    """As newer clusters report them."""

    def states(self, job: dict[str, Any] | None, *pods: dict[str, Any]) -> list[TaskStatus]:
        handle = {"name": "aboard-sweep-1", "indexed": True, "numbers": "3,7-8"}
        tasks = find_tasks(handle, [job] if job else [], list(pods))
        return [read_status(task, {"sweep": "FailedCreate: quota"}) for task in tasks.values()]

    def job(self, **status: Any) -> dict[str, Any]:
        return {"metadata": {"name": "sweep", "labels": {}}, "spec": {"parallelism": 2}} | {
            "status": status
        }

    def test_pods_are_tasks_by_their_index(self):
        running = [{"name": "task", "state": {"running": {}}}]
        job = self.job(active=2)
        states = self.states(
            job,
            pod_of(2, "Running", "late", containerStatuses=running),
            pod_of(0, "Failed", "first", containerStatuses=exited(3)),
        )
        assert states[0] == TaskStatus(TaskState.ENDED, 3, "", "first")
        assert states[1].state is TaskState.WAITING
        assert states[1].reason == "at most 2 tasks run at a time"
        assert states[2] == TaskStatus(TaskState.RUNNING, unit="late")

    def test_the_job_knows_of_pods_that_are_gone(self):
        states = self.states(self.job(completedIndexes="0,2", failedIndexes="1"))
        assert [one.state for one in states] == [TaskState.ENDED] * 3
        assert [one.exit_code for one in states] == [0, None, 0]
        assert states[1].reason == "its pod was deleted"

    def test_a_lost_pod_waits_for_the_next(self):
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
        }
        lost = pod_of(0, "Failed", conditions=[condition], containerStatuses=exited(143))
        (status, *_) = self.states(self.job(), lost)
        assert status.state is TaskState.WAITING
        assert status.reason == "PreemptionByScheduler"
        (status, *_) = self.states(self.job(failedIndexes="0"), lost)
        assert (status.state, status.exit_code) == (TaskState.ENDED, -15)

    def test_the_words_of_a_job_without_pods(self):
        (status, *_) = self.states(self.job())
        assert status.reason == "FailedCreate: quota"
        paused = {"type": "Suspended", "status": "True", "reason": "JobSuspended"}
        (status, *_) = self.states(self.job(conditions=[paused]))
        assert (status.state, status.reason) == (TaskState.WAITING, "JobSuspended")

    def test_what_was_cancelled(self):
        job = self.job(conditions=[failed("DeadlineExceeded")], completedIndexes="0")
        job["metadata"]["annotations"] = {"aboard/cancelled": "7-8"}
        states = self.states(job)
        assert [one.exit_code for one in states] == [0, None, None]
        assert [one.reason for one in states] == ["", "it was cancelled", "it was cancelled"]

    def test_what_is_forgotten_has_ended(self):
        assert {one.state for one in self.states(None)} == {TaskState.ENDED}

    def test_many_tasks_are_read_at_once(self):
        handle = {"name": "many", "indexed": True, "numbers": "1-10000"}
        job = self.job(completedIndexes="0-9998")
        tasks = find_tasks(handle, [job], [])
        ended = [n for n, task in tasks.items() if read_status(task, {}).exit_code == 0]
        assert ended == list(range(1, 10_000))


class TestRestarts:
    @pytest.mark.parametrize(
        ("status", "lost"),
        [
            ({"reason": "Evicted", "message": "The node was low on resource: memory."}, True),
            ({"reason": "Evicted", "message": "Usage of EmptyDir volume exceeds the limit"}, False),
            ({"reason": "OutOfcpu", "message": "Node didn't have enough resource"}, True),
            ({"reason": "DeadlineExceeded"}, False),
            ({"containerStatuses": exited(1)}, False),
        ],
    )
    def test_a_task_whose_pod_was_lost_gets_another_job(self, status, lost):
        labels = {"aboard/number": "3", "aboard/batch": "aboard-sweep-1"}
        added = {"controller-uid": "u", "job-name": "aboard-sweep-1-3"}
        job = {
            "metadata": {"name": "aboard-sweep-1-3", "labels": labels, "uid": "u"},
            "spec": {
                "backoffLimit": 0,
                "selector": {"matchLabels": {"controller-uid": "u"}},
                "template": {"metadata": {"labels": {**labels, **added}}, "spec": {}},
            },
            "status": {"conditions": [failed("BackoffLimitExceeded")]},
        }
        pod = pod_of(0, "Failed", **status)
        pod["metadata"]["labels"] = {**labels, **added}
        handle = {"name": "aboard-sweep-1", "indexed": False, "numbers": "3"}
        task = find_tasks(handle, [job], [pod])[3]
        assert must_restart(task) is lost
        expected = TaskState.WAITING if lost else TaskState.ENDED
        assert read_status(task, {}).state is expected
        following = next_job(job)
        assert following["metadata"]["name"] == "aboard-sweep-1-3-r1"
        assert "selector" not in following["spec"]
        assert following["spec"]["template"]["metadata"]["labels"] == labels
        assert next_job(following)["metadata"]["name"] == "aboard-sweep-1-3-r2"
        job["metadata"]["annotations"] = {"aboard/cancelled": "3"}
        assert not must_restart(find_tasks(handle, [job], [pod])[3])


# On the cluster.


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory of the node that tasks write to, as another user."""
    place = tmp_path / "runs"
    place.mkdir()
    place.chmod(0o777)
    return place


@pytest.fixture
def batches(kubernetes_rig: Rig, place: Path) -> Iterator[Callable[..., KubernetesBatches]]:
    made: list[KubernetesBatches] = []

    def make(**settings: Any) -> KubernetesBatches:
        volumes = [{"path": str(place), "host_path": str(place)}]
        given = {**kubernetes_rig.settings, "volumes": volumes, **settings}
        made.append(KubernetesBatches({"": KubernetesSettings(**given)}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def executor(batches: Callable[..., KubernetesBatches]) -> KubernetesBatches:
    return batches()


@pytest.fixture
def submit(executor: KubernetesBatches, place: Path) -> Iterator[Callable[..., Handle]]:
    """Submit a batch, and leave nothing after the test."""
    handles: list[Handle] = []

    def submit(
        numbers: tuple[int, ...] = (1, 2, 3), by: KubernetesBatches = executor, **options: Any
    ) -> Handle:
        handles.append(json.loads(json.dumps(by.submit(batch_in(place, numbers, **options)))))
        return handles[-1]

    yield submit
    for handle in handles:
        executor.cancel(handle, now=True)
        executor.release(handle)


def until_tasks(
    executor: KubernetesBatches, handle: Handle, ready: Callable[[dict[int, TaskStatus]], bool]
) -> dict[int, TaskStatus]:
    def tasks() -> dict[int, TaskStatus]:
        return executor.tasks({"one": handle})["one"]

    return until(lambda: found if ready(found := tasks()) else None, tasks)


def all_are(state: TaskState) -> Callable[[dict[int, TaskStatus]], bool]:
    return lambda found: all(one.state is state for one in found.values())


def left_in(cluster: Cluster, namespace: str) -> str:
    shown = cluster.kubectl("-n", namespace, "get", "jobs,pods,secrets", "-o", "name")
    return "".join(line for line in shown.splitlines(keepends=True) if "aboard-" in line)


@contextmanager
def quota(cluster: Cluster, namespace: str, name: str, hard: str) -> Iterator[None]:
    cluster.kubectl("-n", namespace, "create", "quota", name, f"--hard={hard}")
    place = ("-n", namespace, "quota", name)
    try:
        # It holds once Kubernetes has counted what there is.
        until(lambda: "used" in cluster.get(*place)["status"])
        yield
    finally:
        cluster.kubectl("delete", *place)


@engine
class TestOnACluster:
    def test_three_tasks_end_as_they_do_and_show_no_secret(
        self, cluster: Cluster, executor, submit, place, kubernetes_rig
    ):
        handle = submit(payload={"codes": {"2": 3, "3": 7}, "wait": "123"})
        until_tasks(executor, handle, all_are(TaskState.RUNNING))
        namespace = kubernetes_rig.settings["namespace"]
        kinds = cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name")
        others = ",".join(one for one in kinds.split() if one != "secrets")
        shown = cluster.kubectl("-n", namespace, "get", others, "-o", "yaml")
        shown += cluster.kubectl("-n", namespace, "describe", "jobs,pods,secrets")
        shown += subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
        shown += json.dumps(handle)
        assert handle["name"] in shown
        assert SECRET not in shown
        assert base64.b64encode(SECRET.encode()).decode()[:-4] not in shown
        (place / "go").touch()
        found = until_tasks(executor, handle, all_are(TaskState.ENDED))
        lines = {f"task 2 of {place}\n".encode(), b"an error\n"}  # of two streams, in any order
        assert set(b"".join(executor.logs(handle, 2)).splitlines(keepends=True)) == lines
        assert {n: (one.exit_code, one.reason) for n, one in found.items()} == {
            1: (0, ""),
            2: (3, ""),
            3: (7, ""),
        }
        assert found[1].unit.startswith("aboard-sweep-1-1-")
        assert {(place / n).read_text() for n in "123"} == {f"{SECRET}\n"}
        assert len(b"".join(executor.logs(handle, 3, tail=1)).splitlines()) == 1
        assert executor.tasks({"one": handle})["one"] == found
        executor.release(handle)
        until(lambda: not left_in(cluster, namespace))
        forgotten = executor.tasks({"one": handle})["one"]
        assert {(one.state, one.exit_code) for one in forgotten.values()} == {
            (TaskState.ENDED, None)
        }

    def test_some_and_all_are_cancelled_also_those_that_wait(self, batches, submit, executor):
        handle = submit((1, 2, 3), payload={"wait": "123"})
        blocked = batches(node_selector={"disk": "none"})
        waiting = submit((1,), by=blocked, job="waits")
        until_tasks(executor, handle, all_are(TaskState.RUNNING))
        words = "Unschedulable: 0/1 nodes are available"
        until_tasks(executor, waiting, lambda found: found[1].reason.startswith(words))
        executor.cancel(handle, [2])
        executor.cancel(waiting)
        found = until_tasks(executor, handle, lambda found: found[2].state is TaskState.ENDED)
        assert found[2].reason == "it was cancelled"
        assert found[1].state is found[3].state is TaskState.RUNNING
        found = until_tasks(executor, waiting, all_are(TaskState.ENDED))
        assert found[1].reason == "it was cancelled"
        executor.cancel(handle, now=True)
        found = until_tasks(executor, handle, all_are(TaskState.ENDED))
        assert {one.reason for one in found.values()} == {"it was cancelled"}

    @pytest.mark.parametrize("verb", ["create", "patch"])
    def test_a_submission_that_was_cut_off_is_continued(
        self, executor, submit, place, monkeypatch, verb
    ):
        class KilledError(BaseException):
            pass

        calls = iter(range(100))
        real = getattr(KubernetesApi, verb)

        def cut_off(self: KubernetesApi, *words: Any) -> Any:
            # After the Secret and one Job, or before the Secret has its owners.
            if next(calls) >= (2 if verb == "create" else 0):
                raise KilledError
            return real(self, *words)

        with monkeypatch.context() as patch:
            patch.setattr(KubernetesApi, verb, cut_off)
            with pytest.raises(KilledError):
                executor.submit(batch_in(place))
        handle = submit()
        assert submit() == handle
        found = until_tasks(executor, handle, all_are(TaskState.ENDED))
        assert {one.exit_code for one in found.values()} == {0}
        assert {(place / n).read_text() for n in "123"} == {f"{SECRET}\n"}

    def test_a_name_that_another_job_has_is_refused(self, executor, submit, place):
        submit((1,))
        other = replace(batch_in(place), directory=place / "another")
        with pytest.raises(ExecutorError, match=r"aboard-sweep-1 exists .* Choose another name"):
            executor.submit(other)

    def test_a_task_goes_on_after_its_node_was_drained(
        self, cluster: Cluster, executor, submit, place
    ):
        handle = submit((2,), payload={"wait": "2"})
        before = until_tasks(executor, handle, all_are(TaskState.RUNNING))[2].unit
        until((place / "2").exists)
        cluster.kubectl("cordon", NODE)
        try:
            api = executor._apis.of("")
            pod = f"/api/v1/namespaces/{handle['namespace']}/pods/{before}"
            eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction"}
            metadata = {"name": before, "namespace": handle["namespace"]}
            api.post(f"{pod}/eviction", {**eviction, "metadata": metadata})
            words = "Unschedulable: 0/1 nodes are available: 1 node(s) were unschedulable."
            found = until_tasks(executor, handle, lambda found: found[2].reason == words)
            assert found[2].state is TaskState.WAITING
        finally:
            cluster.kubectl("uncordon", NODE)
        found = until_tasks(executor, handle, all_are(TaskState.RUNNING))
        assert found[2].unit != before
        (place / "go").touch()
        found = until_tasks(executor, handle, all_are(TaskState.ENDED))
        assert found[2].exit_code == 0
        assert (place / "2").read_text() == f"{SECRET}\n" * 2

    def test_a_task_goes_on_after_its_node_was_away(
        self, cluster: Cluster, executor, submit, place
    ):
        handle = submit((2,), payload={"wait": "2"})
        before = until_tasks(executor, handle, all_are(TaskState.RUNNING))[2].unit
        until((place / "2").exists)
        api = executor._apis.of("")
        # Kubernetes removes no pod while all nodes are away: another one stays.
        api.create("/api/v1/nodes", {"metadata": {"name": "idle"}, "spec": {"unschedulable": True}})

        def is_replaced(found: dict[int, TaskStatus]) -> bool:
            heartbeat(cluster, "idle")
            return found[2].unit != before

        try:
            with cluster.node_away():
                assert until_tasks(executor, handle, is_replaced)[2].state is TaskState.WAITING
        finally:
            api.delete("/api/v1/nodes/idle")
        until_tasks(executor, handle, all_are(TaskState.RUNNING))
        (place / "go").touch()
        found = until_tasks(executor, handle, all_are(TaskState.ENDED))
        assert (found[2].exit_code, found[2].reason) == (0, "")
        assert (place / "2").read_text() == f"{SECRET}\n" * 2

    def test_a_task_that_its_node_refused_is_started_again(
        self, cluster: Cluster, batches, executor, submit, place
    ):
        cpus = int(cluster.get("node", NODE)["status"]["allocatable"]["cpu"]) - 0.5
        resources = Resources(cpus=cpus)
        holder = submit((1,), job="holder", payload={"wait": "1"}, resources=resources)
        until_tasks(executor, holder, all_are(TaskState.RUNNING))
        pinned = batches(pod_template={"spec": {"nodeName": NODE}})
        handle = submit((2,), by=pinned, resources=resources)
        (job,) = cluster.get("-n", handle["namespace"], "jobs", "-l", "aboard/number=2")["items"]
        name = ("-n", handle["namespace"], "job", job["metadata"]["name"])
        until(lambda: "BackoffLimitExceeded" in cluster.kubectl("get", *name, "-o", "yaml"))
        executor.cancel(holder, now=True)
        until_tasks(executor, holder, all_are(TaskState.ENDED))
        found = executor.tasks({"one": handle})["one"]
        assert found[2].state is TaskState.WAITING
        assert found[2].reason.startswith("OutOfcpu: ")
        found = until_tasks(executor, handle, all_are(TaskState.ENDED))
        assert (found[2].exit_code, found[2].reason) == (0, "")
        # The node may refuse it again, until it has noticed the end of the other.
        assert re.match(r"aboard-sweep-1-2-r[1-9]", found[2].unit)
        assert (place / "2").read_text() == f"{SECRET}\n"

    def test_limits_end_a_task_with_the_reason(self, batches, executor, submit):
        memory = Resources(memory=64 << 20)
        script = "kept = b'x' * (300 << 20)"
        grows = submit((1,), job="grows", command=(PYTHON, "-c", script), resources=memory)
        brief = batches(pod_template={"spec": {"terminationGracePeriodSeconds": 2}})
        options = {"payload": {"wait": "1"}, "resources": Resources(time=2)}
        slow = submit((1,), by=brief, job="slow", **options)
        found = until_tasks(executor, grows, all_are(TaskState.ENDED))
        assert found[1] == replace(
            found[1],
            exit_code=-9,
            reason="OOMKilled: it used more memory than its limit of 64.0 MiB",
        )
        found = until_tasks(executor, slow, all_are(TaskState.ENDED))
        assert found[1].reason.startswith("DeadlineExceeded: ")

    def test_what_the_cluster_refuses_leaves_nothing(
        self, cluster: Cluster, batches, place, kubernetes_rig, tmp_path
    ):
        namespace = kubernetes_rig.settings["namespace"]
        with quota(cluster, namespace, "few-jobs", "count/jobs.batch=1"):
            check_refused(batches(), place, "exceeded quota: few-jobs")
        check_refused(batches(namespace="nowhere"), place, 'namespaces "nowhere" not found')
        account = cluster.get("-n", namespace, "serviceaccount", "default")
        secret = cluster.get("-n", namespace, "secret", account["secrets"][0]["name"])
        token = base64.b64decode(secret["data"]["token"]).decode()
        config = cluster.write_kubeconfig(tmp_path / "config", {"token": token})
        words = r'cannot create resource "secrets".* Grant the Role in deploy/kubernetes'
        check_refused(batches(kubeconfig=str(config)), place, words)
        words = "a limit of 2 tasks at a time needs Kubernetes 1.29; this is 1.20"
        check_refused(batches(), place, words, parallel=2)
        until(lambda: not left_in(cluster, namespace))

    def test_a_quota_of_pods_is_what_a_task_waits_for(
        self, cluster: Cluster, executor, submit, kubernetes_rig
    ):
        namespace = kubernetes_rig.settings["namespace"]
        with quota(cluster, namespace, "no-pods", "pods=0"):
            handle = submit((1,))
            words = "exceeded quota: no-pods"
            found = until_tasks(executor, handle, lambda found: words in found[1].reason)
            assert found[1].state is TaskState.WAITING
            assert found[1].reason.startswith("FailedCreate: ")

    def test_a_failed_query_is_unknown_and_many_are_two_queries(
        self, executor, submit, monkeypatch
    ):
        handle = submit((1,), payload={"wait": "1"})
        until_tasks(executor, handle, all_are(TaskState.RUNNING))
        requests: list[str] = []
        send = KubernetesApi._send

        async def counted(self: KubernetesApi, method: str, path: str, *rest: Any) -> Any:
            requests.append(f"{method} {path}")
            return await send(self, method, path, *rest)

        monkeypatch.setattr(KubernetesApi, "_send", counted)
        found = executor.tasks({str(n): handle for n in range(200)})
        assert len(found) == 200
        assert {one[1].state for one in found.values()} == {TaskState.RUNNING}
        namespace = handle["namespace"]
        assert requests == [
            f"GET /apis/batch/v1/namespaces/{namespace}/jobs",
            f"GET /api/v1/namespaces/{namespace}/pods",
        ]
        elsewhere = {**handle, "server": "https://another.example.org"}
        (status,) = executor.tasks({"one": elsewhere})["one"].values()
        assert status.state is TaskState.UNKNOWN
        assert "is on https://another.example.org" in status.reason
        with monkeypatch.context() as patch:
            patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
            another = KubernetesBatches(executor.profiles)
            (status,) = another.tasks({"one": handle})["one"].values()
            another.close()
        assert status.state is TaskState.UNKNOWN
        assert "does not answer: connection refused" in status.reason


def check_refused(executor: KubernetesBatches, place: Path, words: str, **options: Any) -> None:
    with pytest.raises(ExecutorError, match=words) as raised:
        executor.submit(batch_in(place, **options))
    assert str(raised.value).startswith("job sweep cannot be submitted: ")
    assert "\n" not in str(raised.value)
