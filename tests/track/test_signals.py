"""Signals below `aboard run`: each reaches the program once, whoever else it was sent to."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from aboard import system
from aboard.track.program import SignalForwarder, _Received
from tests.track.recorded import ended, ending, in_terminal, ready, shown, started
from tests.track.training import points
from tests.waiting import until

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
