"""Jobs over HTTP: lists, members, logs and permissions."""

import shutil

import pytest

from aboard.executors.base import ExecutorError
from aboard.hub.api.jobs import JobDocument, MemberDocument
from aboard.hub.config import JobSettings
from aboard.jobs import JobError
from aboard.jobs.model import JobStatus
from aboard.jobs.service import Jobs
from aboard.storage import Unreachable
from aboard.web.request import session_cookie_name
from tests.hub.hubs import add_job, served

COMMAND = {"command": ["true"], "workdir": "/"}


def listed(client, **query):
    found = client.get("/api/v1/jobs", params=query).json()
    return [job["id"] for job in found["jobs"]], found["next"]


def test_jobs_below_the_roots_are_listed_with_the_states_of_their_members(hub, root, jobs):
    with hub.client("vera") as client:
        third, second, first = client.get("/api/v1/jobs").json()["jobs"]
        assert (first["id"], first["state"], first["exit_code"]) == ("first", "failed", 3)
        assert (first["count"], first["states"]) == (3, {"completed": 2, "failed": 1})
        assert (first["root"], first["selector"]) == (str(root), "job:first")
        assert (first["created"], second["state"]) == ("1970-01-01T00:16:40.000Z", "completed")
        assert client.get("/api/v1/jobs/fir").json() == first
        assert client.get("/api/v1/jobs/third").json() == third
        members = client.get("/api/v1/jobs/first/members").json()["members"]
        assert [one["state"] for one in members] == ["completed", "failed", "completed"]
        assert (members[1]["run"], members[1]["hparams"]) == ("cifar10/first-2", {"lr": 0.2})


def test_jobs_are_filtered_and_come_in_pages(hub, root, jobs):
    with hub.client("max") as client:
        assert listed(client) == (["third", "second", "first"], None)
        assert listed(client, limit=2) == (["third", "second"], "2")
        assert listed(client, limit=2, cursor="2") == (["first"], None)
        assert listed(client, state=["failed", "running"]) == (["first"], None)
        assert listed(client, state="completed", limit=1) == (["third"], "1")
        assert listed(client, user="linus") == (["third"], None)
        assert listed(client, experiment="cifar10", user="ada") == (["first"], None)
        assert listed(client, root=root) == (["third", "second", "first"], None)
        path = "/api/v1/jobs/first/members"
        page = client.get(path, params={"limit": 2}).json()
        assert ([one["number"] for one in page["members"]], page["next"]) == ([1, 2], "2")
        failed = client.get(path, params={"state": "failed"}).json()["members"]
        assert [one["number"] for one in failed] == [2]


