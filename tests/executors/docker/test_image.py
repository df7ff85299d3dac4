"""The image of boards: what belongs into it, and how it is built from the running installation."""

import json

import pytest

from aboard import __version__
from aboard.cli.app import run
from aboard.executors.base import ExecutorError
from aboard.executors.docker.daemon import _closure, default_tag


def names(*requirements):
    return {one.name.lower().replace("_", "-") for one in _closure(requirements)}


def test_a_package_brings_what_it_needs_and_extras_only_on_request():
    plain = names("aboard")
    assert {"aboard", "tensorboard", "numpy", "obstore", "uvicorn", "cryptography"} <= plain
    assert not {"docker", "pytest", "pandas", "psycopg"} & plain
    assert names("aboard[docker]") - plain >= {"docker", "requests", "urllib3"}
    assert names("aboard", "pytest") >= plain | {"pytest", "pluggy"}


def test_what_is_not_installed_cannot_be_copied():
    with pytest.raises(ExecutorError, match=r"image needs no-such-plugin, .* pip install 'no-"):
        _closure(["aboard", "no-such-plugin"])
    with pytest.raises(ExecutorError, match="aboard has no extra 'dcoker' in this installation"):
        _closure(["aboard[dcoker]"])
    with pytest.raises(ExecutorError, match="is not the name of a package"):
        _closure(["a b c"])


def test_the_image_has_the_version_that_runs():
    assert default_tag() == f"aboard:{__version__}"


@pytest.mark.engine("docker")
def test_the_command_builds_an_image_that_shows_a_board(docker_engine, capfd):
    words = ["image", "build", "--host", docker_engine.host, "--base", docker_engine.base]
    assert run([*words, "--tag", "mine:1", "--add", "aboard[docker]", "--json"]) == 0
    printed, said = capfd.readouterr()
    document = json.loads(printed)
    assert (document["image"], document["base"]) == ("mine:1", docker_engine.base)
    assert document["bytes"] > 100 << 20
    assert "Step 1/" in said
    (image,) = json.loads(docker_engine.docker("inspect", "mine:1"))
    assert image["Id"] == document["id"]
    assert image["Config"]["User"] == "65532:65532"
    rights = ("--rm", "--read-only", "--cap-drop", "ALL", "--tmpfs", "/tmp")
    shown = docker_engine.docker("run", *rights, "mine:1", "--version")
    assert f"aboard {__version__}\nscanning core: C\n" in shown
    ask = "import docker, os; print(os.getuid(), os.environ.get('HOME'))"
    told = docker_engine.docker("run", *rights, "--entrypoint", "python3", "mine:1", "-c", ask)
    assert told == "65532 /tmp\n"
    docker_engine.docker("rmi", "mine:1")


@pytest.mark.engine("docker")
def test_a_base_that_does_not_fit_is_refused(docker_engine, capfd):
    words = ["image", "build", "--host", docker_engine.host, "--tag", "mine:2", "--base"]
    assert run([*words, "no-such-base:1"]) == 1
    said = capfd.readouterr().err
    assert "mine:2: the image cannot be built on no-such-base:1: " in said
    assert "Choose another base with --base." in said
    tag = docker_engine.docker("run", "--detach", docker_engine.base, "true").strip()
    docker_engine.docker("wait", tag)
    wrong = "ENV PATH=/nowhere:/bin"
    docker_engine.docker("commit", "--change", wrong, tag, "without-python:1")
    docker_engine.docker("rm", tag)
    assert run([*words, "without-python:1"]) == 1
    assert "python3: not found" in capfd.readouterr().err
