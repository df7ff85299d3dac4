"""What the tests of boards share: an index of their own, and the trees they compare over."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def serve(index) -> Iterator:
    """Serve directories as one board: `serve(logdir, …)`."""
    from tests.tensorboard.servers import Ours, one_board

    opened = []

    def serve(*logdirs, samples=None, **options):
        opened.append(Ours(one_board(index, *logdirs, **options), samples=samples))
        return opened[-1]

    yield serve
    for ours in opened:
        ours.close()


@pytest.fixture(scope="session")
def every_kind(tmp_path_factory) -> Path:
    """A tree with every kind of data."""
    from tests.tensorboard.every_kind import write_every_kind

    root = tmp_path_factory.mktemp("every-kind") / "logs"
    write_every_kind(root)
    return root


@pytest.fixture(scope="session", params=["written", "torch", "tensorboardx", "tensorflow", "keras"])
def tree(request, tmp_path_factory, every_kind) -> Path:
    """A tree of ours, and those of the frameworks, less what TensorBoard reads otherwise."""
    if request.param == "written":
        return every_kind
    root = tmp_path_factory.mktemp(request.param) / "logs"
    shutil.copytree(
        FIXTURES / request.param,
        root,
        ignore=shutil.ignore_patterns("restarted", "*.1.1.v2", "scalar-types"),
    )
    return root
