"""The catalog in the index: fresh after each look, and nothing read that did not change."""

import json
import shutil
from pathlib import Path

import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.index import Source
from aboard.index.catalog import attempt_of
from aboard.index.logs import Logs
from aboard.runs.catalog import find_runs, parse_record
from aboard.runs.manifest import Attempt, BadManifest, Manifest, State
from aboard.storage import NoSuchPath, StorageError, local, open_storage
from aboard.storage.local import LocalStorage, scan
from aboard.storage.object import ObjectStorage

EVENTS = "events.out.tfevents.1"


def record(storage, label, **fields):
    experiment, _, name = label.rpartition("/")
    manifest = Manifest(name, experiment, created=1000.0, heartbeat=1000.0, **fields)
    storage.write(f"{label}/run.json", manifest.to_json())


@pytest.fixture
def root(tmp_path):
    """A root with two recorded runs and a raw one."""
    storage = open_storage(str(tmp_path / "root"))
    record(storage, "a/run1", hparams={"lr": 0.1}, tags={"x": True}, job="7")
    record(storage, "a/run10", state=State.FAILED, exit_code=3, reason="no memory")
    storage.write(f"raw/run2/train/{EVENTS}", b"")
    return storage


@pytest.fixture
def opened(monkeypatch):
    """Collect the names of all files that are read."""
    names = []
    for kind in (LocalStorage, ObjectStorage):
        original = kind.read

        def read(self, name, *span, original=original):
            names.append(name)
            return original(self, name, *span)

        monkeypatch.setattr(kind, "read", read)
    return names


def look(index, storage):
    report = index.refresh_catalog(storage.uri)
    return report, {run.label: run for run in index.known_runs([storage.uri])}


def test_recorded_and_raw_runs_are_known(index, root):
    report, runs = look(index, root)
    assert (report.problems, report.changed) == ([], True)
    assert list(runs) == ["a/run1", "a/run10", "raw/run2"]
    one, ten, raw = runs.values()
    assert (one.hparams, one.tags, one.job, one.created) == ({"lr": 0.1}, {"x": True}, "7", 1000.0)
    assert one.uri == f"{root.uri}/a/run1"
    assert one.state_at(1001.0) is State.RUNNING
    assert one.state_at(9999.0) is State.LOST
    assert (ten.state_at(9999.0), ten.exit_code, ten.reason) == (State.FAILED, 3, "no memory")
    assert (raw.state_at(0), raw.is_recorded, raw.hparams) == (None, False, {})


def test_only_changed_records_are_read_again(index, root, opened):
    look(index, root)
    assert sorted(opened) == ["a/run1/run.json", "a/run10/run.json"]
    opened.clear()
    report, _ = look(index, root)
    assert (opened, report.changed) == ([], False)
    record(root, "a/run10", state=State.COMPLETED)
    report, runs = look(index, root)
    assert (opened, report.changed) == (["a/run10/run.json"], True)
    assert runs["a/run10"].state_at(0) is State.COMPLETED
    assert runs["a/run1"].hparams == {"lr": 0.1}


def test_deleted_runs_disappear_and_their_neighbours_stay(index, root):
    look(index, root)
    shutil.rmtree(f"{root.uri}/a/run1")
    assert list(look(index, root)[1]) == ["a/run10", "raw/run2"]


def test_a_run_that_gets_a_record_or_loses_it(index, root):
    look(index, root)
    record(root, "raw/run2", job="8")
    assert look(index, root)[1]["raw/run2"].job == "8"
    root.delete("raw/run2/run.json")
    assert not look(index, root)[1]["raw/run2"].is_recorded


def test_a_record_that_is_none_is_told_every_time_and_stops_no_other(index, root, opened):
    root.write("a/run3/run.json", b"{half")
    for _ in range(2):
        report, runs = look(index, root)
        (problem,) = report.problems
        assert isinstance(problem, BadManifest)
        assert f"{root.uri}/a/run3/run.json: invalid JSON" in str(problem)
        assert "Repair or remove the file." in str(problem)
        assert list(runs) == ["a/run1", "a/run3", "a/run10", "raw/run2"]
        assert not runs["a/run3"].is_recorded
    assert opened.count("a/run3/run.json") == 1
    record(root, "a/run3")
    report, runs = look(index, root)
    assert report.problems == []
    assert runs["a/run3"].is_recorded


