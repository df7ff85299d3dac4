"""Carry what a run writes on a local disk to its bucket."""
