"""Sends what a run writes to a local disk to its bucket."""
