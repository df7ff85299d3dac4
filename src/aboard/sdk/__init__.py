"""Boards from Python: a client of the hub's REST API.

It needs the standard library only, so that a training script can start a board without the packages
of a hub.
"""
