"""The follower: one contract for a viewer with one board and for a hub with many."""

import logging
import shutil
import threading
import time
from itertools import pairwise

import pytest

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index import Index, Source, reader
from aboard.index.library import Library
from aboard.index.sources import UNWATCHED_SECONDS
from aboard.runs import manifest
from aboard.runs.manifest import Manifest
from aboard.runs.naming import Template
from aboard.storage import Unreachable, open_storage, traffic
from aboard.storage.local import LocalStorage
from aboard.storage.object import ObjectStorage
from aboard.tensorboard import board as board_module
from aboard.tensorboard import follower as follower_module
from aboard.tensorboard.board import BoardSelection
from aboard.tensorboard.follower import Follower, Schedule, parts_of
from aboard.tensorboard.provider import Boards
from tests.waiting import until

EVENTS = "events.out.tfevents.1"


def log(directory, *steps, loss=1.0, wall_time=None):
    """Write a file of scalars."""
    with EventWriter(directory) as writer:
        for step in steps:
            writer.scalar("loss", loss, step, wall_time=wall_time)
    return writer.path


def log_run(root, label, *stages, steps=(3,), **fields):
    """Write a run with a record, and points in each of its stages."""
    experiment, _, name = label.rpartition("/")
    record = Manifest(name, experiment, heartbeat=time.time(), **fields)
    open_storage(str(root)).write(f"{label}/run.json", record.to_json())
    for stage in stages:
        log(root / label / stage, *steps)


class Following:
    """A follower with one board, alone or among others, and a clock that can be moved."""

    def __init__(self, index, use, roots=(), **options):
        self.use = use
        self.later = 0.0
        self.polls = []
        self.changes = []
        self.library = Library(index, map(str, roots))
        self.boards = Boards(self.library)
        if use == "view":
            options["on_poll"] = lambda source, state: self.polls.append((source, state))
        self.follower = Follower(
            self.library,
            self.boards,
            on_change=lambda board: board.id == "board" and self.changes.append(names(board)),
            clock=lambda: time.monotonic() + self.later,
            **options,
        )
        for uri in self.library.uris:
            self.library.refresh(uri)

    def show(self, *texts, board="board", **options):
        """Show a board and request it."""
        selectors = Library.parse(map(str, texts), exists=lambda _: False)
        self.follower.show(BoardSelection(board, board, selectors, **options))
        self.follower.requested(board, wait=False)
        if self.use == "hub" and board == "board":
            self.show(*texts, board="same", **options)
            if self.library.uris:
                self.show("nothing/such", board="empty")
        return self

    def request(self, board="board"):
        self.follower.requested(board)
        return self

    def runs(self, board="board"):
        return list(self.boards.get(board).runs())

    def steps(self, board="board"):
        """Return the last step of each run, after a request."""
        self.follower.requested(board)
        runs = self.boards.get(board).runs().values()
        return {run.name: run.tags["loss"].last_step for run in runs if "loss" in run.tags}

    def feed(self, uri):
        (found,) = (one for one in self.follower._feeds.values() if one.uri == str(uri))
        return found


def names(board):
    return [member.name for member in board.members]


@pytest.fixture(params=["view", "hub"])
def following(index, request):
    """Make a follower that is used as a viewer or as a hub uses it: `following(roots=[...])`."""
    opened = []

    def following(**options):
        opened.append(Following(index, request.param, **options))
        return opened[-1]

    yield following
    for one in opened:
        one.follower.close()


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    log_run(root, "cifar10/run23", "train", "test", hparams={"lr": 0.01})
    log_run(root, "cifar10/run24", "train", hparams={"lr": 1})
    log_run(root, "mnist/run1", "train")
    log(root / "raw" / "one", 0)
    return root


@pytest.fixture
def seldom(monkeypatch):
    """Poll the whole of a local feed once, and not again by itself."""
    for name in ("_LOCAL_SECONDS", "_ROOT_SECONDS", "_LONGEST_LOCAL_SECONDS"):
        monkeypatch.setattr(follower_module, name, 300.0)


