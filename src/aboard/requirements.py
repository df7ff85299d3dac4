"""Packages that a part of Aboard needs and that may not be installed.

Tracking needs numpy, and obstore for buckets: an image for trainings may have nothing else. All
other parts need everything that `pip install aboard` brings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


def require(*packages: str, install: str = "aboard") -> None:
    """Raise `ImportError` if one of the packages is missing; none is imported."""
    missing = [one for one in packages if one not in sys.modules and find_spec(one) is None]
    if missing:
        raise ImportError(explain(*missing, install=install), name=missing[0])


@contextmanager
def requires(*packages: str, install: str = "aboard") -> Iterator[None]:
    """Raise the same if an import in the block fails because one of the packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        raise ImportError(explain(missing, install=install), name=missing) from None


def explain(*packages: str, install: str = "aboard") -> str:
    are = "is" if len(packages) == 1 else "are"
    return f"this needs {', '.join(packages)}, which {are} not installed: pip install {install}"
