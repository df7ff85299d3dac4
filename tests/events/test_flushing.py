"""Writers in the background, at exit, in forked children, and in a process that is killed."""

import gc
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aboard.events import encode
from aboard.events.messages import load_protos
from aboard.events.records import HEADER, OVERHEAD, unframe
from aboard.events.writer import EventWriter
from aboard.index.logs import Logs
from tests.framing import unframed
from tests.waiting import until

event_pb2 = load_protos().event_pb2

CHILD = """
import json, multiprocessing, os, random, signal, sys, threading, time
from pathlib import Path
from aboard.events.writer import EventWriter
from aboard.events import encode
place = Path(sys.argv[1])
"""


def run(script, place, code=0, seed=0):
    """Run a script in a process of its own, and return what it printed as JSON, if anything."""
    command = [sys.executable, "-c", CHILD + textwrap.dedent(script), place, str(seed)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout or "null")


def files(directory):
    return sorted(Path(directory).iterdir())


def events(path):
    return [event_pb2.Event.FromString(data) for _, data in unframed(path.read_bytes())]


def steps(path, tag="loss"):
    values = [(event.step, value) for event in events(path) for value in event.summary.value]
    return [step for step, value in values if value.tag == tag]


def test_what_was_logged_is_written_though_nothing_follows(tmp_path):
    writer = EventWriter(tmp_path, flush_secs=0.05)
    for step in range(3):
        writer.scalar("loss", 1.0, step)
        until(lambda step=step: steps(writer.path) == list(range(step + 1)))
    writer.close()


@pytest.mark.parametrize("seconds", ["1e12", "inf"])
def test_a_writer_may_wait_longer_than_a_thread_can(tmp_path, seconds):
    script = f"""
        failures = []
        threading.excepthook = failures.append
        writer = EventWriter(place, flush_secs=float("{seconds}"))
        writer.scalar("loss", 1.0, 0)
        other = EventWriter(place / "other", flush_secs=0.01)
        other.scalar("loss", 1.0, 0)
        while not os.path.getsize(other.path):
            time.sleep(0.01)
        time.sleep(0.1)
        writer.close()
        print(json.dumps([str(one.exc_value) for one in failures]))
    """
    assert run(script, tmp_path) == []
    (path,) = (one for one in files(tmp_path) if one.is_file())
    assert steps(path) == [0]


def test_a_full_buffer_is_written_before_its_time(tmp_path):
    with EventWriter(tmp_path, flush_secs=1000, buffer_bytes=5000) as writer:
        writer.add([encode.text("notes", "x" * 5000)], 1)
        until(lambda: steps(writer.path, "notes") == [1])
        for step in range(200):
            writer.scalar("loss", 1.0, step)
        until(lambda: len(steps(writer.path)) > 100)


def test_without_patience_each_call_writes(tmp_path):
    with EventWriter(tmp_path, flush_secs=0) as writer:
        for step in range(3):
            writer.scalar("loss", 1.0, step)
            assert steps(writer.path) == list(range(step + 1))


def test_all_writers_share_one_thread_that_starts_with_the_first_record(tmp_path):
    script = """
        writers = [EventWriter(place / str(n), flush_secs=0.01) for n in range(20)]
        before = threading.active_count()
        for writer in writers:
            writer.scalar("loss", 1.0, 1)
        print(json.dumps([before, threading.active_count()]))
    """
    assert run(script, tmp_path) == [1, 2]
    assert all(steps(files(run)[0]) == [1] for run in files(tmp_path))


def test_a_writer_that_was_dropped_is_written_and_its_file_closed(tmp_path):
    def descriptors():
        return [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()]

    EventWriter(tmp_path, flush_secs=0.1).scalar("loss", 1.0, 1)
    (path,) = files(tmp_path)
    until(lambda: steps(path) == [1])
    until(lambda: gc.collect() is not None and str(path) not in descriptors())


