"""How trainings end, and that what they logged is there whatever the end."""

import signal
import time
from pathlib import Path

import pytest

from aboard.index.logs import UnknownName
from aboard.runs.manifest import Manifest, State
from aboard.track.exit_status import status_of
from tests.track.training import Ended, kill, points, record, said, start, train
from tests.waiting import until

LOG = "run = aboard.init('x', root='.')\nfor i in range(1000): run.log_metrics({'loss': i})\n"
RUN = Path("x", "run1")
ALL = [(step, float(step)) for step in range(1000)]

ENDINGS = {
    "by itself": ("", 0, "completed", None, ""),
    "sys.exit without a code": ("sys.exit()", 0, "completed", 0, ""),
    "SystemExit that nobody sees": ("raise SystemExit(3)", 3, "completed", None, ""),
    "sys.exit that is caught": (
        "try: sys.exit(2)\nexcept SystemExit: pass\nrun.log_text('a', 'b', step=0)",
        0, "completed", None, "",
    ),
    "sys.exit that is caught, then another": (
        "try: sys.exit(2)\nexcept SystemExit: pass\nrun.log_metrics({'a': 1})\nsys.exit(4)",
        4, "failed", 4, "exit code 4",
    ),
    "sys.exit that logs on its way": (
        "atexit.register(run.tag, 'a')\ntry: sys.exit(3)\nfinally: run.log_metrics({'a': 1})",
        3, "failed", 3, "exit code 3",
    ),
    "exception with logs at exit": (
        "atexit.register(run.log_metrics, {'a': 1})\nraise ValueError('no')",
        1, "failed", 1, "ValueError: no",
    ),
    "sys.exit": ("sys.exit(3)", 3, "failed", 3, "exit code 3"),
    "exit": ("import site; exit(3)", 3, "failed", 3, "exit code 3"),
    "sys.exit with a text": ("sys.exit('no data')", 1, "failed", 1, "no data"),
    "exception": ("raise KeyError('a\\nb')", 1, "failed", 1, "KeyError: 'a\\nb'"),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT, "killed", 130, "interrupted"),
    "finish": ("run.finish('failed', 7, 'why')", 0, "failed", 7, "why"),
    "finish with a code": ("run.finish(exit_code=4)", 0, "failed", 4, ""),
    "exit of a thread": (
        "import threading; t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
        0, "completed", None, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDINGS)
def test_a_run_without_a_block_ends_with_its_process(tmp_path: Path, end: str) -> None:
    script, code, *expected = ENDINGS[end]
    assert train(LOG + script, tmp_path).code == code
    found = record(tmp_path / RUN)
    assert [found["state"], found["exit_code"], found["reason"]] == expected
    (attempt,) = found["attempts"]
    assert [attempt["state"], attempt["exit_code"], attempt["reason"]] == expected
    assert found["ended"] >= found["started"]
    assert points(tmp_path, "x/run1", "loss") == ALL


BLOCKS = {
    "": ("completed", 0, ""),
    "raise SystemExit(3)": ("failed", 3, "exit code 3"),
    "raise ValueError('no')": ("failed", 1, "ValueError: no"),
    "raise KeyboardInterrupt": ("killed", 130, "interrupted"),
}


def test_a_block_ends_its_run_and_the_process_goes_on(tmp_path: Path) -> None:
    script = f"""
for number, end in enumerate({list(BLOCKS)!r}):
    try:
        with aboard.init('x', root='.') as run:
            assert aboard.current_run() is run
            run.log_metrics({{'loss': number}})
            exec(end)
    except BaseException as error:
        print(type(error).__name__)
    assert aboard.current_run() is None
sys.exit(5)
"""
    ended = train(script, tmp_path)
    assert ended == Ended(5, "SystemExit\nValueError\nKeyboardInterrupt\n", "")
    for number, expected in enumerate(BLOCKS.values(), 1):
        found = record(tmp_path / "x" / f"run{number}")
        assert (found["state"], found["exit_code"], found["reason"]) == expected


def test_sigterm_unwinds_and_everything_is_there(tmp_path: Path) -> None:
    wait = "    print('ready', flush=True)\n    time.sleep(60)\n"
    script = f"{LOG}try:\n{wait}finally:\n    print('closed')"
    process = start(script, tmp_path)
    said(process, "ready")
    ended = kill(process, signal.SIGTERM)
    assert (ended.code, ended.out, ended.err) == (143, "closed\n", "")
    found = record(tmp_path / RUN)
    assert (found["state"], found["exit_code"], found["reason"]) == ("killed", 143, "SIGTERM")
    assert points(tmp_path, "x/run1", "loss") == ALL


@pytest.mark.parametrize(("repeat_secs", "code", "out"), [(60, 143, "closed\n"), (0, -15, "")])
def test_another_sigterm_at_once_is_the_same_and_a_later_one_means_it(
    tmp_path: Path, repeat_secs: int, code: int, out: str
) -> None:
    script = f"""
import aboard.track.exit_status
aboard.track.exit_status._REPEAT_SECS = {repeat_secs}
run = aboard.init('x', root='.')
try:
    print('ready', flush=True)
    time.sleep(60)
finally:
    print('closing', flush=True)
    time.sleep(1)
    print('closed', flush=True)
"""
    process = start(script, tmp_path)
    said(process, "ready")
    process.terminate()
    said(process, "closing")
    ended = kill(process, signal.SIGTERM)
    assert (ended.code, ended.out, ended.err) == (code, out, "")


