"""Generate the event files of real frameworks in tests/fixtures.

Each script in tools/fixtures logs small runs with one framework, in its own environment if the
framework is too heavy for .venv. The files are then renamed so that their names are the same on
every machine: without host and process, with times that only keep the order.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.environments import interpreter

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(__file__).resolve().parent / "fixtures"

OURS = ["torch==2.13.0", "tensorboardX==2.6.5", "matplotlib", "soundfile"]
FRAMEWORKS = {
    "torch": None,
    "tensorboardx": None,
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
}


def python_for(environment: str | None) -> Path:
    """Return a Python that has the framework, building its environment if necessary."""
    if environment is not None:
        return interpreter(environment)
    modules = [requirement.split("==")[0] for requirement in OURS]
    if not all(importlib.util.find_spec(module) for module in modules):
        sys.exit(f"first: pip install {' '.join(OURS)}")
    return Path(sys.executable)


def creation_order(path: Path) -> list[object]:
    """Return a sort key: time, then the number that the writer gave the file."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else part) for part in path.name.split(".")
    ]


def rename(tree: Path) -> None:
    """Replace host, process and time in the names, in the order of creation."""
    for directory in {path.parent for path in tree.rglob("*tfevents*")}:
        paths = sorted(directory.glob("*tfevents*"), key=creation_order)
        for number, path in enumerate(paths):
            ending = ".v2" if path.name.endswith(".v2") else ""
            path.rename(
                directory / f"events.out.tfevents.{1700000000 + number}.host.1.{number}{ending}"
            )


def make(framework: str) -> None:
    python = python_for(FRAMEWORKS[framework])
    target = ROOT / "tests" / "fixtures" / framework
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / framework
        subprocess.run(
            [python, SCRIPTS / f"{framework}_runs.py", tree],
            check=True,
            cwd=scratch,
            env={**os.environ, "MPLBACKEND": "Agg", "TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        rename(tree)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(tree, target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{framework}: {size / 1024:.0f} KiB in {target.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frameworks", nargs="*", choices=[*FRAMEWORKS, []], default=[])
    for framework in parser.parse_args().frameworks or FRAMEWORKS:
        make(framework)


if __name__ == "__main__":
    main()
