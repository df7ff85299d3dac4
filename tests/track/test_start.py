"""Runs that are opened: resumed, restarted, and several in one process."""

import sys
from pathlib import Path

import pytest

import aboard
from aboard.runs.manifest import Manifest
from aboard.storage import open_storage
from aboard.track import environment as env
from tests.track.readers import read_stock
from tests.track.training import points, record, run_aboard, start, train

LOG = """
run = aboard.init({init})
for i in range(3):
    run.log_metrics({{'loss': {value}}}, stage='train')
run.log_metrics({{'acc': 1}})
print(run.name)
"""


def log(init: str = "'x', 'a', '.'", value: int = 1) -> str:
    return LOG.format(init=init, value=value)


def test_counters_go_on_in_every_stage(tmp_path: Path) -> None:
    assert train(log(), tmp_path).out == "a\n"
    again = log("'x', 'a', '.', resume=True, hparams={'lr': 1}, tags='again'", 2)
    assert train(again, tmp_path).out == "a\n"
    assert points(tmp_path, "x/a/train", "loss") == [
        (0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)
    ]  # fmt: skip
    assert points(tmp_path, "x/a", "acc") == [(0, 1.0), (1, 1.0)]
    found = record(tmp_path / "x/a")
    assert [one["number"] for one in found["attempts"]] == [1, 2]
    assert [one["state"] for one in found["attempts"]] == ["completed"] * 2
    assert (found["hparams"], found["tags"]) == ({"lr": 1}, {"again": True})
    refused = train(log(), tmp_path)
    assert refused.code == 1
    assert f"the run {tmp_path}/x/a already exists." in refused.err.splitlines()[-1]
    assert "already" in train(log("'x', 'a', '.', resume=False"), tmp_path).err
    assert train(log("'x', 'new', '.', resume=True"), tmp_path).out == "new\n"


def test_a_curve_that_goes_on_from_an_earlier_step_is_one_curve(tmp_path: Path) -> None:
    script = """
with aboard.init('x', 'a', '.', resume=True) as run:
    for step in range(int(sys.argv[1]), int(sys.argv[2])):
        run.log_metrics({'loss': float(sys.argv[3])}, step=step)
"""
    assert train(script, tmp_path, "0", "10", "1").code == 0
    assert train(script, tmp_path, "5", "12", "2").code == 0
    expected = [(step, 1.0) for step in range(5)] + [(step, 2.0) for step in range(5, 12)]
    assert points(tmp_path, "x/a", "loss") == expected


BEHIND = """
first, behind, root = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
real = time.time
time.time = lambda: real() - behind
with aboard.init('x', 'a', root, resume=True) as run:
    for step in range(first, first + 10):
        run.log_metrics({'loss': float(step)}, step=step)
        run.log_metrics({'acc': float(step)}, step=step, stage='eval')
"""


@pytest.mark.parametrize("behind", [120, 3600])
@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_attempts_are_in_order_whatever_their_clocks_say(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, behind: int
) -> None:
    """Each attempt runs on a host whose clock is further behind."""
    root = tmp_path / "runs"
    where = str(root)
    if kind == "bucket":
        where = f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    for number in range(3):
        ended = train(BEHIND, tmp_path, str(number * 10), str(number * behind), where)
        assert ended.code == 0, ended.err
    with aboard.open(where) as logs:
        for run, tag in (("x/a", "loss"), ("x/a/eval", "acc")):
            assert logs.series(run, tag).steps.tolist() == list(range(30))
    if kind == "bucket":
        for entry in open_storage(where).list():
            path = root / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(open_storage(where).read(entry.name))
    stock = read_stock(root)
    for run, tag in (("x/a", "loss"), ("x/a/eval", "acc")):
        assert [point.step for point in stock[run, tag].points] == list(range(30))
    found = Manifest.from_json((root / "x/a/run.json").read_bytes())
    assert [one.number for one in found.attempts] == [1, 2, 3]
    times = [time for one in found.attempts for time in (one.started, one.ended)]
    assert times == sorted(times)
    assert found.ended == found.heartbeat == times[-1]


