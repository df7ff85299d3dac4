"""A viewer: a hub of one board without a database."""

import subprocess
import sys

import httpx
import pytest

from aboard.cli.view import make_spec
from aboard.events.writer import EventWriter
from aboard.hub.viewer import Viewer
from aboard.index.library import Library
from aboard.storage import open_storage
from aboard.tensorboard.board import BoardSelection
from aboard.web import TokenAccess, listen, urls
from tests.hub.hubs import QUICK
from tests.waiting import until
from tests.web.serving import serving


@pytest.mark.parametrize("engine", ["fast", "stock"])
def test_a_board_is_served_behind_its_token(tmp_path, index, engine):
    logs = tmp_path / "logs"
    with EventWriter(logs / "run") as writer:
        writer.scalar("loss", 1.0, 3)
    selection = BoardSelection("view", "Logs", Library.parse([str(logs)]))
    access = TokenAccess()
    viewer = Viewer(selection, Library(index), access, engine=engine)
    sockets = listen(port=0)
    try:
        with serving(viewer.app, sockets), httpx.Client(**QUICK) as client:
            address = urls(sockets, "localhost")[0]
            assert client.get(f"{address}{viewer.path}data/runs").status_code == 401
            key = {"key": access.key}
            client.get(f"{address}/", params=key, follow_redirects=True).raise_for_status()
            until(lambda: client.get(f"{address}{viewer.path}data/runs").json() == ["run"])
            status = client.get(f"{address}{viewer.path}data/status").json()
            assert (status["runs"], status["problems"]) == (1, [])
    finally:
        viewer.close()


def test_sources_with_equal_last_parts_get_distinct_names(tmp_path, index):
    for experiment in ("mnist", "cifar10"):
        for stage in ("", "train"):
            with EventWriter(tmp_path / "runs" / experiment / "run1" / stage) as writer:
                writer.scalar("loss", 1.0, 3)
    bucket = f"memory://{tmp_path.name}/run1"
    open_storage(bucket).write("tfevents.1", writer.path.read_bytes())
    texts = [str(tmp_path / "runs" / one / "run1") for one in ("mnist", "cifar10")]
    viewer = Viewer(make_spec([*texts, bucket]), Library(index), access := TokenAccess())
    sockets = listen(port=0)
    labels = ["mnist/run1", "cifar10/run1", f"{tmp_path.name}/run1"]
    expected = {*labels, "mnist/run1/train", "cifar10/run1/train"}
    headers = {"authorization": f"Bearer {access.token}"}
    try:
        with serving(viewer.app, sockets), httpx.Client(headers=headers, **QUICK) as client:
            address = f"{urls(sockets, 'localhost')[0]}{viewer.path}"
            until(lambda: set(client.get(f"{address}data/runs").json()) == expected)
            assert client.get(f"{address}data/status").json()["runs"] == 3
    finally:
        viewer.close()


def test_a_viewer_does_not_import_heavy_parts_of_the_hub():
    code = (
        "import sys, aboard.hub.viewer, aboard.tensorboard.app, aboard.tensorboard.provider\n"
        "heavy = {'fastapi', 'sqlalchemy', 'pydantic', 'aboard.boards.registry'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "[]\n"
