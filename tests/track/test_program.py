"""A program below `aboard run`: its output, input, terminal and signals are as by hand."""

import math
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from aboard import system
from aboard.runs.manifest import Manifest, State
from aboard.track.program import (
    CannotStart,
    SignalForwarder,
    _Pump,
    _Received,
    check_program,
    command_hparams,
    parse_hparam,
)
from tests.track.recorded_programs import (
    PYTHON,
    RUN,
    ended,
    ending,
    in_terminal,
    ready,
    shown,
    started,
)
from tests.track.training import environment, points
from tests.waiting import until


def test_output_is_passed_on_and_recorded_byte_for_byte(tmp_path: Path) -> None:
    script = (
        "import sys, os\n"
        "block = bytes(range(256)) * 256\n"
        "for _ in range(40): os.write(1, block)\n"
        "for _ in range(40): os.write(2, block[::-1])\n"
        "sys.exit(7)"
    )
    block = bytes(range(256)) * 256
    assert ended(started(tmp_path, *PYTHON, script)) == (7, block * 40, block[::-1] * 40)
    recorded = (tmp_path / "default/a/output.log").read_bytes()
    assert len(recorded) == 80 * len(block)
    assert recorded.count(b"\xff\x00") + recorded.count(b"\x00\xff") > 10_000
    assert ending(tmp_path) == ("failed", 7, "exit code 7")


def test_output_that_is_read_slowly_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class SlowlyRead(_Pump):
        def _pass_on(self, block: bytes) -> bool:
            clock[0] += 1000.0  # far longer than what is left behind is waited for
            return super()._pass_on(block)

    monkeypatch.setattr("aboard.track.program.time", SimpleNamespace(monotonic=lambda: clock[0]))
    (source, program), (reader, target) = os.pipe(), os.pipe()
    pump = SlowlyRead(source, target, None)
    drain = threading.Thread(target=pump.drain, args=(threading.Event(),))
    drain.start()
    sent = bytes(range(256)) * 2000
    writer = threading.Thread(target=lambda: (os.write(program, sent), os.close(program)))
    writer.start()
    arrived = b""
    while len(arrived) < len(sent):
        arrived += os.read(reader, 1 << 16)
    for thread in (writer, drain):
        thread.join()
    os.close(target)
    assert arrived == sent
    assert os.read(reader, 1) == b""
    os.close(reader)


DRAIN = """
import runpy, sys
from aboard.track import program
program._DRAIN_SECS = float(sys.argv.pop(1))
sys.argv[0] = "aboard"
runpy.run_module("aboard", run_name="__main__")
"""


def draining(seconds: float, cwd: Path, script: str) -> subprocess.Popen[bytes]:
    """Run a shell script below `aboard run`, which then waits for so long for more output."""
    command = [sys.executable, "-c", DRAIN, str(seconds), *RUN[3:], "sh", "-c", script]
    return subprocess.Popen(command, cwd=cwd, env=environment(), stdout=subprocess.PIPE)


def test_a_signal_ends_the_wait_for_what_a_program_leaves_running(tmp_path: Path) -> None:
    script = "sleep 3600 & echo $! > left; echo $$ > program; exit 3"
    process = draining(3600, tmp_path, script)
    program = until(lambda: read(tmp_path / "program"))
    until(lambda: not Path("/proc", program).exists())
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=180)
    assert process.returncode == 3
    os.kill(int(read(tmp_path / "left")), signal.SIGKILL)
    assert ending(tmp_path) == ("failed", 3, "exit code 3")


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


@pytest.mark.parametrize("rest", ["sleep 5 &", "(while sleep 0.05; do echo more; done) &"])
def test_what_a_program_leaves_running_is_not_waited_for(tmp_path: Path, rest: str) -> None:
    process = draining(0.3, tmp_path, f"{rest} echo done")
    out, _ = process.communicate(timeout=180)
    assert (process.returncode, out.count(b"done\n")) == (0, 1)
    assert ending(tmp_path) == ("completed", 0, "")


def test_input_reaches_the_program(tmp_path: Path) -> None:
    assert ended(started(tmp_path, "cat"), b"a\0b\n") == (0, b"a\0b\n", b"")
    assert (tmp_path / "default/a/output.log").read_bytes() == b"a\0b\n"


