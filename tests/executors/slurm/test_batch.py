"""Batches on Slurm: arrays and plain jobs, what Slurm says of their tasks, what it stores."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.executors.base import PYTHON, Batch, ExecutorError, Resources, TaskState
from aboard.executors.slurm.batch import SlurmBatches, _arrays, _environment, expand
from aboard.executors.slurm.cluster import Cluster, SlurmSettings
from tests.waiting import until

SECRET = "a-secret-of-the-storage"
COMMANDS = ("sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo")
SLEEPS = "exec sleep 600"
ENDS_ITSELF = """
trap 'echo told $SLURM_PROCID; exit 9' TERM
echo began
while :; do sleep 0.1; done
"""
WAITING, RUNNING, ENDED, UNKNOWN = TaskState


def shell(script):
    """Return a command that finds the payload in $1 and its number in $2."""
    return ("/bin/bash", "-c", script, "bash")


def make_batch(directory, script="true", numbers=(1,), job="sweep", **options):
    wanted = {"payload": b"{}", "workdir": directory, **options}
    return Batch(
        job=job,
        numbers=tuple(numbers),
        command=shell(script),
        directory=directory / "jobs" / job / str(options.get("attempt", 1)),
        **wanted,
    )


@given(st.sets(st.integers(1, 300), min_size=1), st.integers(1, 100))
def test_every_task_has_one_index_of_one_array(numbers, largest):
    arrays = _arrays(numbers, largest)
    found = [
        array["offset"] + index for array in arrays for index in expand(array["indices"] or "0")
    ]
    assert sorted(found) == sorted(numbers)
    assert all(max(expand(array["indices"] or "0")) <= largest for array in arrays)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("7", [7]),
        ("[5-8%2]", [5, 6, 7, 8]),
        ("1-3,7,9-10%4", [1, 2, 3, 7, 9, 10]),
        ("0-10:5", [0, 5, 10]),
        ("N/A", []),
    ],
)
def test_numbers_in_the_notation_of_slurm(text, numbers):
    assert list(expand(text)) == numbers


def test_release_removes_only_directories_of_the_batch(tmp_path):
    """A record in a bucket has any path in it that its author chose."""
    home = tmp_path / "home"
    home.mkdir()
    handle = {
        "job": "a",
        "attempt": 1,
        "profile": "",
        "user": os.getuid(),
        "place": str(home),
        "directory": str(tmp_path / "state"),
        "memory": None,
        "ranks": False,
        "arrays": [],
    }
    with pytest.raises(ExecutorError, match="home is not a directory of aboard-a-1"):
        SlurmBatches().release(handle)
    assert home.is_dir()


def test_a_plain_environment_is_read_back_by_a_shell(tmp_path):
    variables = {
        "TWO": "a 'quoted'\nline $(false) `false`",
        "BYTES": os.fsdecode(b"\xff"),
        "PATH": os.environ["PATH"],
        "BASH_FUNC_module%%": '() {  echo loaded "$@"\n}',
        "HOSTNAME": "login2",
        "CUDA_VISIBLE_DEVICES": "3",
        "SLURM_JOB_ID": "17",
        "TMPDIR": "/scratch/login2",
        "not a name": "x",
    }
    path = tmp_path / "environment.sh"
    path.write_bytes(_environment(variables))
    script = f". {path}; module python; exec env -0"
    said = subprocess.run(
        ["bash", "-c", script], env={}, capture_output=True, check=True
    ).stdout.split(b"\0")
    assert said[0].startswith(b"loaded python\n")
    said[0] = said[0].removeprefix(b"loaded python\n")
    for name in ("TWO", "BYTES", "PATH"):
        assert os.fsencode(f"{name}={variables[name]}") in said
    names = {os.fsdecode(one.partition(b"=")[0]) for one in said}
    assert not names & {"HOSTNAME", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "TMPDIR"}


def test_what_slurm_would_be_given(tmp_path):
    settings = SlurmSettings(
        partition="gpu",
        account="project_1",
        memory="2G",
        time="1:00:00",
        gpu="gpu:a100",
        setup=["module load python"],
        options=["--exclusive"],
        python="/opt/python",
    )
    wanted = Resources(gpus=2, cpus=3.5, memory=5 << 30, time=5400.0, nodes=2, tasks_per_node=4)
    batch = make_batch(
        tmp_path, numbers=range(1, 201), parallel=8, resources=wanted, payload=SECRET.encode()
    )
    batch = Batch(
        **{name: getattr(batch, name) for name in batch.__slots__}
        | {"command": (PYTHON, "-P", "-m", "aboard.jobs.member")}
    )
    shown = SlurmBatches({"": settings}).preview(batch)
    line, _, script = shown.partition("\n\n")
    for option in (
        "--array=1-200%8",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--cpus-per-task=4",
        "--gres=gpu:a100:8",
        "--mem=5120M",
        "--time=90",
        "--partition=gpu",
        "--account=project_1",
        f"--chdir={tmp_path}",
        "--exclusive",
        "--job-name=aboard-sweep-1",
    ):
        assert option in line.split(), option
    assert script.startswith("#!/bin/bash -l\n")
    assert "module load python" in script
    assert "aboard_launch=(srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task=4)" in script
    assert "/opt/python -P -m aboard.jobs.member" in script
    assert SECRET not in shown
    assert not (tmp_path / "jobs").exists()
    shown = SlurmBatches({"": settings}).preview(make_batch(tmp_path, numbers=[7]))
    assert "--array" not in shown
    assert "--gres" not in shown
    assert "--time=1:00:00" in shown
    assert "--mem=2G" in shown
    assert "aboard_launch=()" in shown


def test_an_image_is_refused(tmp_path):
    with pytest.raises(ExecutorError, match="not in an image"):
        SlurmBatches().submit(make_batch(tmp_path, image="torch:2"))
    assert not (tmp_path / "jobs").exists()


def test_a_machine_without_slurm(tmp_path):
    executor = SlurmBatches({"": SlurmSettings(programs=tmp_path)})
    with pytest.raises(ExecutorError, match="sbatch: no such file or directory"):
        executor.submit(make_batch(tmp_path))
    assert not (tmp_path / "jobs" / "sweep" / "1").exists()
    handle = {"job": "sweep", "attempt": 1, "profile": "", "user": os.getuid(), "memory": None}
    handle["ranks"] = False
    handle |= {"place": str(tmp_path), "directory": str(tmp_path)}
    handle |= {"arrays": [{"job": "17", "offset": 0, "indices": "1-2"}]}
    found = executor.tasks({"one": handle, "two": {**handle, "profile": "long"}, "three": {}})
    assert {status.state for status in found["one"].values()} == {UNKNOWN}
    assert "squeue: no such file" in found["one"][2].reason
    assert "[executors.slurm.profiles.long]" in found["two"][1].reason
    assert found["three"] == {}


class Batches:
    """Submits batches to the cluster."""

    def __init__(self, cluster, directory):
        self.cluster = cluster
        self.directory = directory
        self.submitted = []

    def executor(self, **settings):
        wanted = {"configuration": self.cluster.configuration, **settings}
        return SlurmBatches({"": SlurmSettings(**wanted)})

    def submit(self, executor, *arguments, **options):
        batch = make_batch(self.directory, *arguments, **options)
        return self.keep(executor, executor.submit(batch))

    def keep(self, executor, handle):
        handle = json.loads(json.dumps(handle))
        self.submitted.append((executor, handle))
        return handle

    def close(self):
        for executor, handle in self.submitted:
            executor.cancel(handle, now=True)
        for executor, handle in self.submitted:
            until_tasks(executor, handle, lambda states: states == {ENDED})


@pytest.fixture
def batches(slurm_cluster, tmp_path):
    made = Batches(slurm_cluster, tmp_path)
    yield made
    made.close()


def look(executor, handle):
    return executor.tasks({"one": handle})["one"]


def until_tasks(executor, handle, condition):
    """Wait until the states of the tasks are as they should; return the status of each."""

    def holds():
        found = look(executor, handle)
        return found if condition({status.state for status in found.values()}) else None

    return until(holds)


def ended(executor, handle):
    return until_tasks(executor, handle, lambda states: states == {ENDED})


def log_of(executor, handle, number=1, **options):
    return b"".join(executor.logs(handle, number, **options)).decode()


def programs(place, **scripts):
    """Make a directory with Slurm's commands, some of them behind a script of their own."""
    place.mkdir()
    for name in COMMANDS:
        path = place / name
        path.write_text(f'#!/bin/bash\n{scripts.get(name, "")}\nexec /usr/bin/{name} "$@"\n')
        path.chmod(0o755)
    return place


