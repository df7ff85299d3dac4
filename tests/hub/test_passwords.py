"""Password hashing is bounded, and does not delay clients with a token."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from argon2 import PasswordHasher

from aboard.hub import auth
from aboard.hub.auth import (
    MAX_QUEUED,
    MAX_SHARE,
    Passwords,
    TooManyAttempts,
    lane_width,
    sources_of,
)
from tests.hub.hubs import PASSWORD, served
from tests.waiting import until

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
OUTSIDE_OF_TESTS = auth.STRENGTH


class Stuck:
    """A hasher that does not get on until it may."""

    def __init__(self, hasher=QUICK):
        self.go_on = threading.Event()
        self.at_once = self.most_at_once = 0
        self.priorities = set()
        self.hash = hasher.hash
        self.check_needs_rehash = hasher.check_needs_rehash
        self._verify = hasher.verify

    def verify(self, stored, password):
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert self.go_on.wait(180)
        self.at_once -= 1
        return self._verify(stored, password)


@pytest.fixture
def stuck():
    hasher = Stuck()
    yield hasher
    hasher.go_on.set()


@pytest.fixture
def lane(stuck):
    lane = Passwords(stuck)
    yield lane
    stuck.go_on.set()
    lane.close()


def test_fewer_hashes_than_cores_are_computed_at_once_and_at_a_low_priority(lane, stuck):
    stored = QUICK.hash(PASSWORD)
    waiting = [lane.verify(stored, PASSWORD, [f"from {one}"]) for one in range(8)]
    until(lambda: stuck.at_once)
    stuck.go_on.set()
    assert [one.result(60) for one in waiting] == [True] * 8
    assert stuck.most_at_once <= max(1, min(2, os.cpu_count() - 1))
    assert min(stuck.priorities) > os.getpriority(os.PRIO_PROCESS, 0)


def test_the_queue_and_each_sources_share_of_it_are_bounded(lane, stuck):
    queued = [
        lane.verify(None, PASSWORD, sources_of("10.0.0.1", f"user{one}"))
        for one in range(MAX_SHARE)
    ]
    with pytest.raises(TooManyAttempts, match="Wait a minute"):
        lane.verify(None, PASSWORD, sources_of("10.0.0.1", "another"))
    for one in range(MAX_SHARE):
        queued.append(lane.verify(None, PASSWORD, sources_of(f"10.0.1.{one}", "bob")))
    with pytest.raises(TooManyAttempts):
        lane.hash(PASSWORD, sources_of("10.0.0.2", "bob"))
    for one in range(MAX_QUEUED - len(queued)):
        queued.append(lane.verify(None, PASSWORD, [f"as {one}"]))
    with pytest.raises(TooManyAttempts):
        lane.verify(None, PASSWORD, ["from elsewhere"])
    assert queued[-1].cancel()  # a client that leaves makes room
    queued[-1] = lane.verify(None, PASSWORD, ["from elsewhere"])
    stuck.go_on.set()
    assert [one.result(60) for one in queued] == [False] * MAX_QUEUED
    assert not lane._shares
    assert lane.verify(QUICK.hash(PASSWORD), PASSWORD, sources_of("10.0.0.1", "bob")).result(60)


def test_the_first_of_one_source_comes_before_the_second_of_another(lane, stuck):
    ended = []

    def send(address, name):
        future = lane.verify(None, PASSWORD, sources_of(address, name))
        future.add_done_callback(lambda _: ended.append(name))
        return future

    busy = [send(f"10.0.1.{one}", f"busy{one}") for one in range(lane_width())]
    until(lambda: stuck.at_once == len(busy))
    sent = [send("10.0.0.1", f"guess{one}") for one in range(4)] + [send("10.0.0.2", "bob")]
    stuck.go_on.set()
    for one in busy + sent:
        assert one.result(60) is False
    until(lambda: len(ended) == len(busy) + len(sent))
    assert ended.index("bob") < ended.index("guess3")
    assert lane_width() > 1 or ended == ["busy0", "guess0", "bob", "guess1", "guess2", "guess3"]


def test_closing_releases_all_waiting_requests(lane, stuck):
    first, *others = [lane.verify(None, PASSWORD, [f"as {one}"]) for one in range(5)]
    until(lambda: stuck.at_once == lane_width())
    lane.close()
    stuck.go_on.set()
    assert first.result(60) is False
    assert others[-1].cancelled()


def test_a_password_is_hashed_even_for_users_without_one(lane, stuck):
    stuck.go_on.set()
    assert lane.verify(None, PASSWORD, ()).result(60) is False
    assert stuck.most_at_once == 1


def test_the_sources_of_a_login():
    assert sources_of("10.0.0.1", "bob") == ["from 10.0.0.1", "as bob"]
    one, other = sources_of("fe80::1%eth0", "bob"), sources_of("fe80::2", "bob")
    assert one == other == ["from fe80::/64", "as bob"]
    assert sources_of("unknown", "x" * 1000) == ["from unknown", f"as {'x' * 100}"]


def test_only_the_last_sources_are_remembered(monkeypatch):
    monkeypatch.setattr(auth, "_MAX_SOURCES", 3)
    turns = auth.Turns(auth.Throttle())
    for number in range(9):
        with pytest.raises(StopIteration):
            turns.take([f"from {number}"]).send(None)
    assert list(turns._throttles) == ["from 6", "from 7", "from 8"]


def test_password_guessing_does_not_delay_clients_with_tokens(tmp_path, root, stuck):
    """While every password waits for the lane, tokens, cookies and links are checked as always."""
    with served(tmp_path, [root]) as hub, ThreadPoolExecutor(40) as guessers:
        hub.hub.auth._passwords = Passwords(stuck)
        hub.hub.auth.throttle.first = 0.0
        hub.hub.auth.throttle.turns = 1000
        key = hub.hub.auth.mint_key(hub.hub.auth.user("max"))[0]
        with hub.client() as client, hub.client("max") as holder:

            def guess(number):
                form = {"user": f"user{number}", "password": "wrong-password"}
                return client.post("/api/v1/login", json=form)

            guesses = [guessers.submit(guess, number) for number in range(40)]
            refused = until(lambda: [one for one in guesses if one.done()])
            assert {one.result().status_code for one in refused} == {429}
            assert {one.result().headers["retry-after"] for one in refused} == {"5"}
            until(lambda: len([one for one in guesses if one.done()]) == 40 - MAX_SHARE)
            for _ in range(3):
                hub.hub.auth._recent.clear()
                assert holder.get("/api/v1/me").json()["user"] == "max"
            assert holder.get("/healthz").status_code == 200
            assert client.get(f"/?key={key}").status_code == 303
            assert hub.hub.auth._passwords._queued == MAX_SHARE
            stuck.go_on.set()
            statuses = [one.result(60).status_code for one in guesses]
    assert sorted(statuses) == [401] * MAX_SHARE + [429] * (40 - MAX_SHARE)


def test_a_user_who_sets_many_passwords_does_not_delay_others(tmp_path, root):
    stuck = Stuck(SimpleNamespace(hash=None, check_needs_rehash=None, verify=None))
    stuck.hash = lambda password: stuck.go_on.wait(180) and QUICK.hash(password)
    with served(tmp_path, [root]) as hub, ThreadPoolExecutor(50) as busy:
        hub.hub.auth._passwords = Passwords(stuck)
        with hub.client("max") as client, hub.client("mia") as other:
            change = "/api/v1/users/max/password"
            sent = [busy.submit(client.put, change, json={"password": PASSWORD}) for _ in range(50)]
            until(lambda: hub.hub.auth._passwords._queued)
            assert other.get("/api/v1/me").json()["user"] == "mia"
            assert not any(one.done() for one in sent)
            stuck.go_on.set()
            statuses = {one.result(60).status_code for one in sent}
    assert statuses == {204}


def test_hashes_have_the_recommended_strength(monkeypatch):
    monkeypatch.setattr(auth, "STRENGTH", OUTSIDE_OF_TESTS)
    lane = Passwords()
    stored = lane.hash(PASSWORD, ["here"]).result()
    assert stored.startswith("$argon2id$v=19$m=65536,t=3,p=1$")
    assert lane.verify(stored, PASSWORD, ["here"]).result()
    lane.close()
