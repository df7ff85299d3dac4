"""`aboard view` as a process: what is served, to whom, and what is left."""

import hashlib
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import orjson
import pytest

from aboard import EventWriter
from aboard.events import encode
from aboard.runs.manifest import Manifest
from aboard.web.server import make_certificate
from tests import summaries
from tests.cli.visitor import points, visitor
from tests.engines.unprivileged import powerless
from tests.hub.hubs import QUICK
from tests.waiting import until


def test_view_serves_the_points_of_a_tree(viewing, tree):
    with viewing("view", tree, "--json", "--port", 0) as (_, line), visitor(line) as client:
        until(lambda: len(client.get("data/runs").json()) == 2)
        assert points(client)["b"] == [(0, 1.5), (1, "NaN"), (2, "Infinity"), (3, "-Infinity")]
        assert [step for step, _ in points(client)["a/train"]] == list(range(10))
        assert client.get("data/environment").json()["window_title"] == "logs"


def test_new_data_is_served_while_it_is_written(viewing, tree):
    with (
        viewing("view", tree, "--json", "--port", 0) as (_, line),
        visitor(line) as client,
        EventWriter(tree / "live") as writer,
    ):
        until(lambda: len(client.get("data/runs").json()) >= 2)
        for step in range(3):
            writer.scalar("loss", step / 2, step)
            writer.flush()
            until(lambda: (step, step / 2) in points(client).get("live", []))  # noqa: B023


def test_without_the_secret_nothing_is_served(viewing, tree):
    with viewing("view", tree, "--json", "--port", 0) as (_, line):
        document = orjson.loads(line)
        root = document["address"].removesuffix("/b/view/")
        paths = ["/", "/b/view/", "/b/view/index.js", "/b/view/data/runs", "/nothing", "/b/other/"]
        paths += ["/font-roboto/oMMgfZMQthOryQo9n22dcuvvDin1pK8aKteLpeZ5c0A.woff2"]
        for path in paths:
            answer = httpx.get(root + path, **QUICK)
            assert answer.status_code == 401, path
            assert "loss" not in answer.text
        with visitor(line), visitor(line):
            pass  # the link opens again and again


def test_traffic_is_encrypted_with_the_given_certificate(viewing, tree, tmp_path):
    pem, fingerprint = make_certificate()
    file = tmp_path / "board.pem"
    file.write_text(pem)
    words = ("view", tree, "--json")
    given = {"ABOARD_CERTIFICATE": str(file), "ABOARD_PORT": "0"}
    with viewing(*words, **given) as (_, line), visitor(line) as client:
        assert client.base_url.scheme == "https"
        until(lambda: len(client.get("data/runs").json()) == 2)
        address = (client.base_url.host, client.base_url.port)
        shown = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(address))
        assert hashlib.sha256(shown).hexdigest() == fingerprint


def test_it_ends_when_its_time_is_up(viewing, tree, tmp_path):
    with viewing("view", tree, "--json", "--port", 0, "--timeout", "1s") as (process, _):
        assert process.wait(timeout=180) == 0
    assert "the time limit of 1s is reached." in (tmp_path / "errors").read_text()


def test_one_board_does_not_open_another_by_header(viewing, tree):
    with viewing("view", tree, "--json", "--port", 0) as (_, line), visitor(line) as client:
        until(lambda: client.get("data/runs").json())
        spoofed = client.get(
            "data/plugin/scalars/tags", headers={"Tensorboard-Experiment-Id": "other"}
        )
        assert set(spoofed.json()) == {"a/train", "b"}


