"""A hub over a root with a few runs."""

import pytest
from hubs import log_run, served


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "logs"
    log_run(root, "cifar10/run1", [1.0, 0.5], job="7", hparams={"lr": 0.1}, workspace="ws1")
    log_run(root, "cifar10/run2", [2.0, 1.5], job="8", hparams={"lr": 0.01}, workspace="ws1")
    log_run(root, "mnist/run1", [3.0])
    return root


@pytest.fixture
def hub(tmp_path, root):
    with served(tmp_path, [root]) as found:
        yield found
