"""Boards as containers: what they may do, what others see of them, and who ends them."""

import gc
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from aboard import EventWriter
from aboard.executors.base import CommandState, ExecutorError, Spec
from aboard.executors.docker import daemon as docker_daemon
from aboard.executors.docker.boards import DockerExecutor, DockerSettings
from aboard.executors.docker.daemon import default_tag
from tests.engines.certificates import Authority
from tests.engines.rigs import SERVES, command, fetch, until_state
from tests.waiting import until

pytestmark = [
    pytest.mark.engine("docker"),
    # docker-py leaves the socket of a refused connection to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected():
    """Collect such sockets here, where their warnings are ignored, and not in a later test."""
    yield
    gc.collect()


SECRET = "a-secret-that-nobody-may-read"
LOOKS = """
import json, os, sys
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
def writes(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return "written"
root, home = sys.argv[1], os.environ["HOME"]
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": int(status["NoNewPrivs"]),
    "image": writes("/opt/aboard/x"), "root": writes("/x"), "source": writes(root + "/x"),
    "start": writes(os.path.dirname(os.environ["TMPDIR"]) + "/end.json"),
    "temporary": writes(os.environ["TMPDIR"] + "/x"), "tmp": writes("/tmp/x"),
    "file": open(root + "/file").read(), "secret": os.environ.get("AWS_SECRET_ACCESS_KEY"),
    "colour": os.environ.get("COLOUR"),
    "aws": os.path.exists(home + "/.aws/credentials") and writes(home + "/.aws/credentials"),
    "devices": sorted(one for one in os.listdir("/dev") if one.startswith("nvidia")),
}), file=sys.stderr, flush=True)
import time; time.sleep(600)
"""


@pytest.fixture
def make(docker_engine):
    made = []

    def make(**settings):
        settings = {"host": docker_engine.host, "image": docker_engine.image, **settings}
        made.append(DockerExecutor({"": DockerSettings(**settings)}, hub="test", grace=1.0))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def executor(make, docker_engine):
    yield make()
    if not docker_engine.runs:
        docker_engine.start()
    docker_engine.clear()
    gc.collect()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.mkdir()
    (path / "file").write_text("a run")
    return path


def spec(tmp_path, script=SERVES, board="a", **options):
    return Spec(board, command(script), tmp_path / board, **options)


def log_line(executor, handle):
    """Return the first line of a log as JSON, once it is there."""

    def log():
        status = executor.poll({"one": handle})["one"]
        found = b"".join(executor.logs(handle))
        assert b"\n" in found or status.state is CommandState.STARTING, status
        return b"\n" in found and found

    return json.loads(until(log).partition(b"\n")[0])


def running(executor, handle):
    until_state(executor, handle, CommandState.RUNNING)
    return handle


# What a board may do.


def test_a_board_has_the_rights_of_its_user_and_writes_to_its_own_files_only(
    make, executor, source, tmp_path
):
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text("[default]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        looks = Spec(
            "a",
            (*command(LOOKS), str(source)),
            tmp_path / "a",
            environment={"AWS_SECRET_ACCESS_KEY": SECRET},
            reads=(source, source / "file", tmp_path / "missing"),
            credential_files=(home / ".aws",),
        )
        seen = log_line(executor, executor.start(looks))
    denied = "Read-only file system"
    assert (seen["uid"], seen["gid"]) == (os.getuid(), os.getgid())
    assert set(seen["groups"]) >= set(os.getgroups())
    assert (seen["capabilities"], seen["no_new_privileges"]) == (0, 1)
    assert {seen[name] for name in ("image", "root", "source", "start", "aws")} == {denied}
    assert (seen["temporary"], seen["tmp"]) == ("written", "written")
    assert (seen["file"], seen["secret"], seen["devices"]) == ("a run", SECRET, [])


def test_settings_change_what_a_board_gets(make, executor, docker_engine, source, tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]")
    other = make(
        credentials=False,
        environment={"COLOUR": SECRET},
        volumes=[f"{source}:/there:rw"],
        labels={"team": "vision"},
        read_only=False,
        tmpfs="8m",
        pids=64,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        looks = Spec(
            "a",
            (*command(LOOKS), "/there"),
            tmp_path / "a",
            environment={"AWS_SECRET_ACCESS_KEY": SECRET, "MOUNT": "kept"},
            credential_files=(tmp_path / ".aws",),
        )
        handle = other.start(looks)
        seen = log_line(other, handle)
    assert (seen["colour"], seen["secret"], seen["aws"]) == (SECRET, None, False)
    assert (seen["root"], seen["source"]) == ("written", "written")
    (shown,) = json.loads(docker_engine.docker("inspect", handle["container"]))
    assert shown["Config"]["Labels"]["team"] == "vision"
    assert (shown["HostConfig"]["PidsLimit"], SECRET in json.dumps(shown)) == (64, False)


def test_another_user_cannot_read_the_files_of_a_start(make, executor, tmp_path):
    other = make(user="12345:12345")
    status = until_state(other, other.start(spec(tmp_path)), CommandState.ENDED)
    assert status.exit_code == 1
    assert "the board's environment cannot be used: [Errno 13] Permission denied" in status.reason


def test_limits_are_the_engines_and_the_port_is_on_loopback(executor, docker_engine, tmp_path):
    handle = running(executor, executor.start(spec(tmp_path, memory=256 << 20, cpus=0.5)))
    (shown,) = json.loads(docker_engine.docker("inspect", handle["container"]))
    host = shown["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (256 << 20, 256 << 20)
    assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 1024)
    assert host["RestartPolicy"]["Name"] == "no"
    assert not host["DeviceRequests"]
    assert not host["Privileged"]
    ports = shown["NetworkSettings"]["Ports"]
    assert [one["HostIp"] for one in ports["6006/tcp"]] == ["127.0.0.1"]
    assert executor.address(handle).host == "127.0.0.1"


def test_a_board_ends_at_its_time_without_a_hub(executor, source, tmp_path):
    with EventWriter(source / "run1") as writer:
        writer.scalar("loss", 0.5, 1)
    view = ("python", "-P", "-m", "aboard", "view", "--json", "--no-browser", "--", str(source))
    handle = executor.start(Spec("a", view, tmp_path / "a", reads=(source,), timeout=4.0))
    running(executor, handle)
    address = executor.address(handle)
    assert fetch(address, None)[0] == 401
    assert fetch(address, address.token)[0] == 200
    status = until_state(executor, handle, CommandState.ENDED)
    assert status.exit_code == 0, status
    assert executor.address(handle) is None


def test_a_directory_that_would_hide_the_image_is_refused(executor, tmp_path):
    with pytest.raises(ExecutorError, match=r"hide the image's own\. Choose a directory below"):
        executor.start(spec(tmp_path, reads=(Path("/usr"),)))
    assert executor.found() == []


@pytest.mark.parametrize("settings", [{"publish": ""}, {"network": "host"}], ids=["ip", "host"])
def test_a_board_is_reached_without_a_published_port(make, executor, tmp_path, settings):
    other = make(**settings)
    handle = running(other, other.start(spec(tmp_path)))
    address = other.address(handle)
    assert fetch(address, address.token) == (200, b"hello")


def test_its_address_needs_no_file_once_polled_and_follows_its_container(
    executor, docker_engine, tmp_path
):
    handle = running(executor, executor.start(spec(tmp_path)))
    before = executor.address(handle)
    (tmp_path / "a").rename(tmp_path / "away")
    assert executor.address(handle) == before
    (tmp_path / "away").rename(tmp_path / "a")
    (tmp_path / "a" / "start-1" / "published.json").write_text('["127.0.0.1", 1]')
    assert executor.address(handle) == before
    executor.find_address(handle)
    assert executor.address(handle).port == 1
    running(executor, handle)
    assert executor.address(handle) == before
    docker_engine.docker("kill", handle["container"])
    until_state(executor, handle, CommandState.ENDED)
    assert executor.address(handle) is None


# What others see.


def test_no_secret_is_shown(executor, docker_engine, tmp_path):
    made = spec(tmp_path, environment={"COLOUR": SECRET})
    handle = running(executor, executor.start(made))
    token = executor.address(handle).token
    pem = (tmp_path / "a" / "start-1" / "certificate.pem").read_text().splitlines()[1]
    shown = {
        "inspect": docker_engine.docker("inspect", handle["container"]),
        "logs": docker_engine.docker("logs", handle["container"]),
        "list": docker_engine.docker("ps", "--all", "--no-trunc"),
        "top": docker_engine.docker("top", handle["container"]),
        "processes": subprocess.check_output(["ps", "-eo", "args"], text=True),
        "daemon": (docker_engine.home / "log").read_text(),
        "handle": json.dumps(handle),
        "log": b"".join(executor.logs(handle)).decode(),
    }
    for place, text in shown.items():
        for secret in (SECRET, token, pem):
            assert secret not in text, place
    for path in (tmp_path / "a").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    executor.stop(handle, now=True)
    until_state(executor, handle, CommandState.ENDED)
    left = [path for path in (tmp_path / "a" / "start-1").iterdir() if path.is_file()]
    assert not [path for path in left if SECRET in path.read_text()]


def test_another_server_on_its_port_has_another_certificate(executor, tmp_path):
    first = running(executor, executor.start(spec(tmp_path)))
    second = running(executor, executor.start(spec(tmp_path, board="b")))
    address, other = executor.address(first), executor.address(second)
    assert address.fingerprint != other.fingerprint
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((address.host, address.port)) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")  # nothing readable on the wire


# Who ends it.


def test_docker_kill_stop_and_rm(executor, docker_engine, tmp_path):
    handles = [executor.start(spec(tmp_path, board=name)) for name in "abc"]
    for handle in handles:
        running(executor, handle)
    docker_engine.docker("kill", "aboard-a-1")
    docker_engine.docker("rm", "--force", "aboard-b-1")
    docker_engine.docker("stop", "--time", "1", "aboard-c-1")
    killed, removed, stopped = (until_state(executor, one, CommandState.ENDED) for one in handles)
    assert killed.exit_code == -signal.SIGKILL
    assert killed.reason.startswith("it was killed, by a user")
    assert removed.exit_code is None
    assert removed.reason == "its container was removed, not by Aboard"
    assert stopped.exit_code in {-signal.SIGKILL, -signal.SIGTERM}
    assert executor.found() == []


def test_docker_restart_gives_it_another_port(executor, docker_engine, tmp_path):
    handle = running(executor, executor.start(spec(tmp_path)))
    docker_engine.docker("restart", "--time", "0", handle["container"])

    def answer():
        until_state(executor, handle, CommandState.RUNNING)
        address = executor.address(handle)
        try:
            return fetch(address, address.token)
        except OSError:
            return None

    assert until(answer) == (200, b"hello")


def test_a_command_that_cannot_run_in_the_image_says_why(make, executor, tmp_path):
    other = make(python="/no/such/python")
    with pytest.raises(ExecutorError, match=r"cannot be started by Docker: .*/no/such/python"):
        other.start(spec(tmp_path))
    assert executor.found() == []
    handle = executor.start(spec(tmp_path))
    running(executor, handle)


def test_a_missing_image_says_how_to_build_it(make, executor, tmp_path):
    other = make(image=default_tag())
    with pytest.raises(ExecutorError, match=r"Docker has no image aboard:\S+. Build it: aboard im"):
        other.start(spec(tmp_path))
    report = other.probe()
    assert report.answers
    assert report.version
    assert "image aboard:" in report.problem
    assert report.hint == "Build it: aboard image build"
    assert make(image="mine").probe().hint == "Build it: aboard image build --tag mine"


def test_the_daemon_killed_and_back(make, executor, docker_engine, tmp_path):
    handle = running(executor, executor.start(spec(tmp_path)))
    ended = executor.start(spec(tmp_path, "import sys; sys.exit(3)", "b"))
    status = until_state(executor, ended, CommandState.ENDED)
    assert status.exit_code == 3
    docker_engine.kill()
    found = executor.poll({"one": handle, "ended": ended})
    assert found["one"].state is CommandState.UNKNOWN
    # A connection that was kept is reset; a new one is refused.
    says = r".*Docker does not answer: connection re(fused|set by peer)\. Check: docker info"
    assert re.fullmatch(says, found["one"].reason)
    assert found["ended"] == status
    with pytest.raises(ExecutorError, match=r"started by Docker: connection re"):
        executor.start(spec(tmp_path, board="c"))
    with pytest.raises(ExecutorError, match="cannot be stopped"):
        executor.stop(handle)
    report = executor.probe()
    assert (report.answers, bool(report.problem), bool(report.hint)) == (False, True, True)
    fresh = make()
    assert fresh.poll({"one": handle})["one"].state is CommandState.UNKNOWN
    docker_engine.start()
    assert until_state(executor, handle, CommandState.ENDED).reason == "it was stopped"


def test_a_board_goes_on_while_the_daemon_is_away(executor, docker_engine, tmp_path):
    handle = running(executor, executor.start(spec(tmp_path)))
    pid = docker_engine.docker("inspect", "--format", "{{.State.Pid}}", handle["container"])
    docker_engine.kill()
    assert executor.poll({"one": handle})["one"].state is CommandState.UNKNOWN
    assert Path(f"/proc/{int(pid)}").exists()
    docker_engine.start()
    until_state(executor, handle, CommandState.RUNNING)
    address = executor.address(handle)
    assert fetch(address, address.token) == (200, b"hello")


def test_a_board_that_ended_while_the_daemon_was_away(executor, docker_engine, tmp_path):
    handle = running(executor, executor.start(spec(tmp_path)))
    pid = docker_engine.docker("inspect", "--format", "{{.State.Pid}}", handle["container"])
    docker_engine.kill()
    os.kill(int(pid), signal.SIGKILL)
    docker_engine.start()
    status = until_state(executor, handle, CommandState.ENDED)
    assert status.reason
    assert executor.found() == []


def test_a_daemon_that_hangs_is_unknown(make, executor, docker_engine, tmp_path, monkeypatch):
    handle = running(executor, executor.start(spec(tmp_path)))
    monkeypatch.setattr(docker_daemon, "SECONDS", 1.0)
    impatient = make()
    docker_engine.signal(signal.SIGSTOP)
    try:
        status = impatient.poll({"one": handle})["one"]
    finally:
        docker_engine.signal(signal.SIGCONT)
    assert status.state is CommandState.UNKNOWN
    assert "timed out" in status.reason
    until_state(executor, handle, CommandState.RUNNING)


def test_what_no_board_has_is_found_and_removed(executor, tmp_path):
    executor.start(spec(tmp_path))
    executor.start(spec(tmp_path, board="b"))
    shutil.rmtree(tmp_path / "b")  # as after `aboard delete`
    found = {one.board: one for one in executor.found()}
    assert found.keys() == {"a", "b"}
    for one in found.values():
        executor.stop(one.handle, now=True)
        until_state(executor, one.handle, CommandState.ENDED)
    assert executor.found() == []


def test_a_container_that_was_created_and_never_started(executor, docker_engine, tmp_path):
    handle = running(executor, executor.start(spec(tmp_path)))
    docker_engine.docker("rm", "--force", handle["container"])
    client = executor._daemons.client(handle["host"], "")
    made = spec(tmp_path)
    executor._create(client, made, executor.profiles[""], handle)  # and the hub was killed
    status = executor.poll({"one": handle})["one"]
    assert (status.state, status.reason) == (
        CommandState.STARTING,
        "its container was not started yet",
    )
    assert executor.start(made) == handle
    until_state(executor, handle, CommandState.RUNNING)


class TestTwoDirectories:
    """Two hubs of one database with this daemon, each with a directory of its own."""

    def test_a_start_that_was_taken_over_is_adopted(self, make, executor, docker_engine, tmp_path):
        first = running(executor, executor.start(spec(tmp_path / "one")))
        other = make()
        assert other.start(spec(tmp_path / "other")) == first
        assert [one.handle for one in other.found()] == [first]
        address = other.address(first)
        assert fetch(address, address.token) == (200, b"hello")
        assert list((tmp_path / "other" / "a").glob("start-*")) == []

    def test_one_whose_files_are_not_here_is_replaced(self, make, executor, tmp_path):
        first = running(executor, executor.start(spec(tmp_path / "one")))
        (tmp_path / "one").rename(tmp_path / "elsewhere")
        other = make()
        second = other.start(spec(tmp_path / "other"))
        assert second["directory"] == str(tmp_path / "other" / "a")
        running(other, second)
        (tmp_path / "elsewhere").rename(tmp_path / "one")
        # What the first hub does now is not for the container of the second.
        assert executor.poll({"one": first})["one"].state is CommandState.ENDED
        executor.stop(first, now=True)
        assert other.poll({"one": second})["one"].state is CommandState.RUNNING
        assert [one.handle for one in other.found()] == [second]


class TestTls:
    """A daemon that is reached by TCP, with certificates on both sides."""

    @pytest.fixture
    def certificates(self, docker_engine, tmp_path):
        """Return the directory with the certificates of a client, named as Docker names them."""
        place = tmp_path / "certificates"
        place.mkdir()
        certificate, key = docker_engine.authority.issue("client")
        contents = {"ca.pem": docker_engine.authority.pem, "cert.pem": certificate, "key.pem": key}
        for name, content in contents.items():
            (place / name).write_bytes(content)
        return place

    @pytest.fixture
    def variables(self, environment, certificates, tmp_path):
        for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
            environment.delenv(name, raising=False)
        environment.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
        environment.setenv("DOCKER_TLS_VERIFY", "1")
        environment.setenv("DOCKER_CERT_PATH", str(certificates))
        (tmp_path / "bundle.pem").write_bytes(Authority("of the site").pem)
        environment.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
        return environment

    @staticmethod
    def serves(executor, place):
        handle = running(executor, executor.start(spec(place)))
        address = executor.address(handle)
        assert fetch(address, address.token) == (200, b"hello")
        executor.stop(handle, now=True)
        assert until_state(executor, handle, CommandState.ENDED).reason == "it was stopped"
        return handle

    @pytest.mark.usefixtures("executor")
    def test_by_the_variables_of_docker(self, make, docker_engine, variables, tmp_path):
        variables.setenv("DOCKER_HOST", docker_engine.tls_host)
        handle = self.serves(make(host=""), tmp_path)
        assert handle["host"] == docker_engine.tls_host

    @pytest.mark.usefixtures("executor", "variables")
    def test_with_the_host_in_the_settings(self, make, docker_engine, tmp_path):
        self.serves(make(host=docker_engine.tls_host), tmp_path)
        # The certificates are not for the socket of another daemon.
        assert make().probe().answers

    @pytest.mark.usefixtures("executor")
    @pytest.mark.parametrize("is_current", [False, True])
    def test_by_a_context(self, make, docker_engine, variables, certificates, tmp_path, is_current):
        for name in ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
            variables.delenv(name)
        parts = {"host": docker_engine.tls_host}
        parts |= {name: f"{certificates}/{name}.pem" for name in ("ca", "cert", "key")}
        endpoint = ",".join(f"{name}={value}" for name, value in parts.items())
        subprocess.run(["docker", "context", "create", "secure", "--docker", endpoint], check=True)
        shutil.rmtree(certificates)  # the context has copies
        if is_current:
            subprocess.run(["docker", "context", "use", "secure"], check=True)
        executor = make(host="", context="" if is_current else "secure")
        handle = self.serves(executor, tmp_path)
        assert (handle["host"], handle["context"]) == (docker_engine.tls_host, "secure")
        assert executor.found() == []

    def test_without_certificates_it_does_not_answer(self, make, docker_engine, variables):
        variables.delenv("DOCKER_TLS_VERIFY")
        variables.delenv("DOCKER_CERT_PATH")
        report = make(host=docker_engine.tls_host).probe()
        assert not report.answers
        assert "HTTP request to an HTTPS server" in report.problem

    def test_certificates_of_another_authority_are_refused(
        self, make, docker_engine, variables, certificates
    ):
        variables.setenv("DOCKER_HOST", docker_engine.tls_host)
        another = Authority("another")
        for name, content in zip(("cert.pem", "key.pem"), another.issue("client"), strict=True):
            (certificates / name).write_bytes(content)
        report = make(host="").probe()
        assert not report.answers
        assert report.problem.startswith(f"{docker_engine.tls_host}: Docker does not answer: ")
        (certificates / "ca.pem").write_bytes(another.pem)
        assert "certificate verify failed" in make(host="").probe().problem

    def test_certificates_that_are_missing_are_named(
        self, make, docker_engine, variables, certificates
    ):
        variables.setenv("DOCKER_HOST", docker_engine.tls_host)
        shutil.rmtree(certificates)
        report = make(host="").probe()
        assert not report.answers
        assert "TLS" in report.problem


def test_many_boards_cost_one_query(executor, tmp_path, monkeypatch):
    handles = {name: executor.start(spec(tmp_path, board=name)) for name in "abcde"}
    for handle in handles.values():
        running(executor, handle)
    client = executor._daemons.client(handles["a"]["host"], "")
    requests, send = [], client.api.send

    def counted(request, **options):
        requests.append(request.url)
        return send(request, **options)

    monkeypatch.setattr(client.api, "send", counted)
    found = executor.poll(handles)
    assert {one.state for one in found.values()} == {CommandState.RUNNING}
    assert len(requests) == 1, requests


# Where the daemon is.


def test_the_daemon_is_found_as_docker_finds_it(docker_engine, tmp_path, monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))  # without a config.json
    monkeypatch.setenv("HOME", str(tmp_path))

    def probe(**settings):
        made = DockerExecutor({"": DockerSettings(image=docker_engine.image, **settings)})
        report = made.probe()
        made.close()
        return report

    subprocess.run(
        ["docker", "context", "create", "mine", "--docker", f"host={docker_engine.host}"],
        check=True,
        capture_output=True,
    )
    assert probe(context="mine").answers
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    assert probe().answers
    monkeypatch.delenv("DOCKER_CONTEXT")
    monkeypatch.setenv("DOCKER_HOST", docker_engine.host)
    assert probe().answers
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere")
    report = probe()
    assert not report.answers
    assert report.problem.endswith("/nowhere: Docker does not answer: no such file or directory.")
    assert report.hint.count("Check: docker info") == 1
    report = probe(context="other")
    assert report.problem == "Docker has no context 'other'."
    assert report.hint == "See: docker context ls"
