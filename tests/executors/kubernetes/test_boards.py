"""Boards as pods: what Kubernetes alone has, on a real cluster, and documents without one."""

import base64
import json
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aboard.executors.base import CommandState, ExecutorError, Handle, Spec, Status
from aboard.executors.kubernetes.api import ApiError, KubernetesApi
from aboard.executors.kubernetes.boards import KubernetesExecutor
from aboard.executors.kubernetes.pod import (
    KubernetesSettings,
    Volume,
    ending,
    make_pod,
    merge,
    quantity,
    why_waiting,
)
from aboard.executors.start import Start
from tests.engines.kubernetes import NODE, Cluster
from tests.engines.rigs import SERVES, Rig, command, fetch, until_state
from tests.waiting import until

SECRET = "s3cr3t-of-the-cloud"
ENVIRONMENT = json.dumps({"ABOARD_TOKEN": "0123456789abcdef"}).encode()
HOLDS = "import time; time.sleep(600)"
URGENT = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: urgent}}
value: 1000
---
apiVersion: v1
kind: Pod
metadata: {{name: urgent, namespace: "{namespace}"}}
spec:
  priorityClassName: urgent
  containers:
  - name: pause
    image: pause:1
    resources: {{requests: {{cpu: "{cpus}"}}}}
"""
engine = pytest.mark.engine("kubernetes")


def pod_of(spec: Spec, **settings: Any) -> dict[str, Any]:
    handle = {"board": spec.board, "directory": str(spec.directory), "start": "1", "log_from": 0}
    return make_pod(spec, KubernetesSettings(**settings), handle, hub="h", grace=10)


def spec_in(place: Path, **options: Any) -> Spec:
    return Spec("b1", ("python", "-m", "aboard", "view"), place / "b1", **options)


class TestPods:
    def test_a_pod_has_no_rights(self, tmp_path):
        pod = pod_of(spec_in(tmp_path))["spec"]
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["restartPolicy"] == "Never"

    def test_no_secret_is_in_its_document(self, tmp_path):
        spec = spec_in(tmp_path, environment={"AWS_SECRET_ACCESS_KEY": SECRET})
        assert SECRET not in json.dumps(pod_of(spec))

    def test_limits_are_those_of_the_board_or_of_the_settings(self, tmp_path):
        spec = spec_in(tmp_path, memory=1 << 30, cpus=1.5, timeout=90.5)
        pod = pod_of(spec, memory_limit="8Gi")["spec"]
        amounts = {"cpu": "1.5", "memory": str(1 << 30)}
        assert pod["containers"][0]["resources"] == {"requests": amounts, "limits": amounts}
        assert pod["activeDeadlineSeconds"] == 91
        pod = pod_of(spec_in(tmp_path), memory_limit="8Gi")["spec"]
        assert pod["containers"][0]["resources"]["limits"] == {"memory": "8Gi"}
        assert "activeDeadlineSeconds" not in pod

    def test_a_template_changes_all_but_what_must_be(self, tmp_path):
        template = tmp_path / "pod.yaml"
        template.write_text("""
metadata:
  labels: {team: vision, aboard/hub: another}
spec:
  priorityClassName: low
  restartPolicy: Always
  securityContext: {fsGroup: 500}
  tolerations: [{key: gpu, operator: Exists}]
  containers:
  - name: board
    env: [{name: COLOUR, value: green}, {name: ABOARD_PORT, value: "1"}]
    volumeMounts: [{name: more, mountPath: /more}]
  - name: sidecar
    image: proxy:1
  volumes: [{name: more, emptyDir: {}}]