SUBMITS = """
import sys
from pathlib import Path
from tests.executors.slurm.test_batch import SlurmBatches, SlurmSettings, make_batch
configuration, programs, directory, script = sys.argv[1:]
settings = SlurmSettings(configuration=configuration, programs=programs, partition="both")
batch = make_batch(Path(directory), script, range(1, 41))
SlurmBatches({"": settings}).submit(batch)
"""


@pytest.mark.engine("slurm")
def test_a_sweep_while_its_submitter_is_killed_and_slurmctld_restarts(batches, tmp_path):
    done, accepted = tmp_path / "done", tmp_path / "accepted"
    accepts = f'/usr/bin/sbatch "$@"; echo "$?" >{accepted}; exec sleep 1'
    script = f"echo $2 >>{done}"
    settings = {
        "configuration": str(batches.cluster.configuration),
        "programs": str(programs(tmp_path / "programs", sbatch=accepts)),
    }
    arguments = [*settings.values(), str(tmp_path), script]
    with subprocess.Popen([sys.executable, "-c", SUBMITS, *arguments]) as submitter:
        until(accepted.exists)
        submitter.kill()
    assert accepted.read_text() == "0\n"
    executor = batches.executor(partition="both")
    handle = batches.submit(executor, script, range(1, 41))
    assert batches.submit(executor, script, range(1, 41)) == handle
    (array,) = handle["arrays"]
    until(lambda: done.exists() and len(done.read_text().split()) > 4)
    batches.cluster.stop_controller()
    found = look(executor, handle)
    assert {status.state for status in found.values()} == {UNKNOWN}
    assert "Unable to contact slurm controller" in found[40].reason
    with pytest.raises(ExecutorError, match=r"^Slurm does not answer: sbatch: "):
        batches.submit(executor, job="late")
    assert not (tmp_path / "jobs" / "late" / "1").exists()
    batches.cluster.start_controller()
    found = ended(executor, handle)
    assert sorted(found) == list(range(1, 41))
    assert {status.exit_code for status in found.values()} == {0}
    assert {status.reason for status in found.values()} == {""}
    assert found[17].unit == f"{array['job']}_17"
    assert Counter(map(int, done.read_text().split())) == Counter(range(1, 41))
    executor.release(handle)
    left = {path.name[:4] for path in Path(handle["place"]).iterdir()}
    assert left == {"log-", "payl"}


