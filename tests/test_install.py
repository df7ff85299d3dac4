"""Installing from source: with a compiler the C core is built, without one its twin serves.

In an image for trainings, Aboard is installed beside numpy alone, and without its dependencies.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONSOLE = ["app-ABCDEFGH.css", "app-ABCDEFGH.js", "index.html"]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Copy what a release would hold, so that nothing built before gets into the wheel."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    console = copy / "src" / "aboard" / "hub" / "console"
    shutil.rmtree(console, ignore_errors=True)
    console.mkdir()
    for name in CONSOLE:
        (console / name).write_text("as built by make console")
    return copy


def build_wheel(source: Path, target: Path, **variables: str) -> Path:
    """Build a wheel with this environment's setuptools; nothing is downloaded."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", target, source],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (wheel,) = target.glob("*.whl")
    return wheel


def version_of(wheel: Path, target: Path) -> str:
    """Run the installed package beside this environment's dependencies."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    done = subprocess.run(
        [sys.executable, "-m", "aboard", "--version"],
        env=os.environ | {"PYTHONPATH": str(target), "ABOARD_CACHE": str(target / "cache")},
        cwd=target,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def cores_in(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheels"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_with_a_compiler_the_wheel_has_the_c_cores(wheel, tmp_path):
    cores = ["events/_encoder", "events/_scanner", "storage/_listing"]
    cores = [f"aboard/{core}.abi3.so" for core in cores]
    assert sorted(cores_in(wheel)) == cores
    assert "-cp311-abi3-" in wheel.name
    assert "scanning core: C\n" in version_of(wheel, tmp_path / "installed")


def test_without_a_compiler_the_install_succeeds_with_the_python_core(source, tmp_path):
    shutil.rmtree(source / "build", ignore_errors=True)
    wheel = build_wheel(source, tmp_path / "wheels", CC="/bin/false")
    assert cores_in(wheel) == []
    shown = version_of(wheel, tmp_path / "installed")
    assert (
        "scanning core: Python fallback (no C compiler was found at install time; slower)\n"
        in shown
    )


def test_a_wheel_holds_the_types_marker_and_the_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "aboard/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests") for name in names)


def test_wheels_and_source_releases_hold_the_built_console(source, wheel, tmp_path):
    build = "import setuptools.build_meta as build, sys; build.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=source, check=True)
    (release,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(release) as archive:
        names = archive.getnames()
    for held in (zipfile.ZipFile(wheel).namelist(), names):
        found = [name.rpartition("/")[2] for name in held if "aboard/hub/console/" in name]
        assert sorted(found) == CONSOLE


@pytest.mark.parametrize("works", [True, False], ids=["npm", "no npm"])
def test_a_checkout_builds_its_console_if_possible(source, tmp_path, works):
    checkout = tmp_path / "checkout"
    shutil.copytree(source, checkout, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    shutil.rmtree(checkout / "src" / "aboard" / "hub" / "console")
    (checkout / "console").mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    built = "../src/aboard/hub/console"
    writes = f"mkdir -p {built} && echo built >{built}/index.html" if works else "exit 1"
    npm.write_text(f'#!/bin/sh\n[ "$1" = ci ] || {{ {writes}; }}\n')
    npm.chmod(0o755)
    path = f"{npm.parent}:{os.environ['PATH']}"
    wheel = build_wheel(checkout, tmp_path / "wheels", PATH=path, CC="/bin/false")
    assert ("aboard/hub/console/index.html" in zipfile.ZipFile(wheel).namelist()) is works


class TrainingImage:
    """A virtual environment with the wheel and numpy; nothing is downloaded."""

    def __init__(self, home: Path, wheel: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        self.home = home
        self.python = home / "bin" / "python"
        command = [sys.executable, "-m", "pip", "--python", self.python, "install", "--no-deps"]
        subprocess.run([*command, "--quiet", "--no-index", wheel], check=True)
        (packages,) = home.glob("lib/python*/site-packages")
        link("numpy", packages)

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [str(one) for one in command],
            cwd=self.home,
            env=own | {"ABOARD_CACHE": str(self.home / "cache")} | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def script(self, code: str, *arguments: str, **variables: str) -> str:
        done = self.run(self.python, "-P", "-c", code, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout


def link(package: str, target: Path) -> None:
    """Make a package of this environment importable from another directory."""
    installed = distribution(package)
    for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
        (target / top).symlink_to(installed.locate_file(top))


@pytest.fixture(scope="module")
def image(wheel, tmp_path_factory) -> TrainingImage:
    return TrainingImage(tmp_path_factory.mktemp("image") / "venv", wheel)


TRACKING = """
import sys
import numpy as np
import aboard

for attempt in range(2):
    with aboard.init("spirals", name="long", root=sys.argv[1], resume=True) as run:
        for step in range(10 * attempt, 10 * attempt + 10):
            run.log_metrics({"loss": 1 / (step + 1)}, step=step)
        run.log_image("picture", np.zeros((8, 8, 3), np.uint8), step=attempt)
with aboard.SummaryWriter(sys.argv[1] + "/writer") as writer:
    writer.add_scalar("loss", 0.5, 1)
    writer.add_histogram("weights", np.arange(9.0), 1)
with aboard.open(sys.argv[1]) as logs:
    assert logs.series("spirals/long", "loss").steps.tolist() == list(range(20))
    assert {tag.name for tag in logs.select(run="writer")} == {"loss", "weights"}
known = ("aboard", "numpy", "obstore", "_")
tops = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(sorted(top for top in tops if not top.startswith(known) and top != "sitecustomize"))
"""


def test_tracking_needs_only_numpy(image, tmp_path):
    assert image.script(TRACKING, str(tmp_path)) == "[]\n"


def test_a_bucket_needs_obstore_too(image, s3_bucket, tmp_path):
    place = f"{s3_bucket}/image"
    failed = image.run(image.python, "-P", "-c", TRACKING, place)
    expected = "ImportError: this needs obstore, which is not installed: pip install obstore"
    assert failed.stderr.splitlines()[-1] == expected
    link("obstore", tmp_path)
    assert image.script(TRACKING, place, PYTHONPATH=str(tmp_path)) == "[]\n"


@pytest.mark.parametrize("command", [["view", "runs"], ["run", "--", "true"], ["--version"], []])
def test_the_command_line_names_what_to_install(image, command):
    for start in ([image.home / "bin" / "aboard"], [image.python, "-m", "aboard"]):
        done = image.run(*start, *command)
        expected = "aboard: this needs typer, which is not installed: pip install aboard\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)


IMPORTING = """
import importlib, pkgutil
import aboard

for found in pkgutil.walk_packages(aboard.__path__, "aboard.", onerror=lambda name: None):
    # `open_storage` says it for this one, and the command for the others.
    if found.name in ("aboard.storage.object", "aboard.__main__"):
        continue
    if found.name.startswith("aboard.cli."):
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        assert "pip install" in str(error), (found.name, error)
        print(found.name)
"""


def test_failed_imports_name_what_to_install(image):
    lacking = image.script(IMPORTING).split()
    parts = {"boards", "executors", "hub", "integrations", "tensorboard", "web"}
    assert {name.split(".")[1] for name in lacking} == parts