""")
        pod = pod_of(spec_in(tmp_path), pod_template=str(template), priority_class="high")
        spec = pod["spec"]
        assert pod["metadata"]["labels"]["team"] == "vision"
        assert pod["metadata"]["labels"]["aboard/hub"] == "h"
        assert spec["priorityClassName"] == "low"
        assert spec["restartPolicy"] == "Never"
        assert spec["securityContext"]["fsGroup"] == 500
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert [one["key"] for one in spec["tolerations"]][-1] == "gpu"
        assert [one["name"] for one in spec["containers"]] == ["board", "sidecar"]
        variables = {one["name"]: one["value"] for one in spec["containers"][0]["env"]}
        assert (variables["COLOUR"], variables["ABOARD_PORT"]) == ("green", "6006")
        mounted = [one["mountPath"] for one in spec["containers"][0]["volumeMounts"]]
        assert mounted == ["/more", "/run/aboard", "/tmp"]

    def test_volumes_are_read_only(self, tmp_path):
        volumes = (
            Volume(path="/data", claim="runs", sub_path="team"),
            Volume(path="/nfs", nfs="files:/export/runs"),
        )
        pod = pod_of(spec_in(tmp_path), volumes=volumes)["spec"]
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs", "readOnly": True}
        assert pod["volumes"][1]["nfs"]["path"] == "/export/runs"
        mounts = pod["containers"][0]["volumeMounts"]
        assert mounts[0] == {
            "name": "volume-0",
            "mountPath": "/data",
            "readOnly": True,
            "subPath": "team",
        }
        assert mounts[1]["readOnly"] is True

    def test_a_volume_has_one_source(self):
        with pytest.raises(ValueError, match="a volume has one of: claim, host_path, nfs"):
            Volume(path="/data")
        with pytest.raises(ValueError, match="'data' is not absolute"):
            Volume(path="data", claim="runs")

    def test_a_path_in_no_volume_is_refused(self, tmp_path):
        volumes = (Volume(path="/data/runs", claim="runs"),)
        executor = KubernetesExecutor({"": KubernetesSettings(volumes=volumes)}, hub="h")
        spec = spec_in(tmp_path, reads=(Path("/data/runs/a"), Path("/home/me/logs")))
        with pytest.raises(ExecutorError) as raised:
            executor.start(spec)
        assert "/home/me/logs is not in a volume of the pod" in str(raised.value)
        assert str(raised.value).endswith(
            "[[executors.kubernetes.volumes]] in aboard.toml, with its path."
        )
        assert not (tmp_path / "b1").exists()

    def test_named_parts_are_merged_by_name_and_others_joined(self):
        assert merge({"a": 1, "b": {"c": [1]}}, {"b": {"c": [1, 2], "d": 3}}) == {
            "a": 1,
            "b": {"c": [1, 2], "d": 3},
        }
        assert merge([{"name": "a", "x": 1}], [{"name": "a", "y": 2}, {"name": "b"}]) == [
            {"name": "a", "x": 1, "y": 2},
            {"name": "b"},
        ]

    @pytest.mark.parametrize(
        ("text", "value"),
        [("250m", 0.25), ("2", 2), ("2Gi", 2 << 30), ("1k", 1000), ("1Mi", 1 << 20)],
    )
    def test_quantities(self, text, value):
        assert quantity(text) == value


def pod_with(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "aboard-b1-1", **metadata}, "spec": {}, "status": status}


def state(**kinds: Any) -> list[dict[str, Any]]:
    return [{"name": "board", "state": kinds}]


class TestStates:
    @pytest.mark.parametrize(
        ("status", "words"),
        [
            (
                {
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "reason": "Unschedulable",
                            "message": "0/3 nodes are available: 3 Insufficient cpu.",
                        }
                    ]
                },
                "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.",
            ),
            (
                {
                    "containerStatuses": state(
                        waiting={"reason": "ImagePullBackOff", "message": 'Back-off "aboard:9"'}
                    )
                },
                'ImagePullBackOff: Back-off "aboard:9"',
            ),
            ({"containerStatuses": state(waiting={"reason": "ContainerCreating"})}, ""),
        ],
    )
    def test_a_waiting_pod_says_why(self, status, words):
        assert why_waiting(pod_with(status)) == words

    @pytest.mark.parametrize(
        ("status", "code", "words"),
        [
            (
                {"containerStatuses": state(terminated={"exitCode": 137, "reason": "OOMKilled"})},
                -9,
                "OOMKilled: it used more memory than its limit of 512.0 MiB",
            ),
            (
                {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
                -9,
                "Evicted: The node was low on memory.",
            ),
            (
                {"containerStatuses": state(terminated={"exitCode": 143, "reason": "Error"})},
                -15,
                "it was killed by SIGTERM before it could be reached",
            ),
            (
                {
                    "containerStatuses": state(terminated={"exitCode": 143, "reason": "Error"}),
                    "conditions": [
                        {
                            "type": "DisruptionTarget",
                            "status": "True",
                            "reason": "PreemptionByScheduler",
                            "message": "preempting to accommodate a higher priority pod",
                        }
                    ],
                },
                -15,
                "PreemptionByScheduler: preempting to accommodate a higher priority pod",
            ),
        ],
    )
    def test_an_ended_pod_says_how(self, status, code, words, tmp_path):
        start = Start({"board": "b1", "directory": str(tmp_path), "start": "1", "log_from": 0})
        assert ending(pod_with(status), start, 512 << 20) == (code, words)


class TestKubeconfigs:
    def test_none_is_reported(self, environment, home):
        environment.delenv("KUBECONFIG", raising=False)
        environment.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        report = KubernetesExecutor().probe()
        assert not report.answers
        assert report.problem == "~/.kube/config: kubeconfig not found."
        assert report.hint == (
            "Set KUBECONFIG, or kubeconfig in [executors.kubernetes]. Check: kubectl version"
        )

    def test_a_missing_context_names_the_known_ones(self, tmp_path):
        path = tmp_path / "config"
        path.write_text(
            "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"
            "contexts: [{name: here, context: {cluster: c}}]\ncurrent-context: here\n"
        )
        with pytest.raises(ApiError, match=r"context 'there' is .*missing.*Known: here"):
            _ = KubernetesApi(str(path), "there").server
        assert KubernetesApi(str(path)).server == "https://127.0.0.1:1"
        assert KubernetesApi(str(path)).namespace == "default"

    def test_of_several_files_the_first_counts(self, environment, tmp_path):
        first, second = tmp_path / "first", tmp_path / "second"
        first.write_text("clusters: [{name: c, cluster: {server: 'https://first'}}]\n")
        second.write_text(
            "clusters: [{name: c, cluster: {server: 'https://second'}}]\n"
            "contexts: [{name: x, context: {cluster: c, namespace: n}}]\ncurrent-context: x\n"
        )
        environment.setenv("KUBECONFIG", f"{first}:{tmp_path / 'missing'}:{second}")
        api = KubernetesApi()
        assert (api.server, api.namespace) == ("https://first", "n")

    def test_an_api_server_that_is_away_is_reported(self, tmp_path, closed_port):
        path = tmp_path / "config"
        path.write_text(
            f"clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{closed_port}'}}}}]\n"
            "contexts: [{name: here, context: {cluster: c}}]\ncurrent-context: here\n"
        )
        executor = KubernetesExecutor({"": KubernetesSettings(kubeconfig=str(path))})
        report = executor.probe()
        assert not report.answers
        server = f"https://127.0.0.1:{closed_port}"
        assert report.problem == f"{server} does not answer: connection refused."
        executor.close()


class FakeApi:
    """A pod that says a line more each time, and its Secret."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def log(self, *_: str) -> Iterator[bytes]:
        self.lines.append(b"line %d\n" % len(self.lines))
        return iter(self.lines)

    def find(self, _: str) -> dict[str, Any]:
        return {"data": {"environment.json": base64.b64encode(ENVIRONMENT)}}

    def delete(self, _: str, *, grace: int) -> None:
        pass