def test_the_token_of_a_file_opens_and_a_readable_file_is_refused(viewing, aboard, tree, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("correct-horse-battery-staple-1\n")
    refused = aboard("view", tree, "--token-file", secret)
    assert refused.code == 2
    assert "chmod 600" in refused.err
    secret.chmod(0o600)
    with viewing("view", tree, "--json", "--port", 0, "--token-file", secret) as (_, line):
        address = orjson.loads(line)["address"]
        right = {"Authorization": "Bearer correct-horse-battery-staple-1"}
        assert httpx.get(address + "data/runs", headers=right, **QUICK).status_code == 200
        wrong = {"Authorization": "Bearer correct-horse-battery-staple-2"}
        assert httpx.get(address + "data/runs", headers=wrong, **QUICK).status_code == 401


def test_a_token_on_the_command_line_is_not_in_the_list_of_processes(tree, tmp_path):
    token = "correct-horse-battery-staple-3"
    command = [sys.executable, "-m", "aboard", "view", str(tree), "--json", "--port", "0"]
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(
            [*command, "--token", token], cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            document = orjson.loads(process.stdout.readline())
            shown = Path(f"/proc/{process.pid}/cmdline").read_text()
            assert "view" in shown
            assert token not in shown
            assert document["pid"] == process.pid
            answer = httpx.get(
                document["address"], headers={"Authorization": f"Bearer {token}"}, **QUICK
            )
            assert answer.status_code == 200
        finally:
            process.kill()
    assert token not in (tmp_path / "errors").read_text()


def test_nothing_is_imported_from_the_current_directory(viewing, tree, tmp_path):
    (tmp_path / "aboard.py").write_text("raise SystemExit('hijacked')")
    token = "correct-horse-battery-staple-4"
    command = [str(Path(sys.executable).with_name("aboard")), "view", str(tree), "--json"]
    with subprocess.Popen(
        [*command, "--port", "0", "--token", token],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert orjson.loads(line)["pid"] == process.pid


def test_names_templates_and_patterns(viewing, tree, tmp_path):
    with EventWriter(tmp_path / "other" / "c") as writer:
        writer.scalar("loss", 1.0, 1)
        writer.add([encode.hparams_start({"lr": 0.1})], 0)
    members = [f"one={tree}", f"two={tmp_path / 'other'}"]
    with viewing("view", *members, "--json", "--port", 0) as (_, line), visitor(line) as client:
        names = {"one/a/train", "one/b", "two/c"}
        until(lambda: set(client.get("data/runs").json()) == names)
        assert client.get("data/environment").json()["window_title"] == "one, two"
    narrowed = ["--exclude", "*/train", "--include", "one/*", "--title", "Mine"]
    with (
        viewing("view", *members, *narrowed, "--json", "--port", 0) as (_, line),
        visitor(line) as client,
    ):
        until(lambda: client.get("data/runs").json() == ["one/b"])
        assert client.get("data/environment").json()["window_title"] == "Mine"
    named = ["--template", "{experiment}-{run} lr={hparams.lr}"]
    with (
        viewing("view", tmp_path / "other", *named, "--json", "--port", 0) as (_, line),
        visitor(line) as client,
    ):
        until(lambda: client.get("data/runs").json() == ["other-c lr=0.1"])


def test_fewer_and_more_samples(viewing, tmp_path):
    with EventWriter(tmp_path / "long") as writer:
        for step in range(3000):
            writer.scalar("loss", 100.0 if step == 1234 else step % 7, step)
    for samples in (20, 5000):
        arguments = ["view", tmp_path / "long", "--json", "--port", 0, "--samples", samples]
        with viewing(*arguments) as (_, line), visitor(line) as client:
            until(lambda: client.get("data/runs").json())
            held = points(client)["."]
            assert len(held) <= samples
            assert (1234, 100.0) in held
            assert samples < 3000 or len(held) == 3000


@pytest.mark.parametrize("engine", ["fast", "stock"])
def test_more_samples_of_another_kind(viewing, tmp_path, engine):
    with EventWriter(tmp_path / "pictures") as writer:
        for step in range(30):
            writer.add([summaries.images("shade", [np.full((2, 2), step, np.uint8)])], step)
            writer.scalar("loss", step, step)
    arguments = ["view", tmp_path / "pictures", "--json", "--port", 0, "--engine", engine]
    more = ["--samples", "images=25", "--samples", "7"]
    with viewing(*arguments, *more) as (_, line), visitor(line) as client:
        path, query = "data/plugin/images/images", {"run": ".", "tag": "shade", "sample": "0"}
        until(lambda: client.get(path, params=query).status_code == 200)
        until(lambda: len(client.get(path, params=query).json()) == 25)
        assert len(points(client)["."]) <= 7


def test_an_empty_directory_is_served_and_said(viewing, tmp_path):
    (tmp_path / "empty").mkdir()
    with viewing("view", "empty", "--json", "--port", 0) as (_, line), visitor(line) as client:
        assert client.get("data/runs").json() == []
        until(lambda: "no event files below" in (tmp_path / "errors").read_text())
        assert "aboard doctor" in (tmp_path / "errors").read_text()


@pytest.fixture
def cloud(s3_server, variables):
    """Give the environment of a command that may read a bucket."""
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    variables |= keys | {"AWS_ENDPOINT_URL": s3_server}
    return variables


def test_without_a_readable_source_it_fails(aboard, cloud, tree):
    missing = "aboard: s3://nosuchbucket/{}: the bucket 'nosuchbucket' does not exist."
    result = aboard("view", "s3://nosuchbucket/x", "--no-browser")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(missing.format("x"))
    assert len(result.err.splitlines()) == 1
    result = aboard("view", "s3://nosuchbucket/x", "s3://nosuchbucket/y", "--engine", "stock")
    assert result.code == 1
    x, y = result.err.splitlines()
    assert x.startswith(missing.format("x"))
    assert y.startswith(missing.format("y"))
    result = aboard("view", "s4://bucket/x")
    assert (result.code, "'s4://' is not supported" in result.err) == (2, True)


@pytest.mark.parametrize(
    "sources",
    [
        ["s3://nosuchbucket/x", "logs"],
        ["s3://nosuchbucket/x", "--wait"],
        ["s3://training-logs/nothing-yet"],
    ],
)
def test_a_source_that_cannot_be_read_is_reported(viewing, cloud, tree, tmp_path, sources):
    with viewing("view", *sources, "--json", "--port", 0) as (_, line), visitor(line) as client:
        if "logs" in sources:
            until(lambda: len(client.get("data/runs").json()) == 2)
        until(lambda: f"aboard: {sources[0]}: " in (tmp_path / "errors").read_text())


def test_a_storage_that_does_not_answer_yet_is_waited_for(viewing, cloud, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    command = ["view", "s3://training-logs/x", "--json", "--port", 0]
    with viewing(*command, AWS_ENDPOINT_URL=address):
        until(lambda: "refuses connections" in (tmp_path / "errors").read_text())


def test_a_directory_without_permission_is_an_error_unless_another_is_readable(
    variables, tree, tmp_path
):
    closed = tmp_path / "closed"
    (closed / "x").mkdir(parents=True)
    view = powerless(sys.executable, "-m", "aboard", "view", "--no-browser", "--port", "0")
    closed.chmod(0)
    try:
        for source in (closed, closed / "x"):
            done = subprocess.run(
                [*view, source], env=variables, capture_output=True, check=False, text=True
            )
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == (
                f"aboard: {source}: permission denied. Check the owner and mode of the path.\n"
            )
        with (
            (tmp_path / "errors").open("wb") as errors,
            subprocess.Popen(
                [*view, closed / "x", tree], env=variables, stdout=subprocess.PIPE, stderr=errors
            ) as process,
        ):
            try:
                assert process.stdout.readline()
                until(lambda: " 2 runs" in (tmp_path / "errors").read_text())
                reported = f"aboard: {closed}/x: permission denied."
                until(lambda: reported in (tmp_path / "errors").read_text())
            finally:
                process.kill()
        with EventWriter(tmp_path / "runs" / "exp" / "r0") as writer:
            writer.scalar("loss", 1.0, 0)
        named = [*view, closed / "x", "exp/r0", "--root", tmp_path / "runs"]
        with subprocess.Popen(
            named, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                assert process.stdout.readline()
            finally:
                process.kill()
    finally:
        closed.chmod(0o700)


def test_the_next_free_port_is_taken(viewing, tree):
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            viewing("view", tree, "--json") as (_, first),
            viewing("view", tree, "--json") as (_, second),
        ):
            ports = {orjson.loads(line)["address"].split(":")[2] for line in (first, second)}
            assert len(ports) == 2
            assert str(port) not in ports


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nowhere"], 1, "nowhere: file or directory not found. Check the path."),
        (["nothere/"], 1, "nothere: file or directory not found. Check the path."),
        (["logs", "--engine", "slow"], 2, "unknown engine 'slow'. Choose 'fast' or 'stock'."),
        (["logs", "--template", "{lr}"], 2, "unknown field 'lr'"),
        (["logs", "--port", "99999"], 2, "99999 is not in the range"),
        (["logs", "--token", "x"], 2, "the token is too short: it has 1 of at least 16"),
        (["logs", "--token", "ab" * 20], 2, "the token repeats the same few characters"),
        (["logs", "--token", "a" * 30, "--token-file", "f"], 2, "--token or --token-file"),
        (["logs", "--token-file", "missing"], 2, "missing"),
        (["logs", "--samples", "-1"], 2, "--samples -1: '-1' is not a number of values."),
        (["logs", "--samples", "1.5"], 2, "'1.5' is not a number of values."),
        (["logs", "--samples", "images"], 2, "'images' is not a number of values."),
        (["logs", "--samples", "films=9"], 2, "unknown kind 'films'. Known: scalars, images,"),
        (["logs", "--poll", "0"], 2, "0.0 must be at least 0.5"),
        ([], 2, "./runs not found. Name what to show"),
    ],
)
def test_bad_input_gets_one_clear_line(aboard, tree, arguments, code, text):
    result = aboard("view", *arguments, "--no-browser")
    assert (result.code, result.out) == (code, "")
    assert text.lower() in result.err.lower()
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) == 1


def test_a_taken_port_is_named(aboard, tree):
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        result = aboard("view", tree, "--no-browser", "--port", port)
    assert result.code == 1
    assert f"port {port} on localhost is in use" in result.err


@pytest.mark.parametrize("engine", ["fast", "stock"])
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
def test_a_signal_ends_it_and_leaves_nothing(viewing, tree, tmp_path, sent, code, engine):
    command = ["view", tree, "--json", "--port", 0, "--engine", engine]
    with viewing(*command, TMPDIR=str(tmp_path)) as (process, line):
        with visitor(line):
            process.send_signal(sent)
            assert process.wait(timeout=180) == code
        port = int(orjson.loads(line)["address"].split(":")[2].split("/")[0])
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert "Traceback" not in (tmp_path / "errors").read_text()
    assert not list(tmp_path.glob("aboard-view-*"))


def test_what_a_killed_one_left_goes_with_the_next(viewing, tree, tmp_path):
    command = ["view", tree, "--engine", "stock", "--json", "--port", 0]
    with viewing(*command, TMPDIR=str(tmp_path)) as (process, _):
        (left,) = tmp_path.glob("aboard-view-*")
        process.kill()
        process.wait()
    assert left.exists()
    with viewing(*command, TMPDIR=str(tmp_path)):
        (own,) = tmp_path.glob("aboard-view-*")
        assert own != left
        with viewing(*command, TMPDIR=str(tmp_path)):
            assert own.exists()


def test_a_closed_terminal_ends_it(tree, variables, tmp_path):
    leader, follower = pty.openpty()
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    changed = {"TMPDIR": str(tmp_path), "HOME": str(home), "BROWSER": f"{browser} %s &"}
    script = "import os, sys; os.setsid(); os.close(os.open(os.ttyname(0), os.O_RDWR));"
    script += "os.execv(sys.executable, [sys.executable, '-m', 'aboard', *sys.argv[1:]])"
    command = [sys.executable, "-c", script, "view", str(tree), "--engine", "stock", "--port", "0"]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=variables | changed
    ) as process:
        os.close(follower)
        try:
            shown = b""
            while b"Ctrl-C to stop" not in shown:
                shown += os.read(leader, 4096)
            until(lambda: list(home.glob("aboard-*.html")))
            assert list(tmp_path.glob("aboard-view-*"))
            os.close(leader)
            assert process.wait(timeout=180) == 0
        finally:
            process.kill()
    assert not list(home.glob("aboard-*.html"))
    assert not list(tmp_path.glob("aboard-view-*"))


