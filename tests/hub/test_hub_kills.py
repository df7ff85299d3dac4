"""Hubs killed at any moment, again and again: no board is lost, duplicated or orphaned."""

import os
import random
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field

import httpx
import pytest

from tests.hub import lives
from tests.hub.hubs import log_run, points
from tests.hub.lives import board_processes, kill_boards
from tests.waiting import until

LIVE = {"pending", "starting", "running"}
STATES = {*LIVE, "stopping", "stopped"}
VISITORS = 3
STARTING = ("_launch", "_start", "_spawn", "_write_json", "_store_handle")


@dataclass
class Promise:
    """What a visitor knows of a board: without an answer of the hub, both states are right.

    Attributes:
        selectors: what it may show.
        lives: whether it may be live.
        there: whether it may be there at all.
    """

    on: str
    selectors: list[list[str]]
    lives: set[bool] = field(default_factory=lambda: {True})
    there: set[bool] = field(default_factory=lambda: {True})


class Visitor:
    """A user with boards, who uses them all the time and remembers every answer of the hub."""

    def __init__(self, number, seed, answered):
        self.experiment = f"exp{number}"
        self.boards = {}
        self.done = Counter()
        self._answered = answered
        self._isolates = number == 0
        self._rng = random.Random(f"{seed}-{number}")
        self._unanswered = None
        self._keys = 0

    # What the visitor does.

    def work(self, life, ended):
        """Use boards until the hub is gone."""
        with life.client() as client, suppress(httpx.TransportError):
            while not ended.is_set():
                self.act(client)

    def act(self, client):
        action = self._rng.choice(
            [self.make, self.choose, self.stop, self.restart, self.select, self.delete, self.read]
            if len(self.boards) < 6
            else [self.delete, self.read]
        )
        action(client)
        self.done[action.__name__] += 1
        self._answered.release()

    def make(self, client):
        """Make a board of the visitor, under a key."""
        isolated = [one for one in self.boards.values() if one.on == "process"]
        on = "process" if self._isolates and len(isolated) < 2 else "instant"
        self._keys += 1
        key = f"{self.experiment}-{self._keys}"
        self._make(client, {"selectors": [self.experiment], "new": True, "title": key, "on": on})

    def choose(self, client):
        """Ask for a board of a selection, whether there is one or not."""
        selector = f"{self.experiment}/run{self._rng.randrange(1, 3)}"
        self._make(client, {"selectors": [selector], "on": "instant"})

    def _make(self, client, wish):
        self._unanswered = wish
        headers = {"idempotency-key": wish["title"]} if "title" in wish else {}
        answer = client.post("/api/v1/boards", json=wish, headers=headers)
        assert answer.status_code in {200, 201}, answer.text
        board = answer.json()
        if "title" not in wish:
            mine = [
                one
                for one, promise in self.boards.items()
                if promise.selectors == [wish["selectors"]] and promise.lives == {True}
            ]
            assert not mine or board["id"] in mine
        promise = Promise(wish["on"], [board["selectors"]])
        self.boards.setdefault(board["id"], promise)
        assert board["selectors"] == wish["selectors"]
        self._unanswered = None

    def stop(self, client):
        self._change(client, "stop", lives=False, now=True)

    def restart(self, client):
        self._change(client, "restart", lives=True)

    def _change(self, client, verb, *, lives, **body):
        board = self._any()
        if board is None or self._is_spared(board):
            return
        self._tell(client, board, verb, lives=lives, **body)

    def start_isolated(self, client):
        """Let a process be started, for a new board or for one that has had one before."""
        isolated = [one for one in self._there() if self.boards[one].on == "process"]
        if isolated:
            self._tell(client, self._rng.choice(isolated), "restart", lives=True)
        else:
            self.make(client)

    def _tell(self, client, board, verb, *, lives, **body):
        promise = self.boards[board]
        promise.lives.add(lives)
        answer = client.post(f"/api/v1/boards/{board}/{verb}", json=body or None)
        if answer.status_code == 409:  # the board of a selection was ended, and made anew
            assert answer.json()["error"]["code"] == "name_taken"
            promise.lives = {False}
            return
        assert answer.status_code == 200, answer.text
        promise.lives = {lives}

    def delete(self, client):
        board = self._any()
        if board is None or self._is_spared(board):
            return
        promise = self.boards[board]
        promise.there.add(False)
        if promise.on == "instant":
            promise.lives.add(False)
        answer = client.delete(f"/api/v1/boards/{board}")
        if answer.status_code == 409:
            assert promise.on == "process", answer.text
            promise.there = {True}
            return
        assert answer.status_code == 204, answer.text
        promise.there = {False}

    def select(self, client):
        """Let a board show another run, or no longer show it."""
        mine = [one for one in self._there() if self.boards[one].on == "instant"]
        mine = [one for one in mine if self.experiment in self.boards[one].selectors[0]]
        if not mine:
            return
        board = self._rng.choice(mine)
        promise = self.boards[board]
        other, now = "other/run1", promise.selectors[0]
        change = {"remove": [other]} if other in now else {"add": [other]}
        after = [one for one in now if one != other] if other in now else [*now, other]
        promise.selectors.append(after)
        answer = client.post(f"/api/v1/boards/{board}/selection", json=change)
        assert answer.status_code == 200, answer.text
        promise.selectors = [after]

    def read(self, client):
        if (board := self._any()) is not None:
            answer = client.get(f"/api/v1/boards/{board}")
            assert answer.status_code == 200, answer.text
            if answer.json()["state"] == "running":
                self.check_points(client, answer.json())

    def _there(self):
        return [one for one, promise in self.boards.items() if promise.there == {True}]

    def _any(self):
        there = self._there()
        return self._rng.choice(there) if there else None

    def _is_spared(self, board):
        """Let most isolated boards live on: what one costs to start would be most of the time."""
        return self.boards[board].on == "process" and self._rng.random() < 0.8

    # What the visitor finds when the hub is back.

    def repeat(self, client):
        """Repeat the request for a board that was not answered."""
        if self._unanswered is not None:
            self._make(client, self._unanswered)

    def settle(self, client, listed, *, thoroughly):
        """Check what the hub answered, and find out what it did not."""
        for board, promise in list(self.boards.items()):
            found = listed.get(board)
            assert (found is not None) in promise.there, (board, promise)
            if found is None:
                del self.boards[board]
                continue
            assert found["selectors"] in promise.selectors, (found, promise)
            assert found["state"] in STATES, found
            promise.selectors, promise.there = [found["selectors"]], {True}
            if found["state"] != "stopping":  # for good, or to start anew
                assert (found["state"] in LIVE) in promise.lives, (found, promise)
                promise.lives = {found["state"] in LIVE}
            if found["state"] == "running" and (thoroughly or self._rng.random() < 0.3):
                self.check_points(client, found)

    def check_points(self, client, board):
        expected = {
            name: values
            for name, values in RUNS.items()
            if any(name == one or name.startswith(f"{one}/") for one in board["selectors"])
        }
        until(lambda: points(client, board["id"]) == expected)