def test_sigterm_in_the_middle_of_writing_loses_nothing(tmp_path: Path) -> None:
    script = """
run = aboard.init('x', root='.', flush_secs=0)
print('ready', flush=True)
logged = -1
try:
    while True:
        run.log_metrics({'loss': logged + 1}, step=logged + 1)
        logged += 1
finally:
    print(logged, flush=True)
"""
    for number in range(1, 4):
        process = start(script, tmp_path)
        said(process, "ready")
        time.sleep(0.1 * number)  # somewhere in the loop
        ended = kill(process, signal.SIGTERM)
        assert ended.code == 143
        steps = [step for step, _ in points(tmp_path, f"x/run{number}", "loss")]
        assert steps == list(range(len(steps)))
        assert len(steps) - 2 <= int(ended.out) <= len(steps) - 1
        assert record(tmp_path / f"x/run{number}")["state"] == "killed"


def test_sigterm_while_a_run_ends_does_not_leave_it_running(tmp_path: Path) -> None:
    script = """
from aboard.track.run import RunRecord
stop = RunRecord.stop_heartbeat
def interrupted(record):
    RunRecord.stop_heartbeat = stop
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
RunRecord.stop_heartbeat = interrupted
with aboard.init('x', root='.', hparams={'lr': 1}) as run:
    run.log_metrics({'loss': 1.0})
"""
    ended = train(script, tmp_path)
    assert (ended.code, ended.err) == (143, "")
    assert record(tmp_path / RUN)["state"] == "completed"
    assert points(tmp_path, "x/run1", "loss") == [(0, 1.0)]


def test_a_handler_of_the_users_own_stays(tmp_path: Path) -> None:
    # Not print: the signal may come while the buffer of standard output is being written.
    mine = "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'mine\\n'), sys.exit(9)))\n"
    process = start(mine + LOG + "print('ready', flush=True)\ntime.sleep(60)", tmp_path)
    said(process, "ready")
    ended = kill(process, signal.SIGTERM)
    assert (ended.code, ended.out) == (9, "mine\n")
    assert record(tmp_path / RUN)["exit_code"] == 9


def is_flushed(root: Path) -> bool:
    try:
        return points(root, "x/run1", "loss") == ALL
    except UnknownName:
        return False


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_an_end_without_warning_leaves_what_was_flushed(tmp_path: Path, end: str) -> None:
    wait = "while not os.path.exists('go'): time.sleep(0.02)\n"
    process = start(LOG + "print('ready', flush=True)\n" + wait + end, tmp_path)
    said(process, "ready")
    until(lambda: is_flushed(tmp_path))
    (tmp_path / "go").touch()
    process.communicate(timeout=180)
    assert process.returncode in (7, -signal.SIGKILL)
    assert points(tmp_path, "x/run1", "loss") == ALL
    found = Manifest.from_json((tmp_path / RUN / "run.json").read_bytes())
    assert found.state is State.RUNNING
    assert found.state_at(time.time()) is State.RUNNING
    assert found.state_at(time.time() + 200) is State.LOST


def test_the_heart_beats_and_brings_the_metrics(tmp_path: Path) -> None:
    script = "import aboard.track.run as r; r.HEARTBEAT_SECS = 0.05\n" + LOG
    process = start(script + "print('ready', flush=True)\ntime.sleep(60)", tmp_path)
    said(process, "ready")
    first = record(tmp_path / RUN)["heartbeat"]
    until(lambda: record(tmp_path / RUN)["heartbeat"] > first)
    until(lambda: record(tmp_path / RUN)["metrics"] == {"loss": 999.0})
    assert kill(process, signal.SIGTERM).code == 143


def test_a_forked_child_does_not_end_its_parents_run(tmp_path: Path) -> None:
    script = """
import multiprocessing
context = multiprocessing.get_context('fork')
run = aboard.init('x', root='.')
run.log_metrics({'loss': 1.0})
def work():
    run.finish('failed')
    sys.exit(3)
child = context.Process(target=work); child.start(); child.join()
assert child.exitcode == 3
sleeper = context.Process(target=time.sleep, args=(60,)); sleeper.start()
sleeper.terminate(); sleeper.join()
assert sleeper.exitcode == -signal.SIGTERM, sleeper.exitcode
if os.fork() == 0:
    sys.exit(4)
os.wait()
from aboard.runs import manifest
from aboard.storage import open_storage
assert manifest.read(open_storage('x/run1')).state == 'running'
run.log_metrics({'loss': 2.0})
"""
    ended = train(script, tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert record(tmp_path / RUN)["state"] == "completed"
    assert points(tmp_path, "x/run1", "loss") == [(0, 1.0), (1, 2.0)]


def test_endings_in_words() -> None:
    assert status_of(None) == ("completed", 0, "")
    assert status_of(SystemExit()) == ("completed", 0, "")
    assert status_of(SystemExit("no data")) == ("failed", 1, "no data")
    assert status_of(ValueError("a\nb")) == ("failed", 1, "ValueError: a b")
    assert len(status_of(ValueError("x" * 9999)).reason) == 500
