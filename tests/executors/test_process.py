"""Boards as processes: what is left of them, whoever ends, and whoever looks."""

import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from aboard import EventWriter
from aboard.executors import process as process_module
from aboard.executors.base import PYTHON, CommandState, ExecutorError, Spec
from aboard.executors.process import ProcessExecutor
from aboard.executors.start import Start
from tests.hub.hubs import QUICK
from tests.waiting import until

SERVES = """
import json, time
print(json.dumps({"address": "http://localhost:7000/b/view/"}), flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""
HUB = """
import json, os, signal, sys
from pathlib import Path
from aboard.executors import process
from aboard.executors.base import Spec
if sys.argv[1] == "before the word":
    show = lambda handle: print(json.loads(handle)["pid"], flush=True)
    process.write_private = lambda path, handle: (show(handle), kill())
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
spec = Spec("a", (sys.executable, "-S", "-c", sys.argv[3]), Path(sys.argv[2]))
print(json.dumps(process.ProcessExecutor().start(spec)), flush=True)
kill()
"""


@pytest.fixture
def executor():
    return ProcessExecutor(grace=1.0)


@pytest.fixture
def started(executor, tmp_path):
    """Start a script as a board; end all of them with the test."""
    handles = []

    def start(script=SERVES, board="a", **options):
        command = (PYTHON, "-S", "-c", script)
        handle = executor.start(Spec(board, command, tmp_path / board, **options))
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        executor.stop(handle, now=True)
        until(lambda handle=handle: look(executor, handle).state == CommandState.ENDED)


def look(executor, handle):
    return executor.poll({"one": handle})["one"]


def running(executor, handle):
    until(lambda: look(executor, handle).state == CommandState.RUNNING)
    return handle


def ended(executor, handle):
    return until(lambda: (now := look(executor, handle)).state == CommandState.ENDED and now)


def exists(pid):
    return Path(f"/proc/{pid}").exists()


def group_of(pid):
    """Return who is in a process group, those that have ended and wait to be noticed too."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid:
            found.append(int(place.name))
    return found


