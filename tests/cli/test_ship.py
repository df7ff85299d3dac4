"""`aboard ship`: what was left behind on its way to a bucket, listed and sent."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aboard.storage import open_storage
from aboard.track.shipping.spool import Spool, Status
from tests.waiting import until

NAME = "events.out.tfevents.1.host"


@pytest.fixture
def left(tmp_path, variables, monkeypatch):
    """Make spools as a training leaves them behind that died with its machine."""
    variables["ABOARD_SPOOL"] = str(tmp_path / "spool")
    monkeypatch.setenv("ABOARD_SPOOL", str(tmp_path / "spool"))

    def make(target: object = tmp_path / "target", **changed: object) -> Spool:
        spool = Spool.create(str(target), 5)
        owner = dataclasses.replace(spool.owner(), **{"boot": "before", **changed})
        (spool.directory / "owner.json").write_text(json.dumps(dataclasses.asdict(owner)))
        (spool.files / "notes.txt").write_text("hello")
        spool.lifeline.unlink()  # for which we would be known to live
        return spool

    return make


def test_no_spools(aboard, tmp_path, left):
    result = aboard("ship")
    assert (result.code, result.out) == (0, f"no spools in {tmp_path}/spool\n")


def test_what_is_left_is_listed_and_not_sent(aboard, tmp_path, left):
    spool = left()
    result = aboard("ship", "--list")
    lines = result.out.splitlines()
    assert lines[0].split() == ["SPOOL", "TARGET", "STATE", "CREATED", "LEFT"]
    assert lines[1].split()[:4] == [spool.directory.name, f"{tmp_path}/target", "left", "behind"]
    assert lines[1].endswith("5 B")
    assert lines[2] == f"1 spool in {tmp_path}/spool"
    assert not (tmp_path / "target").exists()


def test_all_of_it_is_sent(aboard, tmp_path, left):
    left(), left(tmp_path / "other")
    result = aboard("ship")
    assert (result.code, result.out) == (0, "")
    assert f"aboard: 5 B sent to {tmp_path}/target" in result.err
    for target in ("target", "other"):
        assert (tmp_path / target / "notes.txt").read_text() == "hello"
    assert list((tmp_path / "spool").iterdir()) == []


def test_one_of_them_is_sent_by_name_or_path(aboard, tmp_path, left):
    first, second, third = (left(tmp_path / name) for name in "abc")
    assert aboard("ship", first.directory.name).code == 0
    assert aboard("ship", second.directory).code == 0
    assert third.directory.exists()
    assert sorted(path.name for path in tmp_path.glob("[abc]")) == ["a", "b"]


def test_json(aboard, tmp_path, left):
    spool = left()
    (listed,) = aboard("ship", "--list", "--json").json["spools"]
    assert listed == {
        "spool": str(spool.directory),
        "target": f"{tmp_path}/target",
        "state": "left behind",
        "left_bytes": 5,
        "host": spool.owner().host,
        "owner_pid": spool.owner().pid,
        "created_time": spool.owner().created,
        "problem": None,
    }
    (sent,) = aboard("ship", "--json").json["spools"]
    assert sent == {**listed, "state": "arrived", "left_bytes": 0}


def test_a_training_that_runs_is_left_alone(aboard, left):
    spool = left(boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    result = aboard("ship")
    assert result.code == 0
    assert f"the training, process {spool.owner().pid}, is still running and sends it" in result.err
    assert (spool.files / "notes.txt").exists()


def test_a_spool_that_is_being_sent_is_left_alone(aboard, left):
    spool = left()
    with spool.lock() as ours:
        assert ours
        result = aboard("ship")
    assert result.code == 0
    assert "is sending it" in result.err
    assert (spool.files / "notes.txt").exists()


def test_the_sending_process_is_named(aboard, left):
    spool = left()
    spool.report(Status(os.getpid()))
    with spool.lock():
        assert f"process {os.getpid()} is sending it" in aboard("ship").err


def test_a_spool_without_an_owner_is_damaged(aboard, tmp_path, left):
    spool = left()
    (spool.directory / "owner.json").unlink()
    listed = aboard("ship", "--list")
    assert listed.code == 0
    assert listed.out.splitlines()[1].split()[:3] == [spool.directory.name, "-", "damaged"]
    (told,) = aboard("ship", "--list", "--json").json["spools"]
    assert (told["target"], told["state"], told["left_bytes"]) == (None, "damaged", 5)
    done = aboard("ship")
    assert done.code == 1
    assert f"aboard: {spool.directory}: owner.json, which names the target," in done.err
    assert (spool.files / "notes.txt").exists()


def test_what_a_process_may_still_write_to_is_left(aboard, tmp_path, left):
    spool = left()
    told = {**os.environ, "ABOARD_LOGDIR": str(spool.files)}
    with subprocess.Popen(["sleep", "60"], env=told) as writer:
        until(lambda: spool.writer() is not None)
        done = aboard("ship")
        writer.kill()
    assert done.code == 1
    assert f"process {writer.pid} may still write to it; try again when it has exited." in done.err
    assert not (tmp_path / "target").exists()


def test_a_file_that_can_never_be_sent_is_named(aboard, left, variables, s3_bucket, s3_server):
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    variables |= {"AWS_ENDPOINT_URL": s3_server, **{key: os.environ[key] for key in keys}}
    spool = left(f"{s3_bucket}/refused")
    (spool.files / "bad\x01name").write_text("x")
    done = aboard("ship")
    assert done.code == 1
    assert done.err == (
        f"aboard: '{spool.files}/bad\\x01name': the name has a character that buckets do not allow."
        " Rename the file. All other files were sent. Then run 'aboard ship' to send this one.\n"
    )
    assert open_storage(f"{s3_bucket}/refused").read("notes.txt") == b"hello"
    (spool.files / "bad\x01name").rename(spool.files / "good")
    assert aboard("ship").code == 0
    assert open_storage(f"{s3_bucket}/refused").read("good") == b"x"


def test_a_spool_of_another_machine_is_sent_only_when_named(aboard, tmp_path, left):
    spool = left(host="another")
    refused = aboard("ship")
    assert "belongs to a training run on another; pass its name" in refused.err
    assert refused.code == 1
    assert aboard("ship", "--list").code == 0
    assert not (tmp_path / "target").exists()
    assert aboard("ship", spool.directory).code == 0
    assert (tmp_path / "target" / "notes.txt").exists()


def test_what_cannot_be_sent_is_kept_and_reported(aboard, left, closed_port):
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    spool = left("s3://bucket/run1")
    result = aboard("ship", **variables)
    assert result.code == 1
    assert "refuses connections. Check the network" in result.err
    assert f"The logs are kept in {spool.directory}." in result.err
    assert (spool.files / "notes.txt").exists()


def test_what_is_no_spool_is_wrong_usage(aboard, left, tmp_path):
    result = aboard("ship", tmp_path)
    assert result.code == 2
    assert "not a spool. 'aboard ship --list' lists the spools." in result.err


def test_a_killed_run_is_recorded_as_killed(aboard, tmp_path, left):
    from aboard.runs.manifest import Manifest, State

    spool = left()
    (spool.files / "run.json").write_bytes(Manifest("run1", started=1.0).to_json())
    assert aboard("ship").code == 0
    record = Manifest.from_json((tmp_path / "target" / "run.json").read_bytes())
    assert record.state is State.KILLED
    assert record.ended == pytest.approx(
        (tmp_path / "target" / "notes.txt").stat().st_mtime, abs=60
    )


def test_what_a_process_cannot_send_is_taken_over(
    aboard, variables, left, s3_bucket, s3_server, closed_port
):
    spool = left(f"{s3_bucket}/taken-over")
    wrong = {**os.environ, **variables, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port}"}
    command = [sys.executable, "-m", "aboard.track.shipping.shipper", str(spool.directory)]
    with subprocess.Popen(command, env=wrong) as shipper:
        until(lambda: spool.is_served() and spool.status().problem)
        keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        variables |= {"AWS_ENDPOINT_URL": s3_server, **{key: os.environ[key] for key in keys}}
        result = aboard("ship")
        assert shipper.wait(timeout=180) == -signal.SIGKILL
    assert result.code == 0, result.err
    assert f"process {shipper.pid} could not send it, so this one sends it" in result.err
    assert open_storage(f"{s3_bucket}/taken-over").read("notes.txt") == b"hello"