@pytest.mark.parametrize("way", ["aboard run", "aboard.init"])
def test_counters_of_a_run_in_a_bucket_go_on(tmp_path: Path, s3_bucket: str, way: str) -> None:
    root = f"{s3_bucket}/{tmp_path.name}"
    loop = "    for _ in range(3): run.log_metrics({{'loss': 1}})"
    script = f"import aboard\nwith aboard.init({{}}) as run:\n{loop}"
    for _ in range(2):
        if way == "aboard run":
            below = ["run", "-q", "--root", root, "--name", "a", "--resume", "--"]
            done = run_aboard(tmp_path, *below, sys.executable, "-c", script.format(""))
        else:
            options = f"name='a', root={root!r}, resume=True"
            done = train(script.format(options), tmp_path)
        assert (done.code, done.err) == (0, "")
    assert points(root, "default/a", "loss") == [(step, 1.0) for step in range(6)]


def test_counters_of_a_bucket_that_the_environment_names_go_on(
    tmp_path: Path, s3_bucket: str
) -> None:
    root = f"{s3_bucket}/{tmp_path.name}"
    script = "import aboard\nwith aboard.init() as run:\n    print(run.uri)\n"
    script += "    for _ in range(3): run.log_metrics({'loss': 1})"
    for _ in range(2):
        command = ["run", "-q", "--", sys.executable, "-c", script]
        done = run_aboard(tmp_path, *command, ABOARD_LOGDIR=f"{root}/tb")
        assert done == (0, f"{root}/tb\n", "")
    assert points(root, "tb", "loss") == [(step, 1.0) for step in range(6)]


def test_a_killed_attempt_is_recorded_by_the_next(tmp_path: Path) -> None:
    assert train(log() + "run.flush()\nos._exit(1)", tmp_path).code == 1
    ended = train(log("'x', 'a', '.', resume=True"), tmp_path)
    assert ended.err.startswith("aboard: a still seems to run on ")
    first, second = record(tmp_path / "x/a")["attempts"]
    assert (first["state"], first["reason"]) == ("killed", "another attempt began")
    assert second["state"] == "completed"
    assert len(points(tmp_path, "x/a/train", "loss")) == 6


def test_the_environment_names_the_run(tmp_path: Path) -> None:
    told = {"ABOARD_ROOT": str(tmp_path), "ABOARD_RUN": "x/job17"}
    for attempts in (1, 2):
        assert train(log(""), tmp_path, **told).out == "job17\n"
        assert len(record(tmp_path / "x/job17")["attempts"]) == attempts
    assert len(points(tmp_path, "x/job17/train", "loss")) == 6
    assert "already" in train(log("resume=False"), tmp_path, **told).err


def test_a_requeued_slurm_job_goes_on(tmp_path: Path) -> None:
    told = {"ABOARD_ROOT": str(tmp_path), "SLURM_JOB_ID": "17"}
    assert train(log("'x'"), tmp_path, **told).out == "run1\n"
    assert train(log("'x'"), tmp_path, **told).out == "run2\n"
    failing = log("'x'") + "sys.exit(1)"
    assert train(failing, tmp_path, **told).out == "run3\n"
    restarted = told | {"SLURM_RESTART_COUNT": "1"}
    assert train(failing, tmp_path, **restarted).out == "run3\n"
    assert train(failing, tmp_path, **restarted | {"SLURM_JOB_ID": "18"}).out == "run4\n"
    found = record(tmp_path / "x/run3")
    assert (found["job"], len(found["attempts"])) == ("17", 2)
    assert len(points(tmp_path, "x/run3/train", "loss")) == 6


