"""The hub installed with deploy/kubernetes on a real cluster, with its boards."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from aboard.executors.kubernetes.boards import NEEDED, NEEDED_BY_JOBS
from aboard.executors.kubernetes.pod import is_ready
from aboard.hub.config import make_config
from tests.engines.kubernetes import Cluster
from tests.hub.hubs import QUICK, log_run, points
from tests.waiting import until

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
CURVE = [(0, 1.0), (1, 0.5)]
PASSWORD = "correct horse battery staple"
PATCH = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: aboard-hub, namespace: aboard}}
spec:
  template:
    spec:
      containers:
      - name: hub
        # There is no kube-proxy here: the API server has its own address only.
        env:
        - {{name: KUBERNETES_SERVICE_HOST, value: "{host}"}}
        - {{name: KUBERNETES_SERVICE_PORT, value: "{port}"}}
        volumeMounts: [{{name: runs, mountPath: /data/runs, readOnly: true}}]
      volumes: [{{name: runs, hostPath: {{path: "{runs}"}}}}]
"""
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: aboard-hub}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {{path: "{path}"}}
"""
SETTINGS = """
[[roots]]
uri = "/data/runs"

[executors.kubernetes]
image = "{image}"
memory_limit = "1Gi"

[[executors.kubernetes.volumes]]
path = "/data/runs"
host_path = "{runs}"
"""


@dataclass
class Hub:
    cluster: Cluster
    home: Path
    url: str

    def aboard(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "aboard", *words],
            input=stdin,
            env={**os.environ, "ABOARD_STATE": str(self.home / "state"), "ABOARD_HUB": self.url},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def find(self) -> None:
        """Read the address of the hub's pod, once it is ready."""
        (pod,) = until(self._ready_pods)
        self.url = f"http://{pod['status']['podIP']}:8080"
        self.aboard("login", self.url, "--user", "admin", stdin=f"{PASSWORD}\n")

    def kill(self) -> None:
        """Kill the hub's pod, and wait for the one that the deployment makes in its place."""
        (pod,) = self._ready_pods()
        now = ("--grace-period=0", "--force")
        self.cluster.kubectl("-n", "aboard", "delete", "pod", pod["metadata"]["name"], *now)
        self.find()

    def _ready_pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self._pods("aboard-hub") if is_ready(pod)]

    def boards(self) -> list[dict[str, Any]]:
        return self._pods("aboard-board")

    def _pods(self, name: str) -> list[dict[str, Any]]:
        labels = ("-l", f"app.kubernetes.io/name={name}")
        pods: list[dict[str, Any]] = self.cluster.get("-n", "aboard", "pods", *labels)["items"]
        return pods

    def state(self, board: str) -> str:
        described = json.loads(self.aboard("describe", board, "--json"))
        return str(described["state"])

    def curve(self, board: str) -> list[tuple[int, float]]:
        """Read a curve as a browser does, through the hub's proxy."""
        token = json.loads((self.home / "state" / "login.json").read_text())["token"]
        headers = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=self.url, headers=headers, **QUICK) as client:
            found: list[tuple[int, float]] = until(lambda: _points(client, board))
        return found


def _points(client: httpx.Client, board: str) -> list[tuple[int, float]] | None:
    try:
        (series,) = points(client, board).values()
    except (AssertionError, ValueError):  # the board reads its runs
        return None
    found: list[tuple[int, float]] = series
    return found


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    place = tmp_path / "runs"
    log_run(place, "digits/run1", [value for _, value in CURVE])
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return place


@pytest.fixture
def hub(cluster: Cluster, tmp_path: Path, runs: Path) -> Iterator[Hub]:
    base, volume = tmp_path / "base", tmp_path / "volume"
    shutil.copytree(DEPLOY / "base", base)
    volume.mkdir()
    volume.chmod(0o777)
    image = cluster.engine.image
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
    kustomization["images"] = [{"name": "aboard", "newTag": image.partition(":")[2]}]
    kustomization["patchesStrategicMerge"] = ["patch.yaml"]
    (base / "kustomization.yaml").write_text(json.dumps(kustomization))
    host, _, port = cluster.server.removeprefix("https://").partition(":")
    (base / "patch.yaml").write_text(PATCH.format(host=host, port=port, runs=runs))
    settings = (base / "aboard.toml").read_text().partition("[executors")[0]
    (base / "aboard.toml").write_text(settings + SETTINGS.format(image=image, runs=runs))
    secrets = list(yaml.safe_load_all((DEPLOY / "secrets.example.yaml").read_text()))
    secrets[0]["stringData"]["password"] = f"{PASSWORD}\n"
    try:
        cluster.kubectl("apply", "-f", "-", stdin=VOLUME.format(path=volume))
        cluster.kubectl("apply", "-k", str(base))
        cluster.kubectl("apply", "-n", "aboard", "-f", "-", stdin=json.dumps(secrets[0]))
        found = Hub(cluster, tmp_path, "")
        found.find()
        yield found
    finally:
        cluster.kubectl("delete", "namespace", "aboard", "--timeout=120s", check=False)
        cluster.kubectl("delete", "pv", "aboard-hub", "--timeout=30s", check=False)


@pytest.mark.engine("kubernetes")
def test_a_hub_in_the_cluster_runs_boards_there(hub: Hub):
    (engine,) = [
        one
        for one in json.loads(hub.aboard("engines", "--json"))["engines"]
        if one["name"] == "kubernetes"
    ]
    assert (engine["answers"], engine["problem"]) == (True, "")
    options = ("--on", "kubernetes", "--memory", "512MiB", "--no-browser", "--json")
    board = json.loads(hub.aboard("start", "/data/runs", *options))["id"]
    (pod,) = hub.boards()
    assert pod["metadata"]["labels"]["aboard/board"] == board
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == str(512 << 20)
    assert hub.curve(board) == CURVE

    hub.kill()
    until(lambda: hub.state(board) == "running")
    assert hub.curve(board) == CURVE
    (same,) = hub.boards()
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]

    hub.aboard("stop", board)
    until(lambda: hub.state(board) == "stopped")
    hub.aboard("delete", board)
    assert hub.boards() == []
    assert pod["metadata"]["name"] not in hub.cluster.kubectl("-n", "aboard", "get", "secrets")


def test_the_manifests_match_the_executor():
    """The role grants what the executor's own check of boards and jobs asks for, nothing else."""
    documents = list(yaml.safe_load_all((DEPLOY / "base" / "rbac.yaml").read_text()))
    (role,) = [one for one in documents if one["kind"] == "Role"]
    granted = {
        f"{verb} {resource}{f'.{group}' if group else ''}"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = {f"{verb} {resource}" for verb, resource in (*NEEDED, *NEEDED_BY_JOBS)}
    assert granted == needed | {"list events"}


def test_every_setting_in_the_manifests_is_read():
    for folder in ("base", "postgres"):
        path = DEPLOY / folder / "aboard.toml"
        text = path.read_text()
        commented = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.M)
        assert commented != text
        for version in (text, commented):
            config = make_config(tomllib.loads(version), path.parent, str(path))
            assert config.executors["kubernetes"][""].image.startswith("aboard:")
