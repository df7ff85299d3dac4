"""What the doctor finds, each provoked on a real tree."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from aboard.doctor.examination import (
    examine,
    examine_index,
    nearest_with_events,
    write_seconds,
)
from aboard.events import encode
from aboard.events.records import frame
from aboard.index import Index
from aboard.runs.manifest import Manifest, State
from aboard.storage import bucket_of, open_storage, traffic

NOW = 1_800_000_000.0
HOUR = 3600.0
EVENTS = "events.out.tfevents.1799990000.node1.{}.0"


def scalar(step, wall, value=1.0, tag="loss"):
    return frame(encode.event(wall, step, [encode.scalar(tag, value)]))


def scalars(steps, start=NOW - 3 * HOUR, **options):
    return b"".join(scalar(step, start + i, **options) for i, step in enumerate(steps))


VERSION = frame(encode.file_version(NOW - 3 * HOUR))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def put(root):
    """Write an event file of a run that was last touched three hours ago."""

    def put(run, content, pid=1, age=3 * HOUR):
        path = root / run / EVENTS.format(pid)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (NOW - age, NOW - age))
        return path

    return put


@pytest.fixture
def find(root, index):
    """Examine the tree; give its findings by code."""

    def find(place=root):
        examined = examine(index, str(place), now=NOW)
        assert len({one.code for one in examined.findings}) == len(examined.findings)
        return {one.code: one for one in examined.findings}

    return find


def test_a_sound_tree_has_nothing_but_its_age_to_tell(put, root, index):
    put("a", VERSION + scalars(range(10)))
    put("b", VERSION + scalars(range(5)), age=60 * HOUR)
    examined = examine(index, str(root), now=NOW)
    assert [tuple(one) for one in examined.findings] == [
        (
            "stale",
            "info",
            "no new data for 3h",
            (str(root / "a" / EVENTS.format(1)),),
            "If a job should be writing, check that it is running and flushes its writer.",
        )
    ]
    assert (examined.runs, examined.tags, examined.values, examined.files) == (2, 2, 15, 2)
    assert examined.last_write == NOW - 3 * HOUR


def test_a_run_that_has_ended_writes_nothing_more(put, find, root):
    put("a/train", VERSION + scalars(range(10)))
    put("b", VERSION + scalars(range(5)))
    advice = {State.COMPLETED: "Nothing to do: the run has ended."}
    for state in (State.COMPLETED, State.RUNNING):
        for name in ("a", "b"):
            run = Manifest(name)
            run.begin(at=NOW - 3 * HOUR, host="node1", pid=1)
            if name == "a" or state is State.COMPLETED:
                run.end(State.COMPLETED, 0)
            (root / name / "run.json").write_bytes(run.to_json())
        told = find()["stale"].advice
        assert told == advice.get(state, told)
        assert (state is State.COMPLETED) == told.startswith("Nothing to do")
    assert find(root / "a" / "train")["stale"].advice == advice[State.COMPLETED]


def test_files_that_grow(put, find):
    put("a", scalars(range(10)), age=20)
    put("b", scalars(range(10)))
    assert find()["live"].what == "1 file of 2 was written in the last 5 minutes"
    put("b", scalars(range(10)), age=30)
    assert find()["live"].what == "2 files of 2 were written in the last 5 minutes"


def test_a_file_that_grows_while_it_is_looked_at(put, find, monkeypatch):
    path = put("a", scalars(range(10)))
    files = Index.files

    def grow(self, source):
        found = files(self, source)
        with path.open("ab") as file:
            file.write(scalar(10, NOW - 1))
        os.utime(path, (NOW - 3 * HOUR, NOW - 3 * HOUR))
        return found

    monkeypatch.setattr(Index, "files", grow)
    assert find()["live"].what == "1 file of 1 grew just now"


@pytest.mark.parametrize("content", [b"", VERSION])
def test_a_new_file_with_nothing_in_it_is_not_live(put, find, content):
    put("a", content, age=20)
    assert set(find()) == {"no-values" if content else "empty-files"}


# Nothing there.


def test_no_event_files_and_some_beside(put, find, root):
    put("runs/a/train", scalars([1]))
    (root / "run/checkpoints").mkdir(parents=True)
    found = find(root / "run")["no-event-files"]
    assert found.severity == "error"
    assert found.what.startswith("no event files here or below, so a board would be empty")
    assert found.where == (str(root / "run"),)
    assert found.advice == f"Open {root}/runs, which has some."


def test_no_event_files_in_the_folder_of_a_run_that_has_some(put, find, root):
    put("a", scalars([1]))
    (root / "a/checkpoints/best").mkdir(parents=True)
    assert (
        find(root / "a/checkpoints")["no-event-files"].advice == f"Open {root}/a, which has some."
    )
    assert find(root / "a/checkpoints/best")["no-event-files"].advice.startswith(f"Open {root}/a,")


def test_no_event_files_anywhere(find, tmp_path):
    empty = tmp_path / "1/2/3/4"
    empty.mkdir(parents=True)
    assert "often only rank 0 writes" in find(empty)["no-event-files"].advice


def test_the_search_is_bounded_in_time(put, root):
    put("runs/a", scalars([1]))
    assert nearest_with_events(str(root / "other"), seconds=-1) is None
    assert nearest_with_events(str(root / "other")) == str(root / "runs")


def test_a_missing_path_and_similar_names(put, find, root):
    put("cifar10/run1", scalars([1]))
    found = find(root / "CIFAR-10/run1")["path-missing"]
    assert found.severity == "error"
    assert found.what == f"no such file or directory; the existing part of the path is {root}"
    assert found.advice == f"Did you mean {root}/cifar10?"


def test_a_missing_path_with_nothing_similar(put, find, root):
    put("cifar10/run1", scalars([1]))
    missing = find(root / "zzz")["path-missing"]
    assert missing.advice == f"Open {root}/cifar10, which has event files."
    assert find("/no/such/place")["path-missing"].advice == "Check the path."


def test_a_file_that_is_no_event_file(put, find, root):
    put("a", scalars([1]))
    (root / "a/model.pt").write_bytes(b"weights")
    found = find(root / "a/model.pt")["not-a-directory"]
    assert found.what == "this is a file, not a directory"
    assert found.advice == f"Open {root}/a, which has event files."


def test_a_pipe_is_no_event_file(put, find, root):
    put("full/a", scalars([1]))
    (root / "a").mkdir()
    pipe = root / "a" / EVENTS.format(1)
    os.mkfifo(pipe)
    found = find(root / "a")
    assert found["no-event-files"].advice == f"Open {root}/full, which has some."
    assert found["not-a-file"].severity == "warning"
    assert found["not-a-file"].what == (
        "a pipe is named like an event file, but cannot be read as one"
    )
    assert found["not-a-file"].where == (f"{pipe} (pipe)",)
    assert find()["not-a-file"].where == (f"{pipe} (pipe)",)
    assert {code: one.severity for code, one in find(pipe).items()} == {"not-a-file": "error"}


def test_a_directory_is_no_event_file(find, root):
    directory = root / "a" / EVENTS.format(1)
    directory.mkdir(parents=True)
    found = find(root / "a")
    assert str(root) not in found["no-event-files"].advice
    assert found["not-a-file"].where == (f"{directory} (directory)",)
    assert str(root) not in find(directory)["no-event-files"].advice


def test_a_directory_of_event_files_may_be_called_what_it_likes(put, find):
    put("tfevents", scalars([1]))
    put(EVENTS.format(7), scalars([1]))
    assert set(find()) == {"stale"}


def test_a_uri_that_cannot_be(find):
    found = find("s4://bucket")["unreadable"]
    assert found.what == "'s4://' is not supported"
    assert found.where == ("s4://bucket",)


AS_NOBODY = """
import json, os, sys, orjson
from pathlib import Path
import pwd, grp
from aboard.index import Index, catalog, query, reader, series, store
from aboard.doctor.examination import examine
place, cache = sys.argv[1:]
index = Index(Path(cache) / "index.db")
examine(index, "/nowhere")  # with every import done, other users need not reach this code
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([finding._asdict() for finding in examine(index, place).findings]))
"""


@pytest.fixture
def shared_directory():
    """Give a directory that another user can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("closed", ["a", "a/train", "a/train/*"])
