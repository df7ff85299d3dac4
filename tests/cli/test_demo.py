"""`aboard demo`: the training, its logs, and the board and the console that show it."""

import os
import signal
import socket
import threading

import httpx
import numpy as np
import orjson
import pytest

import aboard as library
from aboard.cli import demo
from aboard.runs.manifest import Manifest, State
from tests.cli.visitor import points, visitor
from tests.engines.command import fork_command
from tests.hub.hubs import QUICK
from tests.waiting import until


def test_the_demo_trains_and_shows_it_live_on_a_board_and_in_the_console(viewing, tmp_path):
    arguments = ["demo", "--seconds", 600, "--no-browser", "--json", "--port", 0]
    with viewing(*arguments) as (process, line):
        with visitor(line) as client:
            runs = {
                f"lr={rate}{stage}"
                for rate in ("0.01", "0.1", "1", "30")
                for stage in ("", "/train", "/eval")
            }
            until(lambda: set(client.get("data/runs").json()) == runs)
            first = until(lambda: len(points(client).get("lr=0.1/train", ())))
            until(lambda: len(points(client)["lr=0.1/train"]) > first)
            plugins = client.get("data/plugins_listing").json()
            shown = {name for name, plugin in plugins.items() if plugin["enabled"]}
            assert {"timeseries", "images", "histograms", "text", "hparams"} <= shown
            until(lambda: client.get("data/plugin/pr_curves/tags").json())
        for _ in range(2):  # the link is not used up
            check_console_of_demo(orjson.loads(line)["console"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=180) == 0
    assert {(one.state, one.reason) for one in records(tmp_path / "demo-logs")} == {
        (State.KILLED, "the demo was stopped")
    }
    assert "Traceback" not in (tmp_path / "errors").read_text()


def check_console_of_demo(link):
    page = {"accept": "text/html"}
    with httpx.Client(base_url=link.partition("?")[0], **QUICK) as client:
        refused = client.get("/", headers=page)
        assert refused.status_code == 401
        assert "Open the link that Aboard printed when it started" in refused.text
        assert client.get(link, headers=page).status_code == 303
        assert client.get("/", headers=page).status_code == 200
        until(lambda: client.get("/api/v1/runs").json()["total"] == 4)
        runs = client.get("/api/v1/runs?sort=hparams.learning_rate").json()["runs"]
        rates = [(one["experiment"], one["hparams"]["learning_rate"]) for one in runs]
        assert rates == [("spirals", rate) for rate in (0.01, 0.1, 1.0, 30.0)]
        boards = client.get("/api/v1/boards").json()["boards"]
        assert [one["name"] for one in boards] == ["demo"]


def records(logs):
    return [Manifest.from_json(path.read_bytes()) for path in logs.glob("*/run.json")]


def test_a_second_demo_leaves_the_first_alone(viewing, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    arguments = ["demo", "mine", "--seconds", 0.1, "--no-browser", "--port", 0]
    with viewing(*arguments) as (process, line):
        assert line.endswith("their logs are in mine-2\n")
        assert process.stdout.readline().startswith("The console: http://localhost:")
        assert process.stdout.readline().startswith("A board:     http://localhost:")
        assert process.wait(timeout=180) == 0
    assert [one.state for one in records(tmp_path / "mine-2")] == [State.COMPLETED] * 4
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]  # noqa: PTH208


def test_a_demo_of_the_current_directory(aboard, tmp_path):
    used = tmp_path / "used"
    used.mkdir()
    (used / "thesis.tex").write_text("precious")
    done = aboard("demo", ".", "--seconds", 0.1, "--no-browser", "--port", 0, cwd=used)
    assert (done.code, done.err.count("error")) == (0, 0)
    assert f"their logs are in {tmp_path}/used-2\n" in done.out
    assert os.listdir(used) == ["thesis.tex"]  # noqa: PTH208


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--seconds", "inf"], 2, "--seconds: inf is not between 0 and 604800.0."),
        (["--seconds", "nan"], 2, "--seconds: nan is not between 0 and 604800.0."),
        (["--seconds", "1e300"], 2, "--seconds: 1e+300 is not between 0 and 604800.0."),
        (["/"], 2, "/: the logs need a directory of their own. Name one."),
    ],
)
def test_a_demo_with_invalid_arguments(aboard, tmp_path, arguments, code, text):
    result = aboard("demo", *arguments, "--no-browser", "--port", 0)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(f"aboard: {text}")
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "demo-logs").exists()


