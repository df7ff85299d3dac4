"""Jobs on a real cluster, from `aboard submit` to their end, with boards of them beside."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import aboard
from aboard.sdk.personal import stop_personal
from tests.engines.command import Result, forked_hubs, run_command
from tests.engines.kubernetes import Cluster
from tests.engines.real_hub import losses
from tests.engines.rigs import Rig, toml_table
from tests.waiting import until

pytestmark = pytest.mark.engine("kubernetes")
SECRET = "s3cr3t-of-the-training"
TRAIN = """
import os, pathlib, sys, time
import aboard

lr = float(sys.argv[2])
assert os.environ["TRAINING_TOKEN"] == "s3cr3t-of-the-training"
with aboard.init() as run:
    for step in range(3):
        run.log_metrics({"loss": lr / (step + 1)}, step=step)
    run.flush()
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
if lr > 1 and not pathlib.Path("repaired").exists():
    sys.exit(3)
"""
WORDS = ["python", "train.py", "--lr", "{lr}"]


@pytest.fixture
def place(
    cluster: Cluster, kubernetes_rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Give a directory of the node with a program, where a user with settings works."""
    place = tmp_path / "work"
    (place / "runs").mkdir(parents=True)
    for path in (place, place / "runs"):
        path.chmod(0o777)
    (place / "train.py").write_text(TRAIN)
    settings = tmp_path / "aboard.toml"
    rig = replace(kubernetes_rig, settings={**kubernetes_rig.settings, "cpu_request": "50m"})
    settings.write_text(toml_table(rig.reading(place)))
    monkeypatch.setenv("ABOARD_CONFIG", str(settings))
    monkeypatch.setenv("ABOARD_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("ABOARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ABOARD_ROOT", str(place / "runs"))
    monkeypatch.chdir(place)
    with forked_hubs():
        yield place
    stop_personal()
    namespace = kubernetes_rig.settings["namespace"]
    if left := left_in(cluster, namespace).split():  # of a test that failed
        cluster.kubectl("-n", namespace, "delete", *left, "--timeout=60s")


@pytest.fixture
def types(place: Path) -> Callable[..., Result]:
    return lambda *words: run_command(words, env=dict(os.environ), cwd=place, process=True)


def left_in(cluster: Cluster, namespace: str) -> str:
    shown = cluster.kubectl("-n", namespace, "get", "jobs,pods,secrets", "-o", "name")
    return "".join(line for line in shown.splitlines(keepends=True) if "aboard-" in line)


def test_a_sweep_from_submission_to_retry(cluster: Cluster, types, place, kubernetes_rig):
    options = ["--on", "kubernetes", "--experiment", "cifar10", "--name", "sweep"]
    options += [
        "--sweep",
        "lr=0.1,2,0.3",
        "--env",
        f"TRAINING_TOKEN={SECRET}",
        "--memory",
        "512MiB",
    ]
    shown = types("submit", "--dry-run", *options, "--", *WORDS)
    assert shown.code == 0, shown.err
    assert "kind: Job" in shown.out
    assert SECRET not in shown.out
    done = types("submit", *options, "--", *WORDS)
    assert done.code == 0, done.err

    def members() -> list[dict]:
        done = types("jobs", "show", "sweep", "--json")
        assert done.code == 0, done.err
        return done.json["members"]

    def have_begun() -> bool:
        return all((place / f"runs/cifar10/sweep-{n}/run.json").exists() for n in (1, 2, 3))

    until(have_begun)
    # The kubelet reports a container to the API server a moment after it has started.
    until(lambda: {one["state"] for one in members()} == {"running"})
    # A drained node: the member goes on in another pod, as the next attempt of its run.
    namespace = kubernetes_rig.settings["namespace"]
    unit = members()[0]["unit"]
    cluster.kubectl("-n", namespace, "delete", "pod", unit, "--wait=false")
    run = place / "runs/cifar10/sweep-1/run.json"

    def states() -> list[str]:
        return [one["state"] for one in json.loads(run.read_text())["attempts"]]

    # The next pod may begin before the kubelet has ended the one that was deleted.
    until(lambda: states() == ["killed", "running"], states)
    # The one that was deleted would complete, if it still ran.
    until(lambda: f"pod/{unit}\n" not in left_in(cluster, namespace))
    (place / "go").touch()
    assert types("jobs", "wait", "sweep").code == 3
    found = members()
    assert [one["state"] for one in found] == ["completed", "failed", "completed"]
    assert found[1]["exit_code"] == 3
    record = json.loads(run.read_text())
    assert record["state"] == "completed"
    assert record["hparams"]["lr"] == 0.1
    assert states() == ["killed", "completed"]
    until(lambda: not left_in(cluster, namespace))
    (place / "repaired").touch()
    assert types("jobs", "retry", "sweep").code == 0
    assert types("jobs", "wait", "sweep").code == 0
    assert {one["state"] for one in members()} == {"completed"}
    second = json.loads((place / "runs/cifar10/sweep-2/run.json").read_text())
    assert [one["state"] for one in second["attempts"]] == ["failed", "completed"]
    for path in (place / "runs").rglob("*"):
        if path.is_file() and SECRET in path.read_text(errors="replace"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_an_experiment_completes_although_its_board_is_killed(
    cluster: Cluster, types, place, kubernetes_rig
):
    """As XManager's page has it: work units and a board, as pods, with the board auxiliary."""
    namespace = kubernetes_rig.settings["namespace"]
    environment = {"TRAINING_TOKEN": SECRET}
    with aboard.experiment("cifar10", on="kubernetes", env=environment) as experiment:
        for lr in (0.1, 0.01, 0.001):
            experiment.add(WORDS, hparams={"lr": lr})
        board = experiment.add_board(on="kubernetes", timeout="1h", wait=True)
        assert board.app_uri.startswith("http://")
        token = (Path(os.environ["ABOARD_STATE"]) / "hub-token").read_text().strip()
        address = board.app_uri.partition("?")[0]
        shown = losses(address, token, runs=3)
        assert sorted(values[0] for values in shown.values()) == pytest.approx([0.001, 0.01, 0.1])
        pods = cluster.get("-n", namespace, "pods", "-l", "app.kubernetes.io/name=aboard-board")
        (pod,) = [one["metadata"]["name"] for one in pods["items"]]
        cluster.kubectl("-n", namespace, "delete", "pod", pod, "--grace-period=0", "--force")
        (place / "go").touch()
    assert experiment.state == "completed"
    (job,) = experiment.jobs
    assert [member.exit_code for member in job.members] == [0, 0, 0]
    board.delete()
    # As Determined's page has it: a board of some trials, by their ids, in the cluster.
    wanted = [f"cifar10/{job.id}-{number}" for number in (1, 3)]
    done = types("start", *wanted, "--on", "kubernetes", "--no-browser", "--json")
    assert done.code == 0, done.err
    hub = address.partition("/b/")[0]
    shown = losses(f"{hub}/b/{done.json['id']}/", token, runs=2)
    assert sorted(values[0] for values in shown.values()) == pytest.approx([0.001, 0.1])
    assert types("delete", done.json["id"]).code == 0
    until(lambda: not left_in(cluster, namespace))
