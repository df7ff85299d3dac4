"""Finds out why a board would be empty or look wrong: `examine` a source for findings."""
