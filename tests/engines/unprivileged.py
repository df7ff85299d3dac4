"""Commands without the capabilities of root, which file permissions do not stop."""

import os
import shutil

import pytest


def powerless(*command: object) -> list[str]:
    """Return a command to which file permissions apply, even if root runs the tests."""
    words = [str(word) for word in command]
    if os.getuid() != 0:
        return words
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv, which drops the powers of root")
    return [setpriv, "--bounding-set=-all", "--inh-caps=-all", *words]
