"""Following sources: new data within a second, and no request when nobody looks."""

import threading
import time

import pytest

from aboard.events.writer import EventWriter
from aboard.index import Index, Source
from aboard.storage.local import LocalStorage
from aboard.storage.object import ObjectStorage
from aboard.storage.uri import open_storage
from aboard.tensorboard import live
from aboard.tensorboard.live import Follower, Rhythm


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def last_step(index, source):
    tags = index.tags(source)
    return tags[0].last_step if tags else None


@pytest.mark.parametrize("watch", [True, False], ids=["watching", "polling"])
def test_new_points_and_runs_arrive_by_themselves(tmp_path, index, watch):
    logs = tmp_path / "logs"
    source = Source.parse(str(logs))
    with EventWriter(logs / "run") as writer:
        writer.scalar("loss", 1.0, 1)
        writer.flush()
        follower = Follower(index, watch=watch)
        follower.follow([source])
        try:
            wait_until(lambda: last_step(index, source) == 1)
            writer.scalar("loss", 0.5, 2)
            writer.flush()
            wait_until(lambda: last_step(index, source) == 2)
            with EventWriter(logs / "new") as other:
                other.scalar("loss", 1.0, 1)
            wait_until(lambda: [run.name for run in index.runs(source)] == ["new", "run"])
        finally:
            follower.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("aboard-follow")]


def test_a_directory_that_is_not_there_yet_is_followed_when_it_comes(tmp_path, index):
    source = Source.parse(str(tmp_path / "later"))
    follower = Follower(index)
    follower.follow([source])
    try:
        wait_until(lambda: follower.states()[source].error is not None)
        with EventWriter(tmp_path / "later") as writer:
            writer.scalar("loss", 1.0, 1)
        wait_until(lambda: last_step(index, source) == 1)
        wait_until(lambda: follower.states()[source].error is None)
    finally:
        follower.close()


def test_nothing_is_asked_when_nobody_looks(tmp_path, index, monkeypatch):
    bucket = f"memory://{tmp_path.name}/logs"
    open_storage(bucket).write("run/events.out.tfevents.1", b"")
    monkeypatch.setattr(live, "REMOTE_SECONDS", 0.05)
    monkeypatch.setattr(live, "LONGEST_SECONDS", 0.05)
    listings = []
    real = ObjectStorage.list

    def counted(self, *args, **options):
        listings.append(time.monotonic())
        return real(self, *args, **options)

    monkeypatch.setattr(ObjectStorage, "list", counted)
    now = [0.0]
    follower = Follower(index, clock=lambda: now[0])
    follower.follow([Source.parse(bucket)])
    try:
        wait_until(lambda: len(listings) > 3)
        now[0] = 61.0
        time.sleep(0.3)
        asleep = len(listings)
        time.sleep(0.5)
        assert len(listings) == asleep
        follower.asked()
        wait_until(lambda: len(listings) > asleep + 1)
    finally:
        follower.close()


def test_a_forgotten_source_is_left_alone(tmp_path, index):
    (tmp_path / "logs").mkdir()
    source = Source.parse(str(tmp_path / "logs"))
    follower = Follower(index)
    follower.follow([source])
    wait_until(lambda: follower.states()[source].loaded)
    follower.forget(source)
    assert follower.states() == {}
    follower.close()


def test_a_bucket_is_asked_less_often_while_nothing_changes():
    rhythm = Rhythm(5.0, 60.0)
    waits = [rhythm.after(changed=False, cost=0.1) for _ in range(12)]
    assert waits[0] == 5.0
    assert waits == sorted(waits)
    assert waits[-1] == 60.0
    assert rhythm.after(changed=True, cost=0.1) == 5.0


def test_a_slow_listing_is_repeated_less_often():
    rhythm = Rhythm(0.4, 5.0, grows=False)
    assert [rhythm.after(changed=False, cost=0.01) for _ in range(3)] == [0.4, 0.4, 0.4]
    assert rhythm.after(changed=False, cost=0.2) == 2.0
    assert rhythm.after(changed=False, cost=9.0) == 5.0
    assert rhythm.after(changed=True, cost=30.0) == 5.0
    rhythm.after(changed=False, cost=0.01)
    assert rhythm.after(changed=True, cost=30.0) == 0.4


def test_an_error_that_nobody_foresaw_does_not_end_the_following(tmp_path, index, monkeypatch):
    with EventWriter(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, 1)
    real = Index.refresh
    failures = iter([RuntimeError("database is locked")])

    def refresh(self, source, **options):
        for failure in failures:
            raise failure
        return real(self, source, **options)

    monkeypatch.setattr(Index, "refresh", refresh)
    source = Source.parse(str(tmp_path))
    follower = Follower(index)
    follower.follow([source])
    try:
        wait_until(lambda: last_step(index, source) == 1)
    finally:
        follower.close()


def test_closing_does_not_wait_for_a_long_first_load(tmp_path, index, monkeypatch):
    for run in range(80):
        with EventWriter(tmp_path / f"run{run}") as writer:
            writer.scalar("loss", 1.0, 1)
    real = LocalStorage.readinto

    def slowly(self, name, start, buffer):
        time.sleep(0.1)
        return real(self, name, start, buffer)

    monkeypatch.setattr(LocalStorage, "readinto", slowly)
    source = Source.parse(str(tmp_path))
    follower = Follower(index)
    follower.follow([source])
    wait_until(lambda: index.runs(source))
    follower.close()
    assert len(index.runs(source)) < 80


def test_a_large_tree_with_a_live_run_leaves_most_of_the_time_to_others():
    rhythm = Rhythm(0.4, 5.0, grows=False)
    rhythm.after(changed=False, cost=0.2)
    assert rhythm.after(changed=True, cost=3.0) == 2.0
    assert rhythm.floor == 2.0
