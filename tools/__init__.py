"""Programs for developers, run as `python -m tools.NAME` or by a target of the Makefile."""
