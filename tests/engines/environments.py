"""The Python environments of `tools/environments.py`, built when a test first needs one."""

import subprocess
import sys
from pathlib import Path

from tests.engines.absence import cannot_set_up

ROOT = Path(__file__).parents[2]


def python(name: str) -> str:
    build = [sys.executable, ROOT / "tools" / "environments.py", name]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        cannot_set_up(f"needs the environment of tools/environments.py {name}: {reason}")
    return done.stdout.strip()
