"""The files of a start."""

import json
import os
import platform
import stat
import threading
from types import SimpleNamespace

import pytest

from aboard import system
from aboard.executors.base import CommandState, ExecutorError, Spec
from aboard.executors.docker.boards import DockerExecutor, DockerSettings
from aboard.executors.queue import read_lines
from aboard.executors.start import Start, last_output, read_json, read_log


def started(tmp_path, **options):
    spec = Spec("a", ("true",), tmp_path / "a", environment={"PASSWORD": "very-secret"}, **options)
    handle, token = Start.prepare(spec, "1", tls=True)
    return Start(json.loads(json.dumps(handle))), token


def test_secrets_are_in_files_of_the_owner_and_gone_after_the_end(tmp_path):
    start, token = started(tmp_path)
    environment = json.loads((start.place / "environment.json").read_text())
    assert environment == {"PASSWORD": "very-secret", "ABOARD_TOKEN": token}
    assert len(start.fingerprint) == 64
    for path in start.place.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    start.end(1, "it failed")
    assert not (start.place / "environment.json").exists()
    assert not (start.place / "certificate.pem").exists()
    assert start.ended_status().exit_code == 1


def test_an_address_counts_once_its_line_is_whole(tmp_path):
    start, token = started(tmp_path)
    address = start.place / "address"
    assert start.state() is CommandState.STARTING
    address.write_text('hello\n[1]\n{"address": "https://node7:4433/b/view/"}')
    assert start.state() is CommandState.STARTING
    with address.open("a") as file:
        file.write("\n")
    found = start.address()
    assert (found.host, found.port, found.path) == ("node7", 4433, "/b/view/")
    assert (found.token, found.fingerprint) == (token, start.fingerprint)


@pytest.mark.parametrize("handle", [{}, {"board": "a"}, {"board": "a", "directory": 3}])
def test_what_is_no_handle_is_an_error(handle):
    with pytest.raises(ExecutorError, match="not the handle of a board"):
        Start(handle)


def test_a_hub_in_another_container_of_the_machine_reaches_its_containers(tmp_path, monkeypatch):
    settings = DockerSettings(host="unix:///nowhere")
    executor = DockerExecutor({"": settings})
    handle = json.loads(json.dumps(executor._prepare(Spec("a", ("x",), tmp_path), settings)))
    assert executor.reaches(handle)
    other = SimpleNamespace(nodename="3f2a9c7d11e0")  # as Docker names a new container
    monkeypatch.setattr(os, "uname", lambda: other)
    monkeypatch.setattr(platform, "node", lambda: other.nodename)
    assert executor.reaches(handle)
    monkeypatch.setattr(system, "boot_id", lambda: "another machine")
    assert not executor.reaches(handle)


@pytest.mark.parametrize("reads", ["log", "tail", "last output", "document", "journal"])
def test_a_pipe_in_the_place_of_a_file_blocks_nobody(tmp_path, reads):
    """What a record names was perhaps made by another user."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ways = {
        "log": lambda: list(read_log(pipe, tail=None)),
        "tail": lambda: list(read_log(pipe, tail=3)),
        "last output": lambda: last_output(pipe),
        "document": lambda: read_json(pipe),
        "journal": lambda: read_lines(pipe),
    }
    found = []

    def look():
        try:
            found.append(ways[reads]())
        except (OSError, ExecutorError) as error:
            found.append(str(error))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(180)
    assert len(found) == 1
    assert found == [""] or "not a regular file" in found[0]