def test_no_permission(shared_directory, closed, tmp_path):
    for run in ("a/train", "b"):
        (shared_directory / run).mkdir(parents=True)
        (shared_directory / run / EVENTS.format(1)).write_bytes(scalars([1]))
    (path,) = shared_directory.glob(closed)
    path.chmod(0)
    if os.getuid() == 0:
        os.chown(path, 12345, 54321)
    command = [sys.executable, "-c", AS_NOBODY, shared_directory, tmp_path]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    finally:
        path.chmod(0o755)
    found = {one["code"]: one for one in json.loads(done.stdout)}["no-permission"]
    assert found["severity"] == "error"
    assert found["where"] == [str(path)]
    kind = "-" if closed.endswith("*") else "d"
    assert found["what"].startswith("permission denied for the user ")
    if os.getuid() == 0:
        assert found["what"].endswith(f": {kind}--------- 12345:54321")
    assert found["advice"].startswith("Ask its owner to let you read it (chmod o+rX")


# Nothing in it.


def test_only_empty_files(put, find, root):
    put("a", b"")
    put("b", b"")
    found = find()["empty-files"]
    assert found.severity == "error"
    assert found.what == "nothing was written to the event files of 2 directories"
    assert found.where == (f"{root}/a", f"{root}/b")
    assert found.advice.startswith("The writer has not flushed yet (call flush() or close())")
    assert "only rank 0 logs" in found.advice


