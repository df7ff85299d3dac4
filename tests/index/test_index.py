"""Bringing the index up to date: what is new, what changed, what went wrong."""

import multiprocessing
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.events.scanner import core_name
from aboard.events.writer import EventWriter
from aboard.index import Index, Source, UnknownName, reader, sources
from aboard.index.logs import Logs
from aboard.index.store import Store
from aboard.storage.base import BadUri, NoSuchPath, Unreachable, open_storage
from aboard.storage.local import LocalStorage
from tests.engines.unprivileged import powerless
from tests.waiting import until


def numbers(logs, tag="loss", run="."):
    return list(zip(*(column.tolist() for column in logs.series(run, tag)[::2]), strict=True))


def points(*steps):
    return [(step, float(step)) for step in steps]


def append(path, source):
    with path.open("ab") as file:
        file.write(source.read_bytes())


def test_only_what_is_new_is_read(write, logs, tmp_path):
    path = write(loss=points(*range(100)))
    first = logs()
    assert first.report.bytes_read == path.stat().st_size
    assert (first.report.files_read, first.report.points, first.report.events) == (1, 100, 101)
    again = first.refresh()
    assert (again.files_read, again.files_unchanged, again.bytes_read) == (0, 1, 0)
    more = write("../elsewhere", loss=points(*range(100, 110)))
    append(path, more)
    grown = first.refresh()
    assert grown.bytes_read == more.stat().st_size
    assert numbers(first) == points(*range(110))