class TestLogsElsewhere:
    """The log of a start that was made where the log of its board had another length."""

    @pytest.fixture
    def save(self, monkeypatch, tmp_path):
        """Store the log once more; return what is stored."""
        api = FakeApi()
        monkeypatch.setattr(KubernetesExecutor, "_api_of", lambda *_: api)

        def save(log_from: int) -> bytes:
            handle = {"board": "b1", "directory": str(tmp_path), "start": "1", "pod": "aboard-b1-1"}
            KubernetesExecutor().stop(handle | {"log_from": log_from, "namespace": "n"}, now=True)
            return (tmp_path / "log").read_bytes()

        return save

    @pytest.mark.parametrize("log_from", [0, 3, 1000])
    @pytest.mark.parametrize("earlier", [b"", b"an earlier start\n"])
    def test_it_follows_what_is_there(self, save, tmp_path, log_from, earlier):
        if earlier:
            (tmp_path / "log").write_bytes(earlier)
        assert save(log_from) == earlier + b"line 0\n"
        assert save(log_from) == earlier + b"line 0\nline 1\n"

    def test_it_is_stored_again_if_a_user_has_deleted_it(self, save, tmp_path):
        log = tmp_path / "log"
        log.write_bytes(b"an earlier start\n")
        save(17)
        log.unlink()
        save(17)
        assert save(17) == b"line 0\nline 1\nline 2\n"