@pytest.mark.parametrize(
    ("ending", "code"), [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError", 1)]
)
def test_a_writer_that_was_never_closed_is_written_at_exit(tmp_path, ending, code):
    script = f"""
        writer = EventWriter(place, flush_secs=1000)
        writer.scalar("loss", 1.0, 1)
        {ending}
    """
    run(script, tmp_path, code)
    (path,) = files(tmp_path)
    assert steps(path) == [1]


def test_at_exit_one_writer_that_fails_does_not_stop_the_others(tmp_path):
    script = """
        import shutil
        failing = EventWriter(place / "a", flush_secs=1000, close_after_flush=True)
        good = EventWriter(place / "b", flush_secs=1000)
        for writer in (failing, good):
            writer.scalar("loss", 1.0, 1)
        shutil.rmtree(place / "a")
        (place / "a").write_text("in the way")
    """
    command = [sys.executable, "-c", CHILD + textwrap.dedent(script), tmp_path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == (
        f"aboard: [Errno 17] cannot create an event file in {tmp_path}/a: File exists;"
        " 1 record is kept for the next flush\n"
    )
    assert steps(files(tmp_path / "b")[0]) == [1]


def test_a_callback_that_raises_does_not_stop_other_writers(tmp_path):
    script = """
        def refuse(error):
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("of the user's")
        threading.excepthook = lambda args: None
        (place / "file").write_text("")
        bad = EventWriter(place / "file" / "a", flush_secs=0.01, on_error=refuse)
        bad._problem = None
        good = EventWriter(place / "b", flush_secs=0.05)
        for writer in (bad, good):
            writer.scalar("loss", 1.0, 1)
        deadline = time.monotonic() + 180
        while good.path.stat().st_size < 80 and time.monotonic() < deadline:
            time.sleep(0.01)
        print(json.dumps(good.path.stat().st_size))
    """
    assert run(script, tmp_path) > 80


def test_a_signal_handler_may_log_and_flush(tmp_path):
    script = """
        writer = EventWriter(place, flush_secs=0.01, buffer_bytes=2000)
        signals = 0
        def log(*_):
            global signals
            signals += 1
            writer.scalar("signal", 1.0, signals)
            writer.flush()
        signal.signal(signal.SIGALRM, log)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        step = 0
        while signals < 40:
            writer.scalar("loss", 1.0, step)
            step += 1
            if step % 50 == 0:
                writer.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps([step, signals]))
    """
    logged, signals = run(script, tmp_path)
    (path,) = files(tmp_path)
    assert steps(path) == list(range(logged))
    assert sorted(steps(path, "signal")) == list(range(1, signals + 1))


# Forks.


def test_a_forked_child_has_a_file_of_its_own_and_repeats_nothing(tmp_path):
    script = """
        writer = EventWriter(place, flush_secs=1000)
        writer.add([encode.text("notes", "parent")], 1)
        writer.scalar("loss", 1.0, 1)
        child = os.fork()
        if not child:
            writer.add([encode.text("notes", "child")], 2)
            writer.scalar("loss", 1.0, 2)
            writer.flush()
            writer.scalar("loss", 1.0, 3)
            sys.exit()
        os.waitpid(child, 0)
        writer.scalar("loss", 1.0, 4)
        print(json.dumps([os.getpid(), child]))
    """
    parent, child = run(script, tmp_path)
    found = {int(path.name.split(".")[-2]): path for path in files(tmp_path)}
    assert found.keys() == {parent, child}
    assert steps(found[parent]) == [1, 4]
    assert steps(found[child]) == [2, 3]
    version, note, *_ = events(found[child])
    assert version.file_version == "brain.Event:2"
    assert note.summary.value[0].metadata.plugin_data.plugin_name == "text"


def test_a_child_that_logs_nothing_leaves_no_trace(tmp_path):
    script = """
        writer = EventWriter(place, flush_secs=1000, purge_step=5)
        writer.scalar("loss", 1.0, 1)
        for _ in range(3):
            child = os.fork()
            if not child:
                writer.flush()
                writer.close()
                sys.exit()
            os.waitpid(child, 0)
    """
    run(script, tmp_path)
    (path,) = files(tmp_path)
    assert steps(path) == [1]


def test_what_a_child_logs_is_written_in_the_background_and_at_its_end(tmp_path):
    script = """
        def work(writer, wait):
            writer.scalar("loss", 1.0, os.getpid())
            while wait and writer.waiting:
                time.sleep(0.01)
            if wait:
                os._exit(0)
        writer = EventWriter(place, flush_secs=0.05)
        writer.scalar("loss", 1.0, 0)
        fork = multiprocessing.get_context("fork")
        children = [fork.Process(target=work, args=(writer, n % 2)) for n in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        print(json.dumps([child.pid for child in children]))
    """
    children = run(script, tmp_path)
    found = {int(path.name.split(".")[-2]): path for path in files(tmp_path)}
    assert len(found) == 5
    assert all(steps(found[child]) == [child] for child in children)


def test_forks_while_threads_log_and_flush(tmp_path):
    """The locks that other threads hold at a fork are held by nobody in the child."""
    script = """
        writer = EventWriter(place, flush_secs=0.001, buffer_bytes=500)
        stop = threading.Event()
        logged = [0, 0]
        def log(number):
            while not stop.is_set():
                writer.scalar(f"thread{number}", 1.0, logged[number])
                logged[number] += 1
                if logged[number] % 7 == 0:
                    writer.flush()
                    time.sleep(0.0005)
        threads = [threading.Thread(target=log, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(40):
            child = os.fork()
            if not child:
                signal.alarm(60)
                writer.scalar("loss", 1.0, 1)
                writer.flush()
                writer.scalar("loss", 1.0, 2)
                writer.close()
                os._exit(0)
            codes.append(os.waitpid(child, 0)[1])
        stop.set()
        for thread in threads:
            thread.join()
        writer.close()
        print(json.dumps([codes, logged, str(writer.path)]))
    """
    codes, logged, parent = run(script, tmp_path)
    assert codes == [0] * 40
    for number in range(2):
        assert steps(Path(parent), f"thread{number}") == list(range(logged[number]))
    children = [path for path in files(tmp_path) if path != Path(parent)]
    assert len(children) == 40
    for path in children:
        assert len(events(path)) == 3
        assert steps(path) == [1, 2]


# Kills.

KILLS = """
random.seed(int(sys.argv[2]))
for turn in range(12):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        writer = EventWriter(place / f"{turn:03}", flush_secs=random.choice([0.001, 0.01, 1000]))
        step = 0
        while True:
            for _ in range(random.randrange(1, 100)):
                writer.scalar("loss", 1.0, step)
                step += 1
            writer.add([encode.text("notes", "x" * random.randrange(20000))], step)
            writer.flush()
            os.write(writing, b"%d " % step)
    os.close(writing)
    said = os.read(reading, 1 << 20)
    time.sleep(random.random() * 0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 1 << 20):
        said += more
    os.close(reading)
    (place / f"{turn:03}.flushed").write_bytes(said)
"""


def whole_records(data):
    """Return the records of a file that may end in the middle of one, but has no damage."""
    found = []
    at = 0
    while at + HEADER <= len(data):
        end = at + OVERHEAD + int.from_bytes(data[at : at + 8], "little")
        if end > len(data):
            break
        found.append(event_pb2.Event.FromString(unframe(data[at:end])))
        at = end
    return found


@pytest.mark.soak
def test_a_killed_process_loses_nothing_that_was_flushed(tmp_path, rounds, tally):
    for seed in rounds(1):
        place = tmp_path / str(seed)
        place.mkdir()
        run(KILLS, place, seed=seed)
        check_killed(place, tally)


def check_killed(directory, tally):
    runs = [path for path in files(directory) if path.is_dir()]
    assert len(runs) == 12
    for place in runs:
        flushed = int(Path(f"{place}.flushed").read_text().split(" ")[-2])
        (path,) = files(place)
        read = whole_records(path.read_bytes())
        losses = [
            event.step for event in read for value in event.summary.value if value.tag == "loss"
        ]
        tally(kills=1, acknowledged=flushed, lost=len(set(range(flushed)).difference(losses)))
        assert losses == list(range(len(losses)))
        assert len(losses) >= flushed > 0


class Killed(BaseException):
    """The process ends here."""


class TornDisk:
    """Takes the place of `os`: takes so many bytes, the last write not whole, and no more."""

    def __init__(self, room):
        self._room = room

    def __getattr__(self, name):
        return getattr(os, name)

    def _part(self, data):
        if self._room <= 0:
            raise Killed
        part, self._room = data[: self._room], self._room - len(data)
        return part

    def pwrite(self, descriptor, data, at):
        os.pwrite(descriptor, self._part(data), at)
        self.survive()
        return len(data)

    def write(self, descriptor, data):
        os.write(descriptor, self._part(data))
        self.survive()
        return len(data)

    def ftruncate(self, descriptor, size):
        self.survive()
        os.ftruncate(descriptor, size)

    def survive(self):
        if self._room <= 0:
            raise Killed


@pytest.mark.soak
@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed after each write"])
def test_a_write_torn_by_a_kill_costs_nothing_that_was_flushed(
    tmp_path, rounds, tally, index, monkeypatch, closes
):
    """Attempts follow one another, and each is killed in the middle of a write."""
    for seed in rounds(4):
        chance = random.Random(seed)
        place = tmp_path / str(seed)
        flushed = 0
        for _ in range(4):
            disk = TornDisk(chance.randrange(1, 3000))
            with monkeypatch.context() as patched:
                patched.setattr("aboard.events.files.os", disk)
                patched.setattr(Path, "unlink", lambda *_, disk=disk, **__: disk.survive())
                flushed = log_until_killed(place, flushed, chance, closes=closes)
        read = []
        if flushed:
            read = Logs(place, index=index).series(".", "loss").steps.tolist()
        tally(kills=4, acknowledged=flushed, lost=len(set(range(flushed)).difference(read)))
        assert read[:flushed] == list(range(flushed)), f"seed {seed}"
        assert read == list(range(len(read)))


def log_until_killed(place, first, chance, *, closes):
    """Continue where the attempt before was; return how many steps are flushed for certain."""
    step = flushed = first
    writer = None
    try:
        writer = EventWriter(place, flush_secs=1000, close_after_flush=closes)
        while True:
            for _ in range(chance.randrange(1, 10)):
                writer.scalar("loss", 1.0, step)
                step += 1
            writer.flush()
            flushed = step
    except Killed:
        if writer is not None:  # nothing of it happens at the end of this process
            writer._forget()
        return flushed


def test_a_killed_process_loses_nothing_older_than_its_patience(tmp_path):
    script = """
        writer = EventWriter(place, flush_secs=0.05)
        for step in range(1000):
            writer.scalar("loss", 1.0, step)
        print(writer.path, flush=True)
        time.sleep(1000)
    """
    command = [sys.executable, "-c", CHILD + textwrap.dedent(script), tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        path = Path(process.stdout.readline().strip())
        until(lambda: len(whole_records(path.read_bytes())) == 1001)
        process.kill()
    assert steps(path) == list(range(1000))