# Sources.


@pytest.mark.parametrize("watch", [True, False], ids=["notified", "polling"])
def test_new_points_and_runs_arrive(tmp_path, following, watch):
    logs = tmp_path / "logs"
    log(logs / "run", 1)
    followed = following(watch=watch).show(logs)
    until(lambda: followed.steps() == {"run": 1})
    log(logs / "run", 2)
    until(lambda: followed.steps() == {"run": 2})
    log(logs / "new", 1)
    until(lambda: followed.steps() == {"new": 1, "run": 2})
    followed.follower.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("aboard-follower")]


def test_an_error_is_a_condition_until_the_source_can_be_read(tmp_path, following, caplog):
    caplog.set_level(logging.INFO, "aboard.tensorboard.follower")
    logs = tmp_path / "later"
    (tmp_path / "other").mkdir()
    followed = following().show(logs).show(tmp_path / "other", board="other")
    (condition,) = until(lambda: followed.follower.conditions("board"))
    assert condition.startswith(f"{logs}: ")
    assert followed.follower.conditions("other") == []
    log(logs / "run", 1)
    until(lambda: followed.steps() == {"run": 1})
    until(lambda: not followed.follower.conditions("board"))
    if followed.use == "view":
        errors = [str(state.error) for _, state in followed.polls if state.error is not None]
        assert set(errors) == {condition}
        assert caplog.messages == []
    else:
        until(lambda: len(caplog.messages) == 2)
        assert caplog.messages == [condition, f"{logs} can be read again"]
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_run_with_too_many_tags_is_a_condition(tmp_path, following, monkeypatch):
    monkeypatch.setattr(board_module, "MOST_TAGS", 1)
    with EventWriter(tmp_path / "run") as writer:
        writer.scalar("loss", 1.0, 1)
        writer.scalar("lr", 1.0, 1)
    followed = following().show(tmp_path)
    until(followed.steps)
    (condition,) = until(lambda: followed.follower.conditions("board"))
    assert condition.startswith(f"{tmp_path / 'run'}: this run has 2 tags;")


def test_nothing_is_polled_without_requests(tmp_path, following, monkeypatch):
    bucket, other = (f"memory://{tmp_path.name}/{name}" for name in ("logs", "other"))
    for uri in (bucket, other):
        open_storage(uri).write(f"run/{EVENTS}", b"")
    monkeypatch.setattr(follower_module, "LONGEST_SECONDS", 0.05)
    listings = []
    real = ObjectStorage.list

    def counted(self, *args, **options):
        listings.append(self.uri)
        return real(self, *args, **options)

    monkeypatch.setattr(ObjectStorage, "list", counted)
    followed = following(poll=0.05).show(bucket)
    until(lambda: len(listings) > 3)
    followed.later = UNWATCHED_SECONDS + 1
    until(lambda: not followed.feed(bucket).busy)
    asleep = listings.count(bucket)
    followed.show(other, board="other")  # which is requested, and so polled
    until(lambda: listings.count(other) > 3)
    assert listings.count(bucket) <= asleep + 1
    followed.request()
    assert listings.count(bucket) > asleep, "the first request after a pause waits for new data"
    until(lambda: listings.count(bucket) > asleep + 3)


def test_a_hidden_board_is_left_alone(tmp_path, following):
    log(tmp_path / "run", 1)
    followed = following().show(tmp_path)
    until(lambda: followed.follower.count("board") == 1)
    followed.follower.hide_all_but([])
    assert followed.follower.count("board") is None
    assert followed.follower.conditions("board") == []
    assert followed.boards.get("board") is None
    assert followed.follower._feeds == {}
    followed.request()


