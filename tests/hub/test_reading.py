"""What boards show is kept fresh while somebody looks, and as soon as somebody does."""

import threading
import time
from types import SimpleNamespace

import pytest
from hubs import log_run, until

from aboard.hub.config import Root
from aboard.hub.reading import Reader
from aboard.hub.selection import Catalog
from aboard.storage import Unreachable
from aboard.tensorboard import live
from aboard.tensorboard.live import UNWATCHED_SECONDS
from aboard.tensorboard.provider import Boards


class Watched:
    """A reader over a root, and a clock that can be put forward."""

    def __init__(self, index, root, **options):
        self.later = 0.0
        self.root = root
        self.catalog = Catalog(index, [Root(str(root), "logs")], any_path=True)
        self.boards = Boards(index)
        self.reader = Reader(
            index, self.catalog, self.boards, clock=lambda: time.monotonic() + self.later, **options
        )
        self.catalog.refresh(str(root))

    def show(self, board_id, *selectors):
        self.reader.show(
            SimpleNamespace(id=board_id, selectors=selectors, template="", title=board_id, name="")
        )
        self.reader.asked(board_id)

    def members(self, board_id):
        return [member.name for member in self.boards.get(board_id).board.members]


@pytest.fixture
def watched(index, root):
    found = Watched(index, root)
    yield found
    found.reader.close()


def test_a_bucket_is_asked_as_often_as_the_hub_is_told(index, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "REMOTE_SECONDS", 600.0)
    monkeypatch.setattr(live, "LONGEST_SECONDS", 0.05)
    watched = Watched(index, f"memory://{tmp_path.name}/logs", poll=0.05)
    looks = []
    refresh = watched.catalog.refresh
    monkeypatch.setattr(
        watched.catalog, "refresh", lambda root: looks.append(root) or refresh(root)
    )
    try:
        watched.show("all", "*")
        until(lambda: len(looks) > 3)
    finally:
        watched.reader.close()


def test_runs_of_a_board_in_use_join_and_are_counted(watched):
    watched.show("cifar", "cifar10")
    until(lambda: watched.reader.count("cifar") == 2)
    log_run(watched.root, "cifar10/run3", [1.0], job="9")

    def counted():
        watched.reader.asked("cifar")
        return watched.reader.count("cifar") == 3

    until(counted)
    assert watched.members("cifar") == ["cifar10/run1", "cifar10/run2", "cifar10/run3"]


def test_a_board_that_nobody_looks_at_is_left_alone_until_somebody_does(watched):
    watched.show("left", "cifar10")
    watched.show("used", "mnist")
    until(lambda: watched.reader.count("left") == 2)
    watched.later = UNWATCHED_SECONDS + 1
    log_run(watched.root, "cifar10/run3", [1.0], job="9")
    log_run(watched.root, "mnist/run2", [1.0], job="9")

    def joined():
        watched.reader.asked("used")
        return watched.reader.count("used") == 2

    until(joined)
    assert watched.members("left") == ["cifar10/run1", "cifar10/run2"]
    watched.reader.begin("left")
    assert watched.members("left") == ["cifar10/run1", "cifar10/run2", "cifar10/run3"]
    until(lambda: watched.reader.count("left") == 3)


def test_boards_that_are_opened_at_once_share_a_look_at_the_root(watched, monkeypatch):
    watched.show("first", "cifar10")
    looked = []
    refresh = watched.catalog.refresh
    monkeypatch.setattr(watched.catalog, "refresh", lambda uri: looked.append(uri) or refresh(uri))
    now = watched.reader._clock()
    monkeypatch.setattr(watched.reader, "_clock", lambda: now)
    for place in watched.reader._places.values():
        until(lambda place=place: not place.busy)
    for number in range(20):
        watched.show(f"board{number}", "mnist")
        until(lambda number=number: watched.reader.count(f"board{number}", now=True) == 1)
    assert looked == []


def test_a_board_that_is_not_shown_has_no_count(watched):
    assert watched.reader.count("none") is None
    watched.show("gone", "cifar10")
    watched.reader.hide_all_but([])
    assert watched.reader.count("gone") is None


def test_runs_that_selectors_mean_are_found_in_their_order(watched):
    def labels(*selectors):
        return [run.label for run in watched.catalog.find(selectors)]

    assert labels("mnist", "cifar10/run2") == ["cifar10/run2", "mnist/run1"]
    assert labels("job:7", f"{watched.root}/mnist") == ["cifar10/run1", "mnist/run1"]


def test_a_run_that_somebody_else_saw_first_joins(watched, index):
    watched.show("cifar", "cifar10")
    until(lambda: watched.reader.count("cifar") == 2)
    log_run(watched.root, "cifar10/run3", [1.0], job="9")
    index.refresh_catalog(str(watched.root))

    def joined():
        watched.reader.asked("cifar")
        return watched.reader.count("cifar") == 3

    until(joined, 20)


def test_a_source_that_could_not_be_read_is_read_later(watched, index, monkeypatch):
    refresh, failed = index.refresh, []

    def fail_once(source):
        if source.uri.endswith("run2") and not failed:
            failed.append(source)
            raise Unreachable(source.uri, "no answer", "Wait.")
        return refresh(source)

    monkeypatch.setattr(index, "refresh", fail_once)
    watched.show("cifar", "cifar10")

    def read():
        watched.reader.asked("cifar")
        return watched.reader.count("cifar", now=True) == 2

    until(read, 20)
    assert failed


def test_who_comes_during_a_look_is_seen_to_right_after_it(watched, monkeypatch):
    refresh, looking, go_on = watched.catalog.refresh, threading.Event(), threading.Event()

    def slowly(uri):
        found = refresh(uri)
        looking.set()
        go_on.wait(60)
        return found

    watched.show("first", "cifar10")
    (place,) = (one for one in watched.reader._places.values() if one.is_root)
    until(lambda: not place.busy)
    place.rhythm.wait = place.rhythm.shortest = 3600.0
    monkeypatch.setattr(watched.catalog, "refresh", slowly)
    place.looked, place.due = None, 0.0
    assert looking.wait(60)
    log_run(watched.root, "mnist/run2", [1.0], job="9")
    watched.reader.show(
        SimpleNamespace(id="second", selectors=("mnist",), template="", title="Two", name="")
    )
    watched.reader.begin("second")
    go_on.set()
    until(lambda: watched.reader.count("second", now=True) == 1, 20)
