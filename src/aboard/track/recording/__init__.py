"""Record a program as a run: `aboard run -- COMMAND`."""
