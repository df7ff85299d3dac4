"""Runs as catalogs list them, and which files below a root make one."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.runs.catalog import KnownRun, find_roots, find_runs
from aboard.runs.manifest import Manifest
from aboard.storage import Entry

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
