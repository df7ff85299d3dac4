"""Commands without the powers of root, which no permission would stop."""

import os
import shutil

import pytest


def powerless(*command: object) -> list[str]:
    """Return a command that has to keep to the modes of files, whoever runs the tests."""
    words = [str(word) for word in command]
    if os.getuid() != 0:
        return words
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv, which drops the powers of root")
    return [setpriv, "--bounding-set=-all", "--inh-caps=-all", *words]