RUNS = {
    "other/run1": [(0, 9.0)],
    **{
        f"exp{number}/run{run}": [(0, number + run / 8), (1, number / 2)]
        for number in range(VISITORS)
        for run in (1, 2)
    },
}


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    kill_boards(os.environ["ABOARD_CACHE"])


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "logs"
    for label, series in RUNS.items():
        log_run(root, label, [value for _, value in series], job="7")
    return root


def all_boards(client):
    answer = client.get("/api/v1/boards", params={"all": True, "limit": 1000})
    assert answer.status_code == 200, answer.text
    return {board["id"]: board for board in answer.json()["boards"]}


def check(life, client, visitors, *, thoroughly=False):
    """Check all acknowledged changes, and that unacknowledged ones are consistent."""
    for visitor in visitors:
        visitor.repeat(client)
    listed = all_boards(client)
    for visitor in visitors:
        visitor.settle(client, listed, thoroughly=thoroughly)
    known = {board for visitor in visitors for board in visitor.boards}
    assert listed.keys() == known
    titles = Counter(board["title"] for board in listed.values() if board["title"])
    assert max(titles.values(), default=1) == 1
    with closing(sqlite3.connect(life.state / "hub.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    until(lambda: not strangers(life, client))


def strangers(life, client):
    """Return the processes that belong to no live board."""
    running = board_processes(os.environ["ABOARD_CACHE"])
    if not running:
        return set()
    with closing(sqlite3.connect(life.state / "hub.db")) as database:
        known = "SELECT json_extract(handle, '$.pid') FROM board WHERE live = 1"
        return running - {pid for (pid,) in database.execute(known)}


class Story:
    """The lives of one hub, with those who use it."""

    def __init__(self, tmp_path, root, seed):
        self.rng = random.Random(seed)
        self.answered = threading.Semaphore(0)
        self.visitors = [Visitor(number, seed, self.answered) for number in range(VISITORS)]
        self.kills = Counter()
        self._state = tmp_path / "state"
        self._root = root

    def one_life(self, start, moments):
        """Start a hub, check what it knows, use it, and kill it in the middle of that."""
        moment = self.rng.choice(moments)
        limits = {
            "a line of its start": (int(1500 ** self.rng.uniform(0.2, 1)),),
            "a line of its work": (-int(3000 ** self.rng.uniform(0.3, 1)),),
            "a line of a board's start": (-self.rng.randrange(20, 80), STARTING),
        }
        dies = {"first": lives.dies_after(*limits[moment])} if moment in limits else {}
        life = start(self._state, self._root, **dies)
        try:
            if moment == "its start":
                life.lives(self.rng.uniform(0, 0.5))
            elif life.is_up():
                dies_anytime = moment == "a line of its start"
                with suppress(httpx.TransportError) if dies_anytime else nullcontext():
                    with life.client() as client:
                        check(life, client, self.visitors)
                    self._use(life, moment)
            else:
                assert moment == "a line of its start", life.log()
        finally:
            life.kill()
            self.kills[moment] += 1

    def _use(self, life, moment):
        """Let everybody use the hub, and kill it after some answers."""
        if moment == "a line of a board's start":
            life.count()
            with life.client() as client, suppress(httpx.TransportError):
                self.visitors[0].start_isolated(client)
            life.lives(15)
            return
        while self.answered.acquire(blocking=False):
            pass  # what was answered in its last life
        ended = threading.Event()
        with ThreadPoolExecutor(VISITORS) as pool:
            working = [pool.submit(visitor.work, life, ended) for visitor in self.visitors]
            for _ in range(self.rng.randrange(12)):
                self.answered.acquire(timeout=10)
            if moment == "a line of its work":
                life.count()
                life.lives(10)
            else:
                life.lives(self.rng.uniform(0, 0.05))
            life.kill()
            ended.set()
            for one in working:
                one.result()

    def end(self, start):
        """Check the boards a last time, and stop them all."""
        life = start(self._state, self._root)
        try:
            assert life.is_up()
            with life.client() as client:
                until(lambda: not {"pending", "starting", "stopping"} & states(client))
                check(life, client, self.visitors, thoroughly=True)
                for board in all_boards(client):
                    client.post(f"/api/v1/boards/{board}/stop", json={"now": True})
                until(lambda: states(client) <= {"stopped"})
                until(lambda: not board_processes(os.environ["ABOARD_CACHE"]))
        finally:
            life.kill()


def states(client):
    return {board["state"] for board in all_boards(client).values()}


MOMENTS = [
    "its start",
    "a line of its start",
    *["a line of a board's start"] * 2,
    *["a line of its work", "its work"] * 3,
]


@pytest.mark.soak
def test_a_hub_that_is_killed_repeatedly_keeps_its_boards(tmp_path, root, rounds):
    story = Story(tmp_path, root, 0)
    for _ in rounds(2):
        story.one_life(lives.fork, MOMENTS)
    story.end(lives.fork)
    done = sum((visitor.done for visitor in story.visitors), Counter())
    print(f"killed in {dict(story.kills)} after {dict(done)}")
    if sum(story.kills.values()) > 20:
        assert done.keys() == {"make", "choose", "stop", "restart", "select", "delete", "read"}
    assert done  # which of them, chance decides


@pytest.mark.slow
@pytest.mark.soak
def test_a_killed_command_keeps_its_boards(tmp_path, root, rounds):
    story = Story(tmp_path, root, "command")
    for _ in rounds(1):
        story.one_life(lives.start, ["its start", *["its work"] * 9])
    story.end(lives.start)