@pytest.mark.parametrize(
    "fields",
    [
        {"exit_code": 10**30},
        {"heartbeat_secs": 10**400},
        {"hparams": {"n": 10**400, "s": "\udcff"}},
        {"host": "\udcff\0"},
        {"name": "\ud800"},
    ],
)
def test_whatever_a_record_holds_the_catalog_holds_it(index, root, fields):
    document = json.loads(Manifest("odd", "a").to_json()) | fields
    root.write("a/odd/run.json", json.dumps(document).encode())
    report, runs = look(index, root)
    assert report.problems == []
    assert len(runs) == 4


def test_a_record_that_cannot_be_read_now_is_read_later(index, root, monkeypatch):
    look(index, root)
    record(root, "a/run1", job="new")
    record(root, "a/run4", job="new")
    original = LocalStorage.read

    def broken(self, name, *span):
        raise StorageError(f"{self.uri}/{name}", "the disk does not answer")

    monkeypatch.setattr(LocalStorage, "read", broken)
    report, runs = look(index, root)
    assert len(report.problems) == 2
    assert runs["a/run1"].job == "7"
    assert not runs["a/run4"].is_recorded
    monkeypatch.setattr(LocalStorage, "read", original)
    report, runs = look(index, root)
    assert report.problems == []
    assert (runs["a/run1"].job, runs["a/run4"].job) == ("new", "new")


def test_a_part_that_cannot_be_listed_loses_nothing(index, root, monkeypatch):
    look(index, root)
    entries = [entry for entry in root.list() if not entry.name.startswith("a/")]

    def partly(self, _look, *, on_error):
        on_error(StorageError(f"{self.uri}/a", "permission denied"))
        yield from entries

    monkeypatch.setattr(LocalStorage, "walk", partly)
    report, runs = look(index, root)
    assert [str(problem) for problem in report.problems] == [f"{root.uri}/a: permission denied."]
    assert list(runs) == ["a/run1", "a/run10", "raw/run2"]


@pytest.mark.parametrize("place", ["a/run1/run.json", "a/run1", "a", "raw/run2/train"])
def test_a_run_of_which_something_cannot_be_looked_at_stays(index, root, monkeypatch, place):
    look(index, root)
    monkeypatch.setattr(
        LocalStorage,
        "walk",
        lambda self, _look, *, on_error: on_error(StorageError(f"{self.uri}/{place}", "x")) or [],
    )
    _, runs = look(index, root)
    assert list(runs) == [one for one in ("a/run1", "a/run10", "raw/run2") if touches(place, one)]


def touches(place, run):
    return f"{place}/".startswith(f"{run}/") or f"{run}/".startswith(f"{place}/")


def test_a_root_that_is_not_there_is_an_error_and_forgets_nothing(index, root, tmp_path):
    look(index, root)
    shutil.move(root.uri, tmp_path / "away")
    with pytest.raises(NoSuchPath):
        index.refresh_catalog(root.uri)
    assert len(index.known_runs([root.uri])) == 3


def test_a_run_below_two_roots_is_one_run(index, root):
    inner = f"{root.uri}/a"
    for uri in (root.uri, inner):
        index.refresh_catalog(uri)
    labels = [run.label for run in index.known_runs([root.uri, inner, root.uri])]
    assert labels == ["a/run1", "a/run10", "raw/run2"]
    assert [run.label for run in index.known_runs([inner])] == ["a/run1", "a/run10"]


def test_changes_are_counted_for_those_who_wait_for_them(index, root):
    assert index.catalog_changes(root.uri) == 0
    look(index, root)
    look(index, root)
    assert index.catalog_changes(root.uri) == 1
    shutil.rmtree(f"{root.uri}/a/run1")
    look(index, root)
    assert index.catalog_changes(root.uri) == 2
    assert index.catalog_changes("/elsewhere") == 0


def test_an_index_that_is_damaged_is_filled_again(index, root):
    look(index, root)
    index.path.write_bytes(b"no database at all" * 1000)
    assert [run.label for run in index.known_runs([root.uri])] == ["a/run1", "a/run10", "raw/run2"]


@pytest.fixture
def remembered(index, root, monkeypatch):
    """Let the index remember every directory of the root, and tell which are read again."""
    read = []

    def spying(directory, *wanted):
        read.append(directory.name)
        return scan(directory, *wanted)

    monkeypatch.setattr(local, "scan", spying)
    monkeypatch.setattr(local, "_UNSETTLED_NS", -(10**18))  # as if they were old
    look(index, root)
    assert sorted(read) == ["", "a", "a/run1", "a/run10", "raw", "raw/run2", "raw/run2/train"]
    read.clear()
    look(index, root)
    assert read == []
    monkeypatch.undo()
    until_the_clock_moves(Path(root.uri).parent / "probe")
    return index


