"""Jobs: one or many members, submitted to an engine, each of which records a run.

A job needs no hub: its record is beside its runs, and the engine does the scheduling.
"""

from __future__ import annotations

from typing import ClassVar


class JobError(Exception):
    """An operation on a job failed; `code` is for programs, the text for people."""

    code: ClassVar[str] = "failure"


class BadJob(JobError):
    """The request is invalid."""

    code: ClassVar[str] = "invalid"


class JobExists(BadJob):
    """The name is taken."""

    code: ClassVar[str] = "exists"


class NoSuchJob(JobError):
    code: ClassVar[str] = "not_found"


class JobTimeout(JobError, TimeoutError):
    """The job has not ended within the timeout of the caller. It continues."""

    code: ClassVar[str] = "not_ready"