def test_a_job_of_aboard_is_that_of_the_run_and_the_engines_that_of_the_attempt(
    tmp_path: Path,
) -> None:
    array = {"SLURM_JOB_ID": "19", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}
    told = {"ABOARD_JOB": "sweep", **array}
    command = ("run", "--root", "runs", "--name", "a", "--resume", "-q", "--", "true")
    for variables in (told, array | {"SLURM_ARRAY_JOB_ID": "18"}):
        assert run_aboard(tmp_path, *command, **variables).code == 0
        found = record(tmp_path / "runs/default/a")
        assert found["job"] == "sweep"
    assert [one["job"] for one in found["attempts"]] == ["17_2", "18_2"]
    named = ("run", "--root", "runs", "--name", "b", "--job", "mine", "-q", "--", "true")
    assert run_aboard(tmp_path, *named, **told).code == 0
    found = record(tmp_path / "runs/default/b")
    assert (found["job"], found["attempts"][0]["job"]) == ("mine", "17_2")


def test_workers_that_torchrun_starts_again_go_on(tmp_path: Path) -> None:
    told = {"ABOARD_ROOT": str(tmp_path), "TORCHELASTIC_RUN_ID": "none"}
    failing = log("'x'") + "sys.exit(1)"
    assert train(failing, tmp_path, **told, TORCHELASTIC_RESTART_COUNT="0").out == "run1\n"
    assert train(failing, tmp_path, **told, TORCHELASTIC_RESTART_COUNT="1").out == "run1\n"
    assert len(record(tmp_path / "x/run1")["attempts"]) == 2


@pytest.mark.parametrize(
    "variable",
    ["ABOARD_LOGDIR", "PAI_OUTPUT_TENSORBOARD", "AIP_TENSORBOARD_LOG_DIR", "XT_OUTPUT_MNT"],
)
def test_a_fixed_directory_is_begun_and_resumed(tmp_path: Path, variable: str) -> None:
    there = tmp_path / "job" / "tb"
    for attempts in (1, 2):
        ended = train(log("'x'"), tmp_path, **{variable: str(there)})
        assert (ended.out, ended.err) == ("tb\n", "")
        assert len(record(there)["attempts"]) == attempts
    assert len(points(tmp_path / "job", "tb/train", "loss")) == 6
    refused = train(log("resume=False"), tmp_path, **{variable: str(there)})
    assert f"a run exists at {there}, and resume is False." in refused.err


RESTARTS = {
    "Slurm": ({"SLURM_JOB_ID": "17"}, {"SLURM_RESTART_COUNT": "1"}),
    "torchrun": ({"TORCHELASTIC_RUN_ID": "none"}, {"TORCHELASTIC_RESTART_COUNT": "1"}),
}


@pytest.mark.parametrize("launcher", RESTARTS)
def test_a_named_run_of_a_restarted_job_goes_on(tmp_path: Path, launcher: str) -> None:
    told, restarted = RESTARTS[launcher]
    named = log("'x', 'long', '.'")
    failing = named + "sys.exit(1)"
    assert train(failing, tmp_path, **told).out == "long\n"
    assert "already" in train(failing, tmp_path, **told).err
    assert train(failing, tmp_path, **told, **restarted).out == "long\n"
    assert len(points(tmp_path, "x/long/train", "loss")) == 6
    refused = log("'x', 'long', '.', resume=False")
    assert "already" in train(refused, tmp_path, **told, **restarted).err
    another = train(named, tmp_path, **RESTARTS["Slurm"][1], SLURM_JOB_ID="18")
    assert "already" in another.err
    record_ = record(tmp_path / "x/long")
    assert [one["state"] for one in record_["attempts"]] == ["failed", "failed"]


def test_a_named_run_that_was_completed_is_not_gone_on_with(tmp_path: Path) -> None:
    told, restarted = RESTARTS["Slurm"]
    named = log("'x', 'long', '.'")
    assert train(named, tmp_path, **told).code == 0
    assert "already" in train(named, tmp_path, **told, **restarted).err


@pytest.mark.parametrize("launcher", RESTARTS)
def test_a_named_run_of_aboard_run_goes_on_after_a_restart(tmp_path: Path, launcher: str) -> None:
    told, restarted = RESTARTS[launcher]
    command = ["run", "-q", "--root", ".", "--name", "long", "--", "false"]
    for variables in (told, told | restarted):
        done = run_aboard(tmp_path, *command, **variables)
        assert (done.code, done.err) == (1, "")
    assert len(record(tmp_path / "default/long")["attempts"]) == 2


