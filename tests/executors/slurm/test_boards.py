"""Boards as jobs: what Slurm says about them, and what it never gets to know."""

import fcntl
import getpass
import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from aboard.executors.base import CommandState, ExecutorError, Spec
from aboard.executors.slurm.batch import SlurmBatches
from aboard.executors.slurm.boards import SlurmExecutor
from aboard.executors.slurm.cluster import SlurmSettings, limit_seconds
from aboard.executors.start import Start
from tests.engines import slurm
from tests.engines.requirements import cannot_set_up
from tests.engines.rigs import SERVES, command, fetch, make_batch, until_state
from tests.waiting import until

SECRET = "a-secret-of-the-storage"
SLEEPS = "import time; time.sleep(600)"
TELLS = """
import json, os, sys, time
print(json.dumps(dict(os.environ)), file=sys.stderr, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("4:00:00", 14400),
        ("1-12", 129600),
        ("1-00:30", 88200),
        ("2-01:02:03", 176523),
        ("UNLIMITED", math.inf),
    ],
)
def test_a_time_limit_in_the_notation_of_slurm(text, seconds):
    assert limit_seconds(text) == seconds


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("time", "soon", "not a Slurm time, such as 30, 4:00:00"),
        ("memory", "lots", "memory"),
        ("options", ["--array=1-3"], "is not an option for sbatch here"),
        ("options", ["exclusive"], "Write --NAME=VALUE"),
        ("cpus", 0, "cpus"),
        ("partitions", "main", "partitions"),
    ],
)
def test_settings_that_cannot_be_used(key, value, message):
    with pytest.raises(ValueError, match=message):
        SlurmSettings(**{key: value})


def test_a_machine_without_slurm(tmp_path):
    executor = SlurmExecutor({"": SlurmSettings(programs=tmp_path)})
    report = executor.probe()
    assert not report.answers
    assert report.problem == f"{tmp_path}/sinfo: no such file or directory."
    assert "set programs in [executors.slurm]" in report.hint
    with pytest.raises(ExecutorError, match="squeue: no such file or directory"):
        executor.start(Spec("a", command(SLEEPS), tmp_path / "a"))
    assert not list((tmp_path / "a").glob("start-*"))
    handle = {"board": "a", "directory": str(tmp_path / "a"), "start": "1", "log_from": 0}
    handle |= {"job": "17", "profile": "", "memory": None}
    status = executor.poll({"one": handle})["one"]
    assert status.state is CommandState.UNKNOWN
    assert "squeue: no such file" in status.reason


def test_a_profile_that_was_removed_makes_its_boards_unknown(tmp_path):
    executor = SlurmExecutor()
    handle = {"board": "a", "directory": str(tmp_path), "start": "1", "log_from": 0}
    handle |= {"job": "17", "profile": "long", "memory": None}
    status = executor.poll({"one": handle})["one"]
    assert status.state is CommandState.UNKNOWN
    assert "[executors.slurm.profiles.long]" in status.reason


def test_an_address_that_is_known_needs_no_file(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    handle, token = Start.prepare(Spec("a", command(SLEEPS), shared), "1", tls=True)
    handle |= {"directory": str(tmp_path / "a"), "shared": str(shared)}
    handle |= {"job": "17", "profile": "", "memory": None}
    (shared / "start-1" / "address").write_text('{"address": "https://n1:7000/b/view/"}\n')
    executor = SlurmExecutor()
    executor.find_address(handle)
    shared.rename(tmp_path / "away")

    def hangs(*_, **__):
        raise AssertionError("this may take for ever")

    with monkeypatch.context() as patched:
        for verb in ("is_dir", "stat", "open"):
            patched.setattr(Path, verb, hangs)
        address = executor.address(handle)
    assert (address.host, address.port, address.token) == ("n1", 7000, token)


def test_a_directory_that_another_user_has_made_is_not_used(tmp_path):
    executor = SlurmExecutor(hub="test")
    tells = "import os, sys; print(os.environ['TMPDIR'], file=sys.stderr)"
    spec = Spec("a", command(tells), tmp_path / "a")
    Start.prepare(spec, "1", tls=True)
    script = tmp_path / "script.sh"
    script.write_text(executor._script(spec, SlurmSettings(), tmp_path / "a" / "start-1"))
    base = tmp_path / "tmp"
    taken = base / f"aboard-{os.getuid()}-7-0"
    taken.mkdir(parents=True)
    (taken / "bait").touch()
    descriptor = os.open(taken, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # or it would be removed as a board's of this user
    try:
        subprocess.run(
            ["bash", script],
            env={**os.environ, "SLURM_TMPDIR": str(base), "SLURM_JOB_ID": "7"},
            timeout=180,
            check=True,
        )
    finally:
        os.close(descriptor)
    told = Path((tmp_path / "a" / "log").read_text().strip())
    assert told.parent == base
    assert told != taken
    assert [one.name for one in base.iterdir()] == [taken.name]
    assert [one.name for one in taken.iterdir()] == ["bait"]


@pytest.mark.engine("slurm")
def test_another_job_of_the_user_with_a_line_break_in_its_comment(boards):
    executor = boards.executor()
    handle = boards.start(executor)
    comment = "a\n" + "x" * 200  # its second line reaches into the columns of numbers
    other = ["sbatch", "--parsable", "--hold", f"--comment={comment}", "--wrap=true"]
    job = boards.cluster.ask(*other, "--output=/dev/null").stdout.strip()
    try:
        until_state(executor, handle, CommandState.RUNNING)
        assert [one.board for one in executor.found()] == ["a"]
    finally:
        boards.cluster.ask("scancel", job)


class Boards:
    """Starts boards on the cluster."""

    def __init__(self, cluster, directory):
        self.cluster = cluster
        self.directory = directory
        self.started = []

    def executor(self, profiles=None, **settings):
        given = {"configuration": self.cluster.configuration, **settings}
        made = {name: SlurmSettings(**given, **more) for name, more in (profiles or {}).items()}
        return SlurmExecutor({"": SlurmSettings(**given), **made}, hub="test", grace=1.0)

    def start(self, executor, script=SERVES, board="a", **options):
        spec = Spec(board, command(script), self.directory / board, **options)
        handle = json.loads(json.dumps(executor.start(spec)))
        self.started.append((executor, handle))
        return handle

    def close(self):
        try:
            for executor, handle in self.started:
                executor.stop(handle, now=True)
            for executor, handle in self.started:
                until_state(executor, handle, CommandState.ENDED)
        finally:  # what a failed test leaves is not for the next one
            if self.cluster.ask("squeue", "--noheader").stdout:
                self.cluster.ask("scancel", f"--user={os.getuid()}")
                until(lambda: not self.cluster.ask("squeue", "--noheader").stdout)


@pytest.fixture
def boards(slurm_cluster, tmp_path):
    made = Boards(slurm_cluster, tmp_path)
    yield made
    made.close()


def look(executor, handle):
    return executor.poll({"one": handle})["one"]


def reason_of(executor, handle, wanted):
    """Wait until a board gives this reason for waiting."""

    def matches():
        status = look(executor, handle)
        assert status.state is CommandState.STARTING, status
        return wanted in status.reason and status.reason

    return until(matches)


def log_of(executor, handle):
    return b"".join(executor.logs(handle)).decode()


def environment_of(executor, handle):
    """Return the variables of a board that runs TELLS."""
    return json.loads(until(lambda: log_of(executor, handle)))


def wrapped(place, *names, before=""):
    """Make commands of Slurm's that do something before; return their directory."""
    programs = place / "programs"
    programs.mkdir(exist_ok=True)
    for name in names:
        script = programs / name
        script.write_text(f'#!/bin/sh\n{before}\nexec /usr/bin/{name} "$@"\n')
        script.chmod(0o755)
    return programs


