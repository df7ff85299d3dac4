"""A disk that takes nothing, or not all: what is kept, what is dropped, and who is told."""

import errno
import json
import os
import re
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.events import encode
from aboard.events.messages import load_protos
from aboard.events.writer import EventWriteError, EventWriter
from tests.framing import unframed
from tests.waiting import until

tensorboard = load_protos()


def files(directory):
    return sorted(Path(directory).iterdir())


def events(path):
    parse = tensorboard.event_pb2.Event.FromString
    return [parse(data) for _, data in unframed(path.read_bytes())]


def steps(directory):
    read = [event for path in files(directory) for event in events(path)]
    return [event.step for event in read if event.HasField("summary")]


class Disk:
    """Takes everything, or nothing while `error` is set."""

    def __init__(self, monkeypatch):
        self.error = 0
        self._pwrite = os.pwrite
        monkeypatch.setattr("aboard.events.files.os.pwrite", self._write)

    def _write(self, descriptor, data, offset):
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return self._pwrite(descriptor, data, offset)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


FULL_DISK = textwrap.dedent(
    """
    import json, resource, sys
    from aboard.events.writer import EventWriter, EventWriteError
    from aboard.events import encode

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    directory, max_bytes = sys.argv[1], json.loads(sys.argv[2])
    writer = EventWriter(directory, flush_secs=1000, max_bytes=max_bytes)
    first = writer.path
    limit(1000)
    errors, sizes = [], []
    for step in range(60):
        try:
            writer.add([encode.text("notes", f"note {step}")], step)
            writer.flush()
        except EventWriteError as error:
            errors.append([error.errno, str(error)])
            sizes.append(first.stat().st_size)
    limit(resource.RLIM_INFINITY)
    whole = len(first.read_bytes())
    writer.close()
    print(json.dumps({"path": str(first), "errors": errors, "sizes": sizes, "whole": whole}))
    """
)