def test_two_runs_of_a_restarted_job_stay_two(tmp_path: Path) -> None:
    told, restarted = RESTARTS["Slurm"]
    script = """
first, second = aboard.init('x', root='.'), aboard.init('x', root='.')
print(first.name, second.name)
sys.exit(1)
"""
    assert train(script, tmp_path, **told).out == "run1 run2\n"
    assert train(script, tmp_path, **told, **restarted).out == "run2 run3\n"


def test_a_restart_asks_for_few_files_however_many_runs_there_are(tmp_path: Path) -> None:
    told, restarted = RESTARTS["Slurm"]
    script = """
from aboard.storage.local import LocalStorage
asked = []
for name in ('read', 'list'):
    real = getattr(LocalStorage, name)
    def counted(self, *told, real=real, **more):
        asked.append(told)
        return real(self, *told, **more)
    setattr(LocalStorage, name, counted)
run = aboard.init('x', root='.')
print(run.name, len(asked))
sys.exit(1)
"""
    others = """
for _ in range(20):
    aboard.init('x', root='.').finish()
"""
    assert train(others, tmp_path).code == 0
    assert train(script, tmp_path, **told).out.startswith("run21 ")
    name, asked = train(script, tmp_path, **told, **restarted).out.split()
    assert name == "run21"
    assert int(asked) < 10


def test_the_record_of_another_attempt_says_whose_it_is(tmp_path: Path) -> None:
    script = """
aboard.init('x', 'a', '.', resume=True, workspace=sys.argv[1] or None).finish()
"""
    git = tmp_path / ".git"
    git.mkdir()
    for user, workspace, commit in (("ann", "w", "a" * 40), ("bob", "", "b" * 40)):
        (git / "HEAD").write_text(commit)
        assert train(script, tmp_path, workspace, LOGNAME=user).code == 0
        found = record(tmp_path / "x/a")
        assert (found["user"], found["workspace"]) == (user, "w")
        assert found["git_commit"] == commit


def test_what_is_logged_without_a_step_goes_to_where_the_run_left_off(tmp_path: Path) -> None:
    assert train(log(), tmp_path).code == 0
    again = """
with aboard.init('x', 'a', '.', resume=True) as run:
    run.log_histogram('weights', [1.0, 2.0], stage='train')
    run.log_metrics({'loss': 5}, stage='train')
"""
    assert train(again, tmp_path).code == 0
    assert points(tmp_path, "x/a/train", "loss") == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 5.0)]
    stock = read_stock(tmp_path / "x/a")
    assert [point.step for point in stock["train", "weights"].points] == [2]


def stock_points(run: Path, stage: str, tag: str) -> list[tuple[int, float]]:
    """Return steps and values as TensorBoard itself shows them."""
    return [(one.step, float(one.value)) for one in read_stock(run)[stage, tag].points]


SET_BACK = """
with aboard.init('x', 'a', '.', resume=True, {options}) as run:
    for step in range(int(sys.argv[1]), int(sys.argv[2])):
        run.log_metrics({{'loss': float(sys.argv[3])}}, step=step, stage='train')
        run.log_metrics({{'loss': float(sys.argv[3])}}, step=step + 100, stage='eval')
"""


@pytest.mark.parametrize("way", ["aboard.init", "aboard run"])
def test_tensorboard_itself_sees_one_curve_after_a_training_was_set_back(
    tmp_path: Path, way: str
) -> None:
    def attempt(*arguments: str) -> None:
        if way == "aboard.init":
            assert train(SET_BACK.format(options=""), tmp_path, *arguments).code == 0
            return
        script = "import sys, aboard" + SET_BACK.format(options="").replace("'x', 'a', '.'", "")
        below = ["run", "-q", "--root", ".", "--experiment", "x", "--name", "a", "--resume"]
        program = [sys.executable, "-c", script.replace("(, resume=True, )", "()"), *arguments]
        assert run_aboard(tmp_path, *below, "--", *program).code == 0

    attempt("0", "10", "1")
    attempt("6", "12", "2")
    expected = [(step, 1.0) for step in range(6)] + [(step, 2.0) for step in range(6, 12)]
    assert stock_points(tmp_path / "x/a", "train", "loss") == expected
    assert points(tmp_path, "x/a/train", "loss") == expected
    moved = [(step + 100, value) for step, value in expected]
    assert stock_points(tmp_path / "x/a", "eval", "loss") == moved


