"""A program below `aboard run`: its output, input, terminal and signals are as by hand."""

import os
import pty
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
from training import environment, points, record, wait_for

from aboard.runs.manifest import Manifest, State
from aboard.track import job
from aboard.track.job import CannotStart, _Pump, check_program

RUN = [sys.executable, "-m", "aboard", "run", "--root", ".", "--name", "a", "--quiet", "--"]
PYTHON = [sys.executable, "-u", "-c"]


def started(cwd: Path, *command: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*RUN, *command],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    )


def ended(process: subprocess.Popen[bytes], sent: bytes | None = None) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(sent, timeout=60)
    return process.returncode, out, err


def ending(cwd: Path) -> tuple[str, int | None, str]:
    found = record(cwd / "default/a")
    return found["state"], found["exit_code"], found["reason"]


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

    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: clock[0]))
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


def test_what_a_program_leaves_talking_is_not_waited_for(tmp_path: Path) -> None:
    script = "(while sleep 0.05; do echo more; done) & echo done"
    code, out, _ = ended(started(tmp_path, "sh", "-c", script))
    assert (code, out.count(b"done\n")) == (0, 1)
    assert ending(tmp_path) == ("completed", 0, "")


PATIENT = """
import runpy, sys
from aboard.track import job
job._DRAIN_SECS = 3600.0
sys.argv[0] = "aboard"
runpy.run_module("aboard", run_name="__main__")
"""


def test_a_signal_ends_the_wait_for_what_a_program_leaves_running(tmp_path: Path) -> None:
    script = "sleep 3600 & echo $! > left; echo $$ > program; exit 3"
    process = subprocess.Popen(
        [sys.executable, "-c", PATIENT, *RUN[3:], "sh", "-c", script],
        cwd=tmp_path,
        env=environment(),
    )
    program = wait_for(lambda: read(tmp_path / "program"))
    wait_for(lambda: not Path("/proc", program).exists())
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == 3
    os.kill(int(read(tmp_path / "left")), signal.SIGKILL)
    assert ending(tmp_path) == ("failed", 3, "exit code 3")


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def test_what_a_program_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    code, out, _ = ended(started(tmp_path, "sh", "-c", "sleep 20 & echo done"))
    assert (code, out) == (0, b"done\n")
    assert ending(tmp_path) == ("completed", 0, "")


def test_input_reaches_the_program(tmp_path: Path) -> None:
    assert ended(started(tmp_path, "cat"), b"a\0b\n") == (0, b"a\0b\n", b"")
    assert (tmp_path / "default/a/output.log").read_bytes() == b"a\0b\n"


def test_a_terminal_stays_one(tmp_path: Path) -> None:
    script = "import os; print([os.isatty(n) for n in range(3)], os.get_terminal_size(1).columns)"
    child, terminal = in_terminal(tmp_path, script)
    termios.tcsetwinsize(terminal, (30, 77))
    found = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            try:
                found += os.read(terminal, 1000)
            except OSError:
                break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(terminal)
    assert found == b"[True, True, True] 77\r\n"
    assert (tmp_path / "default/a/output.log").read_bytes() == b"[True, True, True] 77\n"


def in_terminal(cwd: Path, script: str) -> tuple[int, int]:
    """Run a script below `aboard run` in the foreground of a terminal; return both."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execve(sys.executable, [*RUN, *PYTHON, script], environment())
    return child, terminal


def shown(terminal: int, line: bytes) -> None:
    """Wait until a terminal shows a line."""
    found = b""
    while line not in found:
        assert select.select([terminal], [], [], 60)[0], found
        found += os.read(terminal, 1000)


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


def test_a_program_whose_output_nobody_reads_ends_as_by_hand(tmp_path: Path) -> None:
    with started(tmp_path, "yes") as process:
        assert process.stdout
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
    assert ending(tmp_path) == ("killed", 141, "SIGPIPE")


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


def ready(cwd: Path, script: str, **options: object) -> subprocess.Popen[bytes]:
    process = started(cwd, *PYTHON, script, **options)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("last", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_handed_on(tmp_path: Path, last: signal.Signals) -> None:
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
    time.sleep(0.5)
    run.log_metrics({'loss': 2.0})
    print('clean', flush=True)
"""
COUNT = """
import signal, time
came = []
signal.signal(signal.SIGTERM, lambda *_: came.append(1))
print('ready', flush=True)
while not came: time.sleep(0.01)
time.sleep(1)
print(len(came))
"""


@pytest.mark.parametrize("also_alone", [False, True], ids=["systemd", "timeout"])
@pytest.mark.parametrize(
    ("script", "said", "code"), [(CLEAN_UP, b"clean\n", 143), (COUNT, b"1\n", 0)]
)
def test_a_signal_to_the_whole_group_reaches_the_program_once(
    tmp_path: Path, script: str, said: bytes, code: int, also_alone: bool
) -> None:
    process = ready(tmp_path, script, start_new_session=True)
    if also_alone:
        process.send_signal(signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    assert ended(process) == (code, said, b"")
    assert ending(tmp_path)[0] == ("killed" if code else "completed")
    if script == CLEAN_UP:
        assert points(tmp_path, "default/a", "loss") == [(0, 1.0), (1, 2.0)]


@pytest.mark.flaky(reruns=2, reruns_delay=5)  # a busy machine may take the next for the same
def test_a_signal_of_ours_alone_is_handed_on_after_one_to_the_group(tmp_path: Path) -> None:
    process = ready(tmp_path, LISTEN, start_new_session=True)
    assert process.stdout
    for send in (os.killpg, os.kill, os.killpg, os.kill):
        send(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == b"SIGUSR1\n"
        time.sleep(1.5)  # the next one is another
    process.terminate()
    assert process.stdout.readline() == b"SIGTERM\n"
    assert ended(process) == (5, b"", b"")


def test_a_program_in_a_group_of_its_own_is_reached(tmp_path: Path) -> None:
    process = ready(tmp_path, "import os; os.setpgid(0, 0)\n" + LISTEN, start_new_session=True)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout
    assert process.stdout.readline() == b"SIGTERM\n"
    assert ended(process) == (5, b"", b"")


def test_a_signal_that_does_not_ask_to_end_is_no_reason(tmp_path: Path) -> None:
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


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    script = (
        "import signal; print('ready', flush=True); input();"
        "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    )
    process = ready(tmp_path, script, preexec_fn=ignore)
    process.send_signal(signal.SIGHUP)
    assert ended(process, b"\n")[:2] == (0, b"True\n")


def test_a_run_whose_recorder_is_killed_is_lost(tmp_path: Path) -> None:
    process = ready(tmp_path, "import os; print('ready', flush=True); input()")
    process.kill()
    process.communicate(timeout=60)
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
    with pytest.raises(CannotStart, match="nope: there is no such program") as caught:
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
    (copy,) = wait_for(lambda: list(run.glob("train/*tfevents*")))
    (source,) = tmp_path.glob("logs/train/*")
    wait_for(lambda: copy.read_bytes() == source.read_bytes() != b"")
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
        process.communicate(b"\n", timeout=60)
    for name in runs:
        assert len(list(tmp_path.glob(f"default/{name}/{name}/*tfevents*"))) == 1
        assert len(list(tmp_path.glob(f"default/{name}/**/*tfevents*"))) == 1
