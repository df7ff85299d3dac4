"""Boards from Python: a client of the hub's REST API, which knows nothing of the hub's insides.

It needs the standard library alone, so that a training script can start a board without the
packages that a hub needs.
"""