def test_closing_does_not_wait_for_a_long_first_load(tmp_path, index, following, monkeypatch):
    for run in range(80):
        log(tmp_path / f"run{run}", 1)
    real = LocalStorage.readinto

    def slowly(self, name, start, buffer):
        time.sleep(0.1)
        return real(self, name, start, buffer)

    monkeypatch.setattr(LocalStorage, "readinto", slowly)
    monkeypatch.setattr(reader, "SMALL_BYTES", 0)
    source = Source.parse(str(tmp_path))
    followed = following().show(tmp_path)
    until(lambda: index.runs(source))
    followed.follower.close()
    assert len(index.runs(source)) < 80


def test_unforeseen_errors_are_reported_once_and_retried_ever_later(
    tmp_path, following, monkeypatch, caplog
):
    tries = []
    real = Index.refresh

    def fail(self, source, **options):
        tries.append(time.monotonic())
        if len(tries) <= 3:
            raise ZeroDivisionError("nobody foresaw this")
        return real(self, source, **options)

    log(tmp_path / "run", 1)
    monkeypatch.setattr(Index, "refresh", fail)
    monkeypatch.setattr(follower_module, "_LOCAL_SECONDS", 0.1)
    followed = following().show(tmp_path)
    (condition,) = until(lambda: followed.follower.conditions("board"))
    problem = f"{tmp_path}: reading failed: ZeroDivisionError: nobody foresaw this."
    assert condition == f"{problem} Aboard tries again; 'aboard --debug' shows more."
    until(lambda: followed.steps() == {"run": 1})
    # A board that is opened after the first failure does not wait.
    waits = [later - sooner for sooner, later in pairwise(tries[1:4])]
    assert all(wait >= least for wait, least in zip(waits, (0.4, 0.8), strict=True))
    if followed.use == "view":
        errors = [state.error for _, state in followed.polls if state.error is not None]
        assert isinstance(errors[0].__cause__, ZeroDivisionError)
        assert caplog.records == []
    else:
        assert caplog.messages == [condition]
        assert caplog.records[0].exc_info


# Notifications of the file system.


@pytest.fixture
def logs(tmp_path):
    for name in ("a", "b/c"):
        (tmp_path / "logs" / name).mkdir(parents=True)
        (tmp_path / "logs" / name / EVENTS).touch()
    (tmp_path / "logs/a/run.json").write_text("{}")
    (tmp_path / "logs/a/model.pt").touch()
    return tmp_path / "logs"


def parts(logs, *paths, records=False):
    found = parts_of(str(logs), [str(logs / path) for path in paths], records=records)
    if found is None:
        return None
    return [f"{one.uri}/{one.only}".removeprefix(f"{logs}/") for one in found]


def test_what_changed_is_what_is_read(logs):
    assert parts(logs, f"a/{EVENTS}", f"b/c/{EVENTS}") == [f"a/{EVENTS}", f"b/c/{EVENTS}"]
    # A new directory may hold what was not reported; what is in it need not be read twice.
    assert parts(logs, f"b/c/{EVENTS}", "b/c", "b") == ["b/"]


def test_other_files_are_left_alone(logs):
    assert parts(logs, "a/model.pt", "a/run.json", "a/.aboard-tmp-0123") == []
    assert parts(logs, "a/model.pt", f"a/{EVENTS}") == [f"a/{EVENTS}"]


@pytest.mark.parametrize("path", ["", "gone", "../elsewhere"])
def test_what_says_too_little_means_the_whole(logs, path):
    assert parts(logs, f"a/{EVENTS}", path) is None


def test_a_record_means_the_whole_where_records_matter(logs):
    assert parts(logs, "a/run.json", records=True) is None


def grows(followed, directory, run):
    """Write to a run until that is noticed: the file system is watched from some moment on."""
    before = followed.steps()[run]
    step = before

    def noticed():
        nonlocal step
        step += 1
        log(directory, step)
        time.sleep(0.2)
        return followed.steps()[run] > before

    until(noticed)