def test_a_terminal_stays_one(tmp_path: Path) -> None:
    script = "import os; print([os.isatty(n) for n in range(3)], os.get_terminal_size(1).columns)"
    child, terminal = in_terminal(tmp_path, script)
    termios.tcsetwinsize(terminal, (30, 77))
    found = b""
    while select.select([terminal], [], [], 180)[0]:
        try:
            found += os.read(terminal, 1000)
        except OSError:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
    assert found == b"[True, True, True] 77\r\n"
    assert (tmp_path / "default/a/output.log").read_bytes() == b"[True, True, True] 77\n"


WIDTH = """
import os, signal, time
widths = []
signal.signal(signal.SIGWINCH, lambda *_: widths.append(os.get_terminal_size(1).columns))
print('ready', flush=True)
while 55 not in widths: time.sleep(0.01)
print('resized')
"""


def test_a_terminal_that_changes_its_size_tells_the_program(tmp_path: Path) -> None:
    child, terminal = in_terminal(tmp_path, WIDTH)
    shown(terminal, b"ready")
    termios.tcsetwinsize(terminal, (20, 55))
    shown(terminal, b"resized")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)


def test_output_and_errors_to_one_place_keep_their_order(tmp_path: Path) -> None:
    script = "import os\nfor n in range(500): os.write(1 + n % 2, b'%d\\n' % n)"
    done = subprocess.run(
        [*RUN, *PYTHON, script],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    assert done.stdout.split() == [b"%d" % n for n in range(500)]
    assert (tmp_path / "default/a/output.log").read_bytes() == done.stdout


def test_a_program_gets_sigpipe_when_its_reader_is_gone(tmp_path: Path) -> None:
    with started(tmp_path, "yes") as process:
        assert process.stdout
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(180) == 128 + signal.SIGPIPE
    assert ending(tmp_path) == ("killed", 141, "SIGPIPE")


def test_a_run_whose_recorder_is_killed_is_lost(tmp_path: Path) -> None:
    process = ready(tmp_path, "import os; print('ready', flush=True); input()")
    process.kill()
    process.communicate(timeout=180)
    found = Manifest.from_json((tmp_path / "default/a/run.json").read_bytes())
    assert found.state is State.RUNNING
    assert found.state_at(time.time() + 200) is State.LOST


def test_a_record_that_cannot_be_kept_does_not_stop_the_program(tmp_path: Path) -> None:
    (tmp_path / "default/a/output.log").mkdir(parents=True)
    (tmp_path / "default/a/run.json").write_text('{"name": "a"}')
    command = [*RUN[:-1], "--resume", "--", "echo", "hello"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert b"the output cannot be recorded in " in done.stderr


def test_programs_are_looked_for(tmp_path: Path) -> None:
    check_program(["sh"])
    (tmp_path / "script").write_text("")
    with pytest.raises(CannotStart, match="script: permission denied") as caught:
        check_program([f"{tmp_path}/script"])
    assert caught.value.exit_code == 126
    with pytest.raises(CannotStart, match="nope: program not found") as caught:
        check_program(["nope"])
    assert caught.value.exit_code == 127


TRAIN = """
import sys, time
from aboard import EventWriter
with EventWriter(sys.argv[1], flush_secs=0) as writer:
    writer.scalar('loss', 1.0, 0)
    print('ready', flush=True)
    input()
    writer.scalar('loss', 2.0, 1)
"""


def test_files_written_elsewhere_are_copied_as_they_grow(tmp_path: Path) -> None:
    process = started(tmp_path, *PYTHON, TRAIN, "logs/train")
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    run = tmp_path / "default/a"
    (copy,) = until(lambda: list(run.glob("train/*tfevents*")))
    (source,) = tmp_path.glob("logs/train/*")
    until(lambda: copy.read_bytes() == source.read_bytes() != b"")
    before = len(copy.read_bytes())
    assert ended(process, b"\n")[0] == 0
    assert copy.read_bytes() == source.read_bytes()
    assert len(copy.read_bytes()) > before


def test_trainings_side_by_side_keep_their_files_apart(tmp_path: Path) -> None:
    runs = {}
    for name in ("one", "two"):
        command = [*RUN, *PYTHON, TRAIN, f"logs/{name}"]
        command[command.index("a")] = name
        runs[name] = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    for process in runs.values():
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
    for process in runs.values():
        process.communicate(b"\n", timeout=180)
    for name in runs:
        assert len(list(tmp_path.glob(f"default/{name}/{name}/*tfevents*"))) == 1
        assert len(list(tmp_path.glob(f"default/{name}/**/*tfevents*"))) == 1


# Hyperparameters read off a command line.


@pytest.mark.parametrize(
    ("command", "hparams"),
    [
        ("train.py --lr=0.1 --depth 3", {"lr": 0.1, "depth": 3}),
        ("python train.py --lr 1e-3 --name x", {"lr": 0.001, "name": "x"}),
        ("python -u train.py --amp --no-bias --no_x", {"amp": True, "bias": False, "x": False}),
        ("python -m pkg.train --lr -0.5", {"lr": -0.5}),
        ("python -c pass --lr 1", {"lr": 1}),
        ("torchrun --nproc-per-node 4 train.py --batch-size=32", {"batch_size": 32}),
        ("train.py model.depth=4 +new=x ++y=true", {"model.depth": 4, "new": "x", "y": True}),
        ("train.py --a=1 --a=2", {"a": 2}),
        ("train.py --a= --b", {"a": "", "b": True}),
        ("train.py data/ -v 3 -- --not ours", {"v": 3}),
        ("train.py --token abc --hf-token=x api_key=3 --lr 1", {"lr": 1}),
        ("train.py --wandb-key=x --pat x --connection-string=A=b --lr 1", {"lr": 1}),
        ("train.py --data https://h/x?sv=1&sig=abc", {"data": "https://h/x?sv=1&sig=***"}),
        ("train", {}),
    ],
)
def test_options_are_hyperparameters(command: str, hparams: dict[str, object]) -> None:
    assert command_hparams(command.split()) == hparams


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("0.5", 0.5), ("1e5", 1e5), ("True", True), ("false", False),
        ("x", "x"), ("", ""), ("1_000", "1_000"), ("9" * 20, float("9" * 20)), ("inf", math.inf),
    ],
)  # fmt: skip
def test_values_are_what_a_user_means(text: str, value: object) -> None:
    assert parse_hparam(text) == value
    assert type(parse_hparam(text)) is type(value)