@pytest.fixture
def executor(kubernetes_rig: Rig) -> Iterator[KubernetesExecutor]:
    made = kubernetes_rig.make()
    assert isinstance(made, KubernetesExecutor)
    yield made
    made.close()


@pytest.fixture
def start(executor: KubernetesExecutor, tmp_path: Path) -> Iterator[Callable[..., Handle]]:
    """Start a script, and let nothing run on after the test."""
    handles: list[Handle] = []

    def start(script: str = SERVES, board: str = "k", **options: Any) -> Handle:
        handles.append(executor.start(Spec(board, command(script), tmp_path / board, **options)))
        return handles[-1]

    yield start
    for handle in handles:
        executor.stop(handle, now=True)
        until_state(executor, handle, CommandState.ENDED)


@engine
def test_a_kubeconfig_with_a_client_certificate(cluster: Cluster, executor, tmp_path):
    certificate, key = cluster.authority.issue("me", "system:masters")
    (tmp_path / "me.pem").write_bytes(certificate)
    (tmp_path / "me.key").write_bytes(key)
    user = {"client-certificate": "me.pem", "client-key": "me.key"}
    kubeconfig = cluster.write_kubeconfig(tmp_path / "config", user)
    settings = replace(executor.profiles[""], kubeconfig=kubeconfig)
    mine = KubernetesExecutor({"": settings}, hub=executor.hub, grace=1.0)
    try:
        assert mine.probe().answers
        handle = mine.start(Spec("c", command(SERVES), tmp_path / "c"))
        until_state(mine, handle, CommandState.RUNNING)
        address = mine.address(handle)
        assert address is not None
        assert fetch(address, address.token) == (200, b"hello")
        mine.stop(handle, now=True)
        until_state(mine, handle, CommandState.ENDED)
    finally:
        mine.close()
    (tmp_path / "me.pem").write_bytes(cluster.authority.issue("nobody")[0])
    stranger = KubernetesExecutor({"": settings})
    assert not stranger.probe().answers
    stranger.close()


def with_settings(rig: Rig, **settings: Any) -> Rig:
    return replace(rig, settings={**rig.settings, **settings})


def wait_for_reason(executor: KubernetesExecutor, handle: Handle, text: str) -> Status:
    def poll() -> Status:
        return executor.poll({"one": handle})["one"]

    return until(lambda: status if text in (status := poll()).reason else None, poll)


def serves(executor: KubernetesExecutor, handle: Handle) -> bool:
    address = executor.address(handle)
    try:
        return address is not None and fetch(address, address.token) == (200, b"hello")
    except OSError:
        return False


def add_condition(cluster: Cluster, path: str, condition: dict[str, Any]) -> None:
    """Set a condition in the status of a pod or a node, also where it changes meanwhile."""
    found = json.loads(cluster.kubectl("get", "--raw", path))
    del found["metadata"]["resourceVersion"]
    conditions = found["status"].get("conditions") or []
    others = [one for one in conditions if one["type"] != condition["type"]]
    found["status"]["conditions"] = [*others, condition]
    cluster.kubectl("replace", "--raw", f"{path}/status", "-f", "-", stdin=json.dumps(found))


def heartbeat(cluster: Cluster, node: str) -> None:
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"{datetime.now(UTC):%FT%TZ}"}
    add_condition(cluster, f"/api/v1/nodes/{node}", ready)