def settled(followed, uri):
    """Wait until a feed is not due for long; return how often it was polled."""
    feed = followed.feed(uri)
    until(lambda: not feed.busy and feed.due > time.monotonic() + 100)
    return feed.polls


def test_new_data_is_read_without_listing_the_tree(tmp_path, following, seldom):
    log(tmp_path / "run", 1)
    (tmp_path / "new/deep").mkdir(parents=True)  # one that is empty when it is seen needs a listing
    followed = following().show(tmp_path)
    until(lambda: followed.steps() == {"run": 1})
    polls = settled(followed, tmp_path)
    grows(followed, tmp_path / "run", "run")
    log(tmp_path / "new" / "deep", 7)
    until(lambda: followed.steps().get("new/deep") == 7)
    assert followed.feed(tmp_path).polls == polls
    until(lambda: followed.follower.count("board") == 2)
    shutil.rmtree(tmp_path / "new")
    until(lambda: "new/deep" not in followed.steps())
    until(lambda: followed.feed(tmp_path).polls > polls)  # counted when it ends


def test_new_data_of_a_root_is_read_without_listing_it(root, following, seldom):
    followed = following(roots=[root]).show("cifar10/run24")
    until(lambda: followed.steps() == {"cifar10/run24/train": 3})
    grows(followed, root / "cifar10/run24/train", "cifar10/run24/train")
    polls = settled(followed, root)
    log(root / "mnist/run1/train", 9)
    grows(followed, root / "cifar10/run24/train", "cifar10/run24/train")
    assert followed.feed(root).polls == polls, "a run that is on no board says nothing"
    log_run(root, "cifar10/run25", "train")
    followed.show("cifar10", board="all")
    until(lambda: "cifar10/run25/train" in followed.steps("all"))


def test_a_file_that_is_shown_alone_stays_alone(tmp_path, index, following, seldom):
    path = log(tmp_path, 1)
    followed = following().show(path)
    until(lambda: followed.steps() == {".": 1})
    shutil.copy(path, tmp_path / EVENTS)
    feed = followed.feed(tmp_path)
    other = Source(str(tmp_path), EVENTS)
    assert not followed.follower._poll_parts(feed, [other, feed.source]).changed
    assert index.tags(other) == []


# Large buckets.


def fill_bucket(tmp_path, uri):
    storage = open_storage(uri)
    for run, wall in (("exp/old", 1000.0), ("exp/live", None)):
        storage.write(f"{run}/{EVENTS}", log(tmp_path / run, 1, wall_time=wall).read_bytes())
    return storage


@pytest.mark.parametrize("as_root", [False, True], ids=["source", "root"])
def test_of_a_large_bucket_only_recent_runs_are_polled_often(
    tmp_path, following, monkeypatch, as_root
):
    bucket = f"memory://{tmp_path.name}{as_root}/logs"
    storage = fill_bucket(tmp_path, bucket)
    listed = []
    real = ObjectStorage.list

    def counted(self, *args, **options):
        listed.append(self.uri)
        return real(self, *args, **options)

    followed = following(roots=[bucket] if as_root else (), poll=0.05)
    monkeypatch.setattr(ObjectStorage, "list", counted)
    monkeypatch.setattr(traffic, "pages_listed", lambda _: 3 * len(listed))
    followed.show("exp" if as_root else bucket)
    until(lambda: len(listed) > 6)
    storage.write(f"exp/live/{EVENTS}.2", log(tmp_path / "exp/live", 2).read_bytes())
    until(lambda: followed.steps()["exp/live"] == 2)
    assert listed.count(bucket) == 1
    assert set(listed[4:]) == {f"{bucket}/exp/live"}