@pytest.mark.skipif(core_name() != "c", reason="the core in Python is made of numpy")
def test_reading_needs_no_numpy(write, tmp_path):
    """It takes longer to import than a million points take to be read."""
    path = write(loss=points(*range(900), *range(2000, 2900)))
    code = (
        "import sys, aboard; from aboard.index import reader; reader.BATCH_VALUES = 100;"
        "logs = aboard.open(sys.argv[1]); logs.index.point_counts(logs.tags);"
        "print(logs.report.points, 'numpy' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(path.parent)]
    for expected in ("1800 False", "600 False"):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
        append(path, write("../elsewhere", loss=points(*range(3000, 3600))))


def test_a_record_that_is_being_written_is_read_once_it_is_whole(write, logs):
    path = write(loss=points(1, 2, 3))
    whole = path.read_bytes()
    opened = None
    for size in range(len(whole) - 120, len(whole) + 1):
        path.write_bytes(whole[:size])
        opened = opened or logs()
        opened.refresh()
        held = numbers(opened) if opened.tags else []
        assert held == points(1, 2, 3)[: len(held)]
        assert opened.damage == []
    assert numbers(opened) == points(1, 2, 3)


def test_new_runs_and_files_appear(write, logs):
    write("a", loss=points(1))
    opened = logs()
    write("b/c", loss=points(2))
    write("a", loss=points(2, 3))
    opened.refresh()
    assert [run.name for run in opened.runs] == ["a", "b/c"]
    assert numbers(opened, run="a") == points(1, 2, 3)
    assert [run.files for run in opened.runs] == [2, 1]


def test_a_restart_drops_the_points_after_it(write, logs, index):
    write(loss=points(1, 2, 3, 4, 5), other=points(1))
    opened = logs()
    with_restart = [(3, 30.0), (4, 40.0)]
    write(loss=with_restart)
    opened.refresh()
    assert numbers(opened) == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    assert numbers(opened, "other") == points(1)
    tag = opened.tag(".", "loss")
    assert index.point_counts([tag]) == [4]
    assert (tag.first_step, tag.last_step, tag.last_value) == (1, 4, 40.0)


def test_a_replaced_file_is_read_anew(write, logs):
    path = write(loss=points(1, 2, 3))
    opened = logs()
    other = write("../other", loss=points(7, 8, 9, 10))
    shutil.move(other, path)
    opened.refresh()
    assert numbers(opened) == points(7, 8, 9, 10)


def test_a_file_replaced_by_one_of_the_same_size_is_read_anew(write, logs):
    path = write(loss=points(1, 2, 3))
    opened = logs()
    other = write("../other", loss=points(4, 5, 6))
    assert other.stat().st_size == path.stat().st_size
    path.write_bytes(other.read_bytes())
    opened.refresh()
    assert numbers(opened) == points(4, 5, 6)


def test_a_file_rewritten_in_place_and_longer_is_read_anew(write, logs):
    path = write(loss=points(1, 2, 3))
    opened = logs()
    other = write("../other", loss=points(*range(11, 30)))
    path.write_bytes(other.read_bytes())
    opened.refresh()
    assert numbers(opened) == points(*range(11, 30))


def test_a_file_replaced_by_a_longer_one_that_goes_on_alike_is_read_anew(logs, tmp_path):
    path = tmp_path / "logs" / "events.out.tfevents.1"
    path.parent.mkdir()
    path.write_bytes(file_of(range(100)))
    opened = logs()
    other = path.with_name("other")
    other.write_bytes(file_of([*range(1000, 1050), *range(50, 110)]))
    assert other.read_bytes()[: path.stat().st_size][-256:] == path.read_bytes()[-256:]
    other.replace(path)
    opened.refresh()
    assert [value for _, value in numbers(opened)] == [*range(1000, 1050), *range(50, 110)]


def file_of(values):
    held = (encode.scalar("loss", value) for value in values)
    events = (encode.event(float(step), step, [one]) for step, one in enumerate(held))
    return b"".join(map(frame, events))


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("change", ["in place", "replaced", "set back", "cut"])
def test_a_file_that_begins_and_goes_on_alike_is_read_again(
    logs, tmp_path, monkeypatch, is_long, change
):
    if is_long:
        monkeypatch.setattr(reader, "COMPARED_BYTES", 100)
    path = tmp_path / "logs" / "events.out.tfevents.1"
    path.parent.mkdir()
    old = file_of(range(100))
    path.write_bytes(old + frame(bytes(50))[:30])  # a record that is being written
    opened = logs()
    values = [*range(20), *range(1020, 1080), *range(80, 110)]
    if change == "in place":  # and twice as long
        values += range(110, 300)
    if change == "cut":
        values = values[:100]
    new = file_of(values)
    assert new[:256] == old[:256]
    assert new[: len(old)][-256:] == old[-256:]
    if change == "replaced":
        path.with_name("other").write_bytes(new)
        path.with_name("other").replace(path)
    else:
        path.write_bytes(new)
    if change == "set back":
        os.utime(path, (1, 1))
    opened.refresh()
    assert [value for _, value in numbers(opened)] == values


def test_a_file_that_grows_is_compared_a_few_times_over(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "COMPARED_BYTES", 100)
    path = tmp_path / "logs" / "events.out.tfevents.1"
    path.parent.mkdir()
    path.write_bytes(file_of(range(10)))
    opened = logs()
    read = 0
    before = LocalStorage.readinto

    def readinto(self, name, start, buffer):
        nonlocal read
        read += len(buffer)
        return before(self, name, start, buffer)

    monkeypatch.setattr(LocalStorage, "readinto", readinto)
    for count in range(20, 1000, 10):
        path.write_bytes(file_of(range(count)))
        opened.refresh()
    assert len(numbers(opened)) == 990
    assert read < 4 * path.stat().st_size


@pytest.mark.parametrize("first", [0, 1, 3, 8, 40])
def test_a_file_that_grew_from_little_is_known_by_its_beginning(logs, tmp_path, first):
    """The first bytes are remembered once there are enough of them."""
    records = [
        frame(encode.event(float(one), one, [encode.scalar("loss", one)])) for one in range(100)
    ]
    path = tmp_path / "logs" / "events.out.tfevents.1"
    path.parent.mkdir()
    path.write_bytes(b"".join(records[:first]))
    opened = logs()
    for size in (50, 60):
        path.write_bytes(b"".join(records[:size]))
        opened.refresh()
    copy = path.with_name("copy")
    copy.write_bytes(b"".join(records))
    copy.replace(path)
    assert opened.refresh().bytes_read == len(b"".join(records[60:]))
    copy.write_bytes(b"".join([*records[1:], *records[-1:], frame(b"")]))
    copy.replace(path)
    opened.refresh()
    assert numbers(opened)[0] == (1, 1.0)


def test_a_file_copied_anew_with_more_at_its_end_is_continued(write, logs):
    """As rsync does: a new file is moved over the old one."""
    path = write(loss=points(*range(1000)))
    opened = logs()
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    append(copy, write("../more", loss=points(1000)))
    copy.replace(path)
    report = opened.refresh()
    assert report.bytes_read < 300
    assert len(numbers(opened)) == 1001


def test_a_truncated_file_is_read_anew(write, logs):
    path = write(loss=points(*range(100)))
    opened = logs()
    os.truncate(path, path.stat().st_size // 2)
    opened.refresh()
    held = numbers(opened)
    assert held == points(*range(100))[: len(held)]
    assert 40 < len(held) < 60


def test_a_deleted_file_and_run_disappear(write, logs):
    gone = write("a", loss=points(1))
    write("b", loss=points(2))
    opened = logs()
    gone.unlink()
    report = opened.refresh()
    assert report.files_gone == 1
    assert [run.name for run in opened.runs] == ["b"]


def test_a_neighbour_with_a_longer_name_is_left_alone(write, tmp_path, index):
    write("run1", loss=points(1))
    write("run10", loss=points(2))
    both = Logs(tmp_path / "logs", index=index)
    one = Logs(tmp_path / "logs" / "run1", index=index)
    assert [run.name for run in one.runs] == ["."]
    shutil.rmtree(tmp_path / "logs" / "run1")
    with pytest.raises(NoSuchPath):
        one.refresh()
    both.refresh()
    assert [run.name for run in both.runs] == ["run10"]


def test_one_copy_serves_every_source_that_holds_it(write, tmp_path, index):
    write("a/b", loss=points(1, 2))
    Logs(tmp_path / "logs", index=index)
    inner = Logs(tmp_path / "logs" / "a", index=index)
    assert inner.report.files_unchanged == 1
    assert numbers(inner, run="b") == points(1, 2)


def test_one_event_file_is_a_source(write, index):
    path = write("a", loss=points(1))
    write("a", loss=points(2))
    logs = Logs(path, index=index)
    assert numbers(logs) == points(1)
    assert [run.files for run in logs.runs] == [1]


def test_damage_is_counted_and_the_rest_is_read(write, logs):
    path = write(loss=points(*range(10)))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data + b"garbage at the end, no record")
    opened = logs()
    assert len(numbers(opened)) == 9
    first, last = opened.damage
    assert first.uri == last.uri == str(path)
    assert (last.offset, last.length) == (len(data), 18)
    assert sum(span.length for span in opened.damage) == opened.runs[0].damaged_bytes
    append(path, write("../more", loss=points(10)))
    opened.refresh()
    assert numbers(opened)[-1] == (10, 10.0)
    assert opened.damage[-1].length == len("garbage at the end, no record")


def test_an_unreadable_file_is_reported_and_the_rest_goes_on(write, logs, monkeypatch):
    bad = write("a", loss=points(1))
    write("b", loss=points(2))
    real = LocalStorage.readinto

    def readinto(self, name, start, buffer):
        if name.startswith("a/"):
            raise Unreachable(str(bad), "the file system does not answer", "Check the mount.")
        return real(self, name, start, buffer)

    monkeypatch.setattr(LocalStorage, "readinto", readinto)
    monkeypatch.setattr(reader, "SMALL_BYTES", 0)
    opened = logs()
    assert [str(problem) for problem in opened.report.problems] == [
        f"{bad}: the file system does not answer. Check the mount."
    ]
    assert [run.name for run in opened.runs] == ["b"]
    monkeypatch.undo()
    opened.refresh()
    assert [run.name for run in opened.runs] == ["a", "b"]


LIST = """
import sys, aboard
logs = aboard.open(sys.argv[1])
print([run.name for run in logs.runs], *map(str, logs.report.problems), sep='\\n')
"""


def listed_without_power(tree, cache):
    """List the runs of a tree, and what could not be read, as one who must keep to modes."""
    done = subprocess.run(
        powerless(sys.executable, "-c", LIST, tree),
        env={**os.environ, "ABOARD_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_permission_denied_is_reported_by_the_system_itself(write, tmp_path):
    write("a", loss=points(1))
    write("b", loss=points(2))
    closed = tmp_path / "logs" / "a"
    closed.chmod(0)
    try:
        assert listed_without_power(tmp_path / "logs", tmp_path / "cache") == [
            "['b']",
            f"{closed}: permission denied. Check the owner and mode of the path.",
        ]
    finally:
        closed.chmod(0o755)


@pytest.mark.parametrize(
    ("run", "mode"), [("two  spaces", 0o444), ("a/deeper", 0o000)], ids=["unentered", "closed"]
)
def test_runs_that_cannot_be_looked_at_stay_in_the_index(write, tmp_path, run, mode):
    path = write(run, loss=points(1))
    write("b", loss=points(2))
    tree, cache = tmp_path / "logs", tmp_path / "cache"
    both = [str(sorted([run, "b"]))]
    assert listed_without_power(tree, cache) == both
    closed = tree / run.partition("/")[0]
    closed.chmod(mode)
    try:
        listed = listed_without_power(tree, cache)
    finally:
        closed.chmod(0o755)
    assert listed[:1] == both
    assert len(listed) == 2
    path.unlink()
    assert listed_without_power(tree, cache) == ["['b']"]


def test_a_file_that_vanishes_while_it_is_read(write, logs, monkeypatch):
    gone = write("a", loss=points(1))
    write("b", loss=points(2))
    real = sources.make_plan

    def make_plan(*args, **options):
        plan = real(*args, **options)
        gone.unlink(missing_ok=True)
        return plan

    monkeypatch.setattr("aboard.index.index.make_plan", make_plan)
    opened = logs()
    assert [problem.uri for problem in opened.report.problems] == [str(gone)]
    assert [run.name for run in opened.runs] == ["b"]


def test_many_files_are_read_in_parallel_and_in_batches(write, logs, monkeypatch):
    monkeypatch.setattr(reader, "BATCH_VALUES", 500)
    monkeypatch.setattr(reader, "BLOCK", 4096)
    for number in range(80):
        write(f"run{number}", loss=points(*range(700)), other=points(*range(0, 700, 7)))
    opened = logs()
    assert opened.report.points == 80 * 800
    for number in range(0, 80, 9):
        assert numbers(opened, run=f"run{number}") == points(*range(700))
        assert numbers(opened, "other", f"run{number}") == points(*range(0, 700, 7))


def test_growing_point_by_point_keeps_chunks_few(write, logs, index):
    path = write(loss=points(0))
    opened = logs()
    more = [write("../more", loss=points(step)) for step in range(1, 400)]
    for one in more:
        append(path, one)
        opened.refresh()
    assert numbers(opened) == points(*range(400))
    (chunks,) = sqlite3.connect(index.path).execute("SELECT count(*) FROM chunk").fetchone()
    assert chunks < 12


def test_values_keep_their_width(tmp_path, index):
    with EventWriter(str(tmp_path)) as writer:
        for step in range(10):
            writer.add([encode.scalar_tensor("double", step / 3, "float64")], step)
            writer.scalar("single", step / 3, step)
    logs = Logs(tmp_path, index=index)
    assert logs.series(".", "double").values.tolist() == [step / 3 for step in range(10)]
    singles = [float(np.float32(step / 3)) for step in range(10)]
    assert logs.series(".", "single").values.tolist() == singles
    sizes = dict(
        sqlite3.connect(index.path).execute(
            "SELECT tag, length(payload) FROM chunk JOIN segment ON chunk.id >> 24 = segment.id"
        )
    )
    assert sizes == {"double": 80, "single": 40}


def test_a_file_may_have_any_name_and_tags_any_bytes(tmp_path, index):
    event = b"\x2a\x0c\x0a\x0a\x0a\x03\xff\xfe/\x15\0\0\x80?"
    (tmp_path / "a.tfevents.b").write_bytes(frame(event))
    logs = Logs(tmp_path, index=index)
    assert [tag.name for tag in logs.tags] == ["\\xff\\xfe/"]
    assert numbers(logs, "\\xff\\xfe/") == [(0, 1.0)]


def test_two_tags_in_bytes_that_read_the_same_lose_no_point(tmp_path, index):
    def event(tag, step):
        value = bytes([0x0A, len(tag)]) + tag + b"\x15" + struct.pack("<f", step)
        return bytes([0x10, step, 0x2A, len(value) + 2, 0x0A, len(value)]) + value

    tags = (b"\xff", b"\\xff")
    written = [frame(event(tags[step // 4], step)) for step in range(8)]
    path = tmp_path / "a.tfevents.b"
    path.write_bytes(b"".join(written[:6]))
    logs = Logs(tmp_path, index=index)
    assert sorted(numbers(logs, "\\xff")) == [(step, float(step)) for step in range(6)]
    path.write_bytes(b"".join(written))
    assert sorted(numbers(Logs(tmp_path, index=index), "\\xff")) == [
        (step, float(step)) for step in range(8)
    ]


def test_two_threads_refresh_and_ask_at_once(write, tmp_path, index):
    for number in range(20):
        write(f"run{number}", loss=points(*range(200)))
    source = Source.parse(str(tmp_path / "logs"))

    def work(_):
        index.refresh(source)
        return [len(index.series(tag).steps) for tag in index.tags(source)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(24))) == [[200] * 20] * 24


def test_many_processes_fill_one_index(write, tmp_path):
    for number in range(10):
        write(f"run{number:02}", loss=points(*range(3000)))
    fork = multiprocessing.get_context("fork")
    counts = fork.SimpleQueue()

    def read():
        with Logs(tmp_path / "logs") as logs:
            counts.put(sum(len(logs.series(tag.run, tag.name).steps) for tag in logs.tags))

    running = [fork.Process(target=read) for _ in range(6)]
    for one in running:
        one.start()
    assert [counts.get() for _ in running] == [30_000] * 6
    for one in running:
        one.join()
    with Index() as index:
        path = index.path
        logs = Logs(tmp_path / "logs", index=index)
        assert logs.report.files_unchanged == 10
    held = sqlite3.connect(path).execute("SELECT sum(count) FROM chunk").fetchone()
    assert held == (30_000,)


def test_a_process_that_was_outrun_notices(write, tmp_path, monkeypatch):
    write(loss=points(1, 2, 3))
    with Index() as index, Index(index.path) as other:
        source = Source.parse(str(tmp_path / "logs"))
        real = sources.make_plan
        calls = []

        def make_plan(*args, **options):
            plan = real(*args, **options)
            calls.append(plan)
            if len(calls) == 1:
                other.refresh(source)
            return plan

        monkeypatch.setattr("aboard.index.index.make_plan", make_plan)
        index.refresh(source)
        assert len(calls) == 3
        (tag,) = index.tags(source)
        assert index.series(tag).steps.tolist() == [1, 2, 3]


def test_a_rebuild_reads_everything_again(write, logs):
    path = write(loss=points(1, 2))
    opened = logs()
    report = opened.refresh(anew=True)
    assert report.bytes_read == path.stat().st_size
    assert numbers(opened) == points(1, 2)


def test_progress_is_told_in_the_calling_thread(write, logs, monkeypatch):
    monkeypatch.setattr(reader, "BATCH_VALUES", 100)
    monkeypatch.setattr(reader, "BLOCK", 1024)
    monkeypatch.setattr(reader, "SMALL_BYTES", 0)
    path = write(loss=points(*range(1000)))
    seen = []

    def progress(report):
        assert threading.current_thread() is threading.main_thread()
        seen.append((report.bytes_read, report.bytes_total))

    logs(progress=progress)
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_a_missing_source_is_an_error_with_its_path(tmp_path, index):
    with pytest.raises(NoSuchPath, match=f"{tmp_path}/nowhere: file or directory not found"):
        Logs(tmp_path / "nowhere", index=index)


def test_an_empty_tree_has_no_runs(tmp_path, index):
    logs = Logs(tmp_path, index=index)
    assert (logs.runs, logs.tags, logs.damage) == ([], [], [])
    assert logs.to_pandas().columns.tolist() == ["run", "tag", "step", "wall_time", "value"]


def test_large_records_are_stored_as_they_come(tmp_path, index, monkeypatch):
    """Progress shows, and a reading that is interrupted goes on where it was."""
    monkeypatch.setattr(reader, "BATCH_BYTES", 100_000)
    monkeypatch.setattr(reader, "BLOCK", 16_384)
    with EventWriter(tmp_path / "run") as writer:
        for step in range(100):
            writer.add([encode.text("note", f"{step}" * 5000)], step)
    (path,) = (tmp_path / "run").iterdir()
    size = path.stat().st_size
    reports = []
    source = Source.parse(str(tmp_path))
    index.refresh(source, progress=lambda report: reports.append(report.bytes_read))
    assert len(reports) > size // 200_000 > 1
    assert max(b - a for a, b in zip([0, *reports], reports, strict=False)) < 150_000
    assert reports[-1] == size
    (tag,) = index.tags(source)
    assert [pointer.step for pointer in index.pointers(tag)] == list(range(100))


def test_a_reading_stops_after_any_block(write, tmp_path, index, monkeypatch):
    path = write(loss=points(*range(5000)))
    plan = sources.make_plan(index._connections._idle[0][1], Source.parse(str(path.parent)))
    calls = []
    real = LocalStorage.readinto

    def readinto(self, *args):
        calls.append(args)
        return real(self, *args)

    monkeypatch.setattr(LocalStorage, "readinto", readinto)
    (one,) = plan.readings
    assert list(reader.read_file(one, reader.Workspace(4096), lambda: len(calls) == 3)) == []
    assert len(calls) == 3


def test_workers_stop_in_the_middle_of_a_file(write, tmp_path, index, monkeypatch):
    for number in range(70):
        write(f"run{number}", loss=points(1))
    plan = sources.make_plan(index._connections._idle[0][1], Source.parse(str(tmp_path / "logs")))
    began = threading.Event()
    told = []

    def read_file(_reading, _workspace, stopped):
        began.set()
        told.append(until(stopped))
        yield from ()

    monkeypatch.setattr(reader, "read_file", read_file)
    monkeypatch.setattr(reader, "SMALL_BYTES", 0)
    with reader.reading(plan.readings):
        assert began.wait(180)
    assert told
    assert all(told)


# Cases that were wrong once.


def event(step, value, tag="x"):
    return frame(encode.event(float(step), step, [encode.scalar_tensor(tag, value)]))


def test_doubles_stay_doubles_when_a_single_follows_later(tmp_path, index):
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(event(1, np.float64(0.1)))
    logs = Logs(tmp_path, index=index)
    with path.open("ab") as file:
        file.write(event(2, np.float32(0.5)))
    logs.refresh()
    assert logs.series(".", "x").values.tolist() == [0.1, 0.5]


def test_the_points_of_a_deleted_run_never_become_those_of_another(tmp_path, index):
    for run in ("a", "b"):
        with EventWriter(tmp_path / run) as writer:
            writer.scalar("loss", 1.0, 1)
    logs = Logs(tmp_path, index=index)
    held = logs.tag("b", "loss")
    for path in (tmp_path / "b").iterdir():
        path.unlink()
    with EventWriter(tmp_path / "c") as writer:
        writer.scalar("other", 7.0, 1)
    logs.refresh()
    with pytest.raises(UnknownName, match="'loss' of run 'b' is no longer in"):
        index.series(held)


def test_an_index_that_is_removed_in_use_is_made_again_and_private(tmp_path, index):
    with EventWriter(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, 1)
    logs = Logs(tmp_path, index=index)
    assert index.path is not None
    with index._connections.lend(), index._connections.lend():
        for file in index.path.parent.iterdir():
            file.unlink()
        assert index.tags(logs.source) == []
        assert index.path.stat().st_mode & 0o077 == 0
    logs.refresh()
    assert logs.series("run", "loss").steps.tolist() == [1]


def test_moving_to_memory_while_others_wait_for_a_connection(tmp_path, index, monkeypatch):
    with EventWriter(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, 1)
    source = Source.parse(str(tmp_path))
    index.refresh(source)
    errors = []

    def ask():
        for _ in range(50):
            try:
                index.runs(source)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    index._connections._lock.acquire()
    index._connections._close_idle()
    index._connections._move_to_memory("the disk is full", OSError())
    index._connections.generation += 1
    time.sleep(0.05)
    index._connections._lock.release()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_bucket_directory_called_tfevents_is_a_directory(tmp_path, index):
    bucket = f"memory://{tmp_path.name}/exp/tfevents"
    open_storage(bucket).write("run/events.out.tfevents.1", event(1, 1.0))
    logs = Logs(bucket, index=index)
    assert [run.name for run in logs.runs] == ["run"]
    assert logs.refresh().files_unchanged == 1


def test_a_deleted_run_goes_although_another_directory_cannot_be_listed(tmp_path, index):
    for run in ("kept", "gone"):
        with EventWriter(tmp_path / run) as writer:
            writer.scalar("loss", 1.0, 1)
    logs = Logs(tmp_path, index=index)
    (tmp_path / "bad").mkdir()
    with open(os.fsencode(tmp_path / "bad") + b"/\xff.tfevents", "wb"):  # noqa: PTH123
        pass
    for path in (tmp_path / "gone").iterdir():
        path.unlink()
    report = logs.refresh()
    assert len(report.problems) == 1
    assert [run.name for run in logs.runs] == ["kept"]


def test_a_source_that_is_away_for_a_while_stays_in_the_index(tmp_path, index):
    with EventWriter(tmp_path / "logs" / "run") as writer:
        writer.scalar("loss", 1.0, 1)
    logs = Logs(tmp_path / "logs", index=index)
    (tmp_path / "logs").rename(tmp_path / "elsewhere")
    with pytest.raises(NoSuchPath):
        logs.refresh()
    assert [run.name for run in logs.runs] == ["run"]
    (tmp_path / "elsewhere").rename(tmp_path / "logs")
    assert logs.refresh().bytes_read == 0


def test_a_shape_that_lies_is_not_believed(tmp_path, index):
    huge = encode.delimited(2, encode.delimited(2, b"\x08" + encode.varint(2**60)))
    tensor = b"\x08\x07" + huge + encode.delimited(8, b"png")
    value = encode.EncodedValue(
        "image",
        encode.delimited(1, b"image") + encode.delimited(8, tensor),
        encode.metadata("images"),
    )
    data = frame(encode.event(1.0, 1, [value]))
    (tmp_path / "events.out.tfevents.1").write_bytes(data)
    logs = Logs(tmp_path, index=index)
    assert logs.tag(".", "image").rows <= len(data)


def test_a_tag_keeps_its_form_when_a_later_file_omits_its_metadata(tmp_path, index):
    value = encode.tensor("x", np.float32(1.0), plugin="mine", data_class="")
    for number, written in enumerate((value, value.bare())):
        data = frame(encode.event(1.0, number, [written]))
        (tmp_path / f"events.out.tfevents.{number}").write_bytes(data)
    (tag,) = Logs(tmp_path, index=index).tags
    assert not tag.is_scalar


def test_an_index_that_was_given_stays_open(tmp_path, index):
    with Logs(tmp_path, index=index):
        pass
    assert index.runs(Source.parse(str(tmp_path))) == []


def test_a_bad_source_does_not_leave_its_index_open(tmp_path, monkeypatch):
    closed = []
    real = Index.close
    monkeypatch.setattr(Index, "close", lambda self: (closed.append(self), real(self)))
    with pytest.raises(NoSuchPath):
        Logs(tmp_path / "nowhere")
    assert len(closed) == 1


def test_a_path_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(BadUri, match="not UTF-8"):
        Source.parse(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))


def test_two_indexes_that_take_turns_store_a_growing_file_once(write, tmp_path, index):
    """Each remembers where the file ended when it stored it last; the other may have gone on."""
    path = write(loss=points(0), accuracy=points(0))
    source = Source.parse(str(path.parent))
    events = [frame(encode.event(one, one, scalars(one))) for one in range(1, 200)]
    turns = random.Random(3)
    with Index(index.path) as other:
        both = index, other
        while events:
            count = turns.choice([1, 1, 2, 3, 40])
            with path.open("ab") as file:
                file.writelines(events[:count])
            del events[:count]
            turns.choice(both).refresh(source)
        for one in both:
            one.refresh(source)
            logs = Logs(path.parent, index=one)
            assert numbers(logs) == numbers(logs, "accuracy") == points(*range(200))
            for tag in ("loss", "accuracy"):
                summary = logs.summary(".", tag)
                assert (summary.count, summary.min, summary.max) == (200, 0, 199)


def scalars(value):
    return [encode.scalar(tag, value) for tag in ("loss", "accuracy")]


def test_a_growing_file_is_stored_after_a_refresh_that_failed(write, logs, monkeypatch):
    path = write(loss=points(0))
    opened = logs()
    for count in range(2, 30):
        path.write_bytes(file_of(range(count)))
        if count % 3 == 0:
            with monkeypatch.context() as patch:
                patch.setattr(Store, "_save", fail_after(Store._save))
                with pytest.raises(RuntimeError, match="stopped"):
                    opened.refresh()
        else:
            opened.refresh()
    opened.refresh()
    assert [value for _, value in numbers(opened)] == [*range(29)]


def fail_after(work):
    def failing(*arguments):
        work(*arguments)
        raise RuntimeError("stopped")

    return failing
