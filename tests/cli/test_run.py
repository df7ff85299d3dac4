"""`aboard run` as a user types it: options, messages, exit codes, and the run that is left."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Aboard = Callable[..., Any]
SHOW = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if v}))"
PYTHON = [sys.executable, "-c"]


def record(tmp_path: Path, run: str) -> dict[str, Any]:
    return json.loads((tmp_path / "runs" / run / "run.json").read_bytes())


def test_the_environment_names_the_run(aboard: Aboard, tmp_path: Path) -> None:
    done = aboard("run", "--experiment", "cifar10", "--", *PYTHON, SHOW)
    where = str(tmp_path / "runs" / "cifar10" / "run1")
    told = json.loads(done.out)
    expected = {"ABOARD_ROOT": str(tmp_path / "runs"), "ABOARD_RUN": "cifar10/run1"}
    expected |= {"ABOARD_ATTEMPT": where, "ABOARD_RANKS": "first"}
    for name in (
        "ABOARD_LOGDIR",
        "PAI_OUTPUT_TENSORBOARD",
        "AIP_TENSORBOARD_LOG_DIR",
        "XT_OUTPUT_MNT",
        "TENSORBOARD_LOGGING_DIR",
    ):
        expected[name] = where
    assert {name: told.get(name) for name in expected} == expected
    first, last = done.err.splitlines()
    assert first == f"aboard: cifar10/run1 logs to {where}; to see it: aboard view {where}"
    assert last.startswith("aboard: cifar10/run1 completed after ")
    assert (tmp_path / "runs/cifar10/run1/output.log").read_text() == done.out


def test_hyperparameters_tags_and_secrets(aboard: Aboard, tmp_path: Path) -> None:
    done = aboard(
        "run", "--hparam", "depth=3", "--hparam", "lr=0.5", "--hparams-from-args", "--tag", "good",
        "--tag", "who=me", "--workspace", "w", "--job", "17", "--", sys.executable, "-c", "pass",
        "--lr", "0.1", "--amp", "--api-token", "hunter2",
    )  # fmt: skip
    assert done.code == 0
    found = record(tmp_path, "default/run1")
    assert found["hparams"] == {"depth": 3, "lr": 0.5, "amp": True}
    assert found["tags"] == {"good": True, "who": "me"}
    assert (found["workspace"], found["job"]) == ("w", "17")
    for path in (tmp_path / "runs").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()
    shown = aboard("ls", "runs").out
    assert "default/run1" in shown


def test_json_and_quiet(aboard: Aboard, tmp_path: Path) -> None:
    done = aboard("run", "--json", "--", "sh", "-c", "exit 3")
    assert done.code == 3
    begun, ended = map(json.loads, done.err.splitlines())
    where = str(tmp_path / "runs/default/run1")
    assert begun == {"run": "run1", "experiment": "default", "uri": where, "logdir": where}
    assert ended.pop("seconds") > 0
    assert ended.pop("logged") is False
    assert ended == {
        "run": "run1", "experiment": "default", "state": "failed", "exit_code": 3,
        "reason": "exit code 3",
    }  # fmt: skip
    assert aboard("run", "-q", "--", "echo", "x")[1:] == ("x\n", "")


def test_resume(aboard: Aboard, tmp_path: Path) -> None:
    assert aboard("run", "--name", "a", "--", "echo", "one").code == 0
    refused = aboard("run", "--name", "a", "--", "echo", "two")
    assert (refused.code, refused.out) == (1, "")
    where = tmp_path / "runs/default/a"
    assert refused.err == (
        f"aboard: the run {where} already exists. Resume it, or choose another name. "
        "Add --resume to continue it.\n"
    )
    assert aboard("run", "--name", "a", "--resume", "--", "sh", "-c", "echo two; exit 1").code == 1
    found = record(tmp_path, "default/a")
    assert [one["exit_code"] for one in found["attempts"]] == [0, 1]
    assert (where / "output.log").read_text() == "one\ntwo\n"
    (where / "run.json").write_text("{}")
    broken = aboard("run", "--name", "a", "--resume", "--", "true")
    assert broken.code == 1
    assert broken.err == (
        f"aboard: {where}/run.json: not the record of a run, which has a 'name'. "
        "Repair or remove the file.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "missing argument 'COMMAND...'. See 'aboard run --help'."),
        (["--hparam", "lr", "--", "true"], "--hparam 'lr': write KEY=VALUE, such as --hparam lr="),
        (["--tag", "=x", "--", "true"], "--tag '=x': write NAME or NAME=VALUE."),
        (["--ranks", "some", "--", "true"], "--ranks some: write 'first' or 'all'."),
        (["--resume", "--", "true"], "--resume requires --name."),
        (["--name", "a/b", "--", "true"], "the name of the run, 'a/b', contains the character '/'"),
        (["--nope", "--", "true"], "no such option: --nope"),
    ],
)  # fmt: skip
def test_wrong_usage(aboard: Aboard, tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = aboard("run", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"aboard: {problem}")
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_program_that_is_not_there_leaves_no_run(aboard: Aboard, tmp_path: Path) -> None:
    done = aboard("run", "--", "nope", "--lr", "1")
    expected = "aboard: nope: program not found. Check the command.\n"
    assert done == (127, "", expected)
    assert not (tmp_path / "runs").exists()


def test_a_program_that_cannot_run(aboard: Aboard, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"\x7fELF")
    script.chmod(0o755)
    done = aboard("run", "-q", "--", script)
    assert done.code == 126
    assert done.err == f"aboard: {script}: exec format error. Check the command.\n"
    found = record(tmp_path, "default/run1")
    assert (found["state"], found["exit_code"]) == ("failed", 126)


LOG = """
import aboard
with aboard.init('mine', 'other', hparams={'depth': 3}, tags='inner') as run:
    run.log_metrics({'loss': 0.5}, stage='train')
    print(run.experiment, run.name)
