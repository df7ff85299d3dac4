"""A shipment from the trainer's side: whatever ends the training, everything arrives."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aboard.runs import manifest
from aboard.runs.manifest import Manifest, State
from aboard.storage import open_storage
from aboard.system import start_ticks
from aboard.track.shipping import shipper, spool
from aboard.track.shipping.shipper import Shipment, send_abandoned, start_shipper
from aboard.track.shipping.spool import Spool
from tests.engines.forkserver import fork
from tests.track.shipping import trainer
from tests.track.shipping.shipments import (
    VERSION,
    append,
    is_running,
    joined,
    scalar_record,
    spools,
    steps_in,
)
from tests.track.training import train as run_training
from tests.waiting import until

NAME = trainer.NAME


@pytest.fixture
def train():
    """Start trainings, none of which outlives the test."""
    started = []

    def start(target: str, notes: Path, *, steps: int = 30, pause: float = 0.005, end: str = ""):
        script = f"trainer.train({target!r}, {str(notes)!r}, {steps}, {pause}, {end!r})"
        started.append(
            fork(
                f"from tests.track.shipping import trainer\n{script}",
                cwd=notes.parent,
                env=os.environ,
                preload=("tests.track.shipping.trainer",),
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.end()


def noted(notes: Path) -> int:
    """Return how many steps a trainer has written for certain."""
    return notes.read_bytes().count(b"\n") if notes.exists() else 0


def fetched(target: str, place: Path) -> Path:
    """Copy what arrived into a directory."""
    storage = open_storage(target)
    for entry in storage.list():
        append(place / entry.name, storage.read(entry.name))
    return place


def no_spool_is_left(root: Path) -> bool:
    return not any(root.iterdir())


@pytest.fixture
def target(tmp_path) -> str:
    (tmp_path / "target").mkdir()
    return str(tmp_path / "target")


@pytest.fixture
def shipped(target):
    """Make shipments that are finished whatever happens to the test."""
    made = []

    def make(**options):
        made.append(Shipment(target, **options))
        return made[-1]

    yield make
    for shipment in made:
        shipment.finish(30)


@pytest.mark.parametrize("cloud", [False, True], ids=["directory", "bucket"])
def test_however_a_training_ends_everything_arrives(cloud, request, train, tmp_path, spool_root):
    base = request.getfixturevalue("s3_bucket") + "/ends" if cloud else str(tmp_path / "ends")
    ends = ["return", "raise", "_exit", "wait-TERM", "wait-KILL"]
    trainers = {
        end: train(f"{base}/{end}", tmp_path / f"{end}.notes", end=end.partition("-")[0])
        for end in ends
    }
    for end in ends[3:]:
        until(lambda end=end: noted(tmp_path / f"{end}.notes") == 30)
        trainers[end].send_signal(signal.Signals[f"SIG{end.partition('-')[2]}"])
    for process in trainers.values():
        process.wait()
    codes = {end: process.returncode for end, process in trainers.items()}
    assert codes == {"return": 0, "raise": 1, "_exit": 5, "wait-TERM": 143, "wait-KILL": -9}
    until(lambda: no_spool_is_left(spool_root), "the last byte was not sent")
    for end in ends:
        arrived = fetched(f"{base}/{end}", tmp_path / "arrived" / end)
        assert steps_in(joined(arrived, NAME)) == list(range(30)), end
        record = Manifest.from_json((arrived / "run.json").read_bytes())
        without_a_word = end in ("_exit", "wait-KILL")
        assert record.state is (State.KILLED if without_a_word else State.RUNNING)
        assert bool(record.ended) == without_a_word


def test_training_ends_only_when_everything_has_arrived(target, train, tmp_path, spool_root):
    process = train(target, tmp_path / "notes")
    process.wait()
    # No waiting here: the process has gone, and so everything is there.
    assert no_spool_is_left(spool_root)
    assert steps_in(joined(Path(target), NAME)) == list(range(30))


@pytest.mark.soak
def test_killed_at_any_moment_what_was_written_arrives(rounds, tally, train, tmp_path, spool_root):
    """Trainers die at random moments, and with some of them their shippers."""
    for seed in rounds(1):
        (tmp_path / str(seed)).mkdir()
        kill_trainers(random.Random(seed), train, tmp_path / str(seed), spool_root, tally)


def kill_trainers(chance: random.Random, train, tmp_path: Path, spool_root: Path, tally) -> None:
    running = {}
    for number in range(9):
        notes = tmp_path / f"notes{number}"
        target = str(tmp_path / f"target{number}")
        process = train(target, notes, steps=10_000, pause=0.002, end="wait")
        running[number] = process, notes, chance.randrange(1, 150)
    for number, (process, notes, moment) in running.items():
        until(lambda notes=notes, moment=moment: noted(notes) >= moment)
        (mine,) = map(Spool, spool_root.glob(f"*-{process.pid}-*"))
        if number % 3 == 0:
            until(lambda mine=mine: mine.status().pid)
            os.kill(mine.status().pid, signal.SIGKILL)
        process.end()
    assert all(not is_running(process.pid) for process, *_ in running.values())

    def taken_up() -> bool:
        # Whoever trains next on this machine sends what was left behind.
        Shipment(str(tmp_path / "next")).finish(60)
        return no_spool_is_left(spool_root)

    until(taken_up, "a spool was not sent")
    for number, (_, notes, _) in running.items():
        arrived = steps_in(joined(tmp_path / f"target{number}", NAME))
        lost = set(range(noted(notes))).difference(arrived)
        tally(kills=1 if number % 3 else 2, acknowledged=noted(notes), lost=len(lost))
        assert arrived == list(range(len(arrived)))
        assert len(arrived) in (noted(notes), noted(notes) + 1)
        record = Manifest.from_json((tmp_path / f"target{number}" / "run.json").read_bytes())
        assert record.state is State.KILLED


@pytest.mark.soak
@pytest.mark.parametrize("cloud", [False, True], ids=["directory", "bucket"])
def test_shippers_killed_at_any_moment_lose_and_double_nothing(
    rounds, tally, cloud, request, tmp_path
):
    """Each is killed repeatedly; the next one continues from there."""
    base = request.getfixturevalue("s3_bucket") + "/kills" if cloud else str(tmp_path / "kills")
    for seed in rounds(1):
        kill_shippers(f"{base}/{seed}", tmp_path / str(seed), seed, tally, cloud=cloud)


def kill_shippers(base: str, tmp_path: Path, seed: int, tally, *, cloud: bool) -> None:
    failures: list[str] = []

    def run(number: int) -> None:
        chance = random.Random(f"{seed}-{number}")
        mine = Spool.create(f"{base}/{number}", 0.01)
        events = mine.files / NAME
        append(events, VERSION)
        step = 0
        for _ in range(8):
            process = start_shipper(mine)
            end = time.monotonic() + chance.uniform(0.05, 0.8 if cloud else 0.45)
            while time.monotonic() < end:
                for _ in range(chance.choice([1, 1, 5, 300])):
                    append(events, scalar_record(step))
                    step += 1
                time.sleep(0.01)
            process.kill()
            process.wait()
        mine.mark("finish")
        if start_shipper(mine).wait(180) != shipper.Result.ARRIVED:
            failures.append(f"{number}: {mine.log.read_text()}")
        elif not mine.is_marked("done"):
            failures.append(f"{number}: not marked")
        arrived = joined(fetched(f"{base}/{number}", tmp_path / "arrived" / str(number)), NAME)
        lost = set(range(step)).difference(steps_in(arrived))
        tally(kills=8, acknowledged=step, lost=len(lost))
        if arrived != events.read_bytes():
            failures.append(f"{number}: {len(arrived)} of {events.stat().st_size} bytes")
        mine.remove()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_shipper_that_dies_is_started_again(shipped, target):
    shipment = shipped()
    until(lambda: shipment.spool.status().pid)
    first = shipment.spool.status().pid
    os.kill(first, signal.SIGKILL)
    append(shipment.directory / NAME, VERSION + scalar_record(0))
    until((Path(target) / NAME).exists)
    assert shipment.finish(60)


def test_two_shippers_never_serve_one_spool(shipped):
    shipment = shipped()
    until(shipment.spool.is_served)
    second = start_shipper(shipment.spool)
    assert second.wait(180) == shipper.Result.SERVED
    assert shipment.finish(60)


# Who owns a spool.


def test_a_recycled_pid_is_not_taken_for_the_owner(target, spool_root):
    mine = Spool.create(target, 0.05)
    owner = mine.owner()
    assert owner.presence(mine.lifeline) == "alive"
    # The process of that number lives, but it started at another time.
    changed = dataclasses.replace(owner, start=owner.start - 1)
    assert changed.presence(mine.lifeline) == "gone"
    append(mine.files / NAME, VERSION)
    (mine.directory / "owner.json").write_text(json.dumps(dataclasses.asdict(changed)))
    assert [one.directory for one in spool.abandoned_spools()] == [mine.directory]
    assert start_shipper(mine).wait(180) == shipper.Result.ARRIVED
    assert no_spool_is_left(spool_root)
    assert (Path(target) / NAME).read_bytes() == VERSION


OWNED = """
import sys
from aboard.track.shipping.spool import Spool
print(Spool.create(sys.argv[1], 1).directory, flush=True)
sys.stdin.read()
"""
HERE = {}
CONTAINER = {"namespace": 1, "host": "container"}
ELSEWHERE = {"boot": "another", **CONTAINER}


@pytest.mark.parametrize(
    ("changed", "while_alive", "then"),
    [
        (HERE, "alive", "gone"),
        ({"boot": "another"}, "alive", "gone"),
        ({"host": "another"}, "alive", "gone"),
        (CONTAINER, "alive", "gone"),
        (ELSEWHERE, "alive", "unknown"),
        ({"pid": 2**22 + 5}, "gone", "gone"),
    ],
)
def test_an_owner_is_known_to_live_or_left_alone(target, changed, while_alive, then):
    command = [sys.executable, "-c", OWNED, target]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        mine = Spool(Path(process.stdout.readline().strip()))
        owner = dataclasses.replace(mine.owner(), **changed)
        (mine.directory / "owner.json").write_text(json.dumps(dataclasses.asdict(owner)))
        presence = [owner.presence(mine.lifeline)]
        taken_up = [bool(list(spool.abandoned_spools()))]
        process.kill()
    presence += [owner.presence(mine.lifeline)]
    taken_up += [bool(list(spool.abandoned_spools()))]
    assert presence == [while_alive, then]
    assert taken_up == [one == "gone" for one in presence]
    mine.lifeline.unlink()
    assert owner.presence(mine.lifeline) == ("unknown" if changed is CONTAINER else then)


def test_a_forked_child_does_not_keep_its_parents_spool_alive(target):
    script = OWNED.replace("sys.stdin.read()", "import os; os.fork() and os._exit(0); input()")
    process = subprocess.Popen(
        [sys.executable, "-c", script, target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    mine = Spool(Path(process.stdout.readline().strip()))
    assert process.wait(180) == 0
    owner = dataclasses.replace(mine.owner(), **CONTAINER)
    assert owner.presence(mine.lifeline) == "gone"
    process.communicate("\n")


def test_a_process_that_was_not_waited_for_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: not is_running(process.pid))
    assert start_ticks(process.pid) == 0
    process.wait()


CHILD = """
import sys, time
from pathlib import Path
with open(sys.argv[1], "ab", buffering=0) as events:
    events.write(bytes.fromhex(sys.argv[3]))
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    events.write(bytes.fromhex(sys.argv[4]))
"""
OWNER = """
import os, signal, subprocess, sys, time
from aboard.track.shipping.shipper import Shipment
child, target, name, *rest = sys.argv[1:]
events = Shipment(target).directory / name
subprocess.Popen([sys.executable, "-c", child, str(events), *rest])
while not events.exists() or not events.stat().st_size:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_still_writes_is_waited_for(target, spool_root, tmp_path):
    """The owner is killed, but a process it started goes on writing."""
    go = tmp_path / "go"
    contents = [VERSION.hex(), scalar_record(1).hex()]
    command = [sys.executable, "-c", OWNER, CHILD, target, NAME, str(go), *contents]
    assert subprocess.run(command, check=False, timeout=180).returncode == -signal.SIGKILL
    until((Path(target) / NAME).exists)
    for _ in range(5):
        assert not no_spool_is_left(spool_root)
        time.sleep(0.05)
    go.touch()
    until(lambda: no_spool_is_left(spool_root))
    assert joined(Path(target), NAME) == VERSION + scalar_record(1)