def test_boards_that_are_opened_leave_the_schedule_of_a_large_bucket(
    tmp_path, following, monkeypatch
):
    bucket = f"memory://{tmp_path.name}/logs"
    fill_bucket(tmp_path, bucket)
    listed = []
    real = ObjectStorage.list

    def counted(self, *args, **options):
        listed.append(self.uri)
        return real(self, *args, **options)

    followed = following(roots=[bucket], poll=0.05)
    monkeypatch.setattr(ObjectStorage, "list", counted)
    monkeypatch.setattr(traffic, "pages_listed", lambda _: 3 * len(listed))
    followed.show("exp")
    until(lambda: f"{bucket}/exp/live" in listed)
    feed = followed.feed(bucket)
    feed.fresh_until = float("inf")  # the next listing is reused
    followed.show("exp/live", board="opened")
    until(lambda: "exp/live" in followed.steps("opened"))
    since = len(listed)
    until(lambda: len(listed) > since + 3)
    assert listed.count(bucket) == 1


# Runs of roots.


def test_runs_that_are_selected_are_read_and_no_others(root, index, following):
    followed = following(roots=[root]).show("cifar10/run23-run30")
    until(lambda: len(followed.steps()) == 3)
    expected = ["cifar10/run23/test", "cifar10/run23/train", "cifar10/run24/train"]
    assert sorted(followed.runs()) == expected
    known = {run.name for run in index.runs(Source(str(root)))}
    assert "mnist/run1/train" not in known


def test_runs_join_and_leave(root, following):
    followed = following(roots=[root]).show("tag:wanted", "cifar10/run24")
    until(lambda: followed.steps() == {"cifar10/run24/train": 3})
    log_run(root, "mnist/run2", "train", tags={"wanted": True})
    until(lambda: followed.steps() == {"cifar10/run24/train": 3, "mnist/run2/train": 3})
    log(root / "mnist/run2/train", 4)
    until(lambda: followed.steps()["mnist/run2/train"] == 4)
    until(lambda: followed.follower.count("board") == 2)
    log_run(root, "mnist/run2", tags={})
    until(lambda: followed.steps() == {"cifar10/run24/train": 3})
    assert followed.changes == [["cifar10/run24", "mnist/run2"], ["cifar10/run24"]]


def test_a_run_that_another_process_found_first_joins(root, index, following):
    followed = following(roots=[root]).show("cifar10")
    until(lambda: followed.follower.count("board") == 2)
    log_run(root, "cifar10/run25", "train")
    index.refresh_catalog(str(root))
    until(lambda: followed.request().follower.count("board") == 3)


def test_runs_of_a_root_that_is_added_join(root, tmp_path, following):
    followed = following(roots=[root]).show("cifar10")
    until(lambda: followed.follower.count("board") == 2)
    log_run(tmp_path / "more", "cifar10/run99", "train")
    followed.library.add_root(str(tmp_path / "more"))
    until(lambda: followed.request().follower.count("board") == 3)


def test_a_state_that_time_changes_changes_the_runs(root, following):
    record = Manifest("run9", "mnist", heartbeat=time.time(), started=time.time())
    record.begin(at=time.time(), host="", pid=1)
    open_storage(str(root)).write("mnist/run9/run.json", record.to_json())
    log(root / "mnist/run9/train", 1)
    followed = following(roots=[root]).show("state:running")
    until(lambda: "mnist/run9" in names(followed.boards.get("board").board))
    followed.library._clock = lambda: time.time() + 7200
    until(lambda: "mnist/run9" not in names(followed.request().boards.get("board").board))


def test_a_place_beside_selected_runs(root, tmp_path, following):
    log(tmp_path / "other", 1)
    followed = following(roots=[root]).show("cifar10/run24", tmp_path / "other")
    until(lambda: followed.steps() == {"other": 1, "cifar10/run24/train": 3})


def test_names_follow_the_records(root, following):
    template = Template.parse("{run}_{logdir}_lr={hparams.lr}_{state}")
    followed = following(roots=[root]).show("cifar10/run24", template=template)
    until(lambda: followed.request().runs() == ["run24_train_lr=1_running"])
    storage = open_storage(str(root / "cifar10" / "run24"))
    manifest.update(storage, lambda record: record.end("completed", 0))
    until(lambda: followed.request().runs() == ["run24_train_lr=1_completed"])