@pytest.mark.parametrize(
    ("path", "status", "code", "message"),
    [
        ("/none", 404, "not_found", "job 'none' not found"),
        ("/first?root=/elsewhere", 422, "bad_value", "'/elsewhere' is not a root of this hub."),
        ("/first/logs", 422, "bad_value", "job first has 3 members."),
        ("/first/logs?member=7", 422, "bad_value", "job first has members 1 to 3, not 7."),
        ("?cursor=x", 422, "bad_value", "invalid cursor."),
    ],
)
def test_errors_are_one_line(hub, jobs, path, status, code, message):
    with hub.client("max") as client:
        answer = client.get(f"/api/v1/jobs{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert message in answer.json()["error"]["message"]


def test_a_damaged_record_does_not_hide_others(hub, root, jobs):
    (root / ".jobs/bad").mkdir()
    (root / ".jobs/bad/job.json").write_text("{")
    with hub.client("max") as client:
        assert listed(client) == (["third", "second", "first"], None)


def test_the_recorded_output_of_a_member_is_its_log(hub, root, jobs):
    run = root / "cifar10/first-2"
    run.mkdir(parents=True)
    (run / "output.log").write_text("one\ntwo\n")
    with hub.client("vera") as client:
        answer = client.get("/api/v1/jobs/first/logs", params={"member": 2, "tail": 1})
    assert (answer.text, answer.headers["content-type"]) == ("two\n", "text/plain; charset=utf-8")


def test_the_documents_are_those_of_a_job(root):
    status = JobStatus(add_job(root, "first", "completed"))
    assert set(JobDocument.model_fields) == set(status.document())
    assert set(MemberDocument.model_fields) == set(status.members[0].document())


def test_a_log_is_followed_until_the_member_has_finished(hub, root):
    record = add_job(root, "growing", "")
    run = root / "cifar10/growing-1"
    run.mkdir(parents=True)
    log = run / "output.log"
    log.write_text("one\n")
    path = "/api/v1/jobs/growing/logs"
    with hub.client("vera") as client, client.stream("GET", f"{path}?follow=true") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "one"
        with log.open("a") as more:
            more.write("two\n")
        assert next(lines) == "two"
        record.settled = {"1": ["completed", 0, ""]}
        log.write_text("one\ntwo\nend")
        (root / ".jobs/growing/job.json").write_bytes(record.to_json())
        assert list(lines) == ["end"]


@pytest.mark.parametrize(
    "error",
    [ExecutorError("squeue: no answer."), Unreachable("s3://logs", "no answer"), JobError()],
)
def test_following_continues_after_an_error(hub, root, monkeypatch, error):
    add_job(root, "growing", "")
    (root / "cifar10/growing-1").mkdir(parents=True)
    log = root / "cifar10/growing-1/output.log"
    log.write_text("one\n")
    get, failures = Jobs.get, iter([error])

    def sometimes(self, job):
        for failure in failures:
            log.write_text("one\ntwo\n")
            raise failure
        return get(self, job)

    path = "/api/v1/jobs/growing/logs?follow=true"
    with hub.client("vera") as client, client.stream("GET", path) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "one"
        monkeypatch.setattr(Jobs, "get", sometimes)
        assert next(lines) == "two"
        shutil.rmtree(root / ".jobs/growing")
        assert list(lines) == []  # of a job that was deleted nothing comes any more


# Who may change jobs.


CHANGES = [("", COMMAND), ("/first/stop", {}), ("/first/retry", {})]


def test_a_teams_hub_changes_no_jobs_unless_its_settings_allow_it(hub, jobs):
    for who, reason in (
        ("vera", "vera (viewer) may not submit and stop jobs."),
        ("max", "max (member) may not submit and stop jobs."),
        ("anna", "this hub may not submit, stop or delete jobs."),
    ):
        with hub.client(who) as client:
            for path, body in CHANGES:
                answer = client.post(f"/api/v1/jobs{path}", json=body)
                assert (answer.status_code, answer.json()["error"]["message"]) == (403, reason)
            answer = client.delete("/api/v1/jobs/first")
            assert (answer.status_code, answer.json()["error"]["message"]) == (403, reason)


def test_administrators_change_jobs_if_the_settings_allow_it(tmp_path, root, jobs):
    settings = JobSettings(submit=True)
    with served(tmp_path, [root], jobs=settings) as hub, hub.client("anna") as client:

        def refusal(path, **body):
            answer = client.post(f"/api/v1/jobs{path}", json=body)
            return answer.status_code, answer.json()["error"]["message"]

        assert client.post("/api/v1/jobs/second/stop").json()["state"] == "completed"
        assert client.delete("/api/v1/jobs/third").status_code == 204
        assert listed(client) == (["second", "first"], None)
        assert refusal("", **COMMAND, on="docker") == (
            422,
            "this hub does not submit jobs to 'docker'.",
        )
        assert refusal("", **COMMAND, root="/elsewhere")[0] == 422
        assert refusal("", command=["true"], workdir="here") == (
            422,
            "workdir 'here' is a relative path.",
        )
        with hub.client("max") as member:
            assert member.post("/api/v1/jobs", json=COMMAND).status_code == 403


def test_a_session_of_a_browser_submits_no_jobs(tmp_path, root):
    with served(tmp_path, [root], jobs=JobSettings(submit=True)) as hub:
        opened = hub.hub.auth.open_session(hub.hub.auth.user("anna")).secret
        cookie = session_cookie_name({"server": ("127.0.0.1", int(hub.url.rpartition(":")[2]))})
        headers = {"origin": hub.url, "x-aboard-csrf": "1"}
        with hub.client(headers=headers, cookies={cookie: opened}) as client:
            assert client.get("/api/v1/me").json()["user"] == "anna"
            answer = client.post("/api/v1/jobs", json=COMMAND)
    refusal = (403, "a session may not submit jobs.")
    assert (answer.status_code, answer.json()["error"]["message"]) == refusal