@pytest.mark.parametrize("engine", ["fast", "stock"])
def test_a_run_with_stages_is_one_run_and_equal_names_get_longer(viewing, tmp_path, engine):
    for run in ("mnist/run1", "cifar10/run1"):
        for stage in ("train", "eval"):
            with EventWriter(tmp_path / run / stage) as writer:
                writer.scalar("loss", 1.0, 1)
    errors = tmp_path / "errors"
    command = ["view", "mnist/run1", "cifar10/run1", "--engine", engine, "--json", "--port", 0]
    with viewing(*command) as (_, line), visitor(line) as client:
        title = client.get("data/environment").json()["window_title"]
        until(lambda: errors.read_text().count(" s: 1 run") == 2)
    assert title == "mnist/run1, cifar10/run1"


def test_the_stock_engine_says_what_it_read_and_why_nothing_shows(viewing, tree, tmp_path):
    (tmp_path / "empty").mkdir()
    errors = tmp_path / "errors"
    command = ["view", "--engine", "stock", "--json", "--port", 0]
    with viewing(*command, tree):
        until(lambda: f"aboard: read {tree} in " in errors.read_text())
        assert " s: 2 runs.\n" in errors.read_text()
    with viewing(*command, "empty"):
        until(lambda: f"no event files below {tmp_path}/empty yet;" in errors.read_text())
        assert f"'aboard doctor {tmp_path}/empty' says" in errors.read_text()
    with viewing(*command, tree, "--include", "zzz*"):
        hidden = "leave no run to show. Some runs: 'a/train', 'b'."
        until(lambda: hidden in errors.read_text())


