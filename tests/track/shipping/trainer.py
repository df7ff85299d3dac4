"""A training process, as small as one can be: `python trainer.py TARGET NOTES STEPS PAUSE END`.

It appends scalars to an event file in a shipment, and after each adds a line to a file that
nobody ships, so that a test knows what was written when the process was killed.
"""

import atexit
import os
import signal
import sys
import time
from pathlib import Path

from aboard.events import encode
from aboard.events.records import frame
from aboard.runs.manifest import Manifest
from aboard.track.shipping.shipper import Shipment

NAME = "events.out.tfevents.1.host"


def train(target: str, notes: str, steps: int, pause: float, end: str) -> None:
    shipment = Shipment(target)
    atexit.register(shipment.finish)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (shipment.directory / "run.json").write_bytes(Manifest("run1").to_json())
    with (
        (shipment.directory / NAME).open("wb", buffering=0) as events,
        Path(notes).open("wb", buffering=0) as noted,
    ):
        events.write(frame(encode.file_version(1.0, "test")))
        for step in range(steps):
            value = encode.scalar("loss", step * 0.5)
            events.write(frame(encode.event(float(step), step, [value])))
            noted.write(b"\n")
            time.sleep(pause)
    if end == "raise":
        raise RuntimeError("the training failed")
    if end == "_exit":
        os._exit(5)
    while end == "wait":
        time.sleep(0.1)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