def test_a_process_that_may_still_write_is_reported(shipped, target, capfd):
    """A process in the background opens its file long after the program's end."""
    shipment = shipped()
    append(shipment.directory / "notes.txt", b"early")
    # It waits without a child, which would be another process that may write.
    late = "read line; echo late > $ABOARD_LOGDIR/late.txt"
    told = {**os.environ, "ABOARD_LOGDIR": str(shipment.directory)}
    with subprocess.Popen(["sh", "-c", late], env=told, stdin=subprocess.PIPE) as process:
        ended = shipment.finish(60)
        said = capfd.readouterr().err
        sent = (Path(target) / "notes.txt").read_bytes()
        process.communicate(b"go\n")
    assert (ended, sent) == (False, b"early")
    assert said == (
        f"aboard: process {process.pid} may still write to {target};"
        " sending continues in the background.\n"
    )
    until(lambda: not shipment.spool.directory.exists(), "sending did not end")
    assert (Path(target) / "late.txt").read_bytes() == b"late\n"


def test_a_shipper_is_no_writer_of_the_run_it_was_started_in(target, tmp_path, monkeypatch):
    outer = Spool.create(target, 1)
    monkeypatch.setenv("ABOARD_LOGDIR", str(outer.files))
    inner = Shipment(str(tmp_path / "inner"))
    until(lambda: inner.spool.status().pid)
    assert outer.writer() is None
    assert inner.finish(60)


