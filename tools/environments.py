"""Python environments for frameworks too heavy or too old for ours, kept outside the checkout.

One is built once and used by every checkout on the machine; the command prints the path of its
interpreter. An environment that was not finished, or for other requirements, is built anew.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aboard-dev"
REQUIREMENTS = {
    # TensorFlow 2.15 is the last with Estimator and Keras 2, and the last that Tensorpack runs on.
    "estimator": [
        "tensorflow-cpu==2.15.1",
        "tensorpack==0.11",
        "numpy<2",
        "obstore>=0.12",
        "opencv-python-headless<4.12",
        "setuptools<80",
    ],
    "tensorflow": ["tensorflow-cpu==2.21.0", "tensorboard==2.21.0"],
}
PYTHON = (3, 11)  # TensorFlow 2.15 has no build for a later one


def interpreter(name: str) -> Path:
    """Return the Python of an environment, building it first if need be."""
    CACHE.mkdir(parents=True, exist_ok=True)
    home = CACHE / name
    python = home / "bin" / "python"
    stamp = home / "requirements.txt"
    wanted = "\n".join([*REQUIREMENTS[name], ""])
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building the same one
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            # Standard output is for the path alone.
            subprocess.run([base_python(), "-m", "venv", home], check=True, stdout=sys.stderr)
            install = [python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]]
            subprocess.run(install, check=True, stdout=sys.stderr)
            stamp.write_text(wanted)
    return python


def base_python() -> str:
    """Return a Python of the version that every framework here supports."""
    version = ".".join(map(str, PYTHON))
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    if (found := shutil.which(f"python{version}")) is None:
        sys.exit(f"needs Python {version}: install python{version}, or put it on the PATH")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=REQUIREMENTS)
    try:
        print(interpreter(parser.parse_args().name))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(map(str, error.cmd))} failed with exit code {error.returncode}")


if __name__ == "__main__":
    main()
