"""What happens to tests whose engine is not to be had on this machine."""

import os
from typing import NoReturn

import pytest

MUST_RUN = "ABOARD_TESTS_MUST_RUN"
"""Set where everything is installed: what cannot be set up there is a defect."""

MARK = "cannot be set up here: "
"""How the reason of each such test begins."""


def must_run() -> bool:
    return os.environ.get(MUST_RUN, "") not in ("", "0")


def cannot_set_up(reason: str) -> NoReturn:
    """Skip the tests that need an engine, or fail them where all must run."""
    if must_run():
        pytest.fail(f"{reason} ({MUST_RUN} is set)", pytrace=False)
    pytest.skip(MARK + reason)
