"""One followed place: reported paths are looked at by themselves, and failures are told once."""

import shutil
import time
from itertools import pairwise

import pytest

from aboard.events.writer import EventWriter
from aboard.index import Index, Source
from aboard.storage.object import ObjectStorage
from aboard.storage.uri import open_storage
from aboard.tensorboard import live
from aboard.tensorboard.followed import parts_of
from aboard.tensorboard.live import Follower

EVENTS = "events.out.tfevents.1"


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def logs(tmp_path):
    for name in ("a", "b/c"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / EVENTS).touch()
    (tmp_path / "logs/a/run.json").write_text("{}")
    (tmp_path / "logs/a/model.pt").touch()
    return tmp_path / "logs"


def parts(logs, *names, records=False):
    found = parts_of(str(logs), [str(logs / name) for name in names], records=records)
    if found is None:
        return None
    return [f"{one.uri}/{one.only}".removeprefix(f"{logs}/") for one in found]


def test_what_changed_is_what_is_looked_at(logs):
    assert parts(logs, f"a/{EVENTS}", f"b/c/{EVENTS}") == [f"a/{EVENTS}", f"b/c/{EVENTS}"]
    # A new directory may hold what was not reported; what is in it need not be looked at twice.
    assert parts(logs, f"b/c/{EVENTS}", "b/c", "b") == ["b/"]


def test_what_is_no_event_file_is_left_alone(logs):
    assert parts(logs, "a/model.pt", "a/run.json", "a/.aboard-tmp-0123") == []
    assert parts(logs, "a/model.pt", f"a/{EVENTS}") == [f"a/{EVENTS}"]


@pytest.mark.parametrize("name", ["", "gone", "../elsewhere"])
def test_what_says_too_little_means_the_whole(logs, name):
    assert parts(logs, f"a/{EVENTS}", name) is None


def test_a_record_means_the_whole_where_records_matter(logs):
    assert parts(logs, "a/run.json", records=True) is None


@pytest.fixture
def seldom(monkeypatch):
    """The whole of a place is looked at once, and not again by itself."""
    monkeypatch.setattr(live, "LOCAL_SECONDS", 300.0)
    monkeypatch.setattr(live, "LONGEST_LOCAL_SECONDS", 300.0)


def steps(index, source):
    return {(tag.run, tag.name): tag.last_step for tag in index.tags(source)}


def test_new_data_is_read_without_listing_the_tree(tmp_path, index, seldom):
    source = Source.parse(str(tmp_path))
    told = []
    with EventWriter(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, 1)
        writer.flush()
        follower = Follower(index, lambda *_: told.append(steps(index, source)))
        follower.follow([source])
        try:
            wait_until(lambda: follower.states()[source].looks == 1)
            step = 1

            def grows():
                # The file system is watched from some moment on.
                nonlocal step
                step += 1
                writer.scalar("loss", 0.5, step)
                writer.flush()
                time.sleep(0.2)
                return steps(index, source)["run", "loss"] > 1

            wait_until(grows)
            with EventWriter(tmp_path / "new" / "deep") as other:
                other.scalar("loss", 1.0, 7)
            wait_until(lambda: steps(index, source).get(("new/deep", "loss")) == 7)
            wait_until(lambda: ("new/deep", "loss") in told[-1])
            assert follower.states()[source].looks == 1
            shutil.rmtree(tmp_path / "new")
            wait_until(lambda: ("new/deep", "loss") not in steps(index, source))
            assert follower.states()[source].looks > 1
        finally:
            follower.close()


def test_a_file_that_is_shown_alone_stays_alone(tmp_path, index, seldom):
    with EventWriter(tmp_path) as writer:
        writer.scalar("loss", 1.0, 1)
    source = Source.parse(str(writer.path))
    follower = Follower(index)
    other = Source(str(tmp_path), EVENTS)
    try:
        follower.follow([source])
        wait_until(lambda: follower.states()[source].looks == 1)
        state = follower.states()[source]
        shutil.copy(writer.path, tmp_path / EVENTS)
        assert follower.look(source, state, follower._stop, [other, source]) is False
        assert index.tags(other) == []
    finally:
        follower.close()


def test_what_nobody_foresaw_is_told_once_and_tried_again_ever_later(
    tmp_path, index, monkeypatch, caplog
):
    tries = []

    def fail(*_, **__):
        tries.append(time.monotonic())
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr(Index, "refresh", fail)
    monkeypatch.setattr(live, "LOCAL_SECONDS", 0.1)
    source = Source.parse(str(tmp_path))
    told = []
    follower = Follower(index, lambda _, state: told.append(state.error))
    follower.follow([source])
    try:
        wait_until(lambda: len(tries) == 4)
    finally:
        follower.close()
    problem = f"{tmp_path}: this cannot be read: ZeroDivisionError: nobody foresaw this."
    hint = "It will be tried again; 'aboard --debug' shows more."
    assert {str(error) for error in told} == {f"{problem} {hint}"}
    assert isinstance(told[0].__cause__, ZeroDivisionError)
    waits = [later - sooner for sooner, later in pairwise(tries)]
    assert all(wait >= least for wait, least in zip(waits, (0.2, 0.4, 0.8), strict=True))
    assert caplog.records == []


def test_of_a_large_bucket_only_what_changed_lately_is_asked_often(tmp_path, index, monkeypatch):
    monkeypatch.setattr(live, "REMOTE_SECONDS", 600.0)
    bucket = f"memory://{tmp_path.name}/logs"
    storage = open_storage(bucket)
    for run, wall in (("old", 1000.0), ("live", None)):
        with EventWriter(tmp_path / run) as writer:
            writer.scalar("loss", 1.0, 1, wall_time=wall)
        storage.write(f"{run}/{EVENTS}", writer.path.read_bytes())
    listed = []
    real = ObjectStorage.list

    def counted(self, *args, **options):
        listed.append(self.uri)
        return real(self, *args, **options)

    monkeypatch.setattr(ObjectStorage, "list", counted)
    source = Source.parse(bucket)
    follower = Follower(index, poll=0.05)
    monkeypatch.setattr(live, "pages_listed", lambda _: 3 * len(listed))
    follower.follow([source])
    try:
        wait_until(lambda: len(listed) > 3)
        with EventWriter(tmp_path / "live") as writer:
            writer.scalar("loss", 1.0, 2)
        storage.write(f"live/{EVENTS}.2", writer.path.read_bytes())
        wait_until(lambda: steps(index, source)["live", "loss"] == 2)
    finally:
        follower.close()
    assert listed[0] == bucket
    assert set(listed[1:]) == {f"{bucket}/live"}
