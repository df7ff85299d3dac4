"""What a board that runs beside the hub is given of the hub's own environment.

The hub may hold secrets there: its database's password, its token. So a board gets what a program
needs to run at all, to know its place and language, and to reach a network. What opens something,
such as a bucket, is named in the spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PYTHON = (
    "PATH|HOME|WARNINGS|UTF8|HASHSEED|UNBUFFERED|DONTWRITEBYTECODE|PYCACHEPREFIX|IOENCODING"
    "|NOUSERSITE|USERBASE|SAFEPATH|FAULTHANDLER|DEVMODE|TRACEMALLOC|MALLOC"
)
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TZ|TZDIR|TMPDIR|TMP|TEMP|XDG_.*_HOME"
    r"|(HTTP|HTTPS|ALL|NO)_PROXY|(http|https|all|no)_proxy|SSL_CERT_(FILE|DIR)"
    rf"|(REQUESTS|CURL)_CA_BUNDLE|PYTHON({_PYTHON})|VIRTUAL_ENV|LD_.*|MALLOC_.*|(OMP|OPENBLAS|MKL)_NUM_THREADS"
    r"|ABOARD_(CACHE|DEBUG|PURE_PYTHON)"
)


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of the hub's variables that a board may know."""
    return {name: value for name, value in variables.items() if _INHERITED.fullmatch(name)}