def test_only_the_mark_of_a_file(put, find):
    put("rank-0", VERSION + scalars(range(9)))
    for rank in range(1, 6):
        put(f"rank-{rank}", VERSION)
    found = find()["no-values"]
    assert found.severity == "warning"
    assert found.what == "only the header was written to the event files of 5 directories"
    assert found.where[-1] == "and 2 more"


def test_an_empty_file_beside_a_full_one_is_no_matter(put, find):
    put("a", VERSION + scalars(range(9)))
    put("a", VERSION, pid=2)
    assert set(find()) == {"stale"}


def test_an_empty_file_above_full_ones_is_no_matter(put, find):
    put(".", VERSION)
    put("a", VERSION)
    put("a/1700000000", VERSION + scalars(range(9)))
    assert set(find()) == {"stale"}


# Damage.


def test_damaged_records(put, find):
    content = bytearray(scalars(range(10)))
    content[100] ^= 0xFF
    path = put("a", bytes(content))
    found = find()["damaged-records"]
    assert found.severity == "warning"
    record, start = len(scalars([1])), len(scalars([0, 1]))
    assert found.what == f"1 damaged place, {record} bytes in all, cannot be read"
    assert found.where == (f"{path} at byte {start} ({record} bytes)",)
    assert "no two processes write one file" in found.advice


def test_no_good_record(put, find):
    path = put("a", b"this is no event file" * 100)
    found = find()
    assert set(found) == {"no-good-record"}
    assert found["no-good-record"].severity == "error"
    assert found["no-good-record"].where == (str(path),)
    assert "probably not an event file" in found["no-good-record"].advice
    content = bytearray(scalars(range(10)))
    content[100] ^= 0xFF
    other = put("b", bytes(content))
    (place,) = find()["damaged-records"].where
    assert place.startswith(f"{other} at byte ")


def test_a_last_record_that_is_cut_off(put, find):
    path = put("a", scalars(range(10))[:-10])
    found = find()["cut-off"]
    assert found.severity == "warning"
    assert found.what == "1 file ended in the middle of a record and stopped growing"
    assert found.where == (f"{path} ({len(scalars([1])) - 10} bytes)",)
    os.utime(path, (NOW - 5, NOW - 5))
    assert "cut-off" not in find()


# Writers.