def drain(cluster, node):
    assert cluster.succeeds(
        "scontrol", "update", f"nodename={node}", "state=drain", "reason=a test"
    )


def resume(cluster, node):
    assert cluster.succeeds("scontrol", "update", f"nodename={node}", "state=resume")


@pytest.mark.engine("slurm")
class TestWaiting:
    def test_a_partition_that_is_down(self, boards):
        executor = boards.executor(partition="down")
        handle = boards.start(executor)
        assert reason_of(executor, handle, "PartitionDown") == "PartitionDown"
        executor.stop(handle)
        assert until_state(executor, handle, CommandState.ENDED).reason == "it was stopped"

    def test_a_node_that_is_full(self, boards):
        executor = boards.executor()
        first = boards.start(executor, board="a", cpus=3.5)
        until_state(executor, first, CommandState.RUNNING)
        second = boards.start(executor, board="b", cpus=2)
        assert reason_of(executor, second, "Resources")
        third = boards.start(executor, board="c", cpus=2)
        assert reason_of(executor, third, "Priority")
        executor.stop(first, now=True)
        until_state(executor, second, CommandState.RUNNING)

    def test_what_slurm_refuses_is_an_error_in_its_words(self, boards, tmp_path):
        executor = boards.executor(partition="nope")
        with pytest.raises(ExecutorError, match="invalid partition specified: nope") as raised:
            boards.start(executor)
        assert "\n" not in str(raised.value)
        assert str(raised.value).endswith(". Check the settings in [executors.slurm].")
        assert not list((tmp_path / "a").glob("start-*"))
        shared = tmp_path / "shared"
        with pytest.raises(ExecutorError, match="invalid partition"):
            boards.start(boards.executor(partition="nope", directory=shared))
        assert not list(shared.rglob("aboard-*"))
        assert not list((tmp_path / "a").glob("start-*"))
        with pytest.raises(ExecutorError, match=r"[Mm]emory"):
            boards.start(boards.executor(), memory=1 << 50)

    def test_a_reservation_that_begins_later(self, boards):
        executor = boards.executor(reservation="talk")
        with pytest.raises(ExecutorError, match=r"[Rr]eservation"):
            boards.start(executor)
        whom = f"users={getpass.getuser()}"
        when = ("starttime=now+1hour", "duration=60", "nodes=node1", "flags=ignore_jobs")
        create = ("scontrol", "create", "reservation", "reservationname=talk", whom, *when)
        assert boards.cluster.succeeds(*create)
        try:
            handle = boards.start(executor)
            assert reason_of(executor, handle, "Reservation")
            executor.stop(handle)
            until_state(executor, handle, CommandState.ENDED)
        finally:
            assert boards.cluster.succeeds("scontrol", "delete", "reservationname=talk")

    def test_a_profile_has_settings_of_its_own(self, boards):
        executor = boards.executor({"long": {"partition": "down", "time": "1-00:00:00"}})
        handle = boards.start(executor, profile="long")
        assert reason_of(executor, handle, "PartitionDown")
        job = boards.cluster.ask("scontrol", "show", "job", handle["job"]).stdout
        assert "TimeLimit=1-00:00:00" in job


