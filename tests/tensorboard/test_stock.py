"""The stock engine: TensorBoard's own loaders and plugins over any board, behind our rules."""

import shutil
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from aboard import EventWriter
from aboard.events import encode
from aboard.events.records import frame
from aboard.index.library import Member
from aboard.runs.naming import Template
from aboard.storage.base import open_storage
from aboard.tensorboard import plugins
from aboard.tensorboard.board import Board
from aboard.tensorboard.stock import make_stock_app
from tests.tensorboard.client import Fast, Stock, websocket, write_scalars
from tests.tensorboard.servers import one_board
from tests.waiting import until

FIXTURES = Path(__file__).parent.parent / "fixtures"


def events(*steps):
    return b"".join(
        frame(encode.event(float(step), step, [encode.scalar("loss", step / 2)])) for step in steps
    )


@pytest.fixture
def stock(tmp_path):
    """Open places: `stock(place, …)`; afterwards nothing of it may be left."""
    opened = []

    def open_board(*places, **options):
        opened.append(Stock(tmp_path / "work", *places, **options))
        return opened[-1]

    yield open_board
    for client in opened:
        client.close()
    assert list((tmp_path / "work").iterdir()) == []


@pytest.fixture
def fast(index):
    """Open the same places with the fast engine."""
    opened = []

    def open_board(*places, **options):
        opened.append(Fast(one_board(index, *places, **options)))
        return opened[-1]

    yield open_board
    for client in opened:
        client.close()


@pytest.fixture
def logs(tmp_path):
    root = tmp_path / "logs"
    write_scalars(root, 1, 2, 3)
    write_scalars(root / "a", 1, 2)
    write_scalars(root / "a" / "train", 1)
    write_scalars(root / "deep" / "er" / "b", 5)
    return root


def tree_of(directory):
    return {
        (str(path.relative_to(directory)), path.lstat().st_mtime_ns)
        for path in directory.rglob("*")
    }


def test_the_version_changes_with_what_was_read(stock, logs):
    client = stock(logs)
    before = client.json("data/status")
    assert client.json("data/status") == before
    write_scalars(logs / "late", 7)
    until(lambda: client.steps("late") == [7])
    until(lambda: client.json("data/status") != before)
    before = client.json("data/status")
    shutil.rmtree(logs / "late")
    until(lambda: client.json("data/status") != before)


def test_a_directory_shows_what_tensorboard_shows(stock, logs):
    client = stock(logs)
    assert sorted(client.json("data/runs")) == [".", "a", "a/train", "deep/er/b"]
    assert client.steps(".") == [1, 2, 3]
    assert client.steps("a/train") == [1]
    assert client.stock.problems == []
    listing = client.json("data/plugins_listing")
    assert listing["timeseries"]["enabled"]
    assert listing["scalars"]["enabled"]


@pytest.mark.parametrize(
    ("places", "options"),
    [
        (["{logs}"], {}),
        (["name={logs}"], {}),
        (["{logs}", "{other}"], {}),
        (["{logs}", "{same}"], {}),
        (["x={logs}", "x={other}"], {}),
        (["{logs}"], {"include": ("a*",)}),
        (["{logs}"], {"exclude": ("a", ".")}),
        (["{logs}", "{other}"], {"include": ("other*", "*train")}),
        (["{logs}", "{other}"], {"template": Template.parse("{experiment}-{run}/{logdir}")}),
        (["{logs}", "{other}"], {"template": Template.parse("all the same")}),
        (["{file}", "{other}"], {}),
    ],
)
def test_runs_have_the_names_of_the_fast_engine(places, options, stock, fast, logs, tmp_path):
    write_scalars(tmp_path / "other" / "c", 9)
    shutil.copytree(logs, tmp_path / "more" / "logs")
    [file] = (logs / "a").glob("*tfevents*")
    named = {"logs": logs, "other": tmp_path / "other", "same": tmp_path / "more" / "logs"}
    places = [place.format(**named, file=file) for place in places]
    before = tree_of(logs)
    expected = fast(*places, **options)
    client = stock(*places, **options)
    runs = expected.json("data/runs")
    assert runs
    assert sorted(client.json("data/runs")) == sorted(runs)
    for run in runs:
        assert client.steps(run) == expected.steps(run)
    assert tree_of(logs) == before


@pytest.mark.parametrize("name", ["", "name"])
def test_growing_and_new_runs_arrive(name, stock, logs):
    client = stock(f"{name}={logs}" if name else logs)
    run = f"{name}/new/run".lstrip("/")
    with EventWriter(logs / "new" / "run") as writer:
        writer.scalar("loss", 1, 1)
        writer.flush()
        until(lambda: client.steps(run) == [1])
        writer.scalar("loss", 2, 2)
        writer.flush()
        until(lambda: client.steps(run) == [1, 2])
    shutil.rmtree(logs / "new")
    until(lambda: run not in client.json("data/runs"))


