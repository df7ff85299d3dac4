"""Errors of the daemon's client; needs no daemon."""

import sys

import pytest

from aboard.executors.base import ExecutorError
from aboard.executors.docker.daemon import explained


def test_a_missing_package_is_explained_once(monkeypatch):
    for name in ("docker", "docker.errors"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ExecutorError) as caught, explained("outside"), explained("inside"):
        import docker  # noqa: F401
    assert str(caught.value) == (
        "inside: this needs docker, which is not installed: pip install 'aboard[docker]'"
    )
