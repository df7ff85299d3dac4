"""Run the command line as `python -m aboard`."""

from aboard.cli import main

main()