def test_records_of_a_source_are_followed_where_names_need_them(root, following):
    template = Template.parse("{run}_{logdir}_{state}")
    followed = following().show(root / "cifar10" / "run24", template=template)
    until(lambda: followed.request().runs() == ["run24_train_running"])
    storage = open_storage(str(root / "cifar10" / "run24"))
    manifest.update(storage, lambda record: record.end("completed", 0))
    until(lambda: followed.request().runs() == ["run24_train_completed"])


def test_a_run_that_could_not_be_read_is_a_condition_and_read_later(
    root, index, following, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "aboard.tensorboard.follower")
    refresh, broken = index.refresh, threading.Event()
    broken.set()

    def fail(source, **options):
        if source.uri.endswith("run24") and broken.is_set():
            raise Unreachable(source.uri, "no answer", "Wait.")
        return refresh(source, **options)

    monkeypatch.setattr(index, "refresh", fail)
    followed = following(roots=[root]).show("cifar10").show("mnist", board="other")
    problem = f"{root}/cifar10/run24: no answer. Wait."
    until(lambda: followed.request().follower.conditions("board") == [problem])
    assert followed.follower.conditions("other") == []
    broken.clear()
    until(lambda: followed.request().follower.count("board", now=True) == 2)
    until(lambda: not followed.follower.conditions("board"))
    if followed.use == "hub":
        healed = f"{root}/cifar10/run24 can be read again"  # logged after the condition has ended
        until(lambda: caplog.messages == [problem, healed])


def test_a_root_that_cannot_be_listed_is_a_condition_of_its_boards(
    root, tmp_path, following, monkeypatch
):
    log_run(tmp_path / "more", "svhn/run1", "train")
    followed = following(roots=[root, tmp_path / "more"]).show("cifar10").show("svhn", board="svhn")
    until(lambda: followed.follower.count("svhn") == 1)
    (tmp_path / "more").rename(tmp_path / "away")
    (condition,) = until(lambda: followed.request("svhn").follower.conditions("svhn"))
    assert condition.startswith(f"{tmp_path}/more: ")
    assert followed.follower.conditions("board") == []
    (tmp_path / "away").rename(tmp_path / "more")
    until(lambda: not followed.request("svhn").follower.conditions("svhn"))


def test_boards_opened_at_once_share_the_error_of_a_root(tmp_path, following, seldom, caplog):
    caplog.set_level(logging.INFO, "aboard.tensorboard.follower")
    missing = tmp_path / "missing"
    followed = following(roots=[missing]).show("cifar10")
    (condition,) = until(lambda: followed.follower.conditions("board"))
    polls = followed.feed(missing).polls
    followed.show("svhn", board="svhn")
    until(lambda: followed.feed(missing).polls > polls and not followed.feed(missing).busy)
    assert followed.follower.conditions("board") == [condition]
    assert followed.follower.conditions("svhn") == [condition]
    assert not [text for text in caplog.messages if text.endswith("can be read again")]


def test_runs_are_counted_as_a_user_counts_them(tmp_path, following):
    logs = tmp_path / "logs"
    log(logs / "a" / "train", 1)
    log(logs / "a" / "eval", 1)
    log(logs / "b", 1)
    with EventWriter(logs / "c") as writer:
        writer.add([encode.hparams_start({"lr": 1})], 0)
    log(logs / "c" / "first", 1)
    log(logs / "c" / "second", 1)
    followed = following().show(logs)
    until(lambda: followed.follower.count("board") == 3)
    assert len(followed.runs()) == 6


# Many boards.


