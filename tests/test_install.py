"""Installing from source: with a compiler the C core is built, without one its twin serves."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Copy what a release would hold, so that nothing built before gets into the wheel."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
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


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_with_a_compiler_the_wheel_has_the_c_cores(source, tmp_path):
    wheel = build_wheel(source, tmp_path / "wheels")
    cores = [f"aboard/events/{core}.abi3.so" for core in ("_encoder", "_scanner")]
    assert sorted(cores_in(wheel)) == cores
    assert "-cp311-abi3-" in wheel.name
    assert "scanning core: C\n" in version_of(wheel, tmp_path / "installed")


def test_without_a_compiler_the_install_succeeds_and_python_serves(source, tmp_path):
    shutil.rmtree(source / "build", ignore_errors=True)
    wheel = build_wheel(source, tmp_path / "wheels", CC="/bin/false")
    assert cores_in(wheel) == []
    shown = version_of(wheel, tmp_path / "installed")
    assert (
        "scanning core: Python fallback (no C compiler was found at install time; slower)\n"
        in shown
    )


def test_a_wheel_holds_the_types_marker_and_the_licence(source, tmp_path):
    shutil.rmtree(source / "build", ignore_errors=True)
    names = zipfile.ZipFile(build_wheel(source, tmp_path, CC="/bin/false")).namelist()
    assert "aboard/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests") for name in names)