def killed_hub(moment, directory, script=SERVES):
    """Let a hub start a board and be killed; return what it printed."""
    command = [sys.executable, "-c", HUB, moment, str(directory), script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return json.loads(done.stdout)


def test_a_board_that_is_killed_has_ended_and_is_no_zombie(executor, started):
    handle = running(executor, started())
    os.kill(handle["pid"], signal.SIGKILL)
    status = ended(executor, handle)
    assert status.exit_code == -9
    assert status.reason.startswith("it was killed, by a user or because the machine ran out")
    assert not exists(handle["pid"])


def test_other_signals_are_named(executor, started):
    handle = running(executor, started())
    os.kill(handle["pid"], signal.SIGUSR1)
    assert ended(executor, handle).reason == "it was killed by SIGUSR1"


def test_a_board_outlives_a_hub_that_is_killed_and_is_adopted(executor, tmp_path):
    handle = killed_hub("after the start", tmp_path / "a")
    running(executor, handle)
    assert executor.address(handle).port == 7000
    os.kill(handle["pid"], signal.SIGKILL)
    status = ended(executor, handle)
    assert (status.exit_code, status.reason) == (None, "it exited with an unknown exit code")


def test_an_adopted_board_is_stopped_with_all_it_started(executor, tmp_path):
    handle = killed_hub("after the start", tmp_path / "a", PARENT)
    until(lambda: b"child" in b"".join(executor.logs(handle)))
    executor.stop(handle)
    assert ended(executor, handle).reason == "it was stopped"
    until(lambda: not group_of(handle["pid"]))


def test_a_hub_killed_before_it_kept_the_handle_leaves_no_process(executor, started, tmp_path):
    pid = killed_hub("before the word", tmp_path / "a")
    until(lambda: not group_of(pid))
    assert running(executor, started())["pid"] != pid


def test_a_start_after_a_killed_hub_gives_what_runs(executor, tmp_path, started):
    handle = killed_hub("after the start", tmp_path / "a")
    assert started() == handle


class TestTwoDirectories:
    """Two hubs of one database on this machine, each with a directory of its own."""

    SPEC = Spec("a", (PYTHON, "-S", "-c", SERVES), Path())

    @pytest.fixture
    def hubs(self, tmp_path):
        """Give what starts a board in the directory of the one, and of the other."""
        executor = ProcessExecutor(hub=f"test-{os.getpid()}", grace=1.0)

        def start(name, **changes):
            return executor.start(replace(self.SPEC, directory=tmp_path / name, **changes))

        yield executor, start
        for one in executor.found():
            executor.stop(one.handle, now=True)
        until(lambda: not executor.found())

    def test_a_start_that_was_taken_over_runs_once(self, hubs):
        executor, start = hubs
        handle = start("one")
        assert start("other") == handle
        running(executor, handle)
        assert start("other") == handle
        assert [one.handle for one in executor.found()] == [handle]

    @pytest.mark.parametrize("attempt", range(1, 7))
    def test_two_starts_at_the_same_moment_are_one(self, hubs, monkeypatch, attempt):
        executor, start = hubs
        searched = threading.Barrier(2)  # both have found no other start
        prepare = Start.prepare

        def prepared(*given, **options):
            searched.wait(180)
            return prepare(*given, **options)

        monkeypatch.setattr(Start, "prepare", prepared)
        with ThreadPoolExecutor() as pool:
            one, other = pool.map(lambda name: start(name, attempt=attempt), ("one", "other"))
        assert one == other
        assert [found.handle for found in executor.found()] == [running(executor, one)]

    def test_another_start_or_hub_or_board_is_another(self, hubs, tmp_path):
        executor, start = hubs
        handles = [start("one"), start("other", attempt=2), start("b", board="b")]
        stranger = ProcessExecutor(hub="stranger")
        handles.append(stranger.start(replace(self.SPEC, directory=tmp_path / "stranger")))
        stranger.stop(handles[-1], now=True)
        assert len({one["pid"] for one in handles}) == 4
        ended(executor, handles[-1])
        assert {(one.board, one.attempt) for one in executor.found()} == {
            ("a", 1),
            ("a", 2),
            ("b", 1),
        }

    def test_one_that_is_being_stopped_is_not_taken_over(self, hubs):
        executor, start = hubs
        handle = running(executor, start("one"))
        executor.stop(handle)
        assert start("other")["pid"] != handle["pid"]
        ended(executor, handle)

    def test_one_that_still_waits_for_its_hub_is_waited_for(self, hubs, tmp_path):
        executor, start = hubs
        spec = replace(self.SPEC, directory=tmp_path)
        mark = {"ABOARD_START": f"{executor.hub}:a:1:{tmp_path}"}
        reading, writing = os.pipe()
        pid = process_module._spawn(spec, reading, tmp_path / "out", tmp_path / "log", mark)
        os.close(reading)
        assert executor.found() == []
        ends = threading.Timer(0.3, os.close, [writing])  # as if the hub were killed
        ends.start()
        handle = start("other")
        with suppress(ChildProcessError):  # the start may have seen it exit, and reaped it
            assert os.waitpid(pid, os.WNOHANG)[0] == pid
        assert [one.handle for one in executor.found()] == [handle]
        ends.join()

    def test_what_a_board_started_is_no_start_of_its_own(self, hubs):
        executor, start = hubs
        alone = PARENT.replace('"600"]', '"600"], start_new_session=True')
        handle = start("one", command=(PYTHON, "-S", "-c", alone))
        log = until(lambda: b"".join(executor.logs(handle)))
        assert [one.handle for one in executor.found()] == [handle]
        os.kill(int(log.split()[1]), signal.SIGKILL)

    def test_one_whose_directory_is_gone_is_found_and_ended(self, hubs, tmp_path):
        executor, start = hubs
        handle = running(executor, start("one"))
        shutil.rmtree(tmp_path / "one")
        (found,) = executor.found()
        assert (found.board, found.handle["pid"]) == ("a", handle["pid"])
        executor.stop(found.handle, now=True)
        ended(executor, found.handle)
        assert not group_of(handle["pid"])


def test_what_a_board_started_ends_with_it(executor, started):
    handle = started(PARENT)
    log = until(lambda: b"".join(executor.logs(handle)))
    child = int(log.split()[1])
    assert look(executor, handle).state == CommandState.STARTING
    os.kill(handle["pid"], signal.SIGKILL)
    ended(executor, handle)
    until(lambda: not exists(child))


def test_memory_counts_what_a_board_started(executor, started):
    fills = "import time; kept = b'x' * (200 << 20); time.sleep(600)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {fills!r}])"
    handle = started(script, memory=150 << 20)
    assert ended(executor, handle).reason.endswith(" of 150.0 MiB memory")
    until(lambda: not group_of(handle["pid"]))


@pytest.mark.parametrize("cpus", [None, 0.5, 1, 1.5, 10_000])
def test_a_board_is_bound_to_its_processors_with_all_it_starts(executor, started, cpus):
    tells = "import os, sys; print(len(os.sched_getaffinity(0)), file=sys.stderr, flush=True)"
    script = f"{tells}\nimport subprocess; subprocess.run([sys.executable, '-S', '-c', {tells!r}])"
    handle = started(script, cpus=cpus)
    ended(executor, handle)
    usable = len(os.sched_getaffinity(0))
    bound = usable if cpus is None else min(math.ceil(cpus), usable)
    assert b"".join(executor.logs(handle)).split() == [str(bound).encode()] * 2


def test_memory_that_processes_share_counts_once(executor, started):
    script = """
import os, sys, time
kept = b'x' * (100 << 20)
for _ in range(3):
    os.fork() or time.sleep(600)
print("forked", file=sys.stderr, flush=True)
time.sleep(600)
"""
    handle = started(script, memory=250 << 20)
    until(lambda: b"forked" in b"".join(executor.logs(handle)))
    status = look(executor, handle)
    assert status.state == CommandState.STARTING, status
    assert 100 << 20 < status.memory < 250 << 20


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "another"}])
def test_a_process_that_only_has_the_same_id_is_left_alone(executor, started, change):
    handle = running(executor, started())
    stranger = handle | change | {"start": "00000000"}
    assert look(executor, stranger).state == CommandState.ENDED
    executor.stop(stranger)
    executor.stop(stranger, now=True)
    assert executor.address(stranger) is None
    assert look(executor, stranger).state == CommandState.ENDED
    assert look(executor, handle).state == CommandState.RUNNING


