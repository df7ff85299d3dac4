"""The record of a job, and the states that follow from engine and run."""

import dataclasses
from pathlib import Path

import pytest

from aboard.executors.base import TaskState, TaskStatus
from aboard.jobs.model import JobRecord, JobStatus, MemberState, Submission, job_state, standing_of
from aboard.runs.manifest import Manifest, State

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "job-json.md"
ENDED = TaskStatus(TaskState.ENDED, 1, "")


def test_every_field_of_the_record_is_documented():
    text = PAGE.read_text()
    names = {one.name for kind in (JobRecord, Submission) for one in dataclasses.fields(kind)}
    for name in names - {"others", "root"}:
        assert f"`{name}`" in text, name


@pytest.mark.parametrize(
    ("counts", "stopped", "state"),
    [
        ({"pending": 2}, False, "pending"),
        ({"pending": 1, "completed": 1}, False, "running"),
        ({"running": 1, "failed": 1}, False, "running"),
        ({"running": 1, "unknown": 1}, False, "unknown"),
        ({"completed": 2}, False, "completed"),
        ({"completed": 2}, True, "completed"),
        ({"completed": 1, "lost": 1}, False, "failed"),
        ({"completed": 1, "killed": 1}, False, "failed"),
        ({"completed": 1, "killed": 1}, True, "stopped"),
        ({"failed": 1, "running": 0}, True, "failed"),
    ],
)
def test_the_state_of_a_job_follows_from_its_members(counts, stopped, state):
    assert job_state(counts, stopped=stopped) == state


def test_the_reason_of_a_job_is_that_of_the_member_whose_exit_code_it_has():
    settled = {"1": ["failed", 1, "exit code 1"], "2": ["failed", 3, "exit code 3"]}
    status = JobStatus(
        JobRecord(
            id="a",
            experiment="e",
            run="{job}-{number}",
            command=["true"],
            on="process",
            members=[{}, {}],
            settled=settled,
        )
    )
    assert (status.exit_code, status.reason) == (3, "exit code 3")


def test_a_record_holds_what_that_of_a_run_does():
    record = JobRecord(
        id="a",
        experiment="e",
        run="{job}",
        command=["echo", "caf\udce9"],
        on="process",
        members=[{"seed": 2**70}],
    )
    read = JobRecord.from_json(record.to_json(), "")
    assert (read.command, read.members) == (record.command, record.members)


def test_a_record_in_a_bucket_may_arrive_after_the_task_has_ended():
    run = Manifest("a", heartbeat=100.0)
    for shipped, now, final in [(False, 101, True), (True, 101, False), (True, 10_000, True)]:
        found = standing_of(ENDED, run, now, stopped=False, shipped=shipped)
        assert found == ((MemberState.FAILED, 1, "exit code 1"), final)
    run.state, run.exit_code = State.COMPLETED, 0
    found = standing_of(ENDED, run, 101, stopped=False, shipped=True)
    assert found == ((MemberState.COMPLETED, 0, ""), True)


def test_a_requeued_task_waits_although_its_run_was_killed():
    run = Manifest("a", state=State.KILLED)
    requeued = TaskStatus(TaskState.WAITING, reason="BeginTime")
    found = standing_of(requeued, run, 0, stopped=False)
    assert found == ((MemberState.PENDING, None, "BeginTime"), False)