def test_a_replaced_file_is_read_anew(stock, logs):
    client = stock(logs)
    [file] = (logs / "a").glob("*tfevents*")
    file.write_bytes(events(7, 8, 9, 10, 11, 12))
    until(lambda: client.steps("a") == [7, 8, 9, 10, 11, 12])
    file.unlink()
    write_scalars(logs / "a", 3)
    until(lambda: client.steps("a") == [3])


def test_a_damaged_file_stops_no_other(stock, logs):
    (logs / "a" / "0.tfevents").write_bytes(frame(b"\xff not an event") + events(1))
    client = stock(logs)
    assert client.steps("deep/er/b") == [5]
    assert client.steps(".") == [1, 2, 3]


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_a_bucket_is_followed(kind, stock, tmp_path, request, logs):
    bucket = (
        f"memory://{tmp_path.name}/logs"
        if kind == "memory"
        else f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    )
    storage = open_storage(bucket)
    storage.write("a/events.out.tfevents.1", events(1, 2))
    client = stock(f"far={bucket}", f"near={logs}")
    assert client.steps("far/a") == [1, 2]
    assert client.steps("near/a") == [1, 2]
    assert client.json("data/environment")["data_location"] == f"{bucket}, {logs}"
    storage.write("a/events.out.tfevents.1", events(1, 2, 3))
    storage.write("b/events.out.tfevents.1", events(4))
    until(lambda: client.steps("far/a") == [1, 2, 3])
    until(lambda: client.steps("far/b") == [4])
    storage.write("a/events.out.tfevents.1", events(9))
    until(lambda: client.steps("far/a") == [9])
    storage.delete("b/events.out.tfevents.1")
    until(lambda: "far/b" not in client.json("data/runs"))


def test_a_place_that_is_missing_is_said_once_and_waited_for(stock, tmp_path, caplog):
    write_scalars(tmp_path / "here", 1)
    client = stock(tmp_path / "here", tmp_path / "later")
    assert client.json("data/runs") == ["here"]
    assert "later: file or directory not found" in str(client.stock.problems[0])
    write_scalars(tmp_path / "later", 2)
    until(lambda: client.steps("later") == [2])
    until(lambda: client.stock.problems == [])
    assert caplog.text.count("file or directory not found") == 1


def test_samples_are_tensorboards_own_unless_given(stock, tmp_path):
    write_scalars(tmp_path / "logs", *range(1500))
    assert len(stock(tmp_path / "logs").steps(".")) == 1000
    assert len(stock(tmp_path / "logs", samples={"scalars": 0}).steps(".")) == 1500
    assert len(stock(tmp_path / "logs", samples={"scalars": 10}).steps(".")) == 10


def test_the_outer_rules_are_those_of_the_fast_engine(stock, fast, logs):
    ours, theirs = stock(logs), fast(logs)
    for client in (ours, theirs):
        assert client.ask(
            "/font-roboto/oMMgfZMQthOryQo9n22dcuvvDin1pK8aKteLpeZ5c0A.woff2"
        ).is_success
        assert client.ask("/b/other/data/runs").status_code == 404
        assert client.ask("/b/board").headers["location"] == "board/"
        assert "tb-webapp" in client.get("").text
        assert client.get("index.js").is_success
        assert client.get("experiment/defaultExperimentId/data/runs").is_success
        header = {"Tensorboard-Experiment-Id": "other"}
        assert client.ask("/b/board/data/runs", headers=header).json() == client.json("data/runs")
    assert ours.json("data/environment") == theirs.json("data/environment")
    assert "debug" not in ours.json("data/environment")
    assert ours.json("data/environment")["window_title"] == "A board"
    assert ours.json("data/logdir") == {"logdir": str(logs)}


def test_closing_leaves_no_thread_and_no_file(logs, tmp_path):
    storage = open_storage(f"memory://{tmp_path.name}/logs")
    storage.write("a/events.out.tfevents.1", events(1))
    before = set(threading.enumerate())
    client = Stock(tmp_path / "work", logs, storage.uri)
    assert is_private(tmp_path / "work")
    client.json("data/plugins_listing")
    client.close()
    client.stock.close()
    assert set(threading.enumerate()) - before == set()
    assert list((tmp_path / "work").iterdir()) == []


def is_private(work_directory):
    return all(path.stat().st_mode & 0o077 == 0 for path in work_directory.iterdir())


def test_closing_does_not_wait_until_all_is_read(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "tfevents").write_bytes(events(*range(1000)) * 200)
    board = Board("board", "A board", (Member.parse(str(tmp_path / "logs")),))
    app = make_stock_app(board, samples=None, work_directory=tmp_path / "work")
    app.close()
    assert not app.loaded