@pytest.mark.engine("slurm")
class TestLimits:
    def test_what_a_board_asks_for_is_handed_to_slurm(self, boards):
        executor = boards.executor(memory="300M", time="2:00:00", constraint="", cpus=2)
        handle = boards.start(executor)
        job = boards.cluster.ask("scontrol", "show", "job", handle["job"]).stdout
        assert "JobName=aboard-a-1" in job
        assert "NumCPUs=2" in job
        assert "MinMemoryNode=300M" in job
        assert "TimeLimit=02:00:00" in job
        assert "gpu" not in job.lower()
        handle = boards.start(executor, board="b", memory=200 << 20, cpus=0.5, timeout=3601.0)
        job = boards.cluster.ask("scontrol", "show", "job", handle["job"]).stdout
        assert "NumCPUs=1" in job
        assert "MinMemoryNode=200M" in job
        assert "TimeLimit=01:01:00" in job

    def test_the_warning_before_the_time_limit_ends_a_board_cleanly(self, boards):
        executor = boards.executor(time="1")
        handle = boards.start(executor)
        until_state(executor, handle, CommandState.RUNNING)
        status = until_state(executor, handle, CommandState.ENDED)
        assert status.exit_code == 0
        assert status.reason == "its Slurm job reached the time limit: 1:00"

    def test_a_job_that_is_cancelled(self, boards):
        executor = boards.executor()
        handle = boards.start(executor)
        until_state(executor, handle, CommandState.RUNNING)
        assert boards.cluster.succeeds("scancel", handle["job"])
        status = until_state(executor, handle, CommandState.ENDED)
        assert status.reason == f"its job {handle['job']} was cancelled"


