"""Install Azurite, Microsoft's emulator of Azure Blob Storage, for the storage tests.

Installs it from npm into the cache outside the checkout, and prints the path of its program.
"""

import subprocess
import sys
from pathlib import Path

from tools import cache

VERSION = "3.37.0"
NAME = f"azurite-{VERSION}"


def program(home: Path) -> Path:
    return home / "node_modules" / ".bin" / "azurite-blob"


def _install(home: Path) -> None:
    quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
    cache.run("npm", "install", *quiet, "--prefix", home, f"azurite@{VERSION}")


def _try_out(home: Path) -> None:
    cache.run(program(home), "--version")


def main() -> None:
    try:
        print(program(cache.ensure(NAME, _install, _try_out)))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"Azurite cannot be installed: {cache.reason(error)}")


if __name__ == "__main__":
    main()
