"""What is said when a plugin of TensorBoard fails over a request: one translation for all routes.

Plugins trust what they are asked and what they read: a number that is none, a pattern
that cannot be compiled, a tag that is gone or whose values changed their kind.
"""

from __future__ import annotations

import logging
import re
from http import HTTPStatus

from aboard.events import protos

protos.keep_tensorflow_out()

from tensorboard import errors  # noqa: E402

FAILURES = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    re.error,
    errors.PublicError,
)
"""What plugins raise when the request, or what it is about, is at fault."""

_log = logging.getLogger(__name__)


def status_of(error: Exception) -> HTTPStatus:
    """Return the status that tells of a failure."""
    if isinstance(error, errors.PublicError):
        return HTTPStatus(error.http_code)
    return HTTPStatus.NOT_FOUND if isinstance(error, LookupError) else HTTPStatus.BAD_REQUEST


def reason_of(error: Exception, path: str) -> str:
    """Say in one line why there is no answer, to whoever asked and in the log."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    _log.warning("TensorBoard cannot answer %s: %s", path, reason)
    return f"TensorBoard cannot answer this: {reason}"