def test_the_giver_of_a_key_has_the_link_and_nobody_else(viewing, tree):
    key = "x1-of-a-launcher-that-printed-it-9"
    with viewing("view", tree, "--json", "--port", 0, ABOARD_KEY=key) as (_, line):
        document = orjson.loads(line)
        assert document["url"] == document["address"]
        address = document["address"].removesuffix("b/view/")
        with httpx.Client(follow_redirects=True, **QUICK) as client:
            assert client.get(f"{address}?key={key[:-1]}").status_code == 401
            page = client.get(f"{address}?key={key}")
            assert (page.status_code, page.url) == (200, document["address"])


@pytest.mark.parametrize("engine", ["fast", "stock"])
def test_a_websocket_or_a_tunnel_is_refused_without_a_word(viewing, tree, tmp_path, engine):
    token = "correct-horse-battery-staple-5"
    command = ["view", tree, "--json", "--port", 0, "--engine", engine]
    with viewing(*command, ABOARD_TOKEN=token) as (_, line):
        port = int(orjson.loads(line)["address"].split(":")[2].split("/")[0])
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        upgrade += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        for first, more, status in (
            ("GET /b/view/data/runs", upgrade, b"403"),
            ("CONNECT /b/view/data/runs", "", b"405"),
            ("CONNECT example.test:443", "", b"405"),
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=180) as client:
                secret = f"Authorization: Bearer {token}\r\n"
                client.sendall(f"{first} HTTP/1.1\r\nHost: h\r\n{secret}{more}\r\n".encode())
                assert client.recv(65536).startswith(b"HTTP/1.1 " + status)
    assert "Traceback" not in (tmp_path / "errors").read_text()
    assert "failed" not in (tmp_path / "errors").read_text()