@pytest.mark.engine("slurm")
class TestTasks:
    def test_a_single_one_is_a_plain_job(self, batches, tmp_path, monkeypatch):
        monkeypatch.setenv("COLOUR", "dark green")
        monkeypatch.setenv("WANDB_API_KEY", SECRET)
        monkeypatch.setenv("SLURM_JOB_PARTITION", "nope")
        work = tmp_path / "a directory"
        work.mkdir()
        executor = batches.executor()
        says = "echo $2; pwd; echo $COLOUR $SLURM_JOB_PARTITION; echo ${#WANDB_API_KEY}; cat $1;"
        handle = batches.submit(
            executor,
            f"{says} sleep 2; echo last >&2; exit 3",
            [7],
            workdir=work,
            payload=SECRET.encode(),
            resources=Resources(cpus=2, memory=200 << 20, time=3600.0),
        )
        (array,) = handle["arrays"]
        shown = [
            batches.cluster.ask("scontrol", "show", "job", "-d", array["job"]).stdout,
            batches.cluster.ask("scontrol", "write", "batch_script", array["job"], "-").stdout,
            subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout,
            json.dumps(handle),
        ]
        assert "JobName=aboard-sweep-1" in shown[0]
        assert "NumCPUs=2" in shown[0]
        assert "MinMemoryNode=200M" in shown[0]
        assert "TimeLimit=01:00:00" in shown[0]
        stored = [path.read_bytes() for path in batches.cluster.home.rglob("*") if path.is_file()]
        assert any(b"aboard_number" in content for content in stored)
        assert not any(SECRET in text for text in shown)
        assert not any(SECRET.encode() in content for content in stored)
        place = Path(handle["place"])
        for name in ("payload.json", "environment.sh"):
            assert stat.S_IMODE((place / name).stat().st_mode) == 0o600
        (status,) = ended(executor, handle).values()
        log = log_of(executor, handle, 7)
        assert log == f"7\n{work}\ndark green main\n{len(SECRET)}\n{SECRET}last\n"
        assert (status.exit_code, status.reason, status.unit) == (3, "", array["job"])
        assert log_of(executor, handle, 7, tail=1) == f"{SECRET}last\n"

    def test_srun_starts_each_rank(self, batches):
        executor = batches.executor(partition="both")
        script = "echo rank $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME number $2"
        wanted = Resources(nodes=2, tasks_per_node=1, cpus=2)
        handle = batches.submit(executor, script, [1, 2], resources=wanted)
        found = ended(executor, handle)
        assert {status.exit_code for status in found.values()} == {0}
        assert sorted(log_of(executor, handle, 2).splitlines()) == [
            "rank 0 of 2 on node1 number 2",
            "rank 1 of 2 on node2 number 2",
        ]
        script = "[ $SLURM_PROCID = 0 ] && exit 5; exec sleep 600"
        wanted = Resources(tasks_per_node=2)
        handle = batches.submit(executor, script, job="failing", resources=wanted)
        assert ended(executor, handle)[1].exit_code in {5, -signal.SIGTERM}  # of the other rank
        handle = batches.submit(executor, ENDS_ITSELF, job="stopped", resources=wanted)
        until(lambda: log_of(executor, handle).count("began") == 2)
        executor.cancel(handle)
        assert ended(executor, handle)[1].exit_code == 9
        assert {"told 0", "told 1"} <= set(log_of(executor, handle).splitlines())

    def test_a_requeued_one_waits_and_runs_again(self, batches):
        executor = batches.executor()
        handle = batches.submit(executor, f"echo began $SLURM_RESTART_COUNT; {SLEEPS}", [1, 2])
        until_tasks(executor, handle, lambda states: states == {RUNNING})
        until(lambda: log_of(executor, handle, 2))
        unit = look(executor, handle)[2].unit
        assert batches.cluster.succeeds("scontrol", "requeue", unit)

        def waits():
            found = look(executor, handle)
            assert found[1].state is RUNNING
            return found[2] if found[2].state is WAITING else None

        status = until(waits)
        assert status.reason.startswith("requeued by Slurm: ")
        assert status.unit == unit
        until_tasks(executor, handle, lambda states: states == {RUNNING})
        until(lambda: log_of(executor, handle, 2).endswith("began 1\n"))
        assert log_of(executor, handle, 1) == "began\n" or log_of(executor, handle, 1) == "began \n"

    def test_why_they_wait_and_how_they_are_cancelled(self, batches):
        executor = batches.executor(partition="down")
        handle = batches.submit(executor, SLEEPS, range(1, 41), parallel=2)

        def reasons():
            return {status.reason for status in look(executor, handle).values()}

        until(lambda: reasons() == {"PartitionDown"})
        executor.cancel(handle, [3, 4, 40])
        found = until_tasks(executor, handle, lambda states: states == {WAITING, ENDED})
        gone = {number for number, status in found.items() if status.state is ENDED}
        assert gone == {3, 4, 40}
        unit = f"{handle['arrays'][0]['job']}_40"
        assert found[40].reason == f"Slurm has no record of its job {unit}, which never began"
        executor.cancel(handle)
        ended(executor, handle)
        executor.cancel(handle)

    @pytest.mark.parametrize(
        ("partition", "said"),
        [
            ("", "the default partition of Slurm has 1."),
            ("both", "partition 'both' of Slurm has 2."),
            ("main,both", "partition 'both' of Slurm has 2."),
        ],
    )
    def test_more_nodes_than_there_are_is_refused(self, batches, partition, said):
        """Slurm accepts such a job, and never starts it."""
        executor = batches.executor(partition=partition)
        with pytest.raises(ExecutorError) as refused:
            batches.submit(executor, resources=Resources(nodes=5))
        assert str(refused.value).startswith(
            f"each member requests 5 nodes, but {said} Request fewer"
        )
        assert not list(batches.directory.rglob("payload.json"))

    def test_what_its_partition_does_not_allow_waits_with_words(self, batches):
        executor = batches.executor(options=["--partition=main"])  # not looked at
        handle = batches.submit(executor, resources=Resources(nodes=5))
        status = until(lambda: (one := look(executor, handle)[1]).reason.startswith("Par") and one)
        assert status.reason == (
            "PartitionConfig: the request exceeds the limits of its partition; it may wait forever"
        )

    def test_a_signal_reaches_the_program(self, batches):
        executor = batches.executor()
        wanted = Resources(time=3600.0)
        handle = batches.submit(executor, ENDS_ITSELF, [1, 2, 3], resources=wanted)
        until(lambda: all(log_of(executor, handle, number) for number in (1, 2, 3)))
        executor.cancel(handle, [1])
        job = handle["arrays"][0]["job"]
        batches.cluster.ask("scancel", "--batch", "--signal=USR1", f"{job}_2")  # as near its limit
        executor.cancel(handle, [3], now=True)
        found = ended(executor, handle)
        assert "told" in log_of(executor, handle, 1)
        assert found[1].reason == f"its job {job}_1 was cancelled"
        assert "told" in log_of(executor, handle, 2)
        assert found[2].exit_code == 9
        assert found[2].reason == "its Slurm job reached the time limit: 1:00:00"
        assert found[3].exit_code == -signal.SIGKILL
        assert "told" not in log_of(executor, handle, 3)

    def test_interrupts_are_not_ignored(self, batches):
        executor = batches.executor()
        script = f"import signal; print(signal.getsignal({int(signal.SIGINT)}))"
        handle = batches.submit(executor, f"{sys.executable} -S -c {script!r}".replace("'", '"'))
        assert ended(executor, handle)[1].exit_code == 0
        assert "default_int_handler" in log_of(executor, handle)


