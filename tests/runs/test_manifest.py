"""The record of a run: what is written is read again, and values of a user as JSON holds them."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aboard.runs import manifest
from aboard.runs.manifest import Attempt, BadManifest, Manifest, State, plain_tags, plain_values
from aboard.storage import NoSuchPath, StorageError, open_storage

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
        ('{"name": "x", "exit_code": "3"}', "invalid value of the field 'exit_code': '3'"),
        ('{"name": "x", "state": "odd"}', "invalid value of the field 'state': 'odd'"),
        ('{"name": "x", "heartbeat": 3}', "invalid value of the field 'heartbeat': 3"),
        ('{"name": "x", "heartbeat": "noon"}', "invalid value of the field 'heartbeat': 'noon'"),
        ('{"name": "x", "attempts": [1]}', "invalid value of the field 'attempts': [1]"),
        ('{"name": "x", "attempts": [{"pid": "1"}]}', "invalid value of the field 'pid': '1'"),
        ('{"name": "x", "schema": true}', "invalid value of the field 'schema': True"),
        ('{"name": 3}', "not the record of a run, which has a 'name'"),
        ('["name"]', "not the record of a run, which has a 'name'"),
        ('{"name": "x", "loss": NaN}', "invalid JSON (NaN is not a JSON number)"),
        ('{"name": "x", "loss": 1e999}', "invalid JSON (1e999 is not a JSON number)"),
        ('{"name": ', "invalid JSON (Expecting value: line 1 column 10 (char 9))"),
    ],
)
def test_a_bad_record_names_the_file_and_the_field(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadManifest) as caught:
        manifest.read(open_storage(str(tmp_path)))
    assert str(caught.value) == f"{tmp_path}/run.json: {problem}. Repair or remove the file."


def test_a_record_nested_without_end_is_a_bad_one() -> None:
    with pytest.raises(BadManifest, match="invalid JSON"):
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
    with pytest.raises(BadManifest, match=f"invalid value of the field '{field}': "):
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


def test_a_run_keeps_the_job_that_was_given_and_its_attempts_those_of_the_engine() -> None:
    record = Manifest("x")
    record.begin(at=NOW, host="a", pid=1, job="sweep", engine_job="2300_4")
    record.begin(at=NOW, host="a", pid=2, engine_job="2400")
    assert (record.job, [one.job for one in record.attempts]) == ("sweep", ["2300_4", "2400"])
    record.begin(at=NOW, host="a", pid=3, job="other")
    assert (record.job, record.attempts[-1].job) == ("other", "other")
    record = Manifest("x")
    for engine_job in ("17", "18"):
        record.begin(at=NOW, host="a", pid=1, engine_job=engine_job)
        assert (record.job, record.attempts[-1].job) == (engine_job, engine_job)


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
    with pytest.raises(NoSuchPath):
        manifest.read(storage, "a/run1")
    with pytest.raises(NoSuchPath):
        manifest.update(storage, lambda _: None, "a/run1")


def count_up(directory: str, name: str, times: int) -> None:
    storage = open_storage(directory)
    for number in range(times):
        manifest.update(storage, lambda record, at=number: record.metrics.update({name: at}))
        manifest.update(storage, lambda record: record.tags.update(n=record.tags["n"] + 1))


def test_processes_that_update_at_once_lose_nothing_and_tear_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(Manifest("x", tags={"n": 0}).to_json())
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=count_up, args=(str(tmp_path), name, 40)) for name in "abc"]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        Manifest.from_json((tmp_path / "run.json").read_bytes())
        reads += 1
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert reads > 20
    record = manifest.read(open_storage(str(tmp_path)))
    assert record.tags == {"n": 120}
    assert record.metrics == {"a": 39, "b": 39, "c": 39}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_change_in_a_bucket_does_not_undo_another(s3_bucket: str) -> None:
    storage = open_storage(f"{s3_bucket}/records")
    storage.write("run.json", Manifest("run1").to_json())

    def change(record: Manifest) -> None:
        if "theirs" not in record.tags:  # another process is faster, just this time
            manifest.update(storage, lambda other: other.tags.update(theirs=True))
        record.tags["ours"] = True

    manifest.update(storage, change)
    assert manifest.read(storage).tags == {"theirs": True, "ours": True}


def test_a_change_that_is_carried_out_twice_is_made_once(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(f"{s3_bucket}/repeated")
    storage.write("run.json", Manifest("run1").to_json())
    replace = storage.replace

    def repeated(name: str, data: bytes, version: str) -> str:
        replace(name, data, version)
        return replace(name, data, version)

    def begin(record: Manifest) -> None:
        record.begin(at=NOW, host="h", pid=1)

    monkeypatch.setattr(storage, "replace", repeated)
    manifest.update(storage, begin)
    assert len(manifest.read(storage).attempts) == 1


def test_a_server_that_refuses_conditions_in_its_own_way_has_the_change(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(f"{s3_bucket}/refused")
    storage.write("run.json", Manifest("run1").to_json())

    def refuse(name: str, data: bytes, version: str) -> str:
        raise StorageError(name, "400 InvalidArgument: If-Match", "")

    monkeypatch.setattr(storage, "replace", refuse)
    manifest.update(storage, lambda record: record.tags.update(ours=True))
    assert manifest.read(storage).tags == {"ours": True}


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


def test_values_become_what_json_holds() -> None:
    class Kind:
        def __str__(self) -> str:
            return "adam"

    given_values = {
        "lr": np.float32(0.5), "n": np.int64(3), "ok": np.bool_(True), "none": None, "inf": 1e999,
        "kind": Kind(), "list": [1, 2], "optimizer": {"name": "sgd", "betas": {"a": 1}}, 3: "three",
    }  # fmt: skip
    plain = plain_values(given_values)
    assert plain == {
        "lr": 0.5, "n": 3, "ok": True, "none": None, "inf": "inf", "kind": "adam", "list": "[1, 2]",
        "optimizer.name": "sgd", "optimizer.betas.a": 1, "3": "three",
    }  # fmt: skip
    assert plain["ok"] is True
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_tags_are_names_or_names_with_values() -> None:
    assert plain_tags(None) == {}
    assert plain_tags("good") == {"good": True}
    assert plain_tags(["good", "old"]) == {"good": True, "old": True}
    assert plain_tags({"size": 3, "who": "me"}) == {"size": 3, "who": "me"}


@pytest.mark.parametrize("value", [np.array([0.5]), torch.tensor(0.5), torch.tensor([[0.5]])])
def test_what_holds_one_number_is_that_number(value: Any) -> None:
    assert plain_values({"lr": value}) == {"lr": 0.5}


def test_what_holds_several_numbers_is_text() -> None:
    several = {"a": np.array([1, 2]), "b": torch.tensor([1, 2]), "c": torch.zeros(1, device="meta")}
    plain = plain_values(several)
    assert (plain["a"], plain["b"]) == ("[1 2]", "tensor([1, 2])")
    assert plain["c"].startswith("tensor(")


@dataclass
class Optimizer:
    lr: float = 0.1
    betas: dict[str, float] = field(default_factory=lambda: {"first": 0.9})


@pytest.mark.parametrize(
    "given",
    [
        argparse.Namespace(depth=3, optimizer=Optimizer()),
        SimpleNamespace(depth=3, optimizer=argparse.Namespace(lr=0.1, betas={"first": 0.9})),
        MappingProxyType({"depth": 3, "optimizer": Optimizer()}),
    ],
)
def test_everything_with_names_inside_is_taken(given: Any) -> None:
    expected = {"depth": 3, "optimizer.lr": 0.1, "optimizer.betas.first": 0.9}
    assert plain_values(given) == expected
    assert plain_values(Optimizer(0.5)) == {"lr": 0.5, "betas.first": 0.9}


@pytest.mark.parametrize("given", [[("lr", 1)], "lr=1", 3, Optimizer])
def test_what_has_no_names_is_refused(given: Any) -> None:
    with pytest.raises(
        TypeError, match=r"an argparse\.Namespace or an instance of a dataclass, not"
    ):
        plain_values(given)


def test_a_record_whose_storage_hangs_holds_no_other(tmp_path: Path) -> None:
    storages = []
    for name in ("one", "two"):
        storages.append(open_storage(str(tmp_path / name)))
        storages[-1].write("run.json", Manifest("run1").to_json())
    hangs, go_on = threading.Event(), threading.Event()

    def hang(_: Manifest) -> None:
        hangs.set()
        go_on.wait(180)

    first = threading.Thread(target=manifest.update, args=(storages[0], hang))
    second = threading.Thread(target=manifest.update, args=(storages[1], lambda _: None))
    first.start()
    try:
        assert hangs.wait(180)
        second.start()
        second.join(60)
        assert not second.is_alive()
    finally:
        go_on.set()
        first.join()