@pytest.mark.parametrize("max_bytes", [None, 1500])
def test_a_full_disk_tears_no_record_and_loses_none(tmp_path, max_bytes):
    command = [sys.executable, "-c", FULL_DISK, tmp_path, json.dumps(max_bytes)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(result.stdout)
    assert report["errors"], "the limit was never reached"
    number, message = report["errors"][0]
    assert number == errno.EFBIG
    assert re.fullmatch(
        rf"\[Errno {number}\] cannot write to {report['path']}: File too large; "
        r"1 record is kept for the next flush",
        message,
    )
    boundaries = {offset for offset, _ in unframed(Path(report["path"]).read_bytes())}
    assert set(report["sizes"]) <= boundaries
    assert report["whole"] in boundaries
    assert steps(tmp_path) == list(range(60))
    assert sum(len(events(path)) for path in files(tmp_path)) == 60 + len(files(tmp_path))


@given(st.lists(st.integers(0, 120), max_size=60), st.sampled_from([None, 300]))
def test_any_series_of_short_and_failed_writes_keeps_every_record(tmp_path_factory, room, rotate):
    """The disk takes as many bytes of each write as `room` says, then fails."""
    tmp_path = tmp_path_factory.mktemp("run")
    pwrite = os.pwrite
    budget = iter(room)

    def short_pwrite(descriptor, data, offset):
        allowed = next(budget, None)
        if allowed is None:
            return pwrite(descriptor, data, offset)
        if not allowed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data[:allowed], offset)

    writer = EventWriter(tmp_path, flush_secs=1000, max_bytes=rotate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aboard.events.files.os.pwrite", short_pwrite)
        for step in range(20):
            try:
                writer.add([encode.text("notes", f"note {step}")], step)
                if step % 3:
                    writer.flush()
            except EventWriteError as error:
                assert "No space left on device" in str(error)  # noqa: PT017
                for path in files(tmp_path):
                    assert len(events(path)) >= 0
    writer.close()
    assert steps(tmp_path) == list(range(20))


def test_a_small_disk_that_is_really_full(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place]
    if os.getuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    problems, recovered = [], []
    try:
        ballast = place / "ballast"
        ballast.write_bytes(bytes(224 * 1024))
        writer = EventWriter(
            place / "run", flush_secs=0.01, on_error=problems.append, on_recovered=recovered.append
        )
        for step in range(2000):
            writer.scalar("loss", 1.0, step)
            writer.flush()
        assert [error.errno for error in problems] == [errno.ENOSPC]
        (path,) = files(place / "run")
        assert sum(1 for _ in unframed(path.read_bytes())) > 50
        ballast.unlink()
        until(lambda: recovered)
        assert recovered == [0]
        writer.scalar("loss", 1.0, 2000)
        writer.close()
        assert steps(place / "run") == list(range(2001))
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_an_error_in_the_background_is_raised_by_the_next_call(tmp_path, disk):
    writer = EventWriter(tmp_path, flush_secs=0.01)
    disk.error = errno.EIO
    raised = []

    def log(step):
        try:
            writer.scalar("loss", 1.0, step)
        except EventWriteError as error:
            raised.append(error)

    log(0)
    until(lambda: writer._failed)
    log(1)
    assert len(raised) == 1
    assert str(raised[0]) == (
        f"[Errno 5] cannot write to {writer.path}: Input/output error;"
        " 1 record is kept for the next flush"
    )
    disk.error = 0
    writer.close()
    assert steps(tmp_path) == [0, 1]


def test_with_a_callback_nothing_raises_and_each_problem_is_told_once(tmp_path, disk):
    problems, recovered = [], []
    writer = EventWriter(
        tmp_path, flush_secs=1000, on_error=problems.append, on_recovered=recovered.append
    )
    for step, error in enumerate([0, errno.ENOSPC, errno.ENOSPC, errno.EDQUOT, 0, 0, errno.EIO]):
        disk.error = error
        writer.scalar("loss", 1.0, step)
        writer.add([encode.text("notes", "x")], step)
        writer.flush()
    assert [problem.errno for problem in problems] == [errno.ENOSPC, errno.EDQUOT, errno.EIO]
    assert all(isinstance(problem, EventWriteError) for problem in problems)
    assert recovered == [0]
    disk.error = 0
    writer.close()
    assert recovered == [0, 0]
    assert steps(tmp_path) == [step for step in range(7) for _ in range(2)]


def test_what_does_not_fit_is_dropped_from_the_newest_on_and_counted(tmp_path, disk):
    problems, recovered = [], []
    writer = EventWriter(
        tmp_path,
        flush_secs=1000,
        keep_bytes=5000,
        on_error=problems.append,
        on_recovered=recovered.append,
    )
    disk.error = errno.ENOSPC
    for step in range(300):
        writer.scalar("loss", 1.0, step)
        if step == 250:
            writer.add([encode.text("notes", "x")], step)
        writer.flush()
    first, second = problems
    assert str(first).endswith("No space left on device; 1 record is kept for the next flush")
    found = re.search(
        r"; (\d+) records are kept for the next flush;"
        r" newer ones are dropped until it succeeds \(1 so far\)$",
        str(second),
    )
    kept = int(found[1])
    assert 5000 / 50 < kept < 5000 / 30
    assert writer.dropped == 301 - kept
    disk.error = 0
    writer.flush()
    assert recovered == [301 - kept]
    writer.add([encode.text("notes", "after")], 300)
    writer.close()
    assert steps(tmp_path) == [*range(kept), 300]
    (path,) = files(tmp_path)
    assert events(path)[-1].summary.value[0].HasField("metadata")


def test_a_directory_that_cannot_be_made_is_told_and_tried_again(tmp_path):
    (tmp_path / "file").write_text("")
    problems, recovered = [], []
    writer = EventWriter(
        tmp_path / "file" / "run",
        flush_secs=0.01,
        on_error=problems.append,
        on_recovered=recovered.append,
    )
    assert [problem.errno for problem in problems] == [errno.ENOTDIR]
    writer.scalar("loss", 1.0, 1)
    writer.flush()
    assert writer.path is None
    (tmp_path / "file").unlink()
    until(lambda: recovered)
    assert steps(tmp_path / "file" / "run") == [1]
    writer.close()
    assert len(problems) == 1


def test_a_directory_that_cannot_be_made_is_still_a_problem_while_nothing_is_logged(tmp_path):
    (tmp_path / "file").write_text("")
    recovered = []
    writer = EventWriter(
        tmp_path / "file" / "run", on_error=lambda error: None, on_recovered=recovered.append
    )
    writer.flush()
    assert not recovered
    (tmp_path / "file").unlink()
    writer.flush()
    assert recovered == [0]
    assert writer.path.exists()
    writer.close()


@pytest.mark.parametrize("closes", [False, True], ids=["open", "mounted bucket"])
def test_no_recovery_is_reported_without_a_file(tmp_path, closes):
    recovered = []

    def make(place):
        return EventWriter(
            place,
            close_after_flush=closes,
            on_error=lambda error: None,
            on_recovered=recovered.append,
        )

    (tmp_path / "file").write_text("")
    make(tmp_path / "file" / "run").close()
    writer = make(tmp_path / "file" / "run")
    (tmp_path / "file").unlink()
    if closes:  # the directory comes back before a file does
        writer.flush()
        assert (tmp_path / "file" / "run").is_dir()
    assert recovered == []
    writer.scalar("loss", 1.0, 1)
    writer.close()
    assert recovered == [0]
    assert steps(tmp_path / "file" / "run") == [1]


def test_a_closed_writer_goes_on_trying_for_what_it_kept(tmp_path, disk):
    writer = EventWriter(tmp_path, flush_secs=0.01, on_error=lambda error: None)
    disk.error = errno.ENOSPC
    writer.scalar("loss", 1.0, 1)
    writer.close()
    with pytest.raises(ValueError, match="is closed"):
        writer.scalar("loss", 1.0, 2)
    disk.error = 0
    until(lambda: steps(tmp_path) == [1])


def test_what_a_closed_writer_refuses_is_not_written_by_the_background(tmp_path, disk):
    writer = EventWriter(tmp_path, flush_secs=1000, on_error=lambda error: None)
    disk.error = errno.ENOSPC
    writer.scalar("loss", 1.0, 1)
    writer.close()
    disk.error = 0
    arrange = writer._schedule_flush

    def flush_first():
        writer._flush_in_background()
        arrange()

    writer._schedule_flush = flush_first
    with pytest.raises(ValueError, match="is closed"):
        writer.scalar("loss", 1.0, 2)
    assert steps(tmp_path) == [1]


def test_closing_can_be_retried(tmp_path, disk):
    writer = EventWriter(tmp_path, flush_secs=1000)
    disk.error = errno.ENOSPC
    writer.scalar("loss", 1.0, 1)
    with pytest.raises(EventWriteError):
        writer.close()
    writer.scalar("loss", 1.0, 2)
    disk.error = 0
    writer.close()
    assert steps(tmp_path) == [1, 2]


def test_the_background_tries_less_and_less_often_until_it_succeeds(tmp_path, disk, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "aboard.events.writer._schedule", lambda writer, seconds: asked.append(seconds) or True
    )
    writer = EventWriter(tmp_path, flush_secs=0.5, on_error=lambda error: None)
    disk.error = errno.ENOSPC
    writer.scalar("loss", 1.0, 0)
    for _ in range(8):
        writer._flush_in_background()
    assert asked == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    writer.scalar("loss", 1.0, 1)
    assert asked.pop() == 30, "a new record does not make it try earlier"
    disk.error = 0
    writer.flush()
    assert steps(tmp_path) == [0, 1], "a call tries at once"
    writer.scalar("loss", 1.0, 2)
    assert asked.pop() == 0.5
    writer.close()


def test_to_try_again_copies_only_a_piece_of_what_is_kept(tmp_path, disk):
    writer = EventWriter(
        tmp_path, flush_secs=1000, buffer_bytes=1 << 30, on_error=lambda error: None
    )
    disk.error = errno.ENOSPC
    for step in range(200):
        writer.add([encode.text("notes", "x" * 100_000)], step)
    writer.flush()
    tracemalloc.start()
    try:
        writer.flush()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20
    disk.error = 0
    writer.close()
    assert steps(tmp_path) == list(range(200))


# Interrupts.

STEPWISE = ("Outbox.", "python_records", "values_record", "EventWriter._post")


class Interrupt:
    """Raises KeyboardInterrupt before the `number`-th step of what takes records to the disk."""

    def __init__(self, number):
        self.remaining = number

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _trace(self, frame, event, _):
        code = frame.f_code
        if not (
            code.co_filename.endswith("events/files.py") or code.co_qualname.startswith(STEPWISE)
        ):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.remaining -= 1
            if self.remaining == 0:
                raise KeyboardInterrupt
        return self._trace


def log_and_interrupt(directory, number, **options):
    """Interrupt a flush at a step and flush again; return whether the flush had so many steps."""
    writer = EventWriter(directory, flush_secs=1000, **options)
    writer.scalar("loss", 1.0, 0)
    writer.flush()
    for step in range(1, 6):
        writer.scalar("loss", 1.0, step)
        if step % 2:
            writer.add([encode.text("notes", "x")], step + 100)
    try:
        with Interrupt(number) as interrupt:
            writer.flush()
    except KeyboardInterrupt:
        pass
    assert len(writer._outbox) + len(writer._queue) <= 8
    writer.scalar("loss", 1.0, 6)
    writer.close()
    return interrupt.remaining <= 0


LOGGED = [0, 1, 101, 2, 3, 103, 4, 5, 105, 6]


@pytest.mark.soak
@pytest.mark.parametrize("max_bytes", [None, 200])
@pytest.mark.parametrize("closes", [False, True])
def test_an_interrupt_at_any_step_loses_nothing_and_repeats_nothing(
    tmp_path, closes, max_bytes, rounds
):
    for first in rounds(1):
        number = 1 + first % 23
        while log_and_interrupt(
            place := tmp_path / f"{first}-{number}",
            number,
            close_after_flush=closes,
            max_bytes=max_bytes,
        ):
            assert steps(place) == LOGGED, f"interrupted at step {number}"
            for path in files(place):
                notes = [event.summary.value[0] for event in events(path) if event.step > 100]
                assert not notes or notes[0].HasField("metadata"), f"interrupted at step {number}"
            number += 23
        assert number > 500


def test_an_interrupt_while_the_disk_is_full_loses_and_drops_nothing(tmp_path, disk):
    number = 1
    while True:
        place = tmp_path / str(number)
        writer = EventWriter(place, flush_secs=1000, on_error=lambda error: None)
        disk.error = errno.ENOSPC
        for step in range(3):
            writer.scalar("loss", 1.0, step)
            writer.flush()
        writer.scalar("loss", 1.0, 3)
        try:
            with Interrupt(number) as interrupt:
                writer.flush()
        except KeyboardInterrupt:
            pass
        assert len(writer._outbox) + len(writer._queue) == 4
        disk.error = 0
        writer.close()
        assert steps(place) == [0, 1, 2, 3], f"interrupted at step {number}"
        if interrupt.remaining > 0:
            break
        number += 7
    assert number > 100


def test_an_interrupt_of_a_call_that_asks_for_a_flush_leaves_the_asking_to_the_next(
    tmp_path, monkeypatch
):
    asked = []

    def appoint(writer, seconds):
        asked.append(seconds)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr("aboard.events.writer._schedule", appoint)
    writer = EventWriter(tmp_path, flush_secs=1000)
    with pytest.raises(KeyboardInterrupt):
        writer.scalar("loss", 1.0, 0)
    writer.scalar("loss", 1.0, 1)
    assert asked == [1000, 1000]
    writer.close()
    assert steps(tmp_path) == [0, 1]
