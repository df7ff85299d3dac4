"""The Python environments of `tools/environments.py`, which `make` builds before the tests."""

from tests.engines.requirements import cannot_set_up
from tools import environments
from tools.cache import last_failure


def python(name: str) -> str:
    """Return the interpreter of an environment."""
    found = environments.find(name)
    if found is None:
        why = last_failure(environments.directory(name)) or "it was not built"
        cannot_set_up(f"needs `make environments ENVIRONMENTS={name}`: {why}")
    return str(found)