@engine
class TestOnACluster:
    def test_secrets_are_in_the_secret_alone(
        self, cluster: Cluster, executor, start, kubernetes_rig
    ):
        handle = start(environment={"AWS_SECRET_ACCESS_KEY": SECRET})
        until_state(executor, handle, CommandState.RUNNING)
        token = executor.address(handle).token
        namespace = kubernetes_rig.settings["namespace"]
        kinds = cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name")
        others = ",".join(one for one in kinds.split() if one != "secrets")
        shown = cluster.kubectl("-n", namespace, "get", others, "-o", "yaml")
        shown += cluster.kubectl("-n", namespace, "describe", "pods,secrets")
        assert handle["pod"] in shown
        containers = cluster.engine.docker("ps", "--all", "--quiet").split()
        shown += cluster.engine.docker("inspect", *containers)
        shown += subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout
        shown += b"".join(executor.logs(handle)).decode() + json.dumps(handle)
        for secret in (token, SECRET):
            assert secret not in shown
        executor.stop(handle)
        until_state(executor, handle, CommandState.ENDED)
        left = cluster.kubectl("-n", namespace, "get", "pods,secrets", "-o", "name")
        assert handle["pod"] not in left  # pods of other tests may still be ending
        assert not (Start(handle).place / "environment.json").exists()

    def test_a_secret_goes_with_its_pod(self, cluster: Cluster, executor, start, kubernetes_rig):
        handle = start(HOLDS)
        namespace = kubernetes_rig.settings["namespace"]
        owner = cluster.get("-n", namespace, "secret", handle["pod"])["metadata"]["ownerReferences"]
        assert owner[0]["name"] == handle["pod"]
        cluster.kubectl("-n", namespace, "delete", "pod", handle["pod"])
        until(lambda: handle["pod"] not in cluster.kubectl("-n", namespace, "get", "secrets"))

    def test_one_deleted_by_another_is_lost_with_what_it_said(
        self, cluster: Cluster, executor, start, kubernetes_rig
    ):
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        namespace = kubernetes_rig.settings["namespace"]
        cluster.kubectl("-n", namespace, "delete", "pod", handle["pod"], "--wait=false")
        status = until_state(executor, handle, CommandState.ENDED)
        assert f"its pod {handle['pod']} was deleted" in status.reason
        assert executor.address(handle) is None
        assert b"third line\n" in b"".join(executor.logs(handle))

    def test_one_that_is_preempted_says_by_which_pod(
        self, cluster: Cluster, executor, start, kubernetes_rig
    ):
        cpus = int(cluster.get("node", NODE)["status"]["allocatable"]["cpu"]) - 0.5
        handle = start(cpus=cpus)
        until_state(executor, handle, CommandState.RUNNING)
        namespace = kubernetes_rig.settings["namespace"]
        cluster.kubectl("apply", "-f", "-", stdin=URGENT.format(namespace=namespace, cpus=cpus))
        try:
            status = until_state(executor, handle, CommandState.ENDED)
            assert f"Preempted by {namespace}/urgent on node {NODE}" in status.reason
            assert executor.found() == []
        finally:
            cluster.kubectl("-n", namespace, "delete", "pod", "urgent")
            cluster.kubectl("delete", "priorityclass", "urgent")

    def test_one_that_is_drained_says_why(self, cluster: Cluster, executor, start):
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        pod = f"/api/v1/namespaces/{handle['namespace']}/pods/{handle['pod']}"
        api = executor._apis.of("")
        condition = {"type": "DisruptionTarget", "status": "True"}
        condition |= {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
        # Newer API servers note it by themselves.
        add_condition(cluster, pod, condition)
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction"}
        metadata = {"name": handle["pod"], "namespace": handle["namespace"]}
        api.post(f"{pod}/eviction", {**eviction, "metadata": metadata})
        status = until_state(executor, handle, CommandState.ENDED)
        assert "EvictionByEvictionAPI: Eviction API: evicting" in status.reason
        assert b"third line\n" in b"".join(executor.logs(handle))
        assert executor.found() == []

    def test_a_kubelet_that_is_killed_comes_back(self, cluster: Cluster, executor, start):
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        address = executor.address(handle)
        cluster.kill("kubelet")
        try:
            assert executor.poll({"one": handle})["one"].state is CommandState.RUNNING
        finally:
            cluster.start("kubelet")
        assert executor.poll({"one": handle})["one"].state is CommandState.RUNNING
        until(lambda: serves(executor, handle))
        assert executor.address(handle) == address

    def test_a_board_ends_with_its_node(self, cluster: Cluster, executor, start):
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        api = executor._apis.of("")
        # Kubernetes removes no pod while all nodes are away: another one stays.
        api.create("/api/v1/nodes", {"metadata": {"name": "idle"}, "spec": {"unschedulable": True}})
        found: list[Status] = []

        def has_ended() -> bool:
            heartbeat(cluster, "idle")
            found.append(executor.poll({"one": handle})["one"])
            return found[-1].state is CommandState.ENDED

        try:
            with cluster.node_away():
                until(has_ended)
                reason = found[-1].reason
                assert reason.startswith(f"node {NODE} does not answer: its pod {handle['pod']}")
                assert "TaintManagerEviction: " in reason
                assert {one.state for one in found[:-1]} == {CommandState.RUNNING}
                assert executor.found() == []
        finally:
            api.delete("/api/v1/nodes/idle")
        # The node removes the containers when it is back, and takes new ones.
        until(lambda: handle["pod"] not in cluster.engine.docker("ps"))
        until_state(executor, start(attempt=2), CommandState.RUNNING)

    def test_an_api_server_that_is_killed_comes_back(self, cluster: Cluster, executor, start):
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        address = executor.address(handle)
        assert fetch(address, address.token) == (200, b"hello")
        cluster.kill("apiserver")
        try:
            status = executor.poll({"one": handle})["one"]
            assert status.state is CommandState.UNKNOWN
            assert f"{cluster.server} does not answer" in status.reason
            assert executor.address(handle) == address
            with pytest.raises(OSError, match=r".*"):
                fetch(address, address.token)
            with pytest.raises(ExecutorError, match="does not answer"):
                executor.stop(handle)
            (Start(handle).place / "stopping").unlink()
        finally:
            cluster.start("apiserver")
        until_state(executor, handle, CommandState.RUNNING)
        assert executor.address(handle) == address
        assert fetch(address, address.token) == (200, b"hello")

    def test_a_hub_without_its_files_goes_on(self, executor, start, kubernetes_rig, tmp_path):
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        token = executor.address(handle).token
        shutil.rmtree(tmp_path / "k")
        another = kubernetes_rig.make()
        (found,) = another.found()
        assert found.handle == handle
        until_state(another, handle, CommandState.RUNNING)
        address = another.address(handle)
        assert address.token == token
        assert fetch(address, token) == (200, b"hello")
        another.stop(handle)
        assert until_state(another, handle, CommandState.ENDED).reason == "it was stopped"
        another.close()

    def test_a_hub_that_does_not_poll_it_serves_it(self, executor, start, kubernetes_rig, tmp_path):
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        token = executor.address(handle).token
        (tmp_path / "k").rename(tmp_path / "of the first hub")
        another = kubernetes_rig.make()
        assert another.address(handle) is None
        another.find_address(handle)
        assert fetch(another.address(handle), token) == (200, b"hello")
        another.close()

    def test_a_start_that_was_cut_off_before_its_secret_is_made_again(
        self, cluster: Cluster, executor, start, kubernetes_rig, tmp_path
    ):
        handle = start()
        namespace = kubernetes_rig.settings["namespace"]
        cluster.kubectl("-n", namespace, "delete", "secret", handle["pod"])
        assert start() == handle
        until_state(executor, handle, CommandState.RUNNING)
        shutil.rmtree(tmp_path / "k")
        cluster.kubectl("-n", namespace, "delete", "secret", handle["pod"])
        again = start()
        assert again != handle
        until_state(executor, again, CommandState.RUNNING)

    def test_a_secret_that_an_earlier_pod_has_left_is_replaced(
        self, cluster: Cluster, executor, start, kubernetes_rig
    ):
        namespace = kubernetes_rig.settings["namespace"]
        old = ("secret", "generic", "aboard-k-1", "--from-literal=environment.json={}")
        cluster.kubectl("-n", namespace, "create", *old)
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        address = executor.address(handle)
        assert fetch(address, address.token) == (200, b"hello")

    def test_one_past_its_deadline_ends_with_the_reason(self, executor, start):
        handle = start(timeout=4)
        status = until_state(executor, handle, CommandState.ENDED)
        assert status.reason.startswith("DeadlineExceeded: ")
        assert status.exit_code == -signal.SIGKILL
        assert b"third line\n" in b"".join(executor.logs(handle))

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"node_selector": {"disk": "none"}}, "Unschedulable: 0/1 nodes are available"),
            ({"image": "no/such-image:1"}, "ImagePullBackOff: "),
            (
                {"volumes": [{"path": "/d", "claim": "none"}]},
                'persistentvolumeclaim "none" not found',
            ),
            ({"service_account": "nobody"}, "nobody"),
        ],
        ids=["node", "image", "claim", "account"],
    )
    def test_what_it_waits_for_is_said(self, kubernetes_rig, tmp_path, settings, words):
        executor = with_settings(kubernetes_rig, **settings).make()
        spec = Spec("waits", command(SERVES), tmp_path / "waits")
        if "service_account" in settings:
            with pytest.raises(ExecutorError, match=words):
                executor.start(spec)
            executor.close()
            return
        handle = executor.start(spec)
        assert wait_for_reason(executor, handle, words).state is CommandState.STARTING
        executor.stop(handle)
        assert until_state(executor, handle, CommandState.ENDED).reason == "it was stopped"
        assert executor.found() == []
        executor.close()

    def test_a_volume_is_read_only_where_the_source_is(self, kubernetes_rig, tmp_path):
        data = tmp_path / "data"
        data.mkdir()
        (data / "file").write_text("of the node")
        script = f"""
import os, sys
print(open("{data}/file").read(), os.getuid(), file=sys.stderr)
for place in ("{data}/new", "/new"):
    try:
        open(place, "w")
    except OSError as error:
        print(error.strerror, file=sys.stderr)
open(os.environ["TMPDIR"] + "/new", "w")
"""
        volumes = [{"path": str(data), "host_path": str(data)}]
        executor = with_settings(kubernetes_rig, volumes=volumes, user=4321).make()
        spec = Spec("volume", command(script), tmp_path / "volume", reads=(data,))
        handle = executor.start(spec)
        status = until_state(executor, handle, CommandState.ENDED)
        written = b"".join(executor.logs(handle)).decode()
        read_only = "Read-only file system\n"
        assert written == f"of the node 4321\n{read_only}{read_only}"
        assert status.exit_code == 0
        executor.close()

    def test_many_are_one_query(self, executor, start, monkeypatch):
        handle = start()
        until_state(executor, handle, CommandState.RUNNING)
        handles = {str(n): handle for n in range(200)}
        requests: list[str] = []
        send = KubernetesApi._send

        async def counted(self: KubernetesApi, method: str, path: str, *rest: Any) -> Any:
            requests.append(f"{method} {path}")
            return await send(self, method, path, *rest)

        monkeypatch.setattr(KubernetesApi, "_send", counted)
        found = executor.poll(handles)
        assert {status.state for status in found.values()} == {CommandState.RUNNING}
        assert len(found) == 200
        assert requests == [f"GET /api/v1/namespaces/{handle['namespace']}/pods"]

    def test_a_credential_plugin_is_run_again_when_its_token_has_expired(
        self, cluster: Cluster, kubernetes_rig, tmp_path
    ):
        plugin, counter = tmp_path / "plugin", tmp_path / "counter"
        plugin.write_text(f"""#!{sys.executable}
import datetime, json, os
assert json.loads(os.environ["KUBERNETES_EXEC_INFO"])["kind"] == "ExecCredential"
with open("{counter}", "a") as file:
    file.write(os.environ["COLOUR"])
first = os.path.getsize("{counter}") == 1
ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
status = {{"token": "expired" if first else "{cluster.token}"}}
status["expirationTimestamp"] = ends.isoformat()
print(json.dumps({{"kind": "ExecCredential", "status": status}}))
""")
        plugin.chmod(0o700)
        user = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1beta1",
                "command": "./plugin",
                "env": [{"name": "COLOUR", "value": "g"}],
            }
        }
        config = cluster.write_kubeconfig(tmp_path / "config", user)
        executor = with_settings(kubernetes_rig, kubeconfig=str(config)).make()
        assert executor.probe().answers
        assert executor.found() == []
        assert counter.read_text() == "gg"
        executor.close()

    def test_a_token_file_and_a_user_without_rights(
        self, cluster: Cluster, kubernetes_rig, tmp_path
    ):
        namespace = kubernetes_rig.settings["namespace"]
        account = cluster.get("-n", namespace, "serviceaccount", "default")
        secret = cluster.get("-n", namespace, "secret", account["secrets"][0]["name"])
        import base64

        token = tmp_path / "token"
        token.write_bytes(base64.b64decode(secret["data"]["token"]))
        token.chmod(stat.S_IRUSR)
        config = cluster.write_kubeconfig(tmp_path / "config", {"tokenFile": "token"})
        executor = with_settings(kubernetes_rig, kubeconfig=str(config)).make()
        report = executor.probe()
        assert report.answers
        assert "may not create pods" in report.problem
        assert "rbac.yaml" in report.hint
        with pytest.raises(ExecutorError, match=r"cannot create resource \"pods\"") as raised:
            executor.start(Spec("refused", command(SERVES), tmp_path / "refused"))
        assert "\n" not in str(raised.value)
        executor.close()