"""


def test_a_program_that_logs_with_aboard_joins(aboard: Aboard, tmp_path: Path) -> None:
    done = aboard("run", "--hparam", "lr=1", "--", *PYTHON, LOG)
    assert (done.code, done.out) == (0, "default run1\n")
    found = record(tmp_path, "default/run1")
    assert found["metrics"] == {"train/loss": 0.5}
    assert found["hparams"] == {"lr": 1, "depth": 3}
    assert found["tags"] == {"inner": True}
    assert (found["state"], len(found["attempts"])) == ("completed", 1)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["default"]


def test_runs_inside_runs(aboard: Aboard, tmp_path: Path) -> None:
    inner = [sys.executable, "-m", "aboard", "run", "-q", "--"]
    done = aboard("run", "-q", "--", *inner, "sh", "-c", "echo once; exit 4")
    assert (done.code, done.out) == (4, "once\n")
    assert (tmp_path / "runs/default/run1/output.log").read_text() == "once\n"
    assert [path.name for path in (tmp_path / "runs/default").iterdir()] == ["run1"]
    both = f"{sys.executable} -m aboard run -q --root apart -- echo x;" * 2
    assert aboard("run", "-q", "--", "sh", "-c", both).code == 0
    for number in "12":
        assert (tmp_path / f"apart/default/run{number}/output.log").read_text() == "x\n"
    assert (tmp_path / "runs/default/run2/output.log").read_text() == "x\nx\n"


WRITE = """
import sys
from aboard import EventWriter
for place in sys.argv[1:]:
    with EventWriter(place) as writer:
        writer.scalar('loss', 1.0, 0)