@pytest.mark.engine("slurm")
class TestSubmission:
    @pytest.mark.parametrize(
        ("settings", "wanted", "message"),
        [
            ({"partition": "nope"}, {}, "invalid partition specified: nope"),
            ({}, {"memory": 1 << 50}, "[Mm]emory"),
            ({}, {"gpus": 1}, "[Gg]eneric resource|gres"),
        ],
    )
    def test_what_slurm_refuses(self, batches, tmp_path, settings, wanted, message):
        with pytest.raises(ExecutorError, match=message) as raised:
            batches.submit(
                batches.executor(**settings), numbers=[1, 2], resources=Resources(**wanted)
            )
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "jobs" / "sweep" / "1").exists()

    def test_more_tasks_than_an_array_holds(self, batches, monkeypatch, tmp_path):
        monkeypatch.setattr(Cluster, "largest_array", lambda _: 3)
        executor = batches.executor()
        script = f"echo number $2; echo $2 >>{tmp_path}/done"
        handle = batches.submit(executor, script, [1, 2, 3, 5, 9], parallel=1)
        assert [array["indices"] for array in handle["arrays"]] == ["1-3", "2", "3"]
        shown = batches.cluster.ask("scontrol", "show", "job", handle["arrays"][1]["job"]).stdout
        assert f"Dependency=afterany:{handle['arrays'][0]['job']}_*" in shown
        found = ended(executor, handle)
        assert sorted(found) == [1, 2, 3, 5, 9]
        assert found[5].unit == f"{handle['arrays'][1]['job']}_2"
        assert log_of(executor, handle, 5) == "number 5\n"
        done = (tmp_path / "done").read_text().split()
        assert (sorted(done), done[-2:]) == (["1", "2", "3", "5", "9"], ["5", "9"])
        # The second array is refused: the first one goes too.
        calls = tmp_path / "calls"
        refuses = f"[ -e {calls} ] && exit 1; touch {calls}"
        refusing = batches.executor(
            programs=programs(tmp_path / "programs", sbatch=refuses), options=["--hold"]
        )
        with pytest.raises(ExecutorError, match="sbatch failed"):
            batches.submit(refusing, script, [1, 2, 9], job="half")
        assert not (tmp_path / "jobs" / "half" / "1").exists()
        listed = ("squeue", "--noheader", "--name=aboard-half-1")
        until(lambda: not batches.cluster.ask(*listed).stdout)

    def test_a_disk_that_is_full_once_slurm_has_accepted_it(self, batches, tmp_path):
        place = tmp_path / "jobs" / "sweep" / "1"
        # The handle cannot be written again: a directory has its name.
        breaks = f'/usr/bin/sbatch "$@"; rm {place}/handle.json; mkdir {place}/handle.json; exit'
        executor = batches.executor(
            programs=programs(tmp_path / "programs", sbatch=breaks), options=["--hold"]
        )
        with pytest.raises(ExecutorError, match="job sweep cannot be submitted: is a directory"):
            batches.submit(executor, numbers=[1, 2])
        assert not place.exists()
        listed = ("squeue", "--noheader", "--name=aboard-sweep-1")
        until(lambda: not batches.cluster.ask(*listed).stdout)

    def test_ten_thousand_tasks_cost_one_query(self, batches, tmp_path):
        calls = tmp_path / "calls"
        counted = {name: f"echo {name} >>{calls}" for name in COMMANDS}
        executor = batches.executor(
            programs=programs(tmp_path / "programs", **counted), options=["--hold"]
        )
        handle = batches.submit(executor, SLEEPS, range(1, 10_001))
        other = batches.submit(executor, SLEEPS, range(1, 201, 2), job="odd")  # no range in squeue
        assert Counter(calls.read_text().split()) == {"sbatch": 11, "scontrol": 2}
        calls.write_text("")
        found = executor.tasks({"one": handle, "two": other})
        assert Counter(calls.read_text().split())["squeue"] <= 2
        assert {status.state for status in found["one"].values()} == {WAITING}
        assert len(found["one"]) == 10_000
        assert {status.state for status in found["two"].values()} == {WAITING}
        assert list(found["two"]) == list(range(1, 201, 2))
        assert len(json.dumps(handle)) < 2000

    def test_what_slurm_has_forgotten(self, batches):
        executor = batches.executor()
        handle = batches.submit(executor, "exit $2", [1, 2, 3])
        ended(executor, handle)
        (array,) = handle["arrays"]
        tasks = Path(handle["place"]) / "tasks"
        assert {path.name for path in tasks.iterdir()} == {
            f"{number}.{array['job']}.0.{number}" for number in (1, 2, 3)
        }
        for path in tasks.iterdir():
            path.rename(tasks / path.name.replace(f".{array['job']}.", ".99999."))
        (tasks / "2.99999.0.2").rename(tasks / "2.99999.0.2.time")
        (tasks / "3.99999.0.3").rename(tasks / "3.99999.0")
        array["job"] = "99999"
        found = look(executor, handle)
        assert {status.state for status in found.values()} == {ENDED}
        assert (found[1].exit_code, found[1].reason) == (1, "")
        assert found[2].reason == "its Slurm job reached the time limit"
        assert (found[3].exit_code, found[3].unit) == (None, "99999_3")
        assert found[3].reason == "Slurm has no record of its job 99999_3"
        (found, *_) = look(executor, {**handle, "user": 1}).values()
        assert (found.state, found.exit_code) == (ENDED, 1)
        assert look(executor, {**handle, "user": 1})[3].state is UNKNOWN

    def test_the_directory_of_the_settings_for_runs_in_a_bucket(self, batches, tmp_path):
        executor = batches.executor(directory=tmp_path / "shared")
        handle = batches.submit(executor, "echo hello")
        assert Path(handle["place"]).parent == tmp_path / "shared"
        ended(executor, handle)
        assert log_of(executor, handle) == "hello\n"
        executor.release(handle)
        assert log_of(executor, handle) == "hello\n"
        assert not list((tmp_path / "shared").iterdir())
        handle = batches.submit(executor, job="local", writes=(tmp_path,))
        assert Path(handle["place"]) == tmp_path / "jobs" / "local" / "1"

    def test_a_working_directory_that_the_nodes_do_not_see(self, batches, tmp_path):
        executor = batches.executor()
        handle = batches.submit(executor, workdir=tmp_path / "gone")
        assert ended(executor, handle)[1].exit_code == 1
        assert "gone: working directory not found on the node " in log_of(executor, handle)