def until_the_clock_moves(probe):
    probe.write_bytes(b"")
    before = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == before:
        probe.write_bytes(b"")


def rewrite(root, name, **fields):
    """Write a record over another, in the same file."""
    path = Path(root.uri, name)
    path.write_bytes(Manifest(path.parent.name, "a", **fields).to_json())


@pytest.mark.parametrize(
    ("happens", "label", "seen"),
    [
        (lambda root: record(root, "a/run2"), "a/run2", True),
        (lambda root: record(root, "new/run1"), "new/run1", True),
        (lambda root: record(root, "a/run1/nested"), "a/run1/nested", True),
        (lambda root: root.write(f"a/raw/{EVENTS}", b""), "a/raw", True),
        (lambda root: root.write(f"deep/er/st/{EVENTS}", b""), "deep/er", True),
        (lambda root: record(root, "a/run1", job="8"), "a/run1", "8"),
        (lambda root: rewrite(root, "a/run1/run.json", job="8"), "a/run1", "8"),
        (lambda root: root.delete("a/run1/run.json"), "a/run1", False),
        (lambda root: shutil.rmtree(f"{root.uri}/a/run10"), "a/run10", False),
        (lambda root: root.delete(f"raw/run2/train/{EVENTS}"), "raw/run2", False),
        (lambda root: shutil.move(f"{root.uri}/a", f"{root.uri}/b"), "a/run10", True),
    ],
)
@pytest.mark.parametrize("marks", [True, False])
def test_whatever_happens_to_a_known_root_the_next_look_shows_it(
    remembered, root, happens, label, seen, marks
):
    happens(root)
    remembered.refresh_catalog(root.uri, marks=marks)
    runs = {run.label: run for run in remembered.known_runs([root.uri])}
    assert (label in runs) is bool(seen)
    if isinstance(seen, str):
        assert runs[label].job == seen
    directories = {run.directory for run in runs.values()}
    assert directories == set(find_runs(root.list()))


def test_marks_change_with_event_files_of_directories_that_do_not(remembered, root):
    before = remembered.refresh_catalog(root.uri).marks
    with Path(root.uri, f"raw/run2/train/{EVENTS}").open("ab") as file:
        file.write(b"more")
    after = remembered.refresh_catalog(root.uri).marks
    assert {run for run in before if before[run] != after[run]} == {"raw/run2"}
    assert remembered.refresh_catalog(root.uri, marks=False).marks == {}


def test_a_bucket_is_listed_and_its_records_read_once(index, s3_bucket, opened):
    storage = open_storage(f"{s3_bucket}/catalog")
    for number in range(1, 41):
        record(storage, f"a/run{number}", hparams={"n": number})
    storage.write(f"raw/run2/{EVENTS}", b"")
    report, runs = look(index, storage)
    assert report.problems == []
    assert [run.hparams.get("n") for run in runs.values()] == [*range(1, 41), None]
    assert len(opened) == 40
    storage.delete("a/run1/run.json")
    record(storage, "a/run2", job="new")
    _, runs = look(index, storage)
    assert len(opened) == 41
    assert "a/run1" not in runs
    assert (runs["a/run2"].job, runs["a/run10"].hparams) == ("new", {"n": 10})


@pytest.fixture(params=["directory", "bucket"])
def jobs_root(request, tmp_path):
    if request.param == "directory":
        return str(tmp_path / "root")
    return request.getfixturevalue("s3_bucket") + "/jobs"


def test_what_lies_in_the_directory_of_jobs_is_no_run(index, jobs_root):
    storage = open_storage(jobs_root)
    record(storage, "a/run1", job="sweep")
    record(storage, ".jobs/sweep/1")
    storage.write(f".jobs/sweep/1/logs/{EVENTS}", b"")
    storage.write(".jobs/sweep/job.json", b"{}")
    report, runs = look(index, storage)
    assert (report.problems, list(runs)) == ([], ["a/run1"])
    found = index.refresh(Source(storage.uri))
    assert (found.problems, index.files(Source(storage.uri))) == ([], [])