def test_a_spool_whose_deletion_was_cut_short_is_swept_up(target, spool_root, monkeypatch):
    mine = Spool.create(target, 1)
    with monkeypatch.context() as killed:
        killed.setattr("shutil.rmtree", lambda *_, **__: None)
        mine.remove()
    assert spool.all_spools() == []
    assert not no_spool_is_left(spool_root)
    assert list(spool.abandoned_spools()) == []
    assert no_spool_is_left(spool_root)


def test_a_forked_child_finishes_nothing(shipped):
    shipment = shipped()
    append(shipment.directory / NAME, VERSION)
    child = os.fork()
    if not child:
        try:
            shipment.finish()
        finally:
            os._exit(0 if shipment.spool.directory.exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not shipment.spool.is_marked("finish")
    assert shipment.finish(60)


LATE = """
import os, sys, time
from pathlib import Path
from aboard import EventWriter
print(os.getppid(), flush=True)
while not Path(sys.argv[1]).exists(): time.sleep(0.02)
with EventWriter(os.environ["PAI_OUTPUT_TENSORBOARD"]) as writer:
    writer.scalar("loss", 1.0, 0)
"""


def test_a_program_whose_recorder_is_killed_writes_on(s3_bucket, spool_root, tmp_path):
    """It opens its files only when whoever started it is long gone."""
    go = tmp_path / "go"
    root = f"{s3_bucket}/late"
    program = [sys.executable, "-c", LATE, str(go)]
    command = [sys.executable, "-m", "aboard", "run", "-q", "--name", "a", "--root", root, "--"]
    kept = {name: one for name, one in os.environ.items() if name != "ABOARD_LOGDIR"}
    with subprocess.Popen(
        [*command, *program], cwd=tmp_path, env=kept, stdout=subprocess.PIPE
    ) as run:
        assert int(run.stdout.readline()) == run.pid
        run.kill()
    held = open_storage(f"{root}/default/a")
    until(lambda: [one for one in spool_root.iterdir() if Spool(one).status().pid])
    for _ in range(20):
        assert not no_spool_is_left(spool_root)
        time.sleep(0.05)
    go.touch()
    until(lambda: no_spool_is_left(spool_root), "the last byte was not sent")
    assert any("tfevents" in entry.name for entry in held.list())
    assert Manifest.from_json(held.read("run.json")).state is State.KILLED


# What is told, and what is kept.


@pytest.fixture
def nowhere(environment, closed_port) -> str:
    environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    environment.setenv("AWS_ACCESS_KEY_ID", "testing")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-key")
    return "s3://no-such-place/run1"


@pytest.fixture
def stranded(nowhere):
    """Make a shipment that can reach nobody; its shipper is ended with the test."""
    shipment = Shipment(nowhere)
    append(shipment.directory / NAME, VERSION)
    yield shipment
    shipment.finish(0)
    shipment._process.kill()
    shipment._process.wait()


def test_what_cannot_be_sent_is_kept_and_reported(stranded, capfd):
    until(lambda: stranded.spool.status().problem)
    assert stranded.finish(0.1) is False
    assert stranded.finish() is False, "it does not wait again"
    said = capfd.readouterr().err
    assert "aboard: s3://no-such-place/run1" in said
    assert "s3://no-such-place/run1: s3:" not in said
    assert "refuses connections. Check the network" in said
    assert f"The logs are kept in {stranded.spool.directory}; sending continues" in said
    assert (stranded.directory / NAME).read_bytes() == VERSION
    assert is_running(stranded._process.pid)


def test_ctrl_c_leaves_the_rest_to_the_background(stranded, capfd):
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert stranded.finish(60) is False
    timer.join()
    assert "sending from" in capfd.readouterr().err
    assert is_running(stranded._process.pid)
    assert stranded.spool.is_marked("alone")


def test_a_problem_and_its_end_are_reported_once(stranded, capfd):
    said = ""

    def complained() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said.endswith("training continues.\n")

    until(complained)
    assert said.count("aboard: ") == 1
    for _ in range(3):
        stranded._supervise()
    assert capfd.readouterr().err == ""
    stranded.spool.report(spool.Status(stranded._process.pid))
    stranded._supervise()
    assert "s3://no-such-place/run1 is reachable again" in capfd.readouterr().err


def test_a_spool_is_private_and_holds_no_secret(stranded):
    until(lambda: stranded.spool.status().problem)
    assert stranded.spool.directory.stat().st_mode & 0o777 == 0o700
    for path in stranded.spool.directory.rglob("*"):
        assert path.is_dir() or b"very-secret-key" not in path.read_bytes(), path
    pid = stranded._process.pid
    assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_shipper_holds_on_to_nothing_of_the_trainer(tmp_path, shipped):
    with (tmp_path / "dataset").open("wb") as file:
        os.set_inheritable(file.fileno(), True)
        shipment = shipped()
        until(lambda: shipment.spool.status().pid)
        pid = shipment.spool.status().pid
        held = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    assert str(tmp_path / "dataset") not in held
    assert os.getsid(pid) == pid, "a Ctrl-C in the terminal is not for it"
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(pid, number)
    append(shipment.directory / NAME, VERSION)
    assert shipment.finish(60)
    assert shipment._process.returncode == 0


def test_a_file_that_can_never_be_sent_is_named(s3_bucket, capfd):
    shipment = Shipment(f"{s3_bucket}/refused")
    append(shipment.directory / NAME, VERSION)
    append(shipment.directory / "bad\x01name", b"x")
    assert shipment.finish(60) is False
    said = capfd.readouterr().err.splitlines()[-1]
    assert said == (
        f"aboard: '{shipment.directory}/bad\\x01name': the name has a character that buckets"
        " do not allow. Rename the file. All other files were sent. Then run 'aboard ship' to"
        " send this one."
    )
    assert open_storage(f"{s3_bucket}/refused").read(NAME) == VERSION
    shipment.spool.remove()


def test_a_deleted_spool_is_reported(shipped, capfd):
    import shutil

    shipment = shipped()
    until(lambda: shipment.spool.status().pid)
    os.kill(shipment.spool.status().pid, signal.SIGKILL)
    shutil.rmtree(shipment.spool.directory)
    assert shipment.finish(60) is False
    assert "was deleted before everything in it was sent" in capfd.readouterr().err


def test_a_spool_that_went_because_all_arrived_is_no_alarm(shipped, target, capfd, monkeypatch):
    """The shipper takes the spool away just after it was asked whether it is done."""
    shipment = shipped()
    append(shipment.directory / NAME, VERSION)
    has_arrived = shipment._has_arrived

    def asked_too_early() -> bool:
        monkeypatch.setattr(shipment, "_has_arrived", has_arrived)
        until(lambda: not shipment.spool.directory.exists())
        return False

    monkeypatch.setattr(shipment, "_has_arrived", asked_too_early)
    shipment.spool.mark("alone")
    assert shipment.finish(60)
    assert capfd.readouterr().err == ""
    assert (Path(target) / NAME).read_bytes() == VERSION


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_an_invalid_interval_is_reported_and_not_used(shipped, monkeypatch, capfd, text):
    monkeypatch.setenv("ABOARD_SHIP_SECS", text)
    shipment = shipped()
    assert shipment.spool.owner().interval == 5
    assert f"ABOARD_SHIP_SECS={text} is not a number of seconds; using 5" in capfd.readouterr().err


def test_back_off_grows_and_differs():
    delays = [shipper.delay_after(n, 5.0, 60.0, 1.0) for n in range(8)]
    assert delays == [5.0, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    assert shipper.delay_after(5, 5.0, 60.0, 0.0) == 30.0


def test_importing_it_is_cheap():
    program = (
        "import sys, aboard.track.shipping.shipper;"
        "print([name for name in ('obstore', 'numpy', 'typer', 'rich') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


# The first moment of a run in a bucket: no place for its logs, no answer, an earlier attempt.


LOG = """
name = sys.argv[1]
with aboard.init(hparams={name: 1}, tags=name) as run:
    run.log_metrics({name: 1.0})
"""


def test_a_run_that_cannot_begin_does_not_seem_to_run(s3_bucket: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = {"ABOARD_SPOOL": f"{tmp_path}/file/spool", "TMPDIR": f"{tmp_path}/file"}
    script = "import tempfile\ntempfile.tempdir = os.environ['TMPDIR']\naboard.init('x', 'a')"
    ended = run_training(script, tmp_path, ABOARD_ROOT=f"{s3_bucket}/phantom", **nowhere)
    assert ended.code == 1
    assert "logs for a bucket cannot be kept here" in ended.err
    found = manifest.read(open_storage(f"{s3_bucket}/phantom"), "x/a")
    assert (found.state, found.attempts[0].state) == (State.FAILED, State.FAILED)
    assert "cannot be kept here" in found.reason


def test_an_attempt_that_begins_without_the_bucket_is_the_next(
    s3_bucket: str, tmp_path: Path, closed_port: int
) -> None:
    target = f"{s3_bucket}/jobs/mine"
    assert run_training(LOG, tmp_path, "first", ABOARD_LOGDIR=target).code == 0
    nowhere = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port}", "ABOARD_FINISH_SECS": "0"}
    ended = run_training(LOG, tmp_path, "second", ABOARD_LOGDIR=target, **nowhere)
    assert (ended.code, "refuses connections" in ended.err) == (0, True)
    (owner_file,) = spools()
    left = Spool(owner_file.parent)
    end_shipper(left)
    owner = left.owner()
    assert owner is not None
    assert send_abandoned(left, owner, lambda _: None).complete
    found = manifest.read(open_storage(target))
    assert [one.number for one in found.attempts] == [1, 2]
    assert len({one.pid for one in found.attempts}) == 2
    assert [one.state for one in found.attempts] == [State.COMPLETED] * 2
    assert found.name == "mine"
    assert found.hparams == {"first": 1, "second": 1}
    assert found.tags == {"first": True, "second": True}
    assert found.metrics == {"first": 1.0, "second": 1.0}


def end_shipper(spool: Spool) -> None:
    """End the process that tries in the background to reach nobody."""
    until(lambda: spool.status().pid)
    os.kill(spool.status().pid, signal.SIGKILL)
    until(lambda: not spool.is_served())
