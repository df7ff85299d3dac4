"""Files that another process reads anew in the middle of a request: the new data, or none."""

import numpy as np
import pytest
from tensorboard import errors

from aboard.events import encode
from aboard.events.writer import EventWriter
from aboard.index import Index
from aboard.index.logs import Logs
from aboard.tensorboard.provider import BoardDataProvider, BoardRequest, Signer, current_request
from aboard.tensorboard.routes import HotRoutes
from tests import summaries
from tests.tensorboard.servers import one_board


@pytest.fixture
def logdir(tmp_path):
    for run in ("a", "b"):
        with EventWriter(tmp_path / run) as writer:
            writer.scalar("loss", 0.5, 1, wall_time=5.0)
            writer.add([encode.text("note", "hello")], 2, wall_time=5.0)
            writer.add([summaries.images("image", [np.zeros((2, 2))])], 3, wall_time=5.0)
    return tmp_path


@pytest.fixture
def boards(index, logdir):
    return one_board(index, logdir)


@pytest.fixture
def provider(boards):
    """Give a provider in the middle of a request that has seen the board's runs."""
    provider = BoardDataProvider(boards, Signer(b"secret"))
    token = current_request.set(BoardRequest("board"))
    assert provider.list_runs(experiment_id="board")
    yield provider
    current_request.reset(token)


@pytest.fixture
def read_anew(index, logdir):
    def read_anew():
        with Index(index.path) as other:
            Logs(logdir, index=other, anew=True)

    return read_anew


def answers(provider):
    """Ask for all there is; return the steps by run."""
    asked = (
        ("read_scalars", "scalars"),
        ("read_tensors", "text"),
        ("read_blob_sequences", "images"),
    )
    for verb, plugin in asked:
        found = getattr(provider, verb)(experiment_id="board", plugin_name=plugin, downsample=10)
        yield {
            run: [one.step for data in tags.values() for one in data] for run, tags in found.items()
        }


def a_blob(provider):
    found = provider.read_blob_sequences(experiment_id="board", plugin_name="images", downsample=10)
    return found["b"]["image"][0].values[-1].blob_key


def test_what_is_read_anew_is_shown(provider, read_anew):
    key = a_blob(provider)
    read_anew()
    assert list(answers(provider)) == [
        {"a": [1], "b": [1]},
        {"a": [2], "b": [2]},
        {"a": [3], "b": [3]},
    ]
    assert provider.read_blob(blob_key=key).startswith(b"\x89PNG")


def test_what_is_gone_is_left_out(provider, read_anew, logdir):
    key = a_blob(provider)
    for file in (logdir / "b").iterdir():
        file.unlink()
    read_anew()
    assert list(answers(provider)) == [{"a": [1]}, {"a": [2]}, {"a": [3]}]
    with pytest.raises(errors.NotFoundError, match="can no longer be read at step 3"):
        provider.read_blob(blob_key=key)


def test_curves_are_those_of_the_files_that_are_there(boards, provider, read_anew, logdir):
    routes = HotRoutes(boards, provider, {})
    held = boards.get("board").runs()

    def curves():
        return {run: one.values.tolist() for run, one in routes._read(held, "loss", None)}

    read_anew()
    assert curves() == {"a": [0.5], "b": [0.5]}
    for file in (logdir / "b").iterdir():
        file.unlink()
    read_anew()
    assert curves() == {"a": [0.5]}
