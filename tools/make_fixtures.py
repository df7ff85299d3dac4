"""Write the event files of real frameworks anew into tests/fixtures.

Each script in tools/fixtures logs small runs with one framework, in an environment of its own
where the framework is too heavy for ours. The names of the files are then made the same on
every machine: no host, no process, times that only keep their order.
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
    """Return a Python that has the framework, making its environment if need be."""
    if environment is not None:
        return interpreter(environment)
    modules = [requirement.split("==")[0] for requirement in OURS]
    if not all(importlib.util.find_spec(module) for module in modules):
        sys.exit(f"first: pip install {' '.join(OURS)}")
    return Path(sys.executable)


def creation_order(path: Path) -> list[object]:
    """Sort event files by time, then by the number their writer gave them."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else part) for part in path.name.split(".")
    ]


def rename(tree: Path) -> None:
    """Take host, process and time out of the names, in the order the files were made."""
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
