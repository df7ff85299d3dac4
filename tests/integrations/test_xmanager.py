"""A board as an auxiliary unit of a real XManager experiment, on a real Docker and Kubernetes."""

import json
import re
import subprocess
from contextlib import contextmanager

import httpx
import pytest

import aboard
from tests.engines import environments
from tests.engines.ports import free_port
from tests.integrations.trainings import SCRIPTS
from tests.waiting import until


@pytest.fixture(scope="session")
def xmanager_python():
    """Give a Python with XManager, built at first use."""
    return environments.python("xmanager")


class Experiment:
    """A launcher in a process of its own, its logs and its output."""

    def __init__(self, engine, python, trainings, seconds):
        self.engine, self.port = engine, free_port()
        self.logs = trainings.directory / "logs"
        (self.logs / "runs").mkdir(parents=True)
        for place in (self.logs, self.logs / "runs"):
            place.chmod(0o777)  # the image has a user of its own
        self._output = trainings.directory / "output"
        home = trainings.directory / "home"
        home.mkdir()
        words = [engine.image, self.logs, str(self.port), str(seconds)]
        with self._output.open("wb") as sink:
            self.process = subprocess.Popen(
                [python, SCRIPTS / "xmanager_sweep.py", *words],
                env=trainings.variables | {"DOCKER_HOST": engine.host, "HOME": str(home)},
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self):
        return self._output.read_text()

    def line(self, beginning):
        """Return the rest of a line that the launcher prints."""
        return self.until(
            lambda: next(
                (
                    one.removeprefix(beginning)
                    for one in self.said.splitlines(keepends=True)
                    if one.startswith(beginning) and one.endswith("\n")
                ),
                "",
            )
        ).strip()

    def until(self, condition):
        """Wait for a condition; fail at once if the launcher has ended before."""

        def holds():
            runs = self.process.poll() is None
            found = condition()
            assert found or runs, self.said
            return found

        return until(holds, lambda: self.said)

    def records(self):
        found = [json.loads(path.read_text()) for path in self.logs.rglob("run.json")]
        return sorted((one["hparams"]["lr"], one["state"]) for one in found)

    def end(self):
        (self.logs / "enough").touch()
        assert self.process.wait(120) == 0, self.said
        assert "the experiment has completed" in self.said


@pytest.fixture
def begin(docker_engine, xmanager_python, trainings):
    begun = []

    def begin(seconds):
        begun.append(Experiment(docker_engine, xmanager_python, trainings, seconds))
        return begun[-1]

    yield begin
    for one in begun:
        one.process.kill()
        one.process.wait()
    docker_engine.clear()


@pytest.mark.engine("docker")
def test_a_board_shows_an_experiment_which_completes_although_its_board_is_killed(
    begin, docker_engine
):
    experiment = begin(600)
    link = experiment.line("board: ")
    assert link.startswith(f"http://localhost:{experiment.port}/?key=")

    def shown():
        try:
            page = client.get(link)
        except httpx.TransportError:
            return []
        assert page.status_code == 200, page.text
        tags = client.get(f"{page.url}data/plugin/scalars/tags").json()
        return [run for run, found in tags.items() if "loss" in found]

    with httpx.Client(follow_redirects=True, timeout=180) as client:
        assert len(experiment.until(lambda: len(found := shown()) == 2 and found)) == 2
    address, _, key = link.partition("?key=")
    assert httpx.get(f"{address}b/view/data/runs").status_code == 401
    assert experiment.said.count(key) == 1
    (board,) = docker_engine.docker("ps", "--filter", "name=_auxiliary_board", "--quiet").split()
    assert key not in docker_engine.docker("logs", board)
    docker_engine.docker("kill", board)
    experiment.end()
    assert experiment.records() == [(0.01, "completed"), (0.1, "completed")]


@pytest.mark.engine("docker")
def test_a_board_ends_by_itself(begin, docker_engine):
    experiment = begin(2)
    experiment.end()
    assert "the time limit of" in experiment.said
    assert experiment.records() == [(0.01, "completed"), (0.1, "completed")]
    assert docker_engine.docker("ps", "--all", "--quiet") == ""


@pytest.mark.engine("docker")
def test_what_cannot_be_added_is_said_in_one_line(docker_engine, xmanager_python, trainings):
    home = trainings.directory / "home"
    home.mkdir()
    done = subprocess.run(
        [xmanager_python, SCRIPTS / "xmanager_errors.py", docker_engine.image],
        env=trainings.variables | {"DOCKER_HOST": docker_engine.host, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    build = "Build it (aboard image build), or name one with image="
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "time": "ValueError: timeout_secs is -1: give seconds, or 0 for no limit",
        "image": f"RuntimeError: Docker has no image nothing:1. {build}",
        "default image": f"RuntimeError: Docker has no image aboard:{aboard.__version__}. {build}",
        "port": "ValueError: docker_options.ports[6006] is None: give a port of this machine,"
        " because the board needs a known address",
        "path": "ValueError: 'logs' is not an absolute path in a container",
        "executor": "TypeError: a board cannot run on object. Use xm_local.Local or"
        " xm_local.Kubernetes.",
        "command": "RuntimeError: with --xm_subprocess_docker_impl the secret of the board would be"
        " in the list of processes: omit it",
    }
    assert docker_engine.docker("ps", "--all", "--quiet") == ""


@pytest.mark.engine("kubernetes")
def test_a_board_in_a_pod_is_reached_by_forwarding_only(cluster, xmanager_python, trainings):
    home = trainings.directory / "home"
    home.mkdir()
    said = subprocess.run(
        [xmanager_python, SCRIPTS / "xmanager_kubernetes.py", cluster.engine.image, "600"],
        env=trainings.variables | {"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (job,) = set(re.findall(r"job/[0-9]+-auxiliary-board", said))
    try:
        assert f"board: kubectl port-forward {job} 6006; kubectl logs {job}\n" in said
        link = until(lambda: re.search(r"http://\S+key=\S+", _logs(cluster, job)))[0]
        assert link.startswith("http://localhost:6006/b/view/?key=")
        with _forwarded(cluster, job, 6006) as port:
            there = link.replace("6006", str(port))
            assert httpx.get(there.partition("?")[0]).status_code == 401
            assert httpx.get(there, follow_redirects=True).status_code == 200
        pod = cluster.get("pods", f"--selector=job-name={job.partition('/')[2]}")["items"][0]
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{pod['status']['podIP']}:6006/")
        assert "key=" not in json.dumps(pod["spec"])
    finally:
        cluster.kubectl("delete", job)


def _logs(cluster, job):
    return cluster.kubectl("logs", job, check=False)


@contextmanager
def _forwarded(cluster, job, port):
    words = [cluster.kubectl_program, "--kubeconfig", cluster.kubeconfig, "port-forward"]
    process = subprocess.Popen([*words, job, f":{port}"], stdout=subprocess.PIPE, text=True)
    try:
        yield int(re.search(r":([0-9]+) ->", process.stdout.readline())[1])
    finally:
        process.kill()
        process.communicate()
