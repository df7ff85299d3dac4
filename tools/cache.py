"""Parts that the tests need and no package manager installs, kept outside the checkout.

A part is built in a directory beside its place, tried, and renamed into place, by one process at
a time: whoever finds it there can use it. A part that no longer works is built again. Why the last
attempt failed is kept beside it, for the tests that have to do without.
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
        name: the directory's name in the cache; with a version or a digest if it has any.
        build: fills a directory.
        try_out: raises `OSError` or `CalledProcessError` if what is in a directory does not work.
        movable: whether the directory may be renamed; otherwise a mark says that it is complete.

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
    """Return why a part could not be built the last time; empty if nobody tried."""
    failure = CACHE / f"{name}.failed"
    return failure.read_text() if failure.exists() else ""


def run(*command: object, **options: object) -> None:
    """Run a command, and keep what it says for the case that it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)


def reason(error: OSError | subprocess.CalledProcessError) -> str:
    """Return one line that says what went wrong."""
    if isinstance(error, OSError):
        return str(error)
    said = f"{error.stdout or ''}{error.stderr or ''}".strip().splitlines()
    command = " ".join(map(str, error.cmd))
    return (
        f"{command} failed with exit code {error.returncode}: {said[-1] if said else 'no output'}"
    )


def _works(home: Path, try_out: Callable[[Path], None]) -> bool:
    if not (home / "complete").exists():
        return False
    try:
        try_out(home)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
