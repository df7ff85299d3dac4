"""Skips or fails tests whose engine is not installed on this machine."""

import os
from typing import NoReturn

import pytest

MUST_RUN = "ABOARD_TESTS_MUST_RUN"
"""Set on machines where everything is installed: an engine that is missing there is a failure."""

MARK = "cannot be set up here: "
"""Prefix of the reason of each such test."""


def must_run() -> bool:
    return os.environ.get(MUST_RUN, "") not in ("", "0")


def cannot_set_up(reason: str) -> NoReturn:
    """Skip the tests that need an engine, or fail them if all tests must run."""
    if must_run():
        pytest.fail(f"{reason} ({MUST_RUN} is set)", pytrace=False)
    pytest.skip(MARK + reason)
