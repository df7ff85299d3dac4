"""The record of a run: what is read, what is kept, and what many see who use it at once."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.runs import manifest
from aboard.runs.manifest import Attempt, BadManifest, Manifest, State
from aboard.storage import NotFound, open_storage

KNOWN = set(json.loads(Manifest("x").to_json()))
KNOWN_OF_ATTEMPTS = {
    "number", "host", "pid", "job", "started", "ended", "state", "exit_code", "reason"
}  # fmt: skip
NOW = 1_800_000_000.0

texts = st.text(st.characters(exclude_categories=()), max_size=8)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
unknown = st.dictionaries(texts.filter(lambda name: name not in KNOWN), values, max_size=4)
unknown_of_attempts = st.dictionaries(
    texts.filter(lambda name: name not in KNOWN_OF_ATTEMPTS), values, max_size=3
)


@given(unknown, st.lists(unknown_of_attempts, max_size=3))
def test_fields_of_a_newer_version_are_kept(
    others: dict[str, Any], attempts: list[dict[str, Any]]
) -> None:
    document = {"name": "run1", "attempts": attempts, **others}
    record = Manifest.from_json(json.dumps(document))
    record.begin(at=NOW, host="h", pid=1)
    record.end("failed", 3)
    written = json.loads(record.to_json())
    assert {name: written[name] for name in others} == others
    for before, after in zip(attempts, written["attempts"], strict=False):
        assert {name: after[name] for name in before} == before
    assert len(written["attempts"]) == len(attempts) + 1
    assert Manifest.from_json(record.to_json()).to_json() == record.to_json()


@given(st.sampled_from(sorted(KNOWN)), values)
def test_a_field_of_any_value_is_read_or_named(field: str, value: Any) -> None:
    text = json.dumps({"name": "run1", field: value})
    problem = ""
    try:
        record = Manifest.from_json(text, "here/run.json")
    except BadManifest as error:
        problem = str(error)
    else:
        record.state_at(NOW)
        assert Manifest.from_json(record.to_json()).to_json() == record.to_json()
    if problem:
        assert problem.startswith("here/run.json: ")
        assert f"'{field}'" in problem


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_bad_one(content: bytes) -> None:
    with pytest.raises(BadManifest, match=r"Repair or remove the file\.$"):
        Manifest.from_json(content)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "x", "exit_code": "3"}', "the field 'exit_code' cannot be '3'"),
        ('{"name": "x", "state": "odd"}', "the field 'state' cannot be 'odd'"),
        ('{"name": "x", "heartbeat": 3}', "the field 'heartbeat' cannot be 3"),
        ('{"name": "x", "heartbeat": "noon"}', "the field 'heartbeat' cannot be 'noon'"),
        ('{"name": "x", "attempts": [1]}', "the field 'attempts' cannot be [1]"),
        ('{"name": "x", "attempts": [{"pid": "1"}]}', "the field 'pid' cannot be '1'"),
        ('{"name": "x", "schema": true}', "the field 'schema' cannot be True"),
        ('{"name": 3}', "this is not the record of a run, which has a 'name'"),
        ('["name"]', "this is not the record of a run, which has a 'name'"),
        ('{"name": "x", "loss": NaN}', "this is not JSON (NaN is no number of JSON)"),
        ('{"name": "x", "loss": 1e999}', "this is not JSON (1e999 is no number of JSON)"),
        ('{"name": ', "this is not JSON (Expecting value: line 1 column 10 (char 9))"),
    ],
)
def test_a_bad_record_names_the_file_and_the_field(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadManifest) as caught:
        manifest.read(open_storage(str(tmp_path)))
    assert str(caught.value) == f"{tmp_path}/run.json: {problem}. Repair or remove the file."


def test_a_record_nested_without_end_is_a_bad_one() -> None:
    with pytest.raises(BadManifest, match="this is not JSON"):
        Manifest.from_json('{"name": "x", "deep": ' + "[" * 100_000 + "]" * 100_000 + "}")


def test_what_a_person_writes_by_hand_will_do() -> None:
    text = '{"name": "x", "tags": ["good", "old"], "started": "2026-01-01T00:00:00+01:00"}'
    record = Manifest.from_json(text)
    assert record.tags == {"good": True, "old": True}
    assert record.started == 1767222000.0
    assert json.loads(record.to_json())["started"] == "2025-12-31T23:00:00.000Z"


def test_a_command_that_is_no_text_can_be_recorded() -> None:
    record = Manifest("x", command=["cat", os.fsdecode(b"caf\xe9")])
    assert Manifest.from_json(record.to_json()).command == record.command


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (Manifest("x", job=17), "job"),  # type: ignore[arg-type]
        (Manifest("x", workspace=None), "workspace"),  # type: ignore[arg-type]
        (Manifest("x", attempts=[Attempt(1, job=17)]), "job"),  # type: ignore[arg-type]
    ],
)
def test_what_could_not_be_read_again_is_not_written(record: Manifest, field: str) -> None:
    with pytest.raises(BadManifest, match=f"the field '{field}' cannot be"):
        record.to_json()


def test_a_heart_that_stopped_reads_as_lost() -> None:
    record = Manifest("x", heartbeat_secs=30)
    assert record.state_at(NOW) is State.LOST
    record.begin(at=NOW, host="h", pid=1)
    assert record.state_at(NOW + 149) is State.RUNNING
    assert record.state_at(NOW + 151) is State.LOST
    record.end("completed", 0, at=NOW + 60)
    assert record.state_at(NOW + 10_000) is State.COMPLETED


def test_attempts_are_kept_one_after_the_other() -> None:
    record = Manifest("x")
    record.begin(at=NOW, host="a", pid=1, job="17")
    record.heartbeat = NOW + 90
    record.begin(at=NOW + 200, host="b", pid=2)
    first, second = record.attempts
    assert (first.state, first.ended) == (State.KILLED, NOW + 90)
    assert first.reason == "another attempt began"
    assert (record.state, record.host, record.job, record.started) == ("running", "b", "17", NOW)
    record.end("failed", 3, "exit code 3", at=NOW + 300)
    assert (second.number, second.state, second.exit_code) == (2, "failed", 3)
    assert (record.state, record.exit_code, record.ended) == ("failed", 3, NOW + 300)
    record.begin(at=NOW + 400, host="b", pid=3)
    assert (record.state, record.exit_code, record.ended) == ("running", None, None)
    assert [attempt.state for attempt in record.attempts] == ["killed", "failed", "running"]


def test_an_attempt_that_is_not_the_last_leaves_the_run_alone() -> None:
    record = Manifest("x")
    record.begin(at=NOW, host="a", pid=1)
    record.begin(at=NOW + 100, host="b", pid=2)
    record.beat(NOW + 500, number=1)
    record.end("completed", 0, at=NOW + 500, number=1)
    assert [one.state for one in record.attempts] == ["completed", "running"]
    assert (record.state, record.ended, record.heartbeat) == ("running", None, NOW + 100)
    record.end("failed", 3, "no", at=NOW + 600, number=2)
    assert (record.state, record.ended, record.heartbeat) == ("failed", NOW + 600, NOW + 600)


def test_a_heart_that_beats_is_running_whatever_was_noted() -> None:
    record = Manifest("x")
    record.begin(at=NOW, host="a", pid=1)
    record.end("killed", 137, "SIGKILL", at=NOW + 100)
    record.beat(NOW + 200, number=1)
    for one in (record, record.attempts[0]):
        assert (one.state, one.ended, one.exit_code, one.reason) == ("running", None, None, "")
    assert record.heartbeat == NOW + 200


def test_there_is_no_record(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with pytest.raises(NotFound):
        manifest.read(storage, "a/run1")
    with pytest.raises(NotFound):
        manifest.update(storage, lambda _: None, "a/run1")


def count_up(directory: str, name: str, times: int) -> None:
    storage = open_storage(directory)
    for number in range(times):
        manifest.update(storage, lambda record, at=number: record.metrics.update({name: at}))
        manifest.update(storage, lambda record: record.tags.update(n=record.tags["n"] + 1))


def test_processes_that_update_at_once_lose_nothing_and_tear_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(Manifest("x", tags={"n": 0}).to_json())
    program = "import sys, test_manifest; test_manifest.count_up(sys.argv[1], sys.argv[2], 100)"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), name], cwd=Path(__file__).parent
        )
        for name in "abc"
    ]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        Manifest.from_json((tmp_path / "run.json").read_bytes())
        reads += 1
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert reads > 100
    record = manifest.read(open_storage(str(tmp_path)))
    assert record.tags == {"n": 300}
    assert record.metrics == {"a": 99, "b": 99, "c": 99}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_child_forked_during_an_update_does_not_keep_the_lock(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(Manifest("x").to_json())
    storage = open_storage(str(tmp_path))
    child: list[Any] = []
    done = multiprocessing.get_context("fork").Event()

    def fork(_record: Manifest) -> None:
        child.append(multiprocessing.get_context("fork").Process(target=done.wait))
        child[0].start()

    thread = threading.Thread(target=manifest.update, args=(storage, fork))
    thread.start()
    thread.join()
    again = threading.Thread(target=manifest.update, args=(storage, lambda _: None))
    again.start()
    again.join(manifest._LOCK_SECS - 2)
    held = again.is_alive()
    done.set()
    child[0].join()
    again.join()
    assert not held
