"""Runs that are killed without warning: what was flushed is there, in a bucket as on a disk."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import aboard
from aboard.runs import manifest
from aboard.runs.manifest import State
from aboard.storage import open_storage
from aboard.track.shipping.shipper import send_abandoned
from aboard.track.shipping.spool import Spool, abandoned_spools
from tests.track.shipping import killed_training
from tests.waiting import until

TOGETHER, TOGETHER_ON_DISK = 12, 24
"""Trainings of a round."""


@contextlib.contextmanager
def trainings(root: str, notes: Path, numbers: range) -> Iterator[None]:
    """Fork trainings; whatever happens, none of them stays."""
    command = [
        sys.executable,
        killed_training.__file__,
        root,
        notes,
        str(numbers[0]),
        str(len(numbers)),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
        try:
            yield
        finally:
            for number in numbers:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    os.kill(pid_of(notes / str(number)), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                parent.wait(180)
            parent.kill()


def pid_of(note: Path) -> int:
    return int(note.read_bytes().split(b"\n")[0])


def flushed(note: Path) -> int:
    """Return how many steps a training has flushed for certain."""
    return note.read_bytes().count(b"\n") - 1 if note.exists() else -1


def kill(pid: int, spool_root: Path, chance: random.Random) -> None:
    """Kill a training, and with one in three its shipper, before it or after."""
    victims = [pid]
    for spool in map(Spool, spool_root.glob(f"*-{pid}-*")):
        if chance.random() < 1 / 3 and (serving := spool.status().pid):
            victims.insert(chance.randrange(2), serving)
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def all_are_sent(spool_root: Path) -> bool:
    """Send what nobody sends any more, as `aboard ship` does."""
    for spool in abandoned_spools():
        with spool.lock() as ours:
            owner = spool.owner()
            if ours and owner:
                send_abandoned(spool, owner, lambda _: None)
    return not any(spool_root.iterdir())


@pytest.mark.soak
def test_what_was_flushed_before_a_kill_is_in_the_bucket(
    rounds, tally, s3_bucket, tmp_path, spool_root, monkeypatch
):
    monkeypatch.setenv("ABOARD_SHIP_SECS", "0.3")
    for seed in rounds(1):
        root = f"{s3_bucket}/doomed{seed}"
        notes = kill_all(root, tmp_path / str(seed), spool_root, seed, TOGETHER, 600)
        until(lambda: all_are_sent(spool_root), "a spool was not sent")
        check_what_was_flushed(root, notes, State.KILLED, tally)


@pytest.mark.soak
def test_what_was_flushed_before_a_kill_is_on_the_disk(rounds, tally, tmp_path, spool_root):
    for seed in rounds(1):
        root = str(tmp_path / f"runs{seed}")
        notes = kill_all(root, tmp_path / str(seed), spool_root, seed, TOGETHER_ON_DISK, 80)
        check_what_was_flushed(root, notes, State.RUNNING, tally)


def kill_all(
    root: str, place: Path, spool_root: Path, seed: int, count: int, steps: int
) -> dict[int, Path]:
    """Kill trainings at random moments within so many steps; return what each noted."""
    chance = random.Random(seed)
    numbers = range(count)
    place.mkdir()
    notes = {number: place / str(number) for number in numbers}
    moments = {number: chance.choice([0, 1, chance.randrange(steps)]) for number in numbers}
    with trainings(root, place, numbers):
        for number in sorted(numbers, key=moments.__getitem__):
            until(lambda number=number: flushed(notes[number]) >= moments[number])
            kill(pid_of(notes[number]), spool_root, chance)
    return notes


def check_what_was_flushed(
    root: str, notes: dict[int, Path], state: State, tally: Callable[..., None]
) -> None:
    """Compare what is there with what the trainings noted before each was killed."""
    with aboard.open(root) as logs:
        assert not logs.damage
        for number, note in notes.items():
            run = f"kills/run{number}"
            if flushed(note) == 0 and run not in [tag.run for tag in logs.tags]:
                tally(kills=1, acknowledged=0, lost=0)
                continue  # it died before its first step
            series = logs.series(run, "loss")
            lost = set(range(flushed(note))).difference(series.steps.tolist())
            tally(kills=1, acknowledged=flushed(note), lost=len(lost))
            assert len(series.steps) in (flushed(note), flushed(note) + 1), run
            np.testing.assert_array_equal(series.steps, np.arange(len(series.steps)))
            np.testing.assert_array_equal(series.values, np.arange(len(series.steps)) * 0.5)
            record = manifest.read(open_storage(root), run)
            assert (record.state, len(record.attempts)) == (state, 1), run