PLUGIN = """
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

class Added(base_plugin.TBPlugin):
    plugin_name = "added"
    def __init__(self, context):
        self.logdir = context.logdir
        self.word = context.flags.added_word
    def get_plugin_apps(self):
        return {"/word": self.serve, "/fails": self.fail}
    @wrappers.Request.application
    def serve(self, request):
        return wrappers.Response(self.word)
    def fail(self, environ, start_response):
        raise KeyError("as plugins do")
    def is_active(self):
        return True
    def frontend_metadata(self):
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Added")

class Loader(base_plugin.TBLoader):
    def define_flags(self, parser):
        parser.add_argument("--added_word", default="a word")
    def load(self, context):
        return Added(context)

class BadName(Added):
    plugin_name = "no/name"

class Twice(Added):
    plugin_name = "scalars"

class BadRoute(Added):
    plugin_name = "bad_route"
    def get_plugin_apps(self):
        return {"route": self.serve}

class BadPage(Added):
    plugin_name = "bad_page"
    def frontend_metadata(self):
        raise RuntimeError("no page")

class BadFlags(base_plugin.TBLoader):
    def define_flags(self, parser):
        parser.add_argument("--logdir")
    def load(self, context):
        return None

def not_a_plugin():
    pass
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install plugins, by the names of what a module of them holds."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a_package.py").write_text(PLUGIN)
    (tmp_path / "site" / "exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def install(*values):
        found = [
            EntryPoint(f"p{n}", value, "tensorboard_plugins") for n, value in enumerate(values)
        ]
        real = plugins.entry_points
        monkeypatch.setattr(plugins, "entry_points", lambda group: [*real(group=group), *found])

    yield install
    sys.modules.pop("a_package", None)


def test_a_plugin_of_another_package_is_served(stock, logs, installed):
    installed("a_package:Loader")
    client = stock(logs)
    added = client.json("data/plugins_listing")["added"]
    assert (added["enabled"], added["tab_name"]) == (True, "Added")
    assert client.get("data/plugin/added/word").text == "a word"
    assert client.get("data/plugin/added/fails").status_code == 500
    assert client.steps("a") == [1, 2]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_package:Plugin", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("a_package:Missing", "AttributeError"),
        ("a_package:not_a_plugin", "TypeError: Not a TBLoader"),
        ("a_package:BadName", "ValueError: invalid plugin name 'no/name'"),
        ("a_package:Twice", "ValueError: another plugin has the name 'scalars'"),
        ("a_package:BadRoute", "ValueError: invalid route 'route'"),
        ("a_package:BadPage", "RuntimeError: no page"),
        ("a_package:BadFlags", "ArgumentError"),
        ("exits:Plugin", "SystemExit: 3"),
    ],
)
def test_a_broken_plugin_is_left_out_with_a_line_in_the_log(
    value, reason, stock, logs, installed, caplog
):
    installed("a_package:Loader", value)
    client = stock(logs)
    assert f"TensorBoard's plugin 'p1' of the package '?' is left out: {reason}" in caplog.text
    listing = client.json("data/plugins_listing")
    assert listing["added"]["enabled"]
    assert listing["scalars"]["enabled"]
    assert not {"bad_page", "bad_route", "no/name"} & listing.keys()


def test_the_hint_to_install_the_profiler_goes_when_it_is_installed(stock, logs, installed):
    assert "profile_redirect" in stock(logs).json("data/plugins_listing")
    found = [EntryPoint("profile", "a_package:Loader", "tensorboard_plugins")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "entry_points", lambda group: found)
        assert "profile_redirect" not in stock(logs).json("data/plugins_listing")


def test_a_board_has_no_websockets(stock, logs, caplog):
    client = stock(logs)
    for path in ("/b/board/data/runs", "/b/other/"):
        assert websocket(client.app, path) == [{"type": "websocket.close", "code": 4404}]
    assert caplog.text == ""


def test_how_far_the_reading_is_can_be_followed(logs, tmp_path):
    (tmp_path / "empty").mkdir()
    members = [Member.parse(str(place)) for place in (logs, tmp_path / "empty")]
    board = Board("board", "A board", tuple(members), exclude=("logs/a*",))
    states = []
    app = make_stock_app(
        board, samples=None, work_directory=tmp_path / "work", on_load=states.append
    )
    try:
        until(lambda: states and states[-1].loaded)
    finally:
        app.close()
    assert [state.read for state in states[:2]] == [0, 1]
    assert not states[0].loaded
    last = states[-1]
    assert (last.shown, last.read) == (2, 2)
    assert {member for member, _ in last.found} == {members[0]}
    names = ["logs", "logs/a", "logs/a/train", "logs/deep/er/b"]
    assert sorted(name for _, name in last.found) == names