def test_what_the_user_tells_tensorboard_comes_first(tmp_path: Path) -> None:
    assert train(SET_BACK.format(options=""), tmp_path, "0", "10", "1").code == 0
    assert train(SET_BACK.format(options="purge_step=8"), tmp_path, "6", "12", "2").code == 0
    found = stock_points(tmp_path / "x/a", "train", "loss")
    assert [step for step, _ in found] == [*range(8), *range(6, 12)]


def test_every_rank_is_set_back_and_goes_on(tmp_path: Path) -> None:
    script = """
with aboard.init('x', 'a', '.', resume=True, ranks='all') as run:
    if run.rank == 1:
        for step in map(int, sys.argv[1:]):
            run.log_metrics({'loss': 1}, step=step)
        run.log_metrics({'loss': 2})
"""
    launch = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for port, steps in (("29601", ("0", "1", "2")), ("29602", ("1",)), ("29603", ())):
        told = launch | {"MASTER_PORT": port}
        ranks = [start(script, tmp_path, *steps, **told, RANK=str(rank)) for rank in range(2)]
        for process in ranks:
            assert process.communicate(timeout=100)[1] == ""
    expected = [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]
    assert stock_points(tmp_path / "x/a", "rank-1", "loss") == expected


TRIALS = """
for trial in range(3):
    with aboard.init({init}) as run:
        for step in range(3):
            run.log_metrics({{'loss': trial}}, step=step)
        print(run.name, run.uri)
"""
SAID = "which this process has already opened; further runs get directories inside it.\n"


def trials(init: str) -> str:
    return TRIALS.format(init=init)


@pytest.mark.parametrize("variable", [env.LOGDIR, "PAI_OUTPUT_TENSORBOARD"])
def test_a_directory_that_is_named_is_that_of_the_first(tmp_path: Path, variable: str) -> None:
    there = tmp_path / "job" / "tb"
    ended = train(trials("'x'"), tmp_path, **{variable: str(there)})
    assert ended.out == f"tb {there}\nrun2 {there}/run2\nrun3 {there}/run3\n"
    said = f"aboard: the environment names one run, {there}, {SAID}"
    assert ended.err == said
    for trial, run in enumerate(("tb", "tb/run2", "tb/run3")):
        expected = [(step, float(trial)) for step in range(3)]
        assert points(tmp_path / "job", run, "loss") == expected
        found = record(tmp_path / "job" / run)
        assert (found["experiment"], found["state"], len(found["attempts"])) == (
            "x", "completed", 1
        )  # fmt: skip


def test_names_that_the_code_gives_are_used(tmp_path: Path) -> None:
    there = tmp_path / "tb"
    ended = train(trials("'x', f'trial{trial}'"), tmp_path, ABOARD_LOGDIR=str(there))
    assert ended.out.split()[::2] == ["trial0", "trial1", "trial2"]
    assert record(there)["name"] == "trial0"
    for trial in (1, 2):
        assert record(there / f"trial{trial}")["name"] == f"trial{trial}"
    resumed = train("print(aboard.init('x', 'b').name)", tmp_path, ABOARD_LOGDIR=str(there))
    assert resumed.out == "trial0\n"
    assert resumed.err == ("aboard: this run is x/trial0, as set by the environment, not x/b.\n")


def test_a_run_that_is_named_is_the_first(tmp_path: Path) -> None:
    told = {"ABOARD_ROOT": str(tmp_path), "ABOARD_RUN": "x/job17"}
    ended = train(trials(""), tmp_path, **told)
    assert ended.out.split()[::2] == ["job17", "run2", "run3"]
    assert points(tmp_path, "x/job17/run3", "loss") == [(step, 2.0) for step in range(3)]