def test_a_board_without_requests_waits_for_one(root, following):
    followed = following(roots=[root])
    followed.show("cifar10", board="left").show("mnist", board="used")
    until(lambda: followed.follower.count("left") == 2)
    followed.later = UNWATCHED_SECONDS + 1
    log_run(root, "cifar10/run25", "train")
    log_run(root, "mnist/run2", "train")
    until(lambda: followed.request("used").follower.count("used") == 2)
    assert names(followed.boards.get("left").board) == ["cifar10/run23", "cifar10/run24"]
    followed.follower.requested("left", wait=False)
    assert len(names(followed.boards.get("left").board)) == 3
    until(lambda: followed.follower.count("left") == 3)


def test_boards_that_are_opened_at_once_share_a_listing(root, following, monkeypatch):
    followed = following(roots=[root]).show("cifar10")
    until(lambda: followed.follower.count("board") == 2)
    listed = []
    refresh = followed.library.refresh
    now = followed.follower._clock()
    monkeypatch.setattr(followed.follower, "_clock", lambda: now)
    until(lambda: not followed.feed(root).busy)
    monkeypatch.setattr(followed.library, "refresh", lambda uri: listed.append(uri) or refresh(uri))
    for number in range(20):
        followed.show("mnist", board=f"board{number}")
        until(lambda number=number: followed.follower.count(f"board{number}", now=True) == 1)
    assert listed == []


def test_a_request_during_a_poll_is_served_right_after_it(root, following, monkeypatch):
    followed = following(roots=[root]).show("cifar10")
    until(lambda: followed.feed(root).polls and not followed.feed(root).busy)
    feed, polling, go_on = followed.feed(root), threading.Event(), threading.Event()
    refresh = followed.library.refresh

    def slowly(uri):
        found = refresh(uri)
        polling.set()
        go_on.wait(180)
        return found

    with followed.follower._lock:
        feed.schedule.wait = feed.schedule.shortest = 3600.0
        monkeypatch.setattr(followed.library, "refresh", slowly)
        feed.fresh_until = feed.due = 0.0
    assert polling.wait(180)
    followed.show("mnist", board="second")
    go_on.set()
    until(lambda: followed.follower.count("second", now=True) == 1)


def test_a_bucket_is_polled_as_often_as_the_follower_is_set_to(tmp_path, following, monkeypatch):
    monkeypatch.setattr(follower_module, "REMOTE_SECONDS", 600.0)
    monkeypatch.setattr(follower_module, "LONGEST_SECONDS", 0.05)
    followed = following(roots=[f"memory://{tmp_path.name}/logs"], poll=0.05)
    listed = []
    refresh = followed.library.refresh
    monkeypatch.setattr(
        followed.library, "refresh", lambda root: listed.append(root) or refresh(root)
    )
    followed.show("*")
    until(lambda: len(listed) > 3)


def test_roots_are_polled_while_their_runs_are_requested(root, following):
    followed = following(roots=[root])
    followed.follower.runs_requested()
    until(lambda: followed.follower._feeds and followed.feed(root).polls)
    log_run(root, "cifar10/run25", "train")
    until(lambda: len(followed.library.find(Library.parse(["cifar10"]))) == 3)
    assert followed.follower.lag() < 30


def test_a_failure_does_not_end_the_following(following, root, tmp_path, monkeypatch, caplog):
    followed = following(roots=[root]).show("cifar10")
    until(
        lambda: (
            followed.steps()
            == {"cifar10/run23/train": 3, "cifar10/run23/test": 3, "cifar10/run24/train": 3}
        )
    )
    failing = threading.Event()
    members = Library.members

    def fail_once(library, selectors, question=None):
        if not failing.is_set():
            failing.set()
            raise RuntimeError("the database is locked")
        return members(library, selectors, question)

    monkeypatch.setattr(Library, "members", fail_once)
    log_run(tmp_path / "more", "cifar10/run99", "train")
    followed.library.add_root(str(tmp_path / "more"))
    assert failing.wait(180)
    until(lambda: "cifar10/run99/train" in followed.steps())
    assert "trying again" in caplog.text