def test_two_writers_in_one_directory(put, find, root):
    put("a", VERSION + scalars(range(100)), pid=1)
    put("a", VERSION + scalars(range(100), start=NOW - 3 * HOUR + 50), pid=2)
    found = find()
    assert found["two-writers"].severity == "warning"
    assert found["two-writers"].what == (
        "two writers logged the same tags to the same place at the same time, in 1 directory,"
        " so their points replace each other"
    )
    names = f"{EVENTS.format(1)} and {EVENTS.format(2)}"
    assert found["two-writers"].where == (f"{root}/a ({names})",)
    assert found["two-writers"].advice.startswith("Log from rank 0 only")
    assert "restarts" not in found


def test_two_writers_of_different_tags_are_no_matter(put, find):
    put("a", VERSION + scalars(range(100)), pid=1)
    put("a", VERSION + scalars(range(100), tag="accuracy"), pid=2)
    assert set(find()) == {"stale"}


@pytest.mark.parametrize(
    "steps",
    [
        [step for step in range(20) for _ in range(4)],
        [step + rank for step in range(0, 40, 2) for rank in (3, 0)],
    ],
)
def test_several_ranks_in_one_file(put, find, steps):
    path = put("a", scalars(steps))
    found = find()["mixed-steps"]
    assert found.severity == "warning"
    assert "several ranks probably write the same file" in found.what
    assert found.where[0].startswith(f"'loss' in {path} (")
    assert found.advice.startswith("Log from rank 0, or give each rank its own directory")


def test_a_step_that_never_moves(put, find):
    path = put("a", scalars([0] * 50))
    found = find()
    assert found["fixed-step"].what == (
        "all values of 1 tag have the same step, so only the last one shows"
    )
    assert found["fixed-step"].where == (f"'loss' in {path} (50 at 0)",)
    assert "mixed-steps" not in found
    assert "restarts" not in found


def test_restarts(put, find):
    put("a", scalars(range(100)), pid=1)
    put("a", scalars(range(50, 200), start=NOW - 2 * HOUR), pid=2)
    put("b", scalars([*range(100), *range(70, 120)]))
    put("c", scalars(range(100)), pid=1)
    put("c", scalars(range(100, 200), start=NOW - 2 * HOUR), pid=2)
    found = find()["restarts"]
    assert found.severity == "info"
    assert found.what.startswith("2 runs continued from an earlier step after a restart")
    assert found.where == ("a (step 50)", "b (step 70)")


# Clocks.


def test_clocks(put, find):
    ahead = put("ahead", scalars(range(5), start=NOW + 2 * HOUR))
    behind = put("behind", scalars(range(5), start=0.0))
    put("right", scalars(range(5), start=NOW + 60))
    found = find()
    assert found["clock-ahead"].what == "events are dated up to 2h in the future"
    assert found["clock-ahead"].where == (str(ahead),)
    assert found["clock-behind"].what == "events are dated before the year 2000"
    assert found["clock-behind"].where == (str(behind),)


def test_times_that_are_no_times_are_no_matter(put, find):
    put("a", scalar(1, float("nan")) + scalar(2, float("inf")))
    assert set(find()) == {"stale"}


# Too much, and what no tab shows.


def test_many_runs(put, find, root):
    for number in range(501):
        put(f"run{number}", scalars([1]))
    found = find()["many-runs"]
    assert found.what == (
        "501 runs: with more than 500, TensorBoard selects none when it is opened, and the board"
        " looks empty"
    )


def test_many_tags(put, find):
    values = [encode.scalar(f"weight{n}", 0.0) for n in range(2001)]
    put("a", frame(encode.event(NOW - 9, 1, values)))
    found = find()["many-tags"]
    assert found.what == "1 run with over 2,000 tags: the page will be slow"
    assert found.where == ("a (2,001 tags)",)