def test_going_on_with_the_first_is_possible(tmp_path: Path) -> None:
    there = tmp_path / "tb"
    script = """
for _ in range(2):
    with aboard.init(resume=True) as run:
        run.log_metrics({'loss': 1})
"""
    ended = train(script, tmp_path, ABOARD_LOGDIR=str(there))
    assert (ended.code, ended.err) == (0, "")
    assert points(tmp_path, "tb", "loss") == [(0, 1.0), (1, 1.0)]
    assert len(record(there)["attempts"]) == 2


def test_a_restarted_job_finds_them_again(tmp_path: Path) -> None:
    there = tmp_path / "tb"
    told = {"ABOARD_LOGDIR": str(there), "SLURM_JOB_ID": "17"}
    script = "aboard.init(), aboard.init('default', 'b')\nsys.exit(1)"
    assert train(script, tmp_path, **told).code == 1
    again = train(script, tmp_path, **told, SLURM_RESTART_COUNT="1")
    assert "RunExists" not in again.err
    for run in (there, there / "b"):
        assert len(record(run)["attempts"]) == 2


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_runs_below_aboard_run(tmp_path: Path, place: str, request: pytest.FixtureRequest) -> None:
    root = str(tmp_path / "root")
    if place == "bucket":
        root = f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    script = "import aboard" + trials("'mine', f'trial{trial}'")
    command = ["run", "-q", "--root", root, "--name", "a", "--", sys.executable, "-c", script]
    done = run_aboard(tmp_path, *command)
    assert done.code == 0
    whole = f"{root}/default/a"
    expected = [f"a {whole}", f"trial1 {whole}/trial1", f"trial2 {whole}/trial2"]
    assert done.out.splitlines() == expected
    overridden, several = done.err.splitlines()
    assert overridden == (
        "aboard: this run is default/a, as `aboard run` set in ABOARD_RUN, not mine/trial0."
        " To change this: aboard run --experiment mine --name trial0"
    )
    assert several + "\n" == f"aboard: the environment names one run, {whole}, {SAID}"
    for trial, run in enumerate(("a", "a/trial1", "a/trial2")):
        assert points(root, f"default/{run}", "loss") == [(step, float(trial)) for step in range(3)]


def test_every_rank_finds_the_directories_inside(tmp_path: Path) -> None:
    script = """
import os
import aboard.track.start
os.environ |= {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '29701'}
second = os.fork()
os.environ['RANK'] = '0' if second else '1'
for _ in range(2):
    with aboard.init() as run:
        run.log_metrics({'loss': run.rank})
if second:
    assert os.waitpid(second, 0)[1] == 0
"""
    below = ["run", "-q", "--root", ".", "--ranks", "all", "--"]
    assert run_aboard(tmp_path, *below, sys.executable, "-c", script).code == 0
    for rank in range(2):
        for run in (f"run1/rank-{rank}", f"run1/run2/rank-{rank}"):
            assert points(tmp_path, f"default/{run}", "loss") == [(0, float(rank))]


def test_ranks_that_each_have_a_directory_have_others_inside(tmp_path: Path) -> None:
    script = "import aboard\nfor _ in range(2): aboard.init().log_metrics({'loss': 1})"
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29702"}
    command = ["run", "-q", "--root", ".", "--ranks", "all", "--", sys.executable, "-c", script]
    for rank in "01":
        assert run_aboard(tmp_path, *command, **told, RANK=rank).code == 0
    for rank in "01":
        for run in (f"run1/rank-{rank}", f"run1/rank-{rank}/run2"):
            assert points(tmp_path, f"default/{run}", "loss") == [(0, 1.0)]


def test_ranks_agree_each_time_anew(tmp_path: Path) -> None:
    script = """
for _ in range(2):
    with aboard.init('x', root='.', ranks='all') as run:
        print(run.name)
"""
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29703"}
    ranks = [start(script, tmp_path, **told, RANK=str(rank)) for rank in range(2)]
    assert [one.communicate(timeout=100) for one in ranks] == [("run1\nrun2\n", "")] * 2
