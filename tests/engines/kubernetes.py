"""A real Kubernetes of one node: etcd, API server, controller manager, scheduler and kubelet.

It has its own directory, Docker daemon and bridge. It changes the machine in one way: while it
runs, a firewall rule lets pods connect to each other. `make kubernetes` builds the programs.
"""

import base64
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engines import docker
from tests.engines.certificates import Authority
from tests.engines.docker import Docker
from tests.engines.ports import free_ports
from tests.waiting import until
from tools.cache import CACHE, find, last_failure
from tools.kubernetes import NAME

INSTALL = "apt-get install socat etcd-server iptables"
NODE = "node1"
PAUSE = "pause:1"
_PROGRAMS = ("socat", "etcd", "busybox", "iptables")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_BINARIES = CACHE / NAME
# A kubelet removes the logs of unknown pods, including those of other clusters. The directory is
# not configurable, so the kubelet runs in a mount namespace with its own, and shares other mounts.
_OWN_LOGS = """
set -e
mkdir -p /var/log/pods "$0/pods"
mount --make-private "$(findmnt --noheadings --output TARGET --target /var/log/pods)"
mount --bind "$0/pods" /var/log/pods
exec "$@"
"""


class KubernetesDidNotStartError(RuntimeError):
    """A daemon exited or never responded; the message ends with its log."""


def missing() -> str:
    """Return what is not installed; empty if nothing is missing."""
    lacking = [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]
    if lacking:
        return f"needs {', '.join(lacking)} (Debian: {INSTALL})"
    if lacking_docker := docker.missing():
        return lacking_docker
    if find(NAME) is None:
        return f"needs the programs of Kubernetes: make kubernetes {last_failure(NAME)}".rstrip()
    return ""


