"""Build Python environments, outside the checkout, for frameworks too heavy or too old for .venv.

Each has its framework and the dependencies of Aboard, resolved together by pip; the checkout itself
is not installed. An environment is built once and shared by all checkouts with the same
requirements. Prints the path of each interpreter.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

from tools import cache

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
TESTS = ["httpx>=0.27", "hypothesis>=6.100", "pillow>=10", "pytest>=8", "pytest-xdist>=3.6"]
FRAMEWORKS = {
    # TensorFlow 2.15 is the last with Estimator and Keras 2, and the last that Tensorpack runs on.
    "estimator": [
        "tensorflow-cpu==2.15.1",
        "tensorpack==0.11",
        "numpy<2",
        "opencv-python-headless<4.12",
        "setuptools<80",
    ],
    "tensorflow-2.16": ["tensorflow-cpu==2.16.2"],
    "tensorflow-2.18": ["tensorflow-cpu==2.18.1"],
    "tensorflow": ["tensorflow-cpu==2.21.0", "tensorboard==2.21.0"],
    "jax": ["jax==0.10.2"],
    "ray": ["ray[tune]==2.60.0"],
    "xmanager": ["xmanager==0.8.5"],
    # The types of Google's Vertex client: tests/engines/vertex_types.py.
    "vertex": ["google-cloud-aiplatform>=1.120,<3"],
    # For bench/catalogs.py.
    "mlflow": ["mlflow>=3,<4"],
    # The oldest version of every dependency that pyproject.toml allows.
    "oldest": ["protobuf<5", "moto[server]>=5"],
}
PYTHON = (3, 11)  # TensorFlow 2.15 has no build for a later one


def requirements(name: str) -> list[str]:
    found = list(PROJECT["dependencies"])
    if name == "oldest":
        extras = PROJECT["optional-dependencies"].values()
        found = [_lowest(one) for one in (*found, *(one for extra in extras for one in extra))]
    return [*found, *TESTS, *FRAMEWORKS[name]]


def _lowest(requirement: str) -> str:
    found = re.match(r"([\w\[\]-]+)>=([\d.]+)", requirement)
    if found is None:
        sys.exit(f"pyproject.toml: {requirement!r} does not start with NAME>=VERSION")
    return f"{found[1]}=={found[2]}"


def interpreter(name: str) -> Path:
    """Return the Python of an environment, building it first if necessary."""
    wanted = requirements(name)

    def build(home: Path) -> None:
        cache.run(base_python(), "-m", "venv", home)
        pip: list[object] = [_python(home), "-m", "pip", "install"]
        if find_spec("uv") is not None:  # takes seconds instead of minutes
            pip = [sys.executable, "-m", "uv", "pip", "install", "--python", _python(home)]
        cache.run(*pip, "--quiet", *wanted)

    def try_out(home: Path) -> None:
        cache.run(_python(home), "-c", "import aiohttp, numpy, pytest, tensorboard")

    # Programs of an environment contain the path of its interpreter, so it cannot be moved.
    return _python(cache.ensure(directory(name), build, try_out, movable=False))


def directory(name: str) -> str:
    """Return the name of an environment in the cache."""
    wanted = "\n".join(requirements(name))
    return f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"


def find(name: str) -> Path | None:
    """Return the Python of an environment if it was built."""
    home = cache.find(directory(name))
    return home and _python(home)


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def base_python() -> str:
    """Return a Python of the version that all these frameworks support."""
    version = ".".join(map(str, PYTHON))
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    if (found := shutil.which(f"python{version}")) is None:
        sys.exit(f"needs Python {version}: install python{version}, or put it on the PATH")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=FRAMEWORKS, metavar="NAME")
    failed = False
    for name in parser.parse_args().names:
        try:
            print(interpreter(name))
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name} cannot be built: {cache.reason(error)}", file=sys.stderr)
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
