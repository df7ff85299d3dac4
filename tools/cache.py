"""A cache, outside the checkout, of parts that the tests need and no package manager installs.

One process at a time builds a part in a temporary directory, tries it out and renames it, so a part
that exists is complete. A part that no longer works is built again. The reason of the last failure
is kept beside it, for the tests that are skipped without the part.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aboard-dev"


def ensure(
    name: str,
    build: Callable[[Path], None],
    try_out: Callable[[Path], None],
    *,
    movable: bool = True,
) -> Path:
    """Return the directory of a part, building it first if it is missing or damaged.

    Args:
        name: the directory's name in the cache, with a version or digest if it has one.
        build: fills a directory.
        try_out: raises `OSError` or `CalledProcessError` if the part in a directory does not work.
        movable: whether the directory may be renamed; if not, it is built in place.

    Raises:
        OSError: the part cannot be built.
        CalledProcessError: a command that builds it, or tries it out, failed.
    """
    home, failure = CACHE / name, CACHE / f"{name}.failed"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building the same one
        if _works(home, try_out):
            return home
        work = CACHE / f"{name}.new" if movable else home
        try:
            for left in (work, home):
                shutil.rmtree(left, ignore_errors=True)
            work.mkdir()
            build(work)
            try_out(work)
        except (OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(work, ignore_errors=True)
            failure.write_text(reason(error))
            raise
        (work / "complete").touch()
        work.rename(home)
        failure.unlink(missing_ok=True)
    return home


def find(name: str) -> Path | None:
    """Return the directory of a part if it is complete."""
    home = CACHE / name
    return home if (home / "complete").exists() else None


def last_failure(name: str) -> str:
    """Return why the last build of a part failed; empty if it did not."""
    failure = CACHE / f"{name}.failed"
    return failure.read_text() if failure.exists() else ""


def run(*command: object, **options: object) -> None:
    """Run a command; its output is in the error if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)


def reason(error: OSError | subprocess.CalledProcessError) -> str:
    """Return a one-line description of the error."""
    if isinstance(error, OSError):
        return str(error)
    lines = f"{error.stdout or ''}{error.stderr or ''}".strip().splitlines()
    command = " ".join(map(str, error.cmd))
    return (
        f"{command} failed with exit code {error.returncode}: {lines[-1] if lines else 'no output'}"
    )


def _works(home: Path, try_out: Callable[[Path], None]) -> bool:
    if not (home / "complete").exists():
        return False
    try:
        try_out(home)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