class Cluster:
    """A running cluster: its address for clients, and its daemons, to kill and restart."""

    def __init__(self, home: Path, engine: Docker) -> None:
        self.home = home
        self.engine = engine
        self.authority = Authority()
        bridge = "{{(index .IPAM.Config 0).Gateway}}"
        self.gateway = engine.docker("network", "inspect", "bridge", "--format", bridge).strip()
        self.ports = free_ports(4)
        self.token = secrets.token_hex(16)
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def server(self) -> str:
        return f"https://{self.gateway}:{self.ports[0]}"

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    @property
    def kubectl_program(self) -> Path:
        return _BINARIES / "kubectl"

    def kubectl(self, *words: str, stdin: str = "", check: bool = True) -> str:
        done = subprocess.run(
            [_BINARIES / "kubectl", "--kubeconfig", self.kubeconfig, *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout if not done.returncode else done.stderr

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def make_namespace(self, name: str) -> str:
        self.kubectl("create", "namespace", name)
        until(lambda: "default" in self.kubectl("-n", name, "get", "serviceaccounts"))
        return name

    def write_kubeconfig(self, path: Path, user: Mapping[str, Any], namespace: str = "") -> Path:
        context = {"cluster": "here", "user": "me"} | (
            {"namespace": namespace} if namespace else {}
        )
        authority = base64.b64encode((self.home / "ca.pem").read_bytes()).decode()
        cluster = {"server": self.server, "certificate-authority-data": authority}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": dict(user)}],
            "contexts": [{"name": "test", "context": context}],
        }
        path.write_text(json.dumps(document))  # JSON is valid YAML
        path.chmod(0o600)
        return path

    # The daemons.

    def start(self, name: str) -> None:
        command, ready = getattr(self, f"_{name}")()
        log = (self.home / f"{name}.log").open("ab")
        with log:
            self.daemons[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": _PATH},
                start_new_session=True,
            )

        def failure() -> str:
            text = (self.home / f"{name}.log").read_text(errors="replace")[-4000:]
            return f"{name} did not start: {text}"

        until(lambda: self.daemons[name].poll() is not None or ready(), failure)
        if self.daemons[name].poll() is not None:
            raise KubernetesDidNotStartError(failure())

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.daemons.pop(name, None)
        if process is not None:
            process.send_signal(number)
            process.wait(180)

    @contextmanager
    def node_away(self) -> Iterator[None]:
        """Drop all packets of the node, as if it were switched off; its containers still run."""
        kubelet = ("--destination", self.gateway, "--protocol", "tcp")
        rule = ("OUTPUT", *kubelet, "--dport", str(self.ports[3]), "--jump", "DROP")
        _iptables("--insert", *rule)
        self.daemons["kubelet"].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.daemons["kubelet"].send_signal(signal.SIGCONT)
            _iptables("--delete", *rule)

    def _etcd(self) -> tuple[list[str], Callable[[], bool]]:
        client, peer = (f"http://127.0.0.1:{port}" for port in self.ports[1:3])
        command = ["etcd", "--data-dir", f"{self.home}/etcd", "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}"]
        return command, lambda: _answers(f"{client}/health")

    def _apiserver(self) -> tuple[list[str], Callable[[], bool]]:
        home = self.home
        command = [
            f"{_BINARIES}/kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.ports[1]}",
            f"--bind-address={self.gateway}",
            f"--advertise-address={self.gateway}",
            f"--secure-port={self.ports[0]}",
            "--insecure-port=0",
            f"--tls-cert-file={home}/server.pem",
            f"--tls-private-key-file={home}/server.key",
            f"--client-ca-file={home}/ca.pem",
            f"--service-account-key-file={home}/server.key",
            f"--service-account-signing-key-file={home}/server.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={home}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--kubelet-preferred-address-types=InternalIP",
            "--event-ttl=10m",
        ]
        return command, lambda: "ok" in self.kubectl("get", "--raw", "/readyz", check=False)

    def _controllers(self) -> tuple[list[str], Callable[[], bool]]:
        command = [
            f"{_BINARIES}/kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.home}/server.key",
            f"--root-ca-file={self.home}/ca.pem",
            "--leader-elect=false",
            "--port=0",
            "--secure-port=0",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=20s",
        ]

        def ready() -> bool:
            found = self.kubectl("-n", "default", "get", "serviceaccount", "default", "-o", "json")
            return "secrets" in json.loads(found)

        return command, lambda: _quietly(ready)

    def _scheduler(self) -> tuple[list[str], Callable[[], bool]]:
        command = [f"{_BINARIES}/kube-scheduler", f"--kubeconfig={self.kubeconfig}"]
        return [*command, "--leader-elect=false", "--port=0", "--secure-port=0"], lambda: True

    def _kubelet(self) -> tuple[list[str], Callable[[], bool]]:
        home = self.home
        command = [
            *("unshare", "--mount", "--propagation", "unchanged"),
            *("sh", "-c", _OWN_LOGS, str(home)),
            f"{_BINARIES}/kubelet",
            f"--kubeconfig={self.kubeconfig}",
            f"--root-dir={home}/kubelet",
            f"--cert-dir={home}/kubelet-pki",
            f"--docker-endpoint={self.engine.host}",
            f"--pod-infra-container-image={PAUSE}",
            f"--hostname-override={NODE}",
            f"--node-ip={self.gateway}",
            f"--address={self.gateway}",
            f"--port={self.ports[3]}",
            "--read-only-port=0",
            "--healthz-port=0",
            "--fail-swap-on=false",
            "--cgroup-driver=cgroupfs",
            "--cgroups-per-qos=false",
            "--enforce-node-allocatable=",
            "--eviction-hard=memory.available<10Mi",
            "--authorization-mode=AlwaysAllow",
            "--anonymous-auth=true",
            "--node-status-update-frequency=2s",
            "--sync-frequency=5s",
            "--volume-stats-agg-period=2s",
            "--image-gc-high-threshold=100",
            f"--log-dir={home}",
        ]

        def ready() -> bool:
            conditions = self.get("node", NODE)["status"].get("conditions", [])
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        return command, lambda: _quietly(ready)

    # Start and stop.

    def _prepare(self) -> None:
        hosts = ("127.0.0.1", self.gateway, "10.96.0.1", "kubernetes.default.svc", "localhost")
        certificate, key = self.authority.issue("kube-apiserver", hosts=hosts)
        (self.home / "ca.pem").write_bytes(self.authority.pem)
        (self.home / "server.pem").write_bytes(certificate)
        (self.home / "server.key").touch(0o600)
        (self.home / "server.key").write_bytes(key)
        (self.home / "tokens.csv").write_text(f'{self.token},admin,1,"system:masters"\n')
        self.write_kubeconfig(self.kubeconfig, {"token": self.token})

    def _add_pause(self) -> None:
        """Build the image of a pod's sandbox, with a static program that waits."""
        archive = self.home / "pause.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(shutil.which("busybox", path=_PATH) or "", "busybox")
        script = "trap 'exit 0' TERM INT; /busybox sleep 1000000 & wait"
        waits = f"ENTRYPOINT {json.dumps(['/busybox', 'sh', '-c', script])}"
        self.engine.docker("import", "--change", waits, archive, PAUSE)

    def _connect_pods(self, action: str) -> None:
        """Allow packets between pods, as a network plugin does; a firewall may drop them."""
        bridge = self.engine.bridge
        rule = ("FORWARD", "--in-interface", bridge, "--out-interface", bridge, "--jump", "ACCEPT")
        _iptables(action, *rule)

    def _end(self) -> None:
        """Stop all daemons and containers, and remove the mounts."""
        for name in ("kubelet", "scheduler", "controllers", "apiserver", "etcd"):
            self.kill(name)
        self.engine.clear()
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith(f"{self.home}/"):
                subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)


@contextmanager
def kubernetes() -> Iterator[Cluster]:
    """Run a cluster with one ready node; its Docker daemon has the images of the tests."""
    home = Path(tempfile.mkdtemp(prefix="k8s-", dir="/tmp"))
    home.chmod(0o755)
    subprocess.run(["mount", "--bind", home, home], check=True)
    subprocess.run(["mount", "--make-shared", home], check=True)
    try:
        with docker.dockerd() as engine:
            cluster = Cluster(home, engine)
            cluster._connect_pods("--insert")
            try:
                cluster._prepare()
                cluster._add_pause()
                for name in ("etcd", "apiserver", "controllers", "scheduler", "kubelet"):
                    cluster.start(name)
                yield cluster
            finally:
                cluster._connect_pods("--delete")
                cluster._end()
    finally:
        subprocess.run(["umount", "--lazy", home], check=True)
        shutil.rmtree(home, ignore_errors=True)


def _iptables(*words: str) -> None:
    iptables = shutil.which("iptables", path=_PATH) or ""
    subprocess.run([iptables, "--wait", *words], capture_output=True, check=True)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5, context=ssl.create_default_context()).close()
    except (OSError, urllib.error.URLError):
        return False
    return True


def _quietly(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except (AssertionError, ValueError, KeyError):
        return False
