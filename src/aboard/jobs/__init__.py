"""What is submitted to an engine: jobs of one or many members, each of which records a run.

A job needs no hub: its record lies beside its runs, and the engine does the scheduling.
"""

from __future__ import annotations

from typing import ClassVar


class JobError(Exception):
    """Something a job could not do; `code` is for programs, the text for people."""

    code: ClassVar[str] = "failure"


class BadJob(JobError):  # noqa: N818 - named by what is wrong
    """A job that cannot be submitted as it is written."""

    code: ClassVar[str] = "invalid"


class JobExists(BadJob):
    """The name is taken."""

    code: ClassVar[str] = "exists"


class NoSuchJob(JobError):  # noqa: N818 - named by what is wrong
    code: ClassVar[str] = "not_found"


class JobTimeout(JobError, TimeoutError):  # noqa: N818 - as TimeoutError
    """The job goes on, longer than the caller waits."""

    code: ClassVar[str] = "not_ready"