def test_a_demo_without_a_port_makes_nothing(aboard, tmp_path):
    with socket.create_server(("localhost", 0)) as taken:
        result = aboard("demo", "--no-browser", "--port", taken.getsockname()[1])
    assert (result.code, result.out) == (1, "")
    assert "is in use" in result.err
    assert not (tmp_path / "demo-logs").exists()


FAILING = """
import aboard.cli.demo
def fail(*_):
    raise OSError(28, "No space left on device", "demo-logs/x")
aboard.cli.demo.train_all = fail
"""


@pytest.mark.parametrize("seconds", [[], ["--seconds", "60"]])
def test_a_training_that_fails_is_reported(variables, tmp_path, seconds):
    words = ["demo", "--no-browser", "--port", "0", *seconds]
    process = fork_command(words, env=variables, cwd=tmp_path, first=FAILING)
    try:
        _, err = process.communicate(180)
        assert process.wait() == 1
    finally:
        process.end()
    reported = err.splitlines()[-1]
    assert reported == "aboard: the training failed: demo-logs/x: no space left on device."
    assert "Traceback" not in err


@pytest.fixture
def short(monkeypatch):
    """Train a few steps."""
    monkeypatch.setattr(demo, "STEPS", 60)


def test_a_training_logs_every_common_kind_of_value(short, tmp_path):
    demo.train_all(tmp_path, 0.0, threading.Event())
    assert [one.state for one in records(tmp_path)] == [State.COMPLETED] * 4
    rates = {one.name: one.hparams["learning_rate"] for one in records(tmp_path)}
    assert rates == {"lr=0.01": 0.01, "lr=0.1": 0.1, "lr=1": 1.0, "lr=30": 30.0}
    with library.open(tmp_path / "lr=0.1") as logs:
        kinds = {(tag.run, tag.name): tag.kind.plugin for tag in logs.tags}
        assert kinds == {
            (".", "_hparams_/session_start_info"): "hparams",
            (".", "_hparams_/session_end_info"): "hparams",
            (".", "notes"): "text",
            ("train", "loss"): "scalars",
            ("train", "weights/hidden"): "histograms",
            ("eval", "loss"): "scalars",
            ("eval", "accuracy"): "scalars",
            ("eval", "decision"): "images",
            ("eval", "spiral"): "pr_curves",
        }
        assert logs.series("train", "loss").steps.tolist() == list(range(61))
        assert logs.series("eval", "accuracy").steps.tolist() == [0, 50]


def test_a_training_that_is_stopped_ends_its_runs(short, tmp_path):
    stop = threading.Event()
    stop.set()
    demo.train_all(tmp_path, 600.0, stop)
    assert {(one.state, one.reason) for one in records(tmp_path)} == {
        (State.KILLED, "the demo was stopped")
    }


@pytest.mark.parametrize("weights", ["hidden", "offset", "output"])
def test_a_network_learns_by_its_gradient(weights):
    random = np.random.default_rng(0)
    network, batch = demo.Network(random), demo._spirals(random, 16)
    array = getattr(network, weights)
    place = (0,) * array.ndim
    before = array[place]

    def loss(weight):
        array[place] = weight
        return demo._loss(network.logits(batch.points), batch.labels)

    slope = (loss(before + 1e-5) - loss(before - 1e-5)) / 2e-5
    at_first = loss(before)
    assert network.learn(batch, 0.5) == at_first
    assert (before - array[place]) / 0.5 == pytest.approx(slope, abs=1e-6)