def test_the_browser_is_opened_without_the_key_in_its_arguments(viewing, tree, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(
        '#!/bin/sh\necho "$1" > "$HOME/argument"\n'
        'page="${1#file://}"; stat -c %a "$page" > "$HOME/mode"; cp "$page" "$HOME/page"\n'
    )
    browser.chmod(0o755)
    variables = {"BROWSER": f"{browser} %s &", "HOME": str(tmp_path)}
    with viewing("view", tree, "--port", 0, **variables) as (process, _):
        page = until(lambda: (tmp_path / "page").exists() and (tmp_path / "page").read_text())
        assert "key=" not in (tmp_path / "argument").read_text()
        assert (tmp_path / "mode").read_text().strip() == "600"
        link = page.partition("url=")[2].partition('"')[0]
        assert httpx.get(link, **QUICK).status_code == 303
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=180) == 0
    assert not list(tmp_path.glob("aboard-*.html"))


def test_over_ssh_the_way_in_is_told(viewing, tree):
    variables = {"SSH_CONNECTION": "10.0.0.1 5000 10.0.0.2 22", "USER": "ann"}
    with viewing("view", tree, "--port", 0, **variables) as (process, line):
        assert line.startswith("logs: http://localhost:")
        hint = process.stdout.readline()
        assert hint.startswith("From your own machine, first: ssh -N -L ")
        assert "ann@" in hint