@pytest.mark.engine("slurm")
class TestNodes:
    def test_a_requeued_job_waits_again_and_has_another_address(self, boards):
        executor = boards.executor()
        handle = boards.start(executor)
        until_state(executor, handle, CommandState.RUNNING)
        before = executor.address(handle)
        assert boards.cluster.succeeds("scontrol", "requeue", handle["job"])
        assert reason_of_requeue(executor, handle)
        assert executor.address(handle) is None
        until_state(executor, handle, CommandState.RUNNING)
        after = executor.address(handle)
        assert after.port != before.port
        assert fetch(after, after.token) == (200, b"hello")

    def test_a_board_moves_from_a_node_that_fails_to_another(self, boards):
        cluster = boards.cluster
        executor = boards.executor(partition="both")
        drain(cluster, "node1")
        try:
            handle = boards.start(executor)
            until_state(executor, handle, CommandState.RUNNING)
            assert nodes_of(cluster, handle) == "node2"
        finally:
            resume(cluster, "node1")
        cluster.kill("node2")
        try:
            assert reason_of_requeue(executor, handle)
            assert executor.address(handle) is None
            until_state(executor, handle, CommandState.RUNNING)
            assert nodes_of(cluster, handle) == "node1"
            address = executor.address(handle)
            assert fetch(address, address.token) == (200, b"hello")
            assert SECRET not in json.dumps(handle)
        finally:
            cluster.start_node("node2")

    def test_a_node_that_fails_for_good(self, boards):
        executor = boards.executor(partition="both", nodelist="node2", options=["--no-requeue"])
        handle = boards.start(executor)
        until_state(executor, handle, CommandState.RUNNING)
        boards.cluster.kill("node2")
        try:
            status = until_state(executor, handle, CommandState.ENDED)
            assert status.exit_code is None
            assert status.reason == "its node node2 failed"
        finally:
            boards.cluster.start_node("node2")

    @pytest.mark.parametrize("partition", ["main", "warned"])
    def test_a_board_that_is_preempted_waits_and_returns(self, boards, partition):
        executor = boards.executor(partition=partition)
        handle = boards.start(executor, cpus=slurm.CPUS)
        until_state(executor, handle, CommandState.RUNNING)
        before = executor.address(handle)
        urgent = boards.start(boards.executor(partition="urgent"), SLEEPS, "b", cpus=slurm.CPUS)
        assert reason_of_requeue(executor, handle)
        assert executor.address(handle) is None
        executor.stop(urgent, now=True)
        until_state(executor, handle, CommandState.RUNNING)
        after = executor.address(handle)
        assert after.port != before.port
        assert fetch(after, after.token) == (200, b"hello")

    def test_a_board_that_is_preempted_for_good(self, boards):
        executor = boards.executor(partition="cancelled")
        handle = boards.start(executor, cpus=slurm.CPUS)
        until_state(executor, handle, CommandState.RUNNING)
        boards.start(boards.executor(partition="urgent"), SLEEPS, "b", cpus=slurm.CPUS)
        status = until_state(executor, handle, CommandState.ENDED)
        assert status.reason == (
            f"its job {handle['job']} was preempted by one of a higher priority"
        )
        assert executor.address(handle) is None

    def test_temporary_files_lie_on_the_node_and_are_removed(self, boards):
        executor = boards.executor()
        handle = boards.start(executor, TELLS)
        variables = environment_of(executor, handle)
        place = Path(variables["TMPDIR"])
        assert place.name == f"aboard-{os.getuid()}-{handle['job']}-0"
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert Path(variables["ABOARD_CACHE"]).parent == place
        executor.stop(handle, now=True)
        until_state(executor, handle, CommandState.ENDED)
        until(lambda: not place.exists())  # the script removes it after it has noted the end

    def test_what_a_killed_board_left_on_a_node_is_removed_by_the_next(self, boards):
        executor = boards.executor(partition="both", nodelist="node2", options=["--no-requeue"])
        handle = boards.start(executor, TELLS)
        left = Path(environment_of(executor, handle)["TMPDIR"])
        boards.cluster.kill("node2")
        boards.cluster.start_node("node2")
        assert left.exists()
        second = boards.start(executor, TELLS, "b")
        other = Path(environment_of(executor, second)["TMPDIR"])
        assert other.exists()
        until(lambda: not left.exists())

    def test_a_path_that_the_node_cannot_read(self, boards, tmp_path):
        there = tmp_path / "with spaces"
        there.mkdir()
        executor = boards.executor()
        handle = boards.start(executor, reads=(there, tmp_path / "missing"))
        status = until_state(executor, handle, CommandState.ENDED)
        assert status.exit_code == 1
        assert f"aboard: {tmp_path}/missing: cannot be read on the node " in status.reason
        assert "with spaces" not in status.reason

    def test_an_interpreter_that_the_node_does_not_have(self, boards):
        executor = boards.executor(python="/opt/no/python")
        status = until_state(executor, boards.start(executor), CommandState.ENDED)
        assert "/opt/no/python: program not found on the node" in status.reason

    def test_the_interface_on_which_a_board_listens(self, boards):
        executor = boards.executor(interface="lo")
        handle = boards.start(executor)
        until_state(executor, handle, CommandState.RUNNING)
        assert executor.address(handle).host == "127.0.0.1"
        executor = boards.executor(interface="ib9")
        handle = boards.start(executor, board="b")
        status = until_state(executor, handle, CommandState.ENDED)
        assert "has no network interface ib9 with an address, but" in status.reason

    def test_lines_before_the_board(self, boards):
        executor = boards.executor(setup=["export COLOUR='dark green'", "echo loading >&2"])
        handle = boards.start(executor, TELLS)
        said = until(lambda: (log := log_of(executor, handle)).count("\n") > 1 and log)
        loading, variables = said.splitlines()
        assert loading == "loading"
        assert json.loads(variables)["COLOUR"] == "dark green"


def reason_of_requeue(executor, handle):
    """Wait until a board that runs waits again."""

    def waits():
        status = look(executor, handle)
        assert status.state is not CommandState.ENDED, status
        return status.reason.startswith("requeued by Slurm: ")

    return until(waits)


