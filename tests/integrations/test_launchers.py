"""Runs under submitit, Hydra and Ray know their job: one selector selects all its members."""

import json
import subprocess
import sys

import pytest

import aboard
from aboard.index.library import Library
from tests.engines import environments
from tests.hub.hubs import served
from tests.integrations.trainings import SCRIPTS
from tests.waiting import until

STEPS = list(range(10))


@pytest.fixture
def launch(trainings, tmp_path):
    """Run a script of a launcher to its end; return the JSON lines that it printed."""

    def launch(script, *arguments, python=sys.executable, **variables):
        done = subprocess.run(
            [python, SCRIPTS / f"{script}.py", *arguments],
            cwd=tmp_path,
            env=trainings.variables | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert "the job of this run is unknown" not in done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]

    return launch


@pytest.fixture
def selected(index, trainings):
    """Return the learning rates of the runs that a selector selects."""

    def selected(text):
        library = Library(index, [str(trainings.root)])
        library.refresh(str(trainings.root))
        members = library.members(library.parse([text]))
        runs = [trainings.record(member.name) for member in members]
        return sorted(run["hparams"]["lr"] for run in runs)

    return selected


def restarted(trainings):
    """Return the name of the run with a second attempt, which goes on where the first one ended."""
    runs = [path.parent.relative_to(trainings.root) for path in trainings.root.rglob("run.json")]
    records = {str(run): trainings.record(str(run)) for run in runs}
    assert {record["state"] for record in records.values()} == {"completed"}
    (name,) = [name for name, record in records.items() if len(record["attempts"]) > 1]
    assert records[name]["hparams"]["lr"] == 0.01
    assert list(trainings.points("", "loss", name)) == STEPS
    return name


def test_submitit_on_this_machine(launch, selected, trainings, tmp_path, monkeypatch):
    (told,) = launch("submitit_sweep", "local", ABOARD_JOB="sweep")
    first, second = told["jobs"]
    assert selected(f"job:{first}") == [0.1]
    assert selected(f"job:{second}") == [0.01]
    assert selected("job:sweep") == [0.01, 0.1]
    assert len(trainings.record(restarted(trainings))["attempts"]) == 2
    with served(tmp_path, [trainings.root]) as hub:
        monkeypatch.setenv("ABOARD_HUB", hub.url)
        monkeypatch.setenv("ABOARD_HUB_TOKEN", hub.tokens["max"])
        board = aboard.Job.board_of("sweep", root=trainings.root, wait=True)
        assert board.state == "running"
        assert board.runs > 0  # the others are read after the first
        until(lambda: board.refresh().runs == 2)


@pytest.mark.engine("slurm")
def test_submitit_on_slurm(launch, selected, trainings, slurm_cluster):
    (told,) = launch("submitit_sweep", "slurm", **slurm_cluster.variables)
    first, second = told["jobs"]
    assert selected(f"job:{first}") == [0.1]
    assert selected(f"job:{second}") == [0.01]
    assert selected(f"job:{first.partition('_')[0]}") == [0.01, 0.1]
    assert len(trainings.record(restarted(trainings))["attempts"]) == 2


def test_a_sweep_of_hydra(launch, selected, trainings, tmp_path):
    words = ["-m", "lr=0.1,0.01", "optimizer.name='adam'", "token=abc", "hydra.job.chdir=true"]
    launch("hydra_sweep", *words)
    (sweep,) = (tmp_path / "multirun").glob("*/*")
    job = "_".join(sweep.parts[-2:])
    assert selected(f"job:{job}") == [0.01, 0.1]
    assert selected(f"job:{job}_1") == [0.01]
    record = trainings.record("cifar10/run2")
    assert (record["job"], record["attempts"][0]["job"]) == (job, f"{job}_1")
    assert record["hparams"] == {"lr": 0.01, "optimizer.name": "adam", "token": "***"}


@pytest.mark.engine("slurm")
def test_a_sweep_of_hydra_on_slurm(launch, selected, trainings, slurm_cluster, tmp_path):
    words = ["-m", "lr=0.1,0.01", "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=30"]
    launch("hydra_sweep", *words, **slurm_cluster.variables)
    (sweep,) = (tmp_path / "multirun").glob("*/*")
    assert selected(f"job:{'_'.join(sweep.parts[-2:])}") == [0.01, 0.1]
    array = trainings.record("cifar10/run1")["attempts"][0]["job"].partition("_")[0]
    assert selected(f"job:{array}") == [0.01, 0.1]


@pytest.mark.slow
def test_ray(launch, selected, trainings):
    (told,) = launch("ray_tune", python=environments.python("ray"))
    assert selected("job:sweep") == [0.01, 0.1]
    assert [selected(f"job:{trial}") for trial in told["trials"]] == [[0.1], [0.01]]
    assert len(trainings.record(restarted(trainings))["attempts"]) == 2
    plain = trainings.record("plain/run1")
    assert plain["attempts"][0]["job"] == told["job"]
    assert plain["job"].endswith(f"_{told['job']}")
