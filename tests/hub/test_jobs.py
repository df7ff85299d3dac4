"""Jobs on a hub with an engine that does not respond, and with many requests."""

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from aboard.boards.model import Busy
from aboard.hub import jobs as jobs_module
from aboard.hub.jobs import HubJobs, JobFilter
from aboard.index.library import Library
from aboard.jobs.model import JobStatus
from aboard.jobs.service import Jobs
from aboard.jobs.store import JobStore, MemberLog
from tests.hub.hubs import add_job
from tests.waiting import until


def test_requests_share_what_opens_the_roots(hub, jobs, monkeypatch):
    opened = []
    first = JobStore.__init__

    def counted(self, root):
        opened.append(root)
        first(self, root)

    monkeypatch.setattr(JobStore, "__init__", counted)
    with hub.client("max") as client:
        pages = [client.get("/api/v1/jobs").json()["jobs"] for _ in range(3)]
    assert list(map(len, pages)) == [3, 3, 3]
    assert len(opened) == 1


def test_a_hanging_engine_makes_only_its_own_jobs_unknown(index, root, jobs, monkeypatch):
    add_job(root, "hanging", "completed", "", at=5000.0, on="slurm")
    add_job(root, "waiting", "", at=4000.0)
    goes_on = threading.Event()
    asked = []

    def statuses(_, records):
        asked.append([one.id for one in records])
        if records[0].engine == "slurm":
            goes_on.wait(180)
        return [JobStatus(one) for one in records]

    monkeypatch.setattr(Jobs, "statuses", statuses)
    found = HubJobs(Library(index, [str(root)]), {}, submits=False, seconds=3)
    try:
        for _ in range(2):  # the second time it is not even asked
            page, _ = asyncio.run(found.page(JobFilter(), None, start=0, limit=100))
            states = {one.id: one.state.value for one in page}
            assert states.pop("hanging") == "unknown"
            assert states == {
                "waiting": "pending",
                "first": "failed",
                "second": "completed",
                "third": "completed",
            }
            assert page[0].reason.startswith("slurm did not answer within 3 s.")
            assert page[0].counts == {"completed": 1, "unknown": 1}
        assert asked.count(["hanging"]) == 1
        goes_on.set()
        deadline = threading.Event()
        while asyncio.run(found.get("hanging")).state == "unknown":
            deadline.wait(0.02)
    finally:
        goes_on.set()
        found.close()


def test_requests_that_wait_for_an_engine_do_not_block_others(hub, root, jobs, monkeypatch):
    add_job(root, "hanging", "", at=5000.0, on="slurm")
    at_once = 60  # more than there are threads for requests
    entered = threading.Semaphore(0)
    goes_on = threading.Event()
    asked = []
    page = HubJobs.page

    def counted(*arguments, **options):
        entered.release()
        return page(*arguments, **options)

    def statuses(_, records):
        asked.append(len(records))
        goes_on.wait(180)
        return [JobStatus(one) for one in records]

    monkeypatch.setattr(HubJobs, "page", counted)
    monkeypatch.setattr(Jobs, "statuses", statuses)
    monkeypatch.setattr(hub.hub.jobs, "_seconds", 120.0)
    with hub.client("max") as client, ThreadPoolExecutor(at_once) as pool:
        try:
            found = [pool.submit(client.get, "/api/v1/jobs") for _ in range(at_once)]
            for _ in range(40):
                assert entered.acquire(timeout=180)
            assert client.get("/api/v1/runs").status_code == 200
            assert not any(one.done() for one in found)
        finally:
            goes_on.set()
        states = {one.result().json()["jobs"][0]["state"] for one in found}
    assert states == {"pending"}
    assert len(asked) < at_once / 2  # those who wait share a query
    assert set(asked) == {1}


def test_many_log_requests_of_one_user_leave_room_for_others(hub, jobs, monkeypatch):
    goes_on = threading.Event()

    def read(*_, **__):
        goes_on.wait(180)
        yield b"line\n"

    monkeypatch.setattr(MemberLog, "read", read)
    monkeypatch.setattr(hub.hub.jobs, "_seconds", 120.0)
    path, at_once, answered = "/api/v1/jobs/first/logs?member=1", 90, 4 + 64
    with (
        hub.client("vera") as vera,
        hub.client("max") as other,
        ThreadPoolExecutor(at_once + 1) as pool,
    ):
        try:
            found = [pool.submit(vera.get, path) for _ in range(at_once)]
            until(lambda: sum(one.done() for one in found) == at_once - answered)
            found.append(pool.submit(other.get, path))
            assert other.get("/api/v1/jobs").status_code == 200
            assert [one.name for one in threading.enumerate()].count("jobs-process") == 1
        finally:
            goes_on.set()
        answers = [one.result() for one in found]
    assert Counter(one.status_code for one in answers) == {200: answered + 1, 503: 90 - answered}
    refusal = next(one for one in answers if one.status_code == 503).json()["error"]
    assert refusal["code"] == "busy"
    assert refusal["message"] == "too many of your requests are waiting."
    assert answers[-1].text == "line\n"


def test_requests_that_wait_for_an_engine_are_limited(monkeypatch):
    monkeypatch.setattr(jobs_module, "_MOST_WAITING", 3)
    queue = jobs_module._Queue("slurm", 120.0)
    began, goes_on = threading.Event(), threading.Event()

    def first():
        began.set()
        return goes_on.wait(180)

    async def answers():
        asked = [queue.put(first, 120.0)]
        assert began.wait(180)
        asked += [queue.put(lambda n=n: n, 120.0) for n in range(3)]
        with pytest.raises(Busy, match=r"3 requests are waiting for slurm\."):
            await queue.put(first, 120.0).wait()
        goes_on.set()
        return [await one.wait() for one in asked]

    assert asyncio.run(answers()) == [True, 0, 1, 2]
