"""The storages under test: a directory, memory, and a server for each cloud's protocol."""

from itertools import count
from pathlib import Path

import pytest

_numbers = count(1)


@pytest.fixture(autouse=True)
def _no_ambient_credentials(environment: pytest.MonkeyPatch) -> None:
    """Hide the developer's own credentials from every test in here."""


@pytest.fixture(params=["local", "memory", "s3", "rclone", "seaweedfs", "gcs", "azure", "oss"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URI of a root that nothing was written to yet, on each storage in turn."""
    if request.param == "local":
        return str(tmp_path / "logs")
    if request.param == "memory":
        return f"memory://test-{next(_numbers)}/logs"
    return str(request.getfixturevalue(f"{request.param}_bucket")) + f"/logs-{next(_numbers)}"


@pytest.fixture
def ignores_conditions(request: pytest.FixtureRequest) -> bool:
    """Tell whether the server writes whatever condition a request has."""
    return bool(request.node.callspec.params["root"] == "rclone")