@pytest.mark.parametrize("pid", [0, 1, -1])
def test_a_handle_cannot_mean_every_process(executor, started, pid):
    handle = running(executor, started())
    assert look(executor, handle | {"pid": pid}).state == CommandState.UNKNOWN
    with pytest.raises(ExecutorError, match=f"invalid process id {pid}"):
        executor.stop(handle | {"pid": pid})


def test_a_machine_that_cannot_be_asked_makes_nothing_fail(executor, started, monkeypatch):
    handle = running(executor, started())

    def unreadable():
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(process_module.system, "processes_by_group", unreadable)
        status = look(executor, handle)
    assert status.state == CommandState.UNKNOWN
    assert status.reason == "/proc cannot be read: permission denied"
    assert look(executor, handle).state == CommandState.RUNNING


def test_its_address_needs_no_file_once_known_and_ends_with_it(executor, started, tmp_path):
    handle = running(executor, started())
    address = executor.address(handle)
    (tmp_path / "a").rename(tmp_path / "away")
    assert executor.address(handle) == address
    os.kill(handle["pid"], signal.SIGKILL)
    until(lambda: executor.address(handle) is None)  # before any poll
    (tmp_path / "away").rename(tmp_path / "a")
    assert executor.address(handle) is None


def test_secrets_are_in_no_command_line_and_in_files_of_the_owner_only(executor, started, tmp_path):
    handle = running(executor, started(environment={"PASSWORD": "very-secret"}))
    token = executor.address(handle).token
    command = Path(f"/proc/{handle['pid']}/cmdline").read_bytes()
    assert token.encode() not in command
    assert b"very-secret" not in command
    for path in (tmp_path / "a").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path}: {mode:o}"
        if path.is_file() and path.name != "token":
            assert token.encode() not in path.read_bytes()


def test_the_kernel_would_end_the_board_before_the_hub(executor, started):
    handle = running(executor, started())
    assert Path(f"/proc/{handle['pid']}/oom_score_adj").read_text().strip() == "500"


def test_the_last_lines_of_a_long_log_are_found(executor, started):
    script = "import sys; sys.stderr.writelines(f'line {i}\\n' for i in range(50_000))"
    handle = started(script)
    reason = ended(executor, handle).reason
    assert reason.endswith("line 49995 | line 49996 | line 49997 | line 49998 | line 49999")
    tail = b"".join(executor.logs(handle, tail=20_000)).splitlines()
    assert (len(tail), tail[0], tail[-1]) == (20_000, b"line 30000", b"line 49999")


def test_twenty_boards_leave_nothing_behind(executor, tmp_path):
    handles = {
        str(number): executor.start(
            Spec(str(number), (sys.executable, "-S", "-c", PARENT), tmp_path / str(number))
        )
        for number in range(20)
    }
    for number, handle in enumerate(handles.values()):
        executor.stop(handle, now=bool(number % 2))
    until(lambda: {one.state for one in executor.poll(handles).values()} == {CommandState.ENDED})
    until(lambda: not any(group_of(handle["pid"]) for handle in handles.values()))


def test_a_real_board_serves_its_points(executor, tmp_path):
    with EventWriter(tmp_path / "logs" / "run1") as writer:
        writer.scalar("loss", 0.5, 0)
    view = (sys.executable, "-m", "aboard", "view", str(tmp_path / "logs"))
    options = ("--json", "--no-browser", "--port", "0")
    spec = Spec("a", (*view, *options), tmp_path / "a", memory=2 << 30)
    handle = executor.start(spec)
    try:
        running(executor, handle)
        address = executor.address(handle)
        url = f"http://{address.host}:{address.port}{address.path}data/runs"
        assert httpx.get(url, **QUICK).status_code == 401
        headers = {"authorization": f"Bearer {address.token}"}
        until(lambda: httpx.get(url, headers=headers, **QUICK).json() == ["run1"])
    finally:
        executor.stop(handle)
        status = ended(executor, handle)
    assert (status.exit_code, status.reason) == (0, "it was stopped")
    assert not group_of(handle["pid"])
