"""Runs that are killed without warning: what was flushed is there, in a bucket as on a disk."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import doomed
import numpy as np
import pytest
from carrying import wait_for

import aboard
from aboard.runs import manifest
from aboard.runs.manifest import State
from aboard.storage import open_storage
from aboard.track.shipper import send_left_behind
from aboard.track.spool import Spool, left_behind

TOGETHER, BATCHES = 12, 4
TOGETHER_ON_DISK, BATCHES_ON_DISK = 45, 3


@contextlib.contextmanager
def trainings(root: str, notes: Path, numbers: range) -> Iterator[None]:
    """Fork trainings; whatever happens, none of them stays."""
    command = [sys.executable, doomed.__file__, root, notes, str(numbers[0]), str(len(numbers))]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
        try:
            yield
        finally:
            for number in numbers:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    os.kill(pid_of(notes / str(number)), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                parent.wait(10)
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
    for spool in left_behind():
        with spool.lock() as ours:
            owner = spool.owner()
            if ours and owner:
                send_left_behind(spool, owner, lambda _: None)
    return not any(spool_root.iterdir())


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_was_flushed_before_a_kill_is_in_the_bucket(
    batch, s3_bucket, tmp_path, spool_root, monkeypatch
):
    monkeypatch.setenv("ABOARD_SHIP_SECS", "0.3")
    chance = random.Random(batch)
    root = f"{s3_bucket}/doomed{batch}"
    numbers = range(batch * TOGETHER, (batch + 1) * TOGETHER)
    notes = {number: tmp_path / str(number) for number in numbers}
    moments = {number: chance.choice([0, 1, chance.randrange(600)]) for number in numbers}
    with trainings(root, tmp_path, numbers):
        for number in sorted(numbers, key=moments.__getitem__):
            wait_for(lambda number=number: flushed(notes[number]) >= moments[number])
            kill(pid_of(notes[number]), spool_root, chance)
    wait_for(lambda: all_are_sent(spool_root), what="every spool to be sent")
    check_what_was_flushed(root, notes, State.KILLED)


@pytest.mark.parametrize("batch", range(BATCHES_ON_DISK))
def test_what_was_flushed_before_a_kill_is_on_the_disk(batch, tmp_path, spool_root):
    chance = random.Random(batch)
    numbers = range(batch * TOGETHER_ON_DISK, (batch + 1) * TOGETHER_ON_DISK)
    (tmp_path / "notes").mkdir()
    notes = {number: tmp_path / "notes" / str(number) for number in numbers}
    moments = {number: chance.choice([0, 1, chance.randrange(80)]) for number in numbers}
    with trainings(str(tmp_path / "runs"), tmp_path / "notes", numbers):
        for number in sorted(numbers, key=moments.__getitem__):
            wait_for(lambda number=number: flushed(notes[number]) >= moments[number])
            kill(pid_of(notes[number]), spool_root, chance)
    check_what_was_flushed(str(tmp_path / "runs"), notes, State.RUNNING)


def check_what_was_flushed(root: str, notes: dict[int, Path], state: State) -> None:
    """Compare what is there with what the trainings noted before each was killed."""
    with aboard.open(root) as logs:
        assert not logs.damage
        for number, note in notes.items():
            run = f"kills/run{number}"
            if flushed(note) == 0 and run not in [tag.run for tag in logs.tags]:
                continue  # it died before its first step
            series = logs.series(run, "loss")
            assert len(series.steps) in (flushed(note), flushed(note) + 1), run
            np.testing.assert_array_equal(series.steps, np.arange(len(series.steps)))
            np.testing.assert_array_equal(series.values, np.arange(len(series.steps)) * 0.5)
            record = manifest.read(open_storage(root), run)
            assert (record.state, len(record.attempts)) == (state, 1), run