"""


def test_logs_of_every_habit_are_found(aboard: Aboard, tmp_path: Path) -> None:
    places = ["logs/train", "logs/validation", "a/tb/eval", "b/tb/eval", "runs/Nov16_12-00-00_h"]
    root = tmp_path / "root"
    done = aboard("run", "--root", root, "--", *PYTHON, WRITE, *places)
    assert done.code == 0
    run = root / "default" / "run1"
    found = {path.parent.relative_to(run).as_posix() for path in run.rglob("*tfevents*")}
    assert found == {"train", "validation", "eval", "b/tb/eval", "."} or found == {
        "train", "validation", "eval", "a/tb/eval", "."
    }  # fmt: skip
    assert len(list(tmp_path.glob("logs/*/*tfevents*"))) == 2


def test_what_add_hparams_writes_is_in_columns_and_questions(
    aboard: Aboard, tmp_path: Path
) -> None:
    for lr, accuracy in (("0.5", "0.75"), ("0.25", "0.5")):
        script = (
            "from aboard import SummaryWriter\n"
            "with SummaryWriter() as writer:\n"
            f"    writer.add_hparams({{'lr': {lr}}}, {{'accuracy': {accuracy}}})\n"
        )
        assert aboard("run", "--root", "root", "--", *PYTHON, script).code == 0
    options = ("--root", "root", "--columns", "run,hparams.lr,metrics.accuracy")
    for _ in range(2):  # the second time from the index
        done = aboard("runs", *options, "--where", "hparams.lr < 1", "--sort", "hparams.lr")
        assert [line.split() for line in done.out.splitlines()[1:]] == [
            ["default/run2", "0.25", "0.5"],
            ["default/run1", "0.5", "0.75"],
        ]
        done = aboard("runs", *options, "--where", "hparams.lr < 0.4 and metrics.accuracy < 0.7")
        assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["default/run2"]


TWO = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29523"}
WHERE = "import os; print(os.environ['ABOARD_LOGDIR'])"


def test_other_ranks_are_silent(aboard: Aboard, tmp_path: Path) -> None:
    done = aboard("run", "--", *PYTHON, WHERE, process=True, RANK="1", **TWO)
    assert (done.code, done.err) == (0, "")
    throwaway = Path(done.out.strip())
    assert not throwaway.is_relative_to(tmp_path)
    assert not throwaway.exists()
    assert not (tmp_path / "runs").exists()
    assert aboard("run", "--", "sh", "-c", "exit 3", RANK="1", **TWO).code == 3


def test_all_ranks_have_directories(aboard: Aboard, tmp_path: Path) -> None:
    for rank in "01":
        done = aboard("run", "-q", "--ranks", "all", "--", *PYTHON, LOG, RANK=rank, **TWO)
        said = (
            "aboard: this run is default/run1, as `aboard run` set in ABOARD_RUN, not mine/other."
        )
        hint = "To change this: aboard run --experiment mine --name other"
        assert (done.code, done.err) == (0, f"{said} {hint}\n" if rank == "0" else "")
    run = tmp_path / "runs/default/run1"
    assert record(tmp_path, "default/run1")["state"] == "completed"
    for rank in "01":
        assert len(list(run.glob(f"rank-{rank}/train/*tfevents*"))) == 1
        lines = (run / f"rank-{rank}/output.log").read_text().splitlines()
        notes = [f"{said} {hint}"] if rank == "0" else []
        assert sorted(lines) == [*notes, "default run1"]  # stdout and stderr are in either order


def test_a_name_that_is_not_used_is_reported(aboard: Aboard) -> None:
    said = "aboard: this run is default/run1, as `aboard run` set in ABOARD_RUN, not spirals/run1."
    script = "import aboard; aboard.init('spirals').finish()"
    done = aboard("run", "-q", "--", *PYTHON, script)
    assert done.err == f"{said} To change this: aboard run --experiment spirals\n"
    again = aboard("run", "-q", "--experiment", "spirals", "--", *PYTHON, script)
    assert (again.code, again.err) == (0, "")
    member = aboard("run", "-q", "--", *PYTHON, script, ABOARD_JOB="7")  # its job named it
    assert member.err == f"{said}\n".replace("run1", "run2")


def test_the_ranks_below_one_program_have_directories(aboard: Aboard, tmp_path: Path) -> None:
    script = f"""
import os, subprocess, sys
for rank in '01':
    subprocess.run([sys.executable, '-c', {LOG!r}], env=os.environ | {TWO!r} | {{'RANK': rank}})
"""
    assert aboard("run", "-q", "--ranks", "all", "--", *PYTHON, script).code == 0
    run = tmp_path / "runs/default/run1"
    assert sorted(path.name for path in run.glob("rank-*")) == ["rank-0", "rank-1"]
    assert record(tmp_path, "default/run1")["metrics"] == {"rank-0/train/loss": 0.5}


def test_a_root_that_refuses(aboard: Aboard, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = aboard("run", "--root", "file", "--", "echo", "x")
    assert (done.code, done.out) == (1, "")
    assert "a part of the path is a file. Check the path." in done.err
    assert len(done.err.splitlines()) == 1


def test_a_command_that_is_no_text(aboard: Aboard, tmp_path: Path) -> None:
    done = aboard("run", "-q", "--", "sh", "-c", "exit 0", os.fsdecode(b"caf\xe9"))
    assert (done.code, done.err) == (0, "")
    assert record(tmp_path, "default/run1")["command"][3] == os.fsdecode(b"caf\xe9")


INNER = "from aboard.track.environment import named_run; print(*named_run())"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--experiment", "sweep", "--name", "trial0"], "sweep/trial0"),
        (["--name", "trial0"], "outer/trial0"),
        (["--experiment", "sweep"], "sweep/run1"),
        (["--experiment", "outer", "--name", "run1"], "outer/run1"),
        ([], "outer/run1"),
    ],
)
def test_a_run_of_another_name_inside_a_run_is_one_of_its_own(
    aboard: Aboard, tmp_path: Path, options: list[str], name: str
) -> None:
    inner = [sys.executable, "-m", "aboard", "run", "-q", *options, "--hparam", "lr=0", "--"]
    inner += [*PYTHON, INNER]
    done = aboard("run", "-q", "--experiment", "outer", "--", *inner)
    assert (done.code, done.out, done.err) == (0, name.replace("/", " ") + "\n", "")
    found = record(tmp_path, name)
    assert (found["state"], found["hparams"]) == ("completed", {"lr": 0})
    if name != "outer/run1":
        assert record(tmp_path, "outer/run1")["hparams"] == {}
