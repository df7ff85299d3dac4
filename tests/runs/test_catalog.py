"""Runs as catalogs list them, and which files below a root make one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.runs.catalog import (
    BadName,
    KnownRun,
    RunExists,
    check_name,
    claim,
    claim_next,
    create_record,
    delete_run,
    find_roots,
    find_runs,
    job_file,
    unclaimed_name,
)
from aboard.runs.manifest import Manifest, read
from aboard.storage import Entry, NoSuchPath, PermissionDenied, open_storage
from aboard.storage.local import LocalStorage

EVENTS = "events.out.tfevents.1"


def found(*names, version="1"):
    return find_runs(Entry(name, 10, version) for name in names)


def test_a_record_makes_a_run_of_all_below_it():
    runs = found(
        "a/run1/run.json", f"a/run1/train/{EVENTS}", f"a/run1/deep/er/{EVENTS}", "a/run10/run.json"
    )
    assert runs.keys() == {"a/run1", "a/run10"}
    assert runs["a/run1"].version == "1"


def test_event_files_without_a_record_are_raw_runs():
    runs = found(
        f"a/run1/train/{EVENTS}", f"a/run1/eval/{EVENTS}", f"b/{EVENTS}", f"c/x/y/{EVENTS}"
    )
    assert {run: one.version for run, one in runs.items()} == dict.fromkeys(["a/run1", "b", "c/x"])
    assert found(EVENTS).keys() == {""}
    assert found(f"a/train/{EVENTS}").keys() == {"a"}
    assert found("a/checkpoint.pt", "notes/run.json.bak") == {}


def test_a_raw_run_is_named_by_its_path():
    assert KnownRun.of_path("/data/runs", "a/b").label == "a/b"
    assert KnownRun.of_path("/data/runs", "a").label == "a"
    assert KnownRun.of_path("/data/runs", "").label == "runs"


def test_a_mark_changes_when_an_event_file_does_and_not_otherwise():
    names = ["a/run1/run.json", f"a/run1/{EVENTS}", f"a/run1/train/{EVENTS}", f"a/run2/{EVENTS}"]
    before = found(*names)
    assert found(*reversed(names)) == before
    grown = find_runs(Entry(name, 10 + name.startswith("a/run1/train"), "1") for name in names)
    assert grown["a/run1"].mark != before["a/run1"].mark
    assert grown["a/run2"] == before["a/run2"]
    moved = found(*names[:2], f"a/run1/eval/{EVENTS}", names[3])
    assert moved["a/run1"].mark != before["a/run1"].mark


parts = st.sampled_from(["a", "b", "train", "run1", "run10"])
files = st.sampled_from(["run.json", EVENTS, "model.pt"])
paths = st.tuples(st.lists(parts, max_size=4), files).map(
    lambda path: "/".join([*path[0], path[1]])
)


@given(st.sets(paths))
def test_every_event_file_is_of_a_run_above_it_and_every_run_has_a_file(names):
    runs = found(*names)
    for name in names:
        if "tfevents" in name or name.endswith("run.json"):
            above = name.rpartition("/")[0]
            assert any(above == run or not run or above.startswith(f"{run}/") for run in runs)
    for run, one in runs.items():
        below = [name for name in names if not run or name.startswith(f"{run}/")]
        record = f"{run}/run.json".lstrip("/")
        assert (one.version is not None) == (record in names)
        assert any("tfevents" in name or name == record for name in below)


def test_roots_are_those_given_or_of_the_environment_or_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_roots([], {}) == []
    (tmp_path / "runs").mkdir()
    assert find_roots([], {}) == [str(tmp_path / "runs")]
    assert find_roots([], {"ABOARD_ROOT": "s3://bucket/my runs/"}) == ["s3://bucket/my runs"]
    given = ["a", "gs://b/c", "./a/"]
    assert find_roots(given, {"ABOARD_ROOT": "z"}) == [str(tmp_path / "a"), "gs://b/c"]


LONE = json.loads(r'"half \ud800 a \udfff character"')
WRITTEN_OUT = r"half \ud800 a \udfff character"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("né 😀 中", "né 😀 中"),
        (r"C:\users\udo", r"C:\users\udo"),
        (LONE, WRITTEN_OUT),
        (f'😀{LONE}\\"', f'😀{WRITTEN_OUT}\\"'),
    ],
)
def test_text_that_is_not_unicode_is_written_out(text, shown):
    record = json.dumps(
        {
            "name": "run1",
            "hparams": {text: [{"deep": text}]},
            "tags": {"key": text},
            "metrics": {text: 1.5},
        }
    )
    run = KnownRun.of_record("/root", "run1", Manifest.from_json(record.encode()))
    for known, found, expected in (
        (run.hparams_json, run.hparams, {shown: [{"deep": shown}]}),
        (run.tags_json, run.tags, {"key": shown}),
        (run.metrics_json, run.metrics, {shown: 1.5}),
    ):
        assert orjson.loads(known) == found == expected
        assert orjson.loads(orjson.dumps(orjson.Fragment(known))) == expected


# Names that only one process gets, and the deletion of whole runs.


HERE = Path(__file__).parent


def claimed_by_many(root: str, count: int, at_once: int, threads: int = 1) -> list[str]:
    numbers = map(str, (count, at_once, threads))
    command = [sys.executable, str(HERE / "claims.py"), root, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def test_names_follow_each_other(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "new"))
    names = [claim_next(storage, "cifar10", Manifest).name for _ in range(20)]
    assert names == [f"run{number}" for number in range(1, 21)]
    assert claim_next(storage, "other", Manifest).name == "run1"
    assert read(storage, "cifar10/run7").name == "run7"


def test_a_directory_with_files_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "cifar10" / "run1" / "train"
    foreign.mkdir(parents=True)
    (foreign / "events.out.tfevents.1700000000.host").write_bytes(b"x")
    (tmp_path / "cifar10" / "run2").mkdir()
    storage = open_storage(str(tmp_path))
    assert claim_next(storage, "cifar10", Manifest).name == "run2"
    assert [path.name for path in foreign.parent.iterdir()] == ["train"]
    with pytest.raises(RunExists):
        claim(storage, "cifar10", "run1", Manifest)


def test_a_name_of_ones_own_is_claimed_once(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert claim(storage, "cifar10", "baseline", Manifest).name == "baseline"
    with pytest.raises(RunExists) as caught:
        claim(storage, "cifar10", "baseline", Manifest)
    where = f"{tmp_path}/cifar10/baseline"
    expected = f"the run {where} already exists. Resume it, or choose another name."
    assert str(caught.value) == expected


def test_names_in_a_bucket(s3_bucket: str) -> None:
    storage = open_storage(f"{s3_bucket}/named")
    assert [claim_next(storage, "a", Manifest).name for _ in range(3)] == ["run1", "run2", "run3"]
    claim(storage, "a", "baseline", Manifest)
    with pytest.raises(RunExists, match="named/a/baseline already"):
        claim(storage, "a", "baseline", Manifest)


@pytest.mark.soak
def test_processes_that_start_at_once_get_a_name_each_on_disk(
    tmp_path: Path, rounds: Callable[[int], Iterator[int]]
) -> None:
    for number in rounds(1):
        count, root = (1000 if number else 200), tmp_path / str(number)
        names = claimed_by_many(str(root), count, at_once=count)
        assert len(set(names)) == count
        there = {path.parent.name for path in root.glob("sweep/*/run.json")}
        assert there == set(names)


@pytest.mark.soak
def test_processes_that_start_at_once_get_a_name_each_in_a_bucket(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch, rounds: Callable[[int], Iterator[int]]
) -> None:
    """Threads of a few processes: a thousand clients would only show what the machine can take."""
    command = [sys.executable, str(HERE / "tiny_s3.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.stdout.readline().strip())
            for number in rounds(1):
                threads, root = (100 if number else 20), f"s3://bucket/runs{number}"
                names = claimed_by_many(root, 10, at_once=10, threads=threads)
                assert len(set(names)) == 10 * threads
                listing = open_storage(root).list("sweep")
                there = {f"sweep/{name}/run.json" for name in names}
                assert {entry.name for entry in listing} == there
        finally:
            server.terminate()


def test_many_processes_get_names_from_a_real_server(azure_bucket: str) -> None:
    """Not moto, which checks and writes in two steps."""
    names = claimed_by_many(f"{azure_bucket}/crowd", 20, at_once=20)
    assert len(set(names)) == 20
    listing = open_storage(f"{azure_bucket}/crowd").list("sweep")
    assert {entry.name.split("/")[1] for entry in listing} == set(names)


class LosingAnswers(LocalStorage):
    """Carries a request out, loses the answer, and is asked again."""

    def create_new(self, name: str, data: bytes) -> None:
        super().create_new(name, data)
        super().create_new(name, data)


def test_who_claims_a_name_is_not_its_own_rival(tmp_path: Path) -> None:
    storage = LosingAnswers(str(tmp_path))
    assert claim_next(storage, "a", Manifest).name == "run1"
    assert claim(storage, "a", "baseline", Manifest).name == "baseline"
    assert claim_next(storage, "a", Manifest).name == "run2"
    with pytest.raises(RunExists):
        claim(storage, "a", "baseline", Manifest)
    assert sorted(path.name for path in tmp_path.glob("a/*")) == ["baseline", "run1", "run2"]


def test_two_whose_records_are_the_same_do_not_share_a_name(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert create_record(storage, "a/x", Manifest("x"))
    assert not create_record(storage, "a/x", Manifest("x"))


@pytest.mark.parametrize("name", ["run1", "lr=0.1,batch=32", "größe", "a.b-c_d (2)", "x" * 128])
def test_a_name_that_is_one(name: str) -> None:
    assert check_name(name, "run") == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "'', is empty, or begins or ends with a space"),
        (" a", "is empty, or begins or ends with a space"),
        ("a/b", "contains the character '/'"),
        ("a\nb", "contains the character '\\n'"),
        ("..", "begins with a dot"),
        ("ü" * 65, "is longer than 128 bytes"),
    ],
)
def test_a_name_that_is_none(name: str, problem: str) -> None:
    with pytest.raises(BadName) as caught:
        check_name(name, "experiment")
    text = str(caught.value)
    assert text.startswith("the name of the experiment, ")
    assert problem in text
    assert text.endswith("Use letters, digits, '-', '_', '.' and '='.")


def test_the_record_of_a_job_lies_beside_the_runs() -> None:
    assert job_file("abc") == ".jobs/abc/job.json"
    for name in ("", "..", "a/../b"):
        with pytest.raises(BadName, match="the name of the job, "):
            job_file(name)


def test_a_name_that_needs_no_claim_is_one_of_its_own() -> None:
    assert unclaimed_name("baseline").startswith("baseline-")
    names = {unclaimed_name(None) for _ in range(50)}
    assert len(names) == 50
    for name in names:
        check_name(name, "run")


@pytest.fixture
def run(tmp_path):
    storage = open_storage(str(tmp_path))
    record = Manifest("run1", "a")
    storage.write("a/run1/run.json", record.to_json())
    for name in ("model.pt", "train/events.out.tfevents.1", "eval/events.out.tfevents.1"):
        storage.write(f"a/run1/{name}", b"1234")
    return KnownRun.of_record(storage.uri, "a/run1", record)


def test_files_and_bytes_are_counted(run, tmp_path):
    size = (tmp_path / "a/run1/run.json").stat().st_size
    deleted = delete_run(run)
    assert (deleted.files, deleted.bytes, deleted.problems) == (4, size + 12, [])
    assert list((tmp_path / "a").iterdir()) == []
    with pytest.raises(NoSuchPath):
        delete_run(run)


def test_the_record_stays_until_all_else_is_gone(run, tmp_path, monkeypatch):
    original = LocalStorage.delete

    def delete(self, name):
        if name.startswith("a/run1/eval/"):
            raise PermissionDenied(f"{self.uri}/{name}", "permission denied")
        original(self, name)

    monkeypatch.setattr(LocalStorage, "delete", delete)
    deleted = delete_run(run)
    assert (deleted.files, deleted.bytes, len(deleted.problems)) == (2, 8, 1)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["a/run1/eval/events.out.tfevents.1", "a/run1/run.json"]
    monkeypatch.undo()
    assert delete_run(run).problems == []
    assert list((tmp_path / "a").iterdir()) == []
