"""The index through crashes, damage and full disks: nothing lost, nothing doubled."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.index import Index, Source, reader, schema
from aboard.index.catalog import store_runs
from aboard.index.columns import CHUNK, fold, fold_chunk
from aboard.index.logs import Logs
from aboard.runs.catalog import KnownRun, natural
from tests.runs.tables import values_of


def die_after(steps: int) -> None:
    """Let this process die inside SQLite after a given amount of its work."""
    real = schema.open_file

    def open_file(path: Path) -> sqlite3.Connection:
        connection = real(path)
        connection.execute("PRAGMA wal_autocheckpoint = 20")
        left = [steps]

        def die() -> None:
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

        connection.set_progress_handler(die, 1)
        return connection

    schema.open_file = open_file


def read_and_die(path: Path, tree: Path, steps: int) -> None:
    """Read a tree in small batches until the end."""
    reader.BATCH_VALUES = reader.BLOCK = 3000
    die_after(steps)
    Index(path).refresh(Source.parse(str(tree)))


def tree_of(directory: Path, runs: int, steps: int) -> None:
    for run in range(runs):
        (directory / f"run{run}").mkdir(parents=True)
        data = b"".join(
            frame(encode.event(float(step), step, [encode.scalar(tag, step * 0.5 + run)]))
            for step in range(steps)
            for tag in ("a", "b")
        )
        (directory / f"run{run}" / "events.out.tfevents.1").write_bytes(data)


def assert_whole(path: Path, tree: Path, steps: int) -> None:
    with Index(path) as index:
        logs = Logs(tree, index=index)
        assert not index.problems
        for tag in logs.tags:
            run = int(tag.run.removeprefix("run"))
            series = logs.series(tag.run, tag.name)
            np.testing.assert_array_equal(series.steps, np.arange(steps))
            np.testing.assert_array_equal(series.values, np.arange(steps) * 0.5 + run)
    (stored,) = sqlite3.connect(path).execute("SELECT sum(count) FROM chunk").fetchone()
    assert stored == 2 * steps * len(list(tree.iterdir()))


@pytest.mark.soak
def test_killed_at_any_moment_nothing_is_lost_or_doubled(tmp_path, rounds):
    tree, steps = tmp_path / "logs", 1500
    tree_of(tree, 3, steps)
    survived = killed = cases = 0
    for case in rounds(5):
        rng = random.Random(case)
        path = tmp_path / f"index{case}" / "index.db"
        for span in ((1, 200), (200, 900)):
            child = multiprocessing.get_context("fork").Process(
                target=read_and_die, args=(path, tree, rng.randrange(*span))
            )
            child.start()
            child.join()
            assert child.exitcode in (0, -signal.SIGKILL)
            killed += child.exitcode != 0
            if path.exists():
                with Index(path) as index:
                    source = Source.parse(str(tree))
                    for tag in index.tags(source):
                        series = index.series(tag)
                        np.testing.assert_array_equal(series.steps, np.arange(len(series.steps)))
                        survived += len(series.steps)
        assert_whole(path, tree, steps)
        shutil.rmtree(path.parent)
        cases += 1
    assert killed >= cases
    assert survived > 0


def change_runs_and_die(path: Path, case: int, steps: int) -> None:
    """Store, replace, forget and fold runs until the end."""
    chance = random.Random(case)
    die_after(steps)
    with Index(path) as index:
        while True:
            run = chance.choice([store_some, store_some, forget_one, fold_some])
            index._do(partial(run, chance=chance))


def store_some(connection: sqlite3.Connection, chance: random.Random) -> None:
    rows = []
    for _ in range(chance.randrange(1, 20)):
        number = chance.randrange(60)
        hparams = {"lr": chance.random(), "opt": chance.choice(["adam", "sgd", 3, True])}
        run = KnownRun(
            "/data/runs",
            f"e{number % 3}/run{number}",
            f"e{number % 3}",
            f"run{chance.randrange(60)}",
            chance.choice(["running", "completed"]),
            hparams_json=json.dumps(hparams if number % 4 else {}),
            metrics_json=json.dumps({f"m{number % 5}": chance.random()}),
            tags_json=chance.choice(["{}", '{"best": true}']),
        )
        rows.append(("v", run))
    store_runs(
        connection, "/data/runs", list({run.directory: (v, run) for v, run in rows}.values())
    )


def forget_one(connection: sqlite3.Connection, chance: random.Random) -> None:
    known = connection.execute("SELECT root, directory FROM run").fetchall()
    if known:
        store_runs(connection, "/data/runs", [], [chance.choice(known)])


def fold_some(connection: sqlite3.Connection, chance: random.Random) -> None:
    if chance.random() < 0.5:
        fold_chunk(connection, chance.randrange(2))
    else:
        fold(connection, 0)


def assert_columns_are_what_rows_are(path: Path) -> None:
    with Index(path) as index:
        ids = [
            one for (one,) in index._do(lambda one: one.execute("SELECT id FROM run").fetchall())
        ]
        runs = dict(zip(ids, index.runs_of(ids), strict=True))
        expected: dict[str, dict[int, object]] = {}
        for row, run in runs.items():
            for name, value in values_of(run).items():
                expected.setdefault(name, {})[row] = value
        for name, held in expected.items():
            cells = index.columns.cells(name)
            values = {row: cells.get(row) for row in range(len(cells.codes))}
            assert {row: one for row, one in values.items() if one is not None} == held
        order = sorted(ids, key=lambda row: (natural(runs[row].label), *runs[row][:2]))
        assert index.columns.order().tolist() == order
        counts = index.columns.counts(np.array(ids, np.int64))
        assert counts == {name: len(held) for name, held in expected.items()}


@pytest.mark.soak
def test_killed_at_any_moment_columns_are_those_of_a_new_fold(tmp_path, rounds):
    killed = cases = 0
    for case in rounds(2):
        path = tmp_path / f"index{case}" / "index.db"
        chance = random.Random(case)
        with Index(path) as index:  # so that the runs are in two chunks
            sql = f"INSERT INTO sqlite_sequence VALUES ('run', {CHUNK - 30})"
            index._do(lambda connection, sql=sql: connection.execute(sql))
        for _ in range(3):
            child = multiprocessing.get_context("fork").Process(
                target=change_runs_and_die,
                args=(path, chance.randrange(1 << 30), chance.randrange(1, 30_000)),
            )
            child.start()
            child.join()
            killed += child.exitcode == -signal.SIGKILL
            assert_columns_are_what_rows_are(path)
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            for table in ("run_column", "run_presence", "fold"):
                connection.execute(f"DELETE FROM {table}")
        with Index(path) as index:
            index._do(lambda connection: fold(connection, 0))
        assert_columns_are_what_rows_are(path)
        shutil.rmtree(path.parent)
        cases += 1
    assert killed == 3 * cases


@pytest.mark.parametrize(
    "damage",
    [
        b"this is not a database, and never was" * 100,
        b"",
        b"SQLite format 3\0" + bytes(5000),
    ],
    ids=["other file", "empty", "torn"],
)
def test_a_file_that_is_no_index_is_replaced(tmp_path, damage):
    tree, path = tmp_path / "logs", tmp_path / "cache" / "index.db"
    tree_of(tree, 1, 10)
    path.parent.mkdir()
    path.write_bytes(damage)
    assert_whole(path, tree, 10)


def test_an_index_damaged_in_the_middle_is_replaced(tmp_path):
    tree, path = tmp_path / "logs", tmp_path / "cache" / "index.db"
    tree_of(tree, 3, 5000)
    assert_whole(path, tree, 5000)
    data = bytearray(path.read_bytes())
    data[100:] = random.Random(1).randbytes(len(data) - 100)
    path.write_bytes(data)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    with Index(path) as index:
        report = index.refresh(Source.parse(str(tree)))
    assert report.files_read == 3
    assert_whole(path, tree, 5000)


def test_an_index_damaged_while_it_is_open_is_replaced(tmp_path):
    tree, path = tmp_path / "logs", tmp_path / "cache" / "index.db"
    tree_of(tree, 3, 5000)
    with Index(path) as index:
        index.refresh(Source.parse(str(tree)))

    def damage():
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(16384)
            file.write(random.Random(1).randbytes(size - 16384))

    with Index(path) as index:
        damage()
        logs = Logs(tree, index=index)
        damage()
        assert {tag.run for tag in logs.tags} == {"run0", "run1", "run2"}
        assert len(logs.series("run1", "a").steps) == 5000
    assert_whole(path, tree, 5000)


def test_an_older_index_is_replaced_and_removed(tmp_path):
    tree, path = tmp_path / "logs", tmp_path / "cache" / schema.FILE_NAME
    tree_of(tree, 1, 10)
    assert_whole(path, tree, 10)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 0")
    connection.close()
    older = path.with_name("index-0.db")
    connection = sqlite3.connect(older)
    connection.execute(f"PRAGMA application_id = {schema._APPLICATION}")
    connection.execute("CREATE TABLE series (id)")
    connection.close()
    assert_whole(path, tree, 10)
    assert not older.exists()


def test_files_of_others_beside_the_index_are_left_alone(tmp_path):
    """Whatever they are called: ABOARD_CACHE may be any directory."""
    tree, path = tmp_path / "logs", tmp_path / "cache" / schema.FILE_NAME
    tree_of(tree, 1, 10)
    path.parent.mkdir(mode=0o700)
    connection = sqlite3.connect(path.with_name("index-1.db"))
    connection.execute("CREATE TABLE theirs (id)")
    connection.close()
    for name in ("index-mine.db", "index-0.db", "index-1.db.db", f"index-{schema.VERSION + 1}.db"):
        path.with_name(name).write_bytes(b"theirs")
    kept = {one: one.read_bytes() for one in path.parent.iterdir()}
    assert_whole(path, tree, 10)
    assert {one: one.read_bytes() for one in kept} == kept


def test_a_newer_index_is_left_to_newer_versions(tmp_path):
    path = tmp_path / "cache" / schema.FILE_NAME
    with Index(path):
        pass
    newer = path.with_name(f"index-{schema.VERSION + 1}.db")
    path.rename(newer)
    with Index(path):
        pass
    assert newer.exists()


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "Free some space, or set ABOARD_CACHE"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Free some space, or set ABOARD_CACHE"),
        (PermissionError(errno.EACCES, "Permission denied"), "Set ABOARD_CACHE to your own"),
        (OSError(errno.EROFS, "Read-only file system"), "Set ABOARD_CACHE to your own"),
    ],
)
def test_what_to_do_depends_on_the_cause(tmp_path, monkeypatch, error, hint):
    def open_file(_path):
        raise error

    monkeypatch.setattr(schema, "open_file", open_file)
    with Index(tmp_path / "index.db") as index:
        assert index.problems[0].hint.startswith(hint)


def test_a_directory_that_others_can_write_to(tmp_path):
    cache = tmp_path / "of a team"
    cache.mkdir()
    cache.chmod(0o775)
    with Index(cache / "index.db") as index:
        assert str(index.problems[0]) == (
            f"the index {cache}/index.db cannot be opened ({cache} can be written to by other"
            " users), so it is kept in memory and lost when this process exits."
            f" Run 'chmod go-w '{cache}'', or set ABOARD_CACHE to another directory."
        )
    cache.chmod(0o755)
    with Index(cache / "index.db") as index:
        assert index.problems == []


def test_the_index_is_private(tmp_path):
    path = tmp_path / "new" / "cache" / "index.db"
    with Index(path):
        for file in (path, Path(f"{path}-wal")):
            assert file.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0


def test_a_full_disk_is_told_and_the_view_goes_on_from_memory(tmp_path, monkeypatch):
    tree, path = tmp_path / "logs", tmp_path / "cache" / "index.db"
    tree_of(tree, 2, 5000)
    real = schema.open_file

    def open_file(path):
        connection = real(path)
        connection.execute("PRAGMA max_page_count = 8")
        return connection

    monkeypatch.setattr(schema, "open_file", open_file)
    with Index(path) as index:
        logs = Logs(tree, index=index)
        assert str(index.problems[0]) == (
            f"the index {path} cannot be written (database or disk is full), so it is kept in"
            " memory and lost when this process exits. Free some space, or set ABOARD_CACHE to"
            " a directory on another disk."
        )
        assert len(logs.series("run1", "b").steps) == 5000
        assert logs.refresh().files_unchanged == 2
    monkeypatch.undo()
    assert_whole(path, tree, 5000)


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 300 KiB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "aboard-test", disk], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_is_really_full(tmp_path, small_disk):
    tree = tmp_path / "logs"
    tree_of(tree, 2, 10_000)
    with Index(small_disk / "cache" / "index.db") as index:
        logs = Logs(tree, index=index)
        assert len(index.problems) == 1
        assert "so it is kept in memory" in index.problems[0].message
        assert len(logs.series("run0", "a").steps) == 10_000


def test_a_cache_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    tree_of(tmp_path / "logs", 1, 10)
    with Index(tmp_path / "file" / "cache" / "index.db") as index:
        assert "cannot be opened" in index.problems[0].message
        assert len(Logs(tmp_path / "logs", index=index).series("run0", "a").steps) == 10