def record_run(root, label, loss, **fields):
    """Write a run with a record and one point."""
    experiment, _, name = label.rpartition("/")
    record = Manifest(name, experiment, heartbeat=time.time(), **fields)
    with EventWriter(root / label / "train") as writer:
        writer.scalar("loss", loss, 7)
    (root / label / "run.json").write_bytes(record.to_json())


@pytest.fixture
def root(tmp_path):
    for number in (1, 2, 3, 10):
        record_run(tmp_path / "runs", f"cifar10/run{number}", number / 2, workspace="ws1", job="99")
    record_run(tmp_path / "runs", "mnist/run1", 0.25, tags={"baseline": True}, hparams={"lr": 0.1})
    return tmp_path / "runs"


@pytest.mark.parametrize("engine", ["fast", "stock"])
def test_selectors_choose_what_is_shown_under_names_of_the_records(viewing, root, engine):
    template = ["--template", "{workspace}_{run}_{logdir}_lr={hparams.lr}"]
    command = ["view", "cifar10/run1-run3,", "tag:baseline", "--json", "--port", 0]
    with (
        viewing(*command, *template, "--engine", engine) as (_, line),
        visitor(line) as client,
    ):
        expected = {f"ws1_run{number}_train_lr=-" for number in (1, 2, 3)}
        expected |= {"-_run1_train_lr=0.1"}
        until(lambda: set(client.get("data/runs").json()) == expected)
        until(lambda: points(client).get("ws1_run3_train_lr=-") == [(7, 1.5)])
        assert points(client)["-_run1_train_lr=0.1"] == [(7, 0.25)]


def test_a_run_that_matches_later_joins_the_live_board(viewing, root, tmp_path):
    with (
        viewing("view", "job:99", "--root", root, "--json", "--port", 0) as (_, line),
        visitor(line) as client,
    ):
        until(lambda: len(client.get("data/runs").json()) == 4)
        assert client.get("data/environment").json()["window_title"] == "job:99"
        record_run(root, "svhn/run1", 8.0, job="99")
        until(lambda: points(client).get("svhn/run1/train") == [(7, 8.0)])
        assert "mnist/run1/train" not in client.get("data/runs").json()
        until(lambda: "svhn/run1 joined the board." in (tmp_path / "errors").read_text())


def test_a_condition_that_no_run_meets_is_reported(viewing, root, tmp_path):
    errors = tmp_path / "errors"
    with (
        viewing("view", "--where", "hparams.lr > 5", "--json", "--port", 0) as (_, line),
        visitor(line) as client,
    ):
        assert client.get("data/runs").json() == []
        assert "no run matches --where 'hparams.lr > 5' yet; the board" in errors.read_text()
    with viewing("view", "--where", "hparams.lr < 5", "--json", "--port", 0):
        pass
    assert errors.read_text().count("matches --where") == 1


def test_a_path_that_exists_is_one_and_what_matches_nothing_is_said(viewing, aboard, root, tree):
    with (
        viewing("view", "logs", "mnist", "--json", "--port", 0) as (_, line),
        visitor(line) as client,
    ):
        expected = {"logs/a/train", "logs/b", "mnist/run1/train"}
        until(lambda: set(client.get("data/runs").json()) == expected)
    result = aboard("view", "cifar1", "--no-browser")
    assert (result.code, result.out) == (1, "")
    assert "'cifar1' matches no run. The nearest is 'cifar10'." in result.err
    result = aboard("view", "./cifar10", "--no-browser")
    assert "cifar10: file or directory not found" in result.err


def test_alone_it_shows_the_default_root(viewing, root):
    with viewing("view", "--json", "--port", 0) as (_, line), visitor(line) as client:
        assert client.get("data/environment").json()["data_location"] == str(root)
        until(lambda: "mnist/run1/train" in points(client) or len(points(client)) > 1)


def test_options_of_groups_are_checked(aboard, tree):
    result = aboard("view", tree, "--band", "sem")
    assert (result.code, "require --group-by FIELD" in result.err) == (2, True)
    result = aboard("view", tree, "--group-by", "hparams.lr", "--engine", "stock")
    assert (result.code, "the stock engine does not support --group-by" in result.err) == (2, True)
    result = aboard("view", tree, "--group-by", "metrics.loss")
    assert (result.code, "cannot be grouped by 'metrics.loss'" in result.err) == (2, True)
    result = aboard("start", tree, "--show", "both")
    assert (result.code, "require --group-by FIELD" in result.err) == (2, True)