def test_a_board_that_could_not_be_shown_is_shown_when_it_is_asked_for_again(
    following, root, monkeypatch
):
    followed = following(roots=[root])
    with monkeypatch.context() as patched:
        patched.setattr(Library, "members", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            followed.show("cifar10")
    followed.show("cifar10")
    until(lambda: "cifar10/run24/train" in followed.steps())


def test_who_asks_for_metrics_after_a_pause_waits_for_new_points(tmp_path, following, monkeypatch):
    monkeypatch.setattr(follower_module, "CATCH_UP_SECONDS", 60.0)
    log_run(tmp_path, "cifar10/run1", "")
    followed = following(roots=[tmp_path])
    follower, library = followed.follower, followed.library
    run = Source(str(tmp_path / "cifar10/run1"))

    def tags():
        follower.metrics_requested(library.find(Library.parse(["cifar10"])), wait=True)
        return len(library.index.tags(run))

    assert tags() == 1
    assert list(followed.boards) == []
    followed.later += UNWATCHED_SECONDS + 1
    log_run(tmp_path, "cifar10/run1", "eval")
    assert tags() == 2


def test_a_board_shows_all_runs_again_after_its_index_was_replaced(root, following):
    followed = following(roots=[root]).show("cifar10")
    known = {"cifar10/run23/train", "cifar10/run23/test", "cifar10/run24/train"}
    until(lambda: followed.steps().keys() == known)
    index = followed.library.index
    for suffix in ("", "-wal", "-shm"):
        index.path.with_name(index.path.name + suffix).unlink(missing_ok=True)
    index._connections.generation += 1  # as a request that found no idle connection does
    log_run(root, "cifar10/run25", "train")
    until(lambda: followed.steps().keys() == {*known, "cifar10/run25/train"})


def test_a_root_of_many_slow_runs_leaves_readers_to_others(tmp_path, following, monkeypatch):
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    for number in range(40):
        log_run(slow, f"many/run{number}", "")
    log_run(quick, "few/run1", "")
    go_on = threading.Event()
    refresh = Index.refresh

    def hang(self, source, **options):
        if "/slow/" in source.uri:
            go_on.wait(180)
        return refresh(self, source, **options)

    monkeypatch.setattr(Index, "refresh", hang)
    try:
        followed = following(roots=[slow, quick])
        followed.show("many", board="slow")
        followed.show("few")
        until(lambda: len(followed.library.index.tags(Source(str(quick)))) == 1)
    finally:
        go_on.set()


# How long to wait between two polls.


def test_a_bucket_is_polled_less_often_while_nothing_changes():
    schedule = Schedule(5.0, 60.0)
    waits = [schedule.after(changed=False, cost=0.1) for _ in range(12)]
    assert waits[0] == 5.0
    assert waits == sorted(waits)
    assert waits[-1] == 60.0
    assert schedule.after(changed=True, cost=0.1) == 5.0


def test_a_slow_poll_is_repeated_less_often():
    schedule = Schedule(0.4, 5.0, grows=False)
    assert [schedule.after(changed=False, cost=0.01) for _ in range(3)] == [0.4, 0.4, 0.4]
    assert schedule.after(changed=False, cost=0.2) == 2.0
    assert schedule.after(changed=False, cost=9.0) == 5.0
    assert schedule.after(changed=True, cost=30.0) == 5.0
    schedule.after(changed=False, cost=0.01)
    assert schedule.after(changed=True, cost=30.0) == 0.4


def test_a_large_tree_with_a_live_run_leaves_most_of_the_time_to_others():
    schedule = Schedule(0.4, 5.0, grows=False)
    schedule.after(changed=False, cost=0.2)
    assert schedule.after(changed=True, cost=3.0) == 2.0
    assert schedule.floor == 2.0
