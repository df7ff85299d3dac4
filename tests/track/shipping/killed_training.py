"""Trainings that log until they are killed: `python killed_training.py ROOT NOTES FIRST COUNT`.

All are forked from one process, which has imported everything before, so that a test can kill many.
Each adds a line to a file of its own in NOTES when what it logged is flushed: first its pid, then
one per step.
"""

import itertools
import os
import sys
import time
from pathlib import Path

import obstore  # noqa: F401 - before the fork, so that not every training imports it

import aboard
from aboard.track.shipping import shipper  # noqa: F401


def train(root: str, notes: Path, number: int) -> None:
    with (notes / str(number)).open("wb", buffering=0) as noted:
        noted.write(f"{os.getpid()}\n".encode())
        run = aboard.init("kills", f"run{number}", root)
        for step in itertools.count():
            run.log_metrics({"loss": step * 0.5}, step=step)
            run.flush()
            noted.write(b"\n")
            time.sleep(0.002)


def fork_all(root: str, notes: Path, numbers: range) -> None:
    for number in numbers:
        if not os.fork():
            try:
                train(root, notes, number)
            finally:
                os._exit(1)
    for _ in numbers:
        os.wait()


if __name__ == "__main__":
    first, count = map(int, sys.argv[3:])
    fork_all(sys.argv[1], Path(sys.argv[2]), range(first, first + count))