def nodes_of(cluster, handle):
    return cluster.ask(
        "squeue", "--noheader", "--format=%B", f"--job={handle['job']}"
    ).stdout.strip()


@pytest.mark.engine("slurm")
class TestSecrets:
    def test_slurm_and_other_users_see_none(self, boards, monkeypatch):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}-of-the-proxy@proxy:3128")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}-of-the-hub")
        cluster = boards.cluster
        executor = boards.executor()
        handle = boards.start(executor, environment={"PASSWORD": SECRET})
        until_state(executor, handle, CommandState.RUNNING)
        token = executor.address(handle).token
        key = (Path(handle["directory"]) / "start-1" / "certificate.pem").read_text()
        shown = [
            cluster.ask("scontrol", "show", "job", "-d", handle["job"]).stdout,
            cluster.ask("scontrol", "write", "batch_script", handle["job"], "-").stdout,
            cluster.ask("squeue", "--Format=all").stdout,
            subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True).stdout,
            log_of(executor, handle),
            json.dumps(handle),
        ]
        assert "aboard.executors.entry" in shown[1]
        stored = [path.read_bytes() for path in cluster.home.rglob("*") if path.is_file()]
        assert any(b"aboard.executors.entry" in content for content in stored)
        for secret in (SECRET, token, key.splitlines()[1]):
            assert not any(secret in text for text in shown)
            assert not any(secret.encode() in content for content in stored)
        for path in Path(handle["directory"]).rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    def test_the_job_of_the_hub_does_not_leak_into_those_of_boards(self, boards, monkeypatch):
        for name, value in {
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_PARTITION": "nope",
            "SLURM_CPUS_PER_TASK": "3",
            "SBATCH_PARTITION": "nope",
            "SBATCH_GRES": "gpu:1",
            "SBATCH_EXPORT": "NONE",
            "SQUEUE_FORMAT": "%i",
            "SQUEUE_STATES": "RUNNING",
            "SCANCEL_INTERACTIVE": "1",
            "TMPDIR": "/tmp",
            "AWS_PROFILE": "the-hub",
        }.items():
            monkeypatch.setenv(name, value)
        executor = boards.executor()
        handle = boards.start(executor, TELLS)
        variables = environment_of(executor, handle)
        assert variables["SLURM_JOB_ID"] == handle["job"]
        assert variables["SLURM_JOB_PARTITION"] == "main"
        assert "AWS_PROFILE" not in variables
        executor.stop(handle)
        until_state(executor, handle, CommandState.ENDED)

    @pytest.mark.skipif(os.getuid() != 0, reason="needs a second user (run as root)")
    def test_another_user_than_root(self, boards, tmp_path):
        """The interpreter of the tests may lie where others cannot read."""
        import aboard

        place = Path(f"/tmp/aboard-nobody-{os.getpid()}")
        place.mkdir()
        shutil.chown(place, "nobody")
        source = Path(aboard.__file__).parents[1]
        paths = [str(source), next(path for path in sys.path if path.endswith("site-packages"))]
        script = f"""
import json, sys, time
from pathlib import Path
from aboard.executors.base import Spec
from aboard.executors.slurm.boards import SlurmExecutor
from aboard.executors.slurm.cluster import SlurmSettings
settings = SlurmSettings(configuration={str(boards.cluster.configuration)!r})
executor = SlurmExecutor({{"": settings}}, hub="n")
handle = executor.start(Spec("a", {command(SLEEPS)!r}, Path({str(place)!r}) / "a"))
while not executor.poll({{"": handle}})[""].reason.startswith("job"): time.sleep(0.1)
executor.stop(handle, now=True)
while (status := executor.poll({{"": handle}})[""]).state != "ended": time.sleep(0.1)
print(status.reason)
"""
        command_line = ["/usr/bin/python3", "-c", script]
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths), "HOME": str(place)}
        done = subprocess.run(
            command_line,
            user="nobody",
            group="nogroup",
            extra_groups=[],
            cwd="/",
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout == "it was stopped\n", done.stderr
        assert not list(Path("/tmp").glob(f"aboard-{place.stat().st_uid}-*"))
        shutil.rmtree(place)


@pytest.mark.engine("slurm")
class TestController:
    def test_down_and_back(self, boards):
        executor = boards.executor()
        handle = boards.start(executor)
        until_state(executor, handle, CommandState.RUNNING)
        address = executor.address(handle)
        boards.cluster.kill("slurmctld")
        try:
            status = look(executor, handle)
            assert status.state is CommandState.UNKNOWN
            assert "Unable to contact slurm controller" in status.reason
            report = executor.probe()
            assert not report.answers
            assert "Unable to contact slurm controller" in report.problem
            assert report.hint.endswith("scontrol ping")
            assert executor.address(handle) == address
            assert fetch(address, address.token) == (200, b"hello")
            with pytest.raises(ExecutorError, match="Unable to contact slurm controller"):
                executor.stop(handle)
            with pytest.raises(ExecutorError, match=r"^Slurm does not answer: squeue: ") as raised:
                boards.start(executor, board="b")
            assert str(raised.value).endswith(". Check slurmctld with: scontrol ping")
            assert "\n" not in str(raised.value)
            assert not list((boards.directory / "b").glob("start-*"))
        finally:
            boards.cluster.start_controller()
        # What was to be stopped meanwhile is stopped by the next polls.
        assert until_state(executor, handle, CommandState.ENDED).reason == "it was stopped"
        until(lambda: executor.found() == [])  # it had not stored the last ends when it was killed

    def test_one_that_hangs(self, boards, monkeypatch):
        executor = boards.executor()
        handle = boards.start(executor)
        until_state(executor, handle, CommandState.RUNNING)
        boards.cluster.hang("slurmctld")
        try:
            with monkeypatch.context() as patch:
                patch.setattr("aboard.executors.slurm.cluster._QUERY_SECONDS", 1.0)
                status = look(executor, handle)
        finally:
            boards.cluster.hang("slurmctld", hangs=False)
        assert status.state is CommandState.UNKNOWN
        assert status.reason.startswith("Slurm does not answer: squeue took longer than 1 seconds.")
        assert look(executor, handle).state is CommandState.RUNNING

    def test_a_job_that_is_accepted_after_its_start_has_failed(self, boards, tmp_path):
        programs = wrapped(tmp_path, "squeue", "scancel")
        controller = boards.cluster.pid("slurmctld")
        wrapped(tmp_path, "sbatch", before=f"kill -STOP {controller}")
        executor = boards.executor(options=["--hold"], programs=programs)
        try:
            with pytest.raises(ExecutorError, match=r"^Slurm does not answer: sbatch: Batch job"):
                boards.start(executor)
        finally:
            boards.cluster.hang("slurmctld", hangs=False)
        assert not list((boards.directory / "a").glob("start-*"))
        (found,) = until(executor.found)
        assert (found.board, found.attempt) == ("a", 1)
        executor.stop(found.handle, now=True)
        until(lambda: executor.found() == [])

    def test_many_boards_cost_one_query(self, boards, tmp_path):
        calls = tmp_path / "calls"
        names = ("squeue", "sbatch", "scancel", "sacct", "sinfo")
        programs = wrapped(tmp_path, *names, before=f"echo ${{0##*/}} >>{calls}")
        executor = boards.executor(programs=programs)
        handle = boards.start(executor, SLEEPS)
        handles = {str(number): handle for number in range(200)}
        calls.write_text("")
        found = executor.poll(handles)
        assert calls.read_text() == "squeue\n"
        assert {status.state for status in found.values()} == {CommandState.STARTING}
        executor.stop(handle, now=True)
        until_state(executor, handle, CommandState.ENDED)
        calls.write_text("")
        executor.poll(handles)
        assert calls.read_text() == ""

    def test_what_slurm_has_forgotten_is_known_from_the_files(self, boards):
        executor = boards.executor()
        handle = boards.start(executor, "raise SystemExit('no such run')")
        place = Path(handle["directory"]) / "start-1"
        until((place / "ended").exists)
        forgotten = {**handle, "job": "99999"}
        status = look(executor, forgotten)
        assert (status.state, status.exit_code) == (CommandState.ENDED, 1)
        assert status.reason == "it exited with code 1 before it could be reached: no such run"
        (place / "end.json").unlink()
        (place / "ended").unlink()
        status = look(executor, forgotten)
        assert (status.state, status.exit_code) == (CommandState.ENDED, None)
        assert status.reason.startswith("it exited with an unknown exit code")

    def test_a_directory_that_the_nodes_do_not_see(self, boards):
        executor = boards.executor(options=["--hold"])
        handle = boards.start(executor)
        assert reason_of(executor, handle, "JobHeldUser")
        place = Path(handle["directory"]) / "start-1"
        place.rename(place.with_name("elsewhere"))
        assert boards.cluster.succeeds("scontrol", "release", handle["job"])
        state = ("squeue", "--noheader", "--states=all", "--format=%T", f"--job={handle['job']}")
        until(lambda: boards.cluster.ask(*state).stdout.strip() == "FAILED")
        place.with_name("elsewhere").rename(place)
        status = look(executor, handle)
        assert (status.state, status.exit_code) == (CommandState.ENDED, None)
        assert "did not begin on node1 (" in status.reason
        assert f"check that the nodes see {place.parent}" in status.reason

    def test_the_files_of_a_running_board_in_another_directory(self, boards, tmp_path):
        shared = tmp_path / "shared"
        executor = boards.executor(directory=shared)
        handle = boards.start(executor)
        until_state(executor, handle, CommandState.RUNNING)
        address = executor.address(handle)
        assert fetch(address, address.token) == (200, b"hello")
        assert boards.executor(directory=shared).address(handle) == address
        own = tmp_path / "a"
        assert {path.name for path in own.rglob("*")} == {"lock", "start-1"}
        assert handle in [found.handle for found in executor.found()]
        assert boards.start(executor) == handle
        executor.stop(handle)
        status = until_state(executor, handle, CommandState.ENDED)
        assert status.reason == "it was stopped"
        assert not list(shared.rglob("start-*"))
        assert "third line" in log_of(executor, handle)
        assert look(boards.executor(directory=shared), handle) == status

    def test_the_partitions_are_listed_and_checked(self, boards):
        report = boards.executor(partition="main").probe()
        assert report.answers
        assert report.version.startswith("2")
        assert "of 4 CPUs free" in report.resources["partition main"]
        assert report.resources["partition down"] == "down"
        executor = boards.executor({"long": {"partition": "main,nope"}})
        report = executor.probe("long")
        assert report.answers
        assert report.problem == "partition 'nope' not found."
        assert report.hint == (
            "Change partition in [executors.slurm.profiles.long]."
            " Slurm has both, cancelled, down, main, urgent, warned."
        )


@pytest.mark.engine("slurm")
class TestTwoDirectories:
    """Two hubs of one database with this cluster, each with a directory of its own."""

    @pytest.fixture
    def start(self, boards, tmp_path):
        def start(name, executor=None, script=SERVES):
            place = Boards(boards.cluster, tmp_path / name)
            place.started = boards.started
            return place.start(executor or boards.executor(), script)

        return start

    @staticmethod
    def blind(boards, place):
        """Return an executor whose search comes just before Slurm accepts another job."""
        programs = wrapped(place, "sbatch", "scancel")
        seen = place / "seen"
        wrapped(place, "squeue", before=f"[ -e {seen} ] || {{ touch {seen}; exit 0; }}")
        return boards.executor(programs=programs)

    def test_a_start_that_was_taken_over_is_adopted(self, boards, start, tmp_path):
        executor = boards.executor()
        handle = start("one", executor)
        # A hub killed between sbatch and its note has not stored the job either.
        record = tmp_path / "one" / "a" / "start-1" / "handle.json"
        for noted in (handle, {key: one for key, one in handle.items() if key != "job"}):
            record.write_text(json.dumps(noted))
            assert start("other") == handle
            assert [one.handle for one in executor.found()] == [handle]
        until_state(executor, handle, CommandState.RUNNING)
        address = boards.executor().address(handle)
        assert fetch(address, address.token) == (200, b"hello")
        assert list((tmp_path / "other" / "a").glob("start-*")) == []

    def test_another_hub_or_start_is_another(self, boards, start, tmp_path):
        handle = start("one", script=SLEEPS)
        stranger = SlurmExecutor(boards.executor().profiles, hub="stranger")
        other = start("other", stranger, SLEEPS)
        second = boards.start(boards.executor(), SLEEPS, attempt=2)
        assert len({one["job"] for one in (handle, other, second)}) == 3

    def test_one_whose_files_are_not_here_ends_before_the_next_begins(
        self, boards, start, tmp_path
    ):
        executor = boards.executor()
        first = start("one", executor)
        until_state(executor, first, CommandState.RUNNING)
        (tmp_path / "one").rename(tmp_path / "elsewhere")
        place = tmp_path / "one" / "a" / "start-1"
        with pytest.raises(
            ExecutorError, match=f"job {first['job']} .* its files are not in {place}. The board"
        ):
            start("other")

        def try_again():
            with suppress(ExecutorError):
                return start("other")

        second = until(try_again)
        until_state(executor, second, CommandState.RUNNING)
        assert [one.handle for one in executor.found()] == [second]
        (tmp_path / "elsewhere").rename(tmp_path / "one")

    def test_two_that_are_submitted_at_once_never_run_together(self, boards, start, tmp_path):
        executor = boards.executor()
        first = start("one", executor)
        until_state(executor, first, CommandState.RUNNING)
        second = start("other", self.blind(boards, tmp_path))
        assert second["job"] != first["job"]
        assert reason_of(executor, second, "Dependency")
        assert look(executor, first).state is CommandState.RUNNING
        (orphan,) = [
            one.handle for one in executor.found() if not executor.is_same(one.handle, second)
        ]
        executor.stop(orphan, now=True)
        until_state(executor, second, CommandState.RUNNING)

    def test_a_second_job_with_the_files_of_the_first_is_an_orphan(self, boards, start, tmp_path):
        """Slurm may accept a job after `sbatch` has given up, when the start was tried again."""
        executor = boards.executor()
        handle = start("one", executor)
        record = tmp_path / "one" / "a" / "start-1" / "handle.json"
        record.write_text(json.dumps({key: one for key, one in handle.items() if key != "job"}))
        second = start("one", self.blind(boards, tmp_path))
        assert second["job"] != handle["job"]
        (orphan,) = [
            one.handle for one in executor.found() if not executor.is_same(one.handle, second)
        ]
        assert orphan["job"] == handle["job"]
        executor.stop(orphan, now=True)
        until_state(executor, second, CommandState.RUNNING)
        until_state(executor, orphan, CommandState.ENDED)
        assert look(executor, second).state is CommandState.RUNNING


@pytest.fixture
def accounted(tmp_path):
    """Start boards on a cluster that soon forgets jobs, and has accounting."""
    if lacking := slurm.missing(accounting=True):
        cannot_set_up(lacking)
    with slurm.slurm(accounting=True) as cluster:
        made = Boards(cluster, tmp_path)
        yield made
        made.close()


@pytest.mark.engine("slurm")
def test_what_slurm_has_forgotten_is_known_from_the_accounting(accounted):
    cluster = accounted.cluster
    assert cluster.succeeds("sacctmgr", "--immediate", "add", "qos", "patient")
    executor = accounted.executor(
        {
            "held": {"options": ["--hold"], "qos": "patient"},
            "failing": {"partition": "both", "nodelist": "node2", "options": ["--no-requeue"]},
        }
    )
    handles = {
        "killed": accounted.start(executor, SLEEPS, "a"),
        "cancelled": accounted.start(executor, SLEEPS, "b", profile="held"),
        "lost": accounted.start(executor, SLEEPS, "c", profile="failing"),
        "blind": accounted.start(executor, SLEEPS, "d", profile="held"),
    }
    batches = SlurmBatches(executor.profiles)
    script = 'import sys, time; sys.argv[2] == "1" and sys.exit(4); time.sleep(600)'
    array = batches.submit(make_batch(accounted.directory, script, "swept"))
    swept = array["arrays"][0]["job"]
    jobs = {name: handle["job"] for name, handle in handles.items()}
    charged = cluster.ask("scontrol", "show", "job", jobs["cancelled"]).stdout
    assert "QOS=patient" in charged
    places = {name: Path(handle["directory"]) / "start-1" for name, handle in handles.items()}
    until((places["lost"] / "running").exists)
    cluster.kill("node2")
    until((places["killed"] / "running").exists)
    assert cluster.succeeds("scancel", "--batch", "--signal=KILL", jobs["killed"])
    assert cluster.succeeds("scancel", jobs["cancelled"])
    tasks = Path(array["place"]) / "tasks"
    until(lambda: {path.name[0] for path in tasks.iterdir()} == {"1", "2", "3"})
    assert cluster.succeeds("scancel", f"{swept}_2")
    assert cluster.succeeds("scancel", "--batch", "--signal=KILL", f"{swept}_3")
    moved = places["blind"].rename(places["blind"].with_name("elsewhere"))
    assert cluster.succeeds("scontrol", "release", jobs["blind"])
    until(lambda: not cluster.ask("squeue", "--noheader", "--states=all").stdout, 180)
    moved.rename(places["blind"])
    assert not any((place / "ended").exists() for place in places.values())

    shutil.rmtree(tasks)
    ends = batches.tasks({"": array})[""]
    assert [ends[number].exit_code for number in (1, 2, 3)] == [4, None, -signal.SIGKILL]
    reasons = ["", f"its job {swept}_2 was cancelled", ""]
    assert [ends[number].reason for number in (1, 2, 3)] == reasons

    found = executor.poll(handles)
    assert {status.state for status in found.values()} == {CommandState.ENDED}
    assert found["killed"].exit_code == -9
    assert found["killed"].reason.startswith("it was killed, by a user or because")
    assert found["cancelled"].exit_code is None
    assert found["cancelled"].reason == f"its job {jobs['cancelled']} was cancelled"
    assert found["lost"].exit_code is None
    assert found["lost"].reason == "its node node2 failed"
    assert found["blind"].exit_code is None
    assert found["blind"].reason.startswith(
        f"its job {jobs['blind']} did not begin on node1: check that the nodes see"
    )