def test_tags_that_no_tab_shows(put, find):
    values = [
        encode.tensor("mine", np.zeros(3), plugin="my_plugin"),
        encode.tensor("bare", np.zeros(3)),
    ]
    put("a", frame(encode.event(NOW - 9, 1, values)))
    found = find()
    assert found["unknown-plugin"].severity == "info"
    assert found["unknown-plugin"].what == (
        "1 tag for the plugin 'my_plugin', which is not part of TensorBoard"
    )
    assert found["unknown-plugin"].where == ("'mine' of a",)
    assert found["no-metadata"].what == "1 tag without metadata, so no tab shows them"
    assert found["no-metadata"].where == ("'bare' of a",)


def test_values_that_are_no_numbers(put, find):
    nan, inf = float("nan"), float("inf")
    broken = [scalar(step, NOW - 99, nan if step >= 7 else 1.0) for step in range(20)]
    put("a", b"".join(broken) + scalars(range(3), tag="lr", value=inf))
    put("b", scalar(1, NOW - 99, nan) + scalar(2, NOW - 98, 1.0))
    found = find()["not-finite"]
    assert found.severity == "info"
    assert found.what == "2 tags ended in values that are not finite"
    assert found.where == ("'loss' of a (NaN since step 7)", "'lr' of a (infinite from the start)")


def test_one_run_of_several(put, find, root):
    put("a/train", scalars([1]))
    put("a/eval", scalars([1]))
    found = find(root / "a/train")["one-of-several"]
    assert found.severity == "info"
    assert found.advice == f"Open {root}/a to see them together."
    assert "one-of-several" not in find(root)


# The index.


def test_an_index_that_had_to_move(tmp_path):
    (tmp_path / "file").write_text("")
    with Index(tmp_path / "file/index.db") as index:
        (found,) = examine_index(index)
    assert found.severity == "warning"
    assert "kept in memory" in found.what
    assert found.advice == "Set ABOARD_CACHE to your own directory on a local disk."


def test_a_quick_index(index, tmp_path):
    assert write_seconds(tmp_path) > 0
    assert [one for one in examine_index(index) if one.code != "slow-index"] == []


# Buckets.


@pytest.fixture(params=["memory", "s3"])
def bucket(request, tmp_path):
    traffic.take()
    if request.param == "memory":
        return f"memory://{tmp_path.name}/logs"
    return request.getfixturevalue("s3_bucket") + f"/{tmp_path.name}"


def test_requests_to_a_bucket(bucket, index):
    content = scalars(range(5), start=time.time())
    open_storage(bucket).write("a/" + EVENTS.format(1), content)
    found = {one.code: one for one in examine(index, bucket).findings}
    assert set(found) == {"live", "requests"}
    assert found["requests"].what == (
        f"3 requests and {2 * len(content)} bytes in the last 24 h, at most 3 requests in an hour"
    )
    assert found["requests"].where == (bucket_of(bucket),)
    assert found["requests"].advice.startswith(
        "A board in use will make 60 to 720 list requests an hour, and one read for each file that"
        " grew; it stops 60 s after the last viewer has left."
    )


def test_many_pages_are_as_many_requests(index, tmp_path):
    bucket = f"memory://{tmp_path.name}"
    storage = open_storage(bucket)
    for number in range(1001):
        storage.write(f"x{number:04}", b"")
    storage.write("y/" + EVENTS.format(1), scalars([1]))
    found = {one.code: one for one in examine(index, bucket).findings}
    assert "120 to 1,440 list requests an hour" in found["requests"].advice


def test_nothing_in_a_bucket_and_some_beside(bucket, index):
    open_storage(bucket).write("runs/a/" + EVENTS.format(1), scalars([1]))
    open_storage(bucket).write("notes/readme", b"")
    found = {one.code: one for one in examine(index, f"{bucket}/notes").findings}
    assert found["no-event-files"].advice == f"Open {bucket}/runs, which has some."
    (missing,) = examine(index, f"{bucket}/run").findings
    assert missing.what == "nothing is stored here"
    assert missing.advice == f"Open {bucket}/runs, which has event files."


def test_a_bucket_that_does_not_exist(s3_bucket, index):
    (found,) = examine(index, "s3://no-such-bucket/logs").findings
    assert found.severity == "error"
    assert found.what == "the bucket 'no-such-bucket' does not exist"
