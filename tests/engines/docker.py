"""A real Docker daemon with an image of this checkout.

It has its own data, sockets, containers and network, so other daemons can run on the machine. It
needs root. No registry is used: the base image is built from the interpreter that runs the tests
and busybox, and is kept outside the checkout.
"""

import functools
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

from tests.engines.certificates import Authority
from tests.engines.ports import free_port
from tests.waiting import until
from tools.cache import CACHE

INSTALL = "apt-get install docker.io iptables iproute2 busybox-static"
BASE, IMAGE = "aboard-base:test", "aboard:test"
_KEPT = CACHE / "docker"
_PROGRAMS = ("dockerd", "docker", "runc", "ip", "busybox", "ldconfig")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin"
_SECONDS = 60
# What packages need besides.
_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1", "libpthread.so.0", "libdl.so.2")
_LIBRARIES += ("librt.so.1", "libutil.so.1")
_LEFT_OUT = {"test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "ensurepip"}
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_COMMANDS = ("sh", "ls", "cat", "sleep", "env", "id", "ps", "wget", "true", "kill", "touch", "nc")

# Without CAP_SYS_RESOURCE, a score cannot be lowered, and sandboxes of pods do not start.
_RUNTIME = """\
#!{python}
import json, os, sys
if "create" in sys.argv and "--bundle" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    if config["process"].pop("oomScoreAdj", None) is not None:
        with open(path, "w") as file:
            json.dump(config, file)
os.execv({runc!r}, [{runc!r}, *sys.argv[1:]])
"""


class DockerDidNotStartError(RuntimeError):
    """The daemon exited or never responded; the message ends with its log."""


def missing() -> str:
    """Return what is not installed; empty if nothing is missing."""
    absent = [program for program in _PROGRAMS if _which(program) is None]
    if os.geteuid() != 0:
        absent.append("root")
    return f"needs {', '.join(absent)} (Debian: {INSTALL})" if absent else ""


class Docker:
    """A daemon; `host` is its address, `image` has the Aboard of this checkout, `base` has none.

    `tls_host` is its address for clients with a certificate of `authority`.
    """

    def __init__(self, home: Path, bridge: str) -> None:
        self.home = home
        self.host = f"unix://{home}/docker.sock"
        self.tls_host = f"tcp://127.0.0.1:{free_port()}"
        self.authority = Authority()
        self.base, self.image = BASE, IMAGE
        self.bridge = bridge
        self._process: subprocess.Popen[bytes] | None = None
        runtime = home / "runtime"
        runtime.write_text(_RUNTIME.format(python=sys.executable, runc=_which("runc")))
        runtime.chmod(0o755)
        certificate, key = self.authority.issue("docker", hosts=["127.0.0.1"])
        contents = {"ca.pem": self.authority.pem, "server.pem": certificate, "server.key": key}
        for name, content in contents.items():
            (home / name).write_bytes(content)

    def docker(self, *words: str | Path, check: bool = True) -> str:
        """Run the `docker` client; return its output."""
        done = subprocess.run(
            [_which("docker"), "--host", self.host, *words],
            env={"PATH": _PATH, "HOME": str(self.home), "DOCKER_BUILDKIT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"docker {words[0]} failed: {done.stderr}")
        return done.stdout

    def start(self) -> None:
        """Start the daemon, and wait until it responds."""
        data, log = self.home / "data", self.home / "log"
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [
                    *(_which("dockerd"), "--host", self.host, "--data-root", data),
                    *("--host", self.tls_host, "--tlsverify"),
                    *("--tlscacert", self.home / "ca.pem", "--tlscert", self.home / "server.pem"),
                    *("--tlskey", self.home / "server.key"),
                    *("--exec-root", self.home / "exec", "--pidfile", self.home / "pid"),
                    *("--bridge", self.bridge, "--iptables=false", "--ip-masq=false"),
                    *("--add-runtime", f"plain={self.home / 'runtime'}"),
                    *("--default-runtime", "plain", "--live-restore", "--log-level", "warn"),
                ],
                env={**os.environ, "PATH": _PATH},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )

        def failure() -> str:
            return f"dockerd did not start: {log.read_text()[-2000:]}"

        def answers() -> bool:
            if self.docker("version", "--format", "{{.Server.Version}}", check=False).strip():
                return True
            if self._process.poll() is not None:
                raise DockerDidNotStartError(failure())
            return False

        until(answers, failure)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Stop the daemon; its containers continue to run."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_SECONDS)
            self._process = None
            self._end_containerd()

    def _end_containerd(self) -> None:
        """Kill a containerd that outlived its daemon: the next daemon would wait for it forever."""
        file = self.home / "exec/containerd/containerd.pid"
        with suppress(FileNotFoundError):
            pid = int(file.read_text())
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            maps = Path(f"/proc/{pid}/maps")
            until(lambda: not (maps.exists() and maps.read_text()))
            file.unlink()

    def signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        state = Path(f"/proc/{self._process.pid}/stat")
        if number == signal.SIGSTOP:
            until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")

    @property
    def runs(self) -> bool:
        return self._process is not None

    def clear(self) -> None:
        """Remove all containers, and the networks that they used."""
        if found := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *found)
        self.docker("network", "prune", "--force")

    def load_images(self) -> None:
        self.docker("import", _base_tar(), self.base)
        _build(self)

    def end(self) -> None:
        """Kill all processes of the daemon, also those left behind by a killed one."""
        if self._process is not None:
            with suppress(RuntimeError):
                self.clear()
            self.kill(signal.SIGTERM)
        for pid in _pids_below(self.home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for place in reversed(_mounts_below(self.home)):
            subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)


@contextmanager
def dockerd() -> Iterator[Docker]:
    """Run a daemon with both images.

    Raises:
        FileNotFoundError: Docker is not installed.
    """
    if lacking := missing():
        raise FileNotFoundError(f"a Docker daemon {lacking}")
    name = f"ab{secrets.token_hex(4)}"
    # Below /tmp: the path of a socket is limited to about a hundred characters.
    home = Path(tempfile.mkdtemp(prefix="docker-", dir="/tmp"))
    home.chmod(0o711)
    _add_bridge(name)
    engine = Docker(home, name)
    try:
        engine.start()
        engine.load_images()
        yield engine
    finally:
        engine.end()
        _ip("link", "delete", name)
        shutil.rmtree(home, ignore_errors=True)


def _add_bridge(name: str) -> None:
    """Add a network of its own: daemons that share one would assign the same addresses."""
    _ip("link", "add", name, "type", "bridge")
    number = int(name[2:], 16)
    _ip("address", "add", f"10.{200 + number % 50}.{number // 50 % 256}.1/24", "dev", name)
    _ip("link", "set", name, "up")


def _ip(*words: str) -> None:
    subprocess.run([_which("ip"), *words], check=True, capture_output=True)


def _build(engine: Docker) -> None:
    """Build the image of this checkout as users build theirs."""
    from aboard.executors.docker.daemon import build_image, connect

    with connect(engine.host) as client:
        build_image(client, tag=engine.image, base=engine.base)


def _base_tar() -> Path:
    """Return an archive with the root file system of the base image, made once per interpreter."""
    libraries = _libraries()
    identity = [sys.version, sys.base_prefix, *map(str, libraries.values()), *_COMMANDS, "2"]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    path = _KEPT / f"base-{digest}.tar"
    if path.exists():
        return path
    _KEPT.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    with tarfile.open(partial, "w") as tar:
        _add_folders(tar)
        _add_interpreter(tar)
        for name, library in libraries.items():
            tar.add(library, name)
        tar.add(_which("busybox") or "", "bin/busybox")
        for command in _COMMANDS:
            _add(tar, f"bin/{command}", target="busybox")
        if _CERTIFICATES.exists():
            tar.add(_CERTIFICATES.resolve(), str(_CERTIFICATES)[1:])
        _add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    partial.replace(path)
    return path


def _add_folders(tar: tarfile.TarFile) -> None:
    for name in ("bin", "etc", "proc", "sys", "dev", "usr", "usr/bin", "root", "tmp", "var", "run"):
        member = tarfile.TarInfo(name)
        member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        tar.addfile(member)


def _add_interpreter(tar: tarfile.TarFile) -> None:
    program, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))

    def filtered(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(member.name).parts
        return None if _LEFT_OUT & set(parts) or "config-" in member.name else member

    tar.add(program, str(program)[1:])
    tar.add(library, str(library)[1:], filter=filtered)
    for name in ("python3", "python"):
        _add(tar, f"usr/bin/{name}", target=str(program))


def _add(tar: tarfile.TarFile, name: str, content: bytes = b"", target: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.size = 0o755 if target else 0o644, len(content)
    if target:
        member.type, member.linkname = tarfile.SYMTYPE, target
    tar.addfile(member, BytesIO(content))


@functools.cache
def _libraries() -> dict[str, Path]:
    """Return the shared libraries that the interpreter and packages need, by their place."""
    modules = (Path(sysconfig.get_path("stdlib")) / "lib-dynload").glob("*.so")
    programs = [Path(sys.executable).resolve(), *modules]
    found = {word for word in _printed("ldd", *programs) if word.startswith("/") and ".so" in word}
    listed = [word for word in _printed("ldconfig", "-p") if word.startswith("/")]
    known = {Path(word).name: word for word in reversed(listed)}  # those of 32 bits come last
    found |= {known[name] for name in _LIBRARIES if name in known}
    return {name[1:]: Path(name).resolve() for name in sorted(found) if not name.endswith(":")}


def _printed(program: str, *words: str | Path) -> list[str]:
    done = subprocess.run(
        [_which(program) or program, *words], capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def _pids_below(home: Path) -> list[int]:
    """Return the processes of the daemon: their command lines contain its directory."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "cmdline").read_bytes().decode("utf-8", "replace")
            if f"{home}/" in words and int(place.name) != os.getpid():
                found.append(int(place.name))
    return found


def _mounts_below(home: Path) -> list[str]:
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [place for place in places if place.startswith(f"{home}/")]


def _which(program: str) -> str | None:
    return shutil.which(program, path=_PATH)