@pytest.mark.parametrize("source", ["runs", "mnist"])
def test_a_name_that_no_run_has_is_reported(viewing, root, tmp_path, source):
    errors = tmp_path / "errors"
    names = "{run} {hparams.lrr} {metrics.loss} {metrics.lossy} {tags.basline} {hparams.lr}"
    with viewing("view", source, "--template", names, "--json", "--port", 0) as (_, line):
        with visitor(line) as client:
            until(lambda: client.get("data/runs").json())
        until(lambda: "no run has a tag" in errors.read_text())
    said = errors.read_text()
    later = "It is shown as '-' until a run has it."
    assert f"no run has a hyperparameter 'lrr'. Did you mean 'lr'? {later}" in said
    assert f"no run has a metric 'lossy'. Did you mean 'loss'? {later}" in said
    assert f"no run has a tag 'basline'. Did you mean 'baseline'? {later}" in said
    assert said.count("no run has") == 3
    grouped = ["--group-by", "hparams.lrr,experiment"]
    with viewing("view", source, *grouped, "--json", "--port", 0):
        until(lambda: "no run has a hyperparameter 'lrr'. Did you mean" in errors.read_text())


def test_a_name_that_no_run_can_have_yet_is_not_reported(viewing, tmp_path):
    (tmp_path / "empty").mkdir()
    named = ["--template", "{hparams.lr}", "--group-by", "hparams.lr"]
    with viewing("view", "empty", *named, "--json", "--port", 0) as (_, line):
        with visitor(line) as client:
            assert client.get("data/runs").json() == []
        until(lambda: "no event files below" in (tmp_path / "errors").read_text())
    assert "no run has" not in (tmp_path / "errors").read_text()


def test_a_bare_name_is_suggested_with_its_group(aboard, root):
    for arguments in (["--where", "lr < 0.1"], ["--group-by", "state,lr"], ["--sort=-name,lr"]):
        result = aboard("view", root, *arguments)
        assert (result.code, result.out) == (2, "")
        assert "unknown field 'lr'. Did you mean hparams.lr?" in result.err
    result = aboard("view", root / "cifar10", "--where", "lr < 0.1")
    assert "unknown field 'lr'. For a hyperparameter write hparams.lr, for a metric" in result.err
    assert "\n  lr < 0.1\n  ^^\n" in result.err


def test_groups_of_runs(viewing, root):
    record_run(root, "svhn/run1", 8.0)
    record_run(root, "svhn/run2", 4.0)
    options = ("--group-by", "experiment", "--band", "minmax", "--root", root)
    with (
        viewing("view", "svhn", *options, "--json", "--port", 0) as (_, line),
        visitor(line) as client,
    ):
        label = "experiment=svhn/train"
        until(lambda: set(points(client)) == {f"{label} {one}" for one in ("mean", "min", "max")})
        assert points(client)[f"{label} mean"] == [(7, 6.0)]


def test_a_question_is_asked_again_as_points_come(viewing, tmp_path):
    def log(run, *values):
        with EventWriter(tmp_path / "runs/a" / run) as writer:
            for step, value in enumerate(values):
                writer.scalar("loss", value, step)

    for run, value in (("run1", 1.0), ("run2", 3.0), ("run3", 2.0)):
        log(run, value, 0.0)
    best = ["--sort=-metrics.loss.max", "--limit", 2, "--where", "metrics.losss == none"]
    with viewing("view", "a", *best, "--json", "--port", 0) as (_, line), visitor(line) as client:
        expect(client, {"a/run2", "a/run3"})
        log("run4", 9.0)
        expect(client, {"a/run2", "a/run4"})
    said = (tmp_path / "errors").read_text()
    assert "no run has a metric 'losss'. Did you mean 'loss'? The board starts anyway" in said
    assert "a/run4 joined the board." in said
    assert "a/run3 left the board." in said


def expect(client, runs):
    def found():
        return set(client.get("data/runs").json())

    until(lambda: found() == runs, found)
