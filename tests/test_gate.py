"""`tools/gate.py` runs a failed test again; `tools/cache.py` builds a part once and completely."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.requirements import MUST_RUN
from tools import cache

ROOT = Path(__file__).parents[1]
SUITE = """
from pathlib import Path

def test_every_second_time():
    mark = Path(__file__).with_suffix(".mark")
    seen = mark.exists()
    mark.touch()
    assert seen, "not the first"

def test_never():
    assert not {fails}, "on purpose"

def test_always():
    pass
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def filled(home):
    (home / "program").write_text("works")


def tried(home):
    if (home / "program").read_text() != "works":
        raise OSError("the program is damaged")


def test_a_part_is_built_once(own_cache):
    home = cache.ensure("part", filled, tried)
    assert home == own_cache / "part" == cache.find("part")
    assert cache.ensure("part", pytest.fail, tried) == home


@pytest.mark.parametrize("movable", [True, False])
def test_a_part_that_was_damaged_is_replaced(own_cache, movable):
    home = cache.ensure("part", filled, tried, movable=movable)
    (home / "program").write_text("broken")
    assert cache.ensure("part", filled, tried, movable=movable) == home
    assert (home / "program").read_text() == "works"


@pytest.mark.parametrize("movable", [True, False])
def test_a_part_that_cannot_be_built_does_not_exist(own_cache, movable):
    def fails(home):
        (home / "half").touch()
        cache.run(sys.executable, "-c", "import sys; sys.exit('no network')")

    with pytest.raises(subprocess.CalledProcessError):
        cache.ensure("part", fails, tried, movable=movable)
    assert cache.find("part") is None
    assert not (own_cache / "part").exists()
    assert cache.last_failure("part").endswith("failed with exit code 1: no network")
    cache.ensure("part", filled, tried, movable=movable)
    assert cache.last_failure("part") == ""


def test_processes_that_build_the_same_part_wait_for_each_other(tmp_path):
    build = f"""
import time
from pathlib import Path
from tools import cache

def build(home):
    with Path({str(tmp_path / "builds")!r}).open("a") as builds:
        builds.write("one\\n")
    (home / "first").touch()
    time.sleep(0.2)
    (home / "second").touch()

def try_out(home):
    assert (home / "first").exists() and (home / "second").exists()

cache.ensure("part", build, try_out)
"""
    variables = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", build]
    builders = [subprocess.Popen(command, cwd=ROOT, env=variables) for _ in range(4)]
    assert [builder.wait() for builder in builders] == [0] * 4
    assert (tmp_path / "builds").read_text() == "one\n"


@pytest.fixture
def gate(tmp_path):
    """Run the gate over a suite of three tests, as if it were the project's."""

    def gate(*, fails=False, **variables):
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "test_suite.py").write_text(SUITE.format(fails=fails))
        tests = [sys.executable, "-m", "pytest", "-p", "tests.report"]
        return subprocess.run(
            [sys.executable, "-m", "tools.gate", "--", *tests],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return gate


def test_a_test_that_passes_the_second_time_is_flaky(gate):
    done = gate()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "FLAKY test_suite.py::test_every_second_time - AssertionError: not the first" in lines
    assert lines[-2].startswith("1 flaky; ")
    assert lines[-1] == "2 passed, 0 failed, 0 skipped"


def test_a_test_that_fails_twice_fails_the_gate(gate):
    done = gate(fails=True)
    assert done.returncode == 1
    assert "FAILED test_suite.py::test_never - AssertionError: on purpose" in done.stdout
    assert "FLAKY test_suite.py::test_every_second_time" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


def test_too_many_failures_are_not_tried_again(gate, tmp_path):
    many = "".join(f"def test_{number}():\n    assert False\n" for number in range(11))
    (tmp_path / "test_many.py").write_text(many)
    done = gate()
    assert done.returncode == 1
    assert "again, alone" not in done.stdout
    assert "More than 10 tests failed" in done.stdout


def test_a_suite_that_does_not_start_fails_the_gate(gate, tmp_path):
    (tmp_path / "conftest.py").write_text("raise SystemExit(3)")
    assert gate().returncode == 3


def test_what_is_missing_is_named_before_the_first_test(tmp_path):
    variables = {**os.environ, MUST_RUN: "1", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "tests/test_gate.py", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "cannot run all tests:\nneeds `make azurite`: not installed" in done.stdout + done.stderr
    assert "passed" not in done.stdout