def test_the_ids_of_an_engine_are_remembered_with_the_run(index, root):
    attempts = [Attempt(number, job=job) for number, job in enumerate(("17_1", "", "18_1", "17_1"))]
    record(root, "a/run1", job="sweep", attempts=attempts)
    _, runs = look(index, root)
    assert runs["a/run1"].jobs == ["sweep", "17_1", "18_1"]
    assert runs["a/run10"].jobs == []


@pytest.mark.parametrize("clock", [-3600, 0, 3600])
def test_a_run_is_judged_by_when_its_heartbeats_come_in(index, tmp_path, monkeypatch, clock):
    """The clock of its host may be wrong; only changes that are seen in time count."""
    now = 2e9
    monkeypatch.setattr("aboard.index.catalog.time.time", lambda: now)
    storage = open_storage(str(tmp_path / "root"))

    def beat():
        made = Manifest("run1", "a", heartbeat=now + clock)
        storage.write("a/run1/run.json", made.to_json())

    def state():
        (run,) = look(index, storage)[1].values()
        return run.state_at(now)

    beat()
    assert state() is (State.LOST if clock < 0 else State.RUNNING)
    for _ in range(3):
        now += 30
        beat()
        assert state() is State.RUNNING
    now += 120
    assert state() is State.RUNNING
    now += 40
    assert state() is State.LOST
    now += 7 * 86400  # nobody looks for a week, and the run has ended early in it
    storage.write("a/run1/run.json", Manifest("run1", "a", heartbeat=now - 6 * 86400).to_json())
    assert state() is State.LOST


@pytest.mark.parametrize(
    "text",
    [
        "0.0009998000199960006",
        "-0.12345678901234567890123",
        "12345678901234567890123",
        "-12345678901234567890123",
        "9223372036854775807",
        "12345678901234567890123.5",
    ],
)
def test_numbers_of_many_digits_stay_what_they_are(text):
    found = parse_record(f'{{"lr": {text}}}')["lr"]
    expected = json.loads(text)
    assert (type(found), found) == (type(expected), expected)


# Event files of attempts on several hosts, whose clocks differ.


def event_file(second: int, rest: str) -> str:
    return f"events.out.tfevents.{second}.{rest}"


def points(steps: range) -> bytes:
    return b"".join(
        frame(encode.event(float(step), step, [encode.scalar("loss", step)])) for step in steps
    )


@pytest.fixture
def three_attempts() -> Manifest:
    made = Manifest("run1", "x")
    for number, (host, at) in enumerate([("one", 2e9), ("two", 1.9e9), ("one", 2.1e9)], 1):
        made.begin(at=at, host=host, pid=number)
    return made


@pytest.mark.parametrize(
    ("second", "rest", "attempt"),
    [
        (2_000_000_001, "one.1.0", 1),
        (2_000_000_001, "one.77.0.v2", 1),  # of a process that the first one started
        (2_100_000_001, "one.77.0.v2", 3),
        (1_900_000_001, "two", 2),
        (1_900_000_001, "two.2.0000.s000001", 2),
        (2_000_000_050, "three.5.0", 2),  # only the time can tell; the second has that of the first
        (1_000_000_000, "three.5.0", 1),
    ],
)
def test_host_and_process_tell_the_attempt(three_attempts, second, rest, attempt):
    assert attempt_of(event_file(second, rest), three_attempts.attempts) == attempt


@pytest.mark.parametrize("kind", ["directory", "bucket"])
@pytest.mark.parametrize("below", ["", "/train"])
def test_the_record_has_the_order_of_attempts(
    tmp_path, request, index, three_attempts, kind, below
):
    """A program that names its files itself continues on a host whose clock is behind."""
    root = str(tmp_path / "runs")
    if kind == "bucket":
        root = f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    storage = open_storage(root)
    three_attempts.attempts.pop()
    storage.write("x/run1/run.json", three_attempts.to_json())
    source = Source.parse(root)
    storage.write(f"x/run1{below}/{event_file(1_900_000_005, 'two.9.0')}", points(range(10, 20)))
    index.refresh(source)
    before = index.marks([source])
    storage.write(f"x/run1{below}/{event_file(2_000_000_005, 'one.9.0')}", points(range(10)))
    index.refresh(source)
    assert index.marks([source]) != before
    found = Logs(root, index=index).series(f"x/run1{below}", "loss")
    assert found.steps.tolist() == list(range(20))
