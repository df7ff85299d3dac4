"""A Python client of the hub's REST API.

It needs only the standard library, so that a training script can start a board without the hub's
dependencies.
"""