# Signals: each reaches the program once, also if the whole process group got it.


LISTEN = """
import signal, sys, time
def take(number, _):
    print(signal.Signals(number).name, flush=True)
    if number != signal.SIGUSR1: sys.exit(5)
for one in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT): signal.signal(one, take)
print('ready', flush=True)
input()
"""
SLEEP = "import time; print('ready', flush=True); time.sleep(60)"


@pytest.mark.parametrize("last", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_forwarded(tmp_path: Path, last: signal.Signals) -> None:
    process = ready(tmp_path, LISTEN)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout
    assert process.stdout.readline() == b"SIGUSR1\n"
    process.send_signal(last)
    assert process.stdout.readline() == last.name.encode() + b"\n"
    assert ended(process) == (5, b"", b"")
    assert ending(tmp_path) == ("killed", 5, last.name)


CLEAN_UP = """
import aboard, time
run = aboard.init()
try:
    run.log_metrics({'loss': 1.0})
    print('ready', flush=True)
    time.sleep(60)
finally:
    time.sleep(0.3)
    run.log_metrics({'loss': 2.0})
    print('clean', flush=True)
"""
COUNT = """
import signal, time
came = []
signal.signal(signal.SIGTERM, lambda *_: came.append(1))
print('ready', flush=True)
while not came: time.sleep(0.01)
time.sleep(0.5)
print(len(came))
"""


@pytest.mark.parametrize(
    ("script", "printed", "code", "also_alone"),
    [
        (CLEAN_UP, b"clean\n", 143, True),
        (COUNT, b"1\n", 0, False),
        (COUNT, b"1\n", 0, True),
    ],
    ids=["clean-up", "systemd", "timeout"],
)
def test_a_signal_to_the_group_reaches_the_program_once(
    tmp_path: Path, script: str, printed: bytes, code: int, also_alone: bool
) -> None:
    process = ready(tmp_path, script, start_new_session=True)
    process.send_signal(signal.SIGSTOP)  # so that a busy machine cannot come in between
    if also_alone:
        process.send_signal(signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert ended(process) == (code, printed, b"")
    assert ending(tmp_path)[0] == ("killed" if code else "completed")
    if script == CLEAN_UP:
        assert points(tmp_path, "default/a", "loss") == [(0, 1.0), (1, 2.0)]


def witness(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the process that tells `aboard run` what was sent to the group."""
    children = system.children(process.pid)
    return [one for one in children if "import sys; sys.stdin.read()" in system.command_line(one)]


def test_a_signal_to_aboard_alone_is_forwarded_after_one_to_the_group(tmp_path: Path) -> None:
    process = ready(tmp_path, LISTEN, start_new_session=True)
    assert process.stdout
    for _ in range(2):
        until(lambda: len(witness(process)) == 1)  # while it is replaced there are two
        before = witness(process)
        os.killpg(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == b"SIGUSR1\n"
        # Another witness alone: the signal was recognised. For a moment, others are part of it.
        until(lambda before=before: len(witness(process)) == 1 and witness(process) != before)
        time.sleep(1.0)
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == b"SIGUSR1\n"
    process.terminate()
    assert process.stdout.readline() == b"SIGTERM\n"
    assert ended(process) == (5, b"", b"")


class Program:
    """A program of our group that notes which signals are forwarded to it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.returncode = None
        self.sent: list[int] = []

    def send_signal(self, number: int) -> None:
        self.sent.append(number)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_signals_that_come_together_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    to_group = [True, False, False]
    monkeypatch.setattr(SignalForwarder, "_was_sent_to_group", lambda *_: to_group.pop(0))
    monkeypatch.setattr("aboard.track.program.time", Clock())
    forwarder = SignalForwarder(lambda: None)
    program = forwarder._process = Program()
    for number, at in [
        (signal.SIGTERM, 100.0),  # to the group
        (signal.SIGTERM, 100.1),  # the same, to aboard alone
        (signal.SIGUSR1, 100.1),
        (signal.SIGTERM, 100.3),  # the same, on a busy machine: noticed at 100.2
        (signal.SIGTERM, 100.5),  # another
    ]:
        forwarder._pending.put(_Received(number, at))
    forwarder._pending.put(_Received(0))
    forwarder._forward()
    assert program.sent == [signal.SIGUSR1, signal.SIGTERM]


def test_a_program_in_a_group_of_its_own_is_reached(tmp_path: Path) -> None:
    process = ready(tmp_path, "import os; os.setpgid(0, 0)\n" + LISTEN, start_new_session=True)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout
    assert process.stdout.readline() == b"SIGTERM\n"
    assert ended(process) == (5, b"", b"")


def test_a_signal_that_does_not_stop_a_program_is_not_its_reason(tmp_path: Path) -> None:
    process = ready(tmp_path, LISTEN + "raise ValueError('a bug, later')")
    process.send_signal(signal.SIGUSR1)
    assert process.stdout
    assert process.stdout.readline() == b"SIGUSR1\n"
    code, _, err = ended(process, b"\n")
    assert (code, err.endswith(b"ValueError: a bug, later\n")) == (1, True)
    assert ending(tmp_path) == ("failed", 1, "exit code 1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_dies_of_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    process = ready(tmp_path, SLEEP)
    process.send_signal(number)
    assert ended(process)[0] == 128 + number
    assert ending(tmp_path) == ("killed", 128 + number, number.name)


def test_a_program_that_is_killed(tmp_path: Path) -> None:
    code, _, _ = ended(started(tmp_path, "sh", "-c", "kill -9 $$"))
    assert code == 137
    assert ending(tmp_path) == ("killed", 137, "SIGKILL")


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    script = (
        "import signal; print('ready', flush=True); input();"
        "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    )
    process = ready(tmp_path, script, preexec_fn=ignore)
    process.send_signal(signal.SIGHUP)
    assert ended(process, b"\n")[:2] == (0, b"True\n")


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "sent"])
def test_an_interrupt_in_a_terminal_reaches_the_program_once(tmp_path: Path, typed: bool) -> None:
    child, terminal = in_terminal(tmp_path, COUNT.replace("SIGTERM", "SIGINT"))
    shown(terminal, b"ready")
    if typed:
        os.write(terminal, b"\x03")
    else:
        os.kill(child, signal.SIGINT)
    shown(terminal, b"1\r\n")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
