"""Small files are read many at a time, and nothing in the index tells."""

from __future__ import annotations

import os
import sqlite3

import pytest

from aboard.events import encode
from aboard.events.records import frame
from aboard.events.scanner import cores
from aboard.index import Index, Source, reader
from aboard.storage import local

pytestmark = pytest.mark.skipif("c" not in cores(), reason="the C core was not compiled")


def event(step, tag="loss"):
    return frame(encode.event(1000.0 + step, step, [encode.scalar(tag, step / 2)]))


def content(number: int) -> bytes:
    """Files of every sort: whole, cut, damaged, empty, of other values than scalars."""
    points = b"".join(event(step, f"tag{step % 3}") for step in range(number % 40))
    version = frame(encode.file_version(5.0))
    match number % 10:
        case 0:
            return version + points
        case 1:
            return version + points + event(99)[:-3]
        case 2:
            return points + b"damage" * 9 + event(99)
        case 3:
            return b""
        case 4:
            return version + frame(encode.event(1.0, 0, [encode.text("note", f"{number}")]))
        case 5:
            return points + frame(encode.event(1.0, 7, [encode.scalar_tensor("wide", 0.1)]))
        case 6:
            return version + points[: len(points) // 2] + b"\0" * 40
        case 7:  # two tags that are not UTF-8, one after the other
            one = encode.event(2.0, 3, [encode.scalar("tag??", 1.5), encode.scalar("tag!?", 2.5)])
            return points + frame(one.replace(b"tag??", b"tag\xff\xfe").replace(b"!", b"\xff"))
        case 8:  # more values than a chunk holds
            return frame(encode.event(2.0, 3, [encode.scalar("t", float(number))] * 5000)) + points
        case _:
            return frame(encode.graph(1.0, b"graph", 3)) + points


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "logs"
    for number in range(200):
        path = root / f"run{number % 150}" / f"events.out.tfevents.{number}.host"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    return root


def dump(path) -> dict[str, list[tuple[object, ...]]]:
    """Return what is in an index, but for ids, which tell only what belongs together."""
    connection = sqlite3.connect(path)
    file = "directory || '/' || name"
    rows = {
        "file": "SELECT directory, name, size, version, offset, tail, head, damage_start, events,"
        " first_wall, attempt FROM file ORDER BY directory, name",
        "damage": f"SELECT {file}, damage.offset, length FROM damage JOIN file ON file = file.id"
        " ORDER BY 1, 2",
        "chunk": f"SELECT {file}, tag, form, origin, kind, metadata, segment.count, min_step,"
        " max_step, increasing, last_step, max_wall, last_wall, last_value, rows, kept,"
        " segment.first_wall, low, low_step, high, high_step, total, nans, infinities,"
        " chunk.id & 0xffffff, chunk.count, sketch, steps, walls, payload"
        " FROM chunk JOIN segment ON segment.id = chunk.id >> 24 JOIN file ON file = file.id"
        " ORDER BY 1, 2, 3, chunk.id",
    }
    found = {name: connection.execute(query).fetchall() for name, query in rows.items()}
    connection.close()
    return found


def test_the_index_is_the_same_as_if_they_were_read_one_by_one(tree, tmp_path, monkeypatch):
    found, reports = [], []
    for name, most in (("many", reader.SMALL_BYTES), ("single", 0)):
        monkeypatch.setattr(reader, "SMALL_BYTES", most)
        with Index(tmp_path / f"{name}.db") as index:
            report = index.refresh(Source(str(tree)))
            report.seconds = 0.0
            reports.append(report)
        found.append(dump(tmp_path / f"{name}.db"))
    assert found[0] == found[1]
    assert vars(reports[0]) == vars(reports[1])
    assert len(found[0]["file"]) == 200
    assert found[0]["damage"]


def test_they_are_read_anew_and_replaced(tree, tmp_path):
    source = Source(str(tree))
    with Index(tmp_path / "once.db") as index:
        first = index.refresh(source)
    with Index(tmp_path / "twice.db") as index, Index(tmp_path / "twice.db") as other:
        index.refresh(source)
        again = index.refresh(source, anew=True)
        assert (again.files_read, again.points) == (first.files_read, first.points)
        for number in range(0, 200, 10):  # the same size, another time
            path = tree / f"run{number % 150}" / f"events.out.tfevents.{number}.host"
            path.write_bytes(path.read_bytes())
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
        assert other.refresh(source).files_read == 20
        index.refresh(source, anew=True)
    with Index(tmp_path / "new.db") as index:
        index.refresh(source)
    assert dump(tmp_path / "twice.db") == dump(tmp_path / "new.db")


def test_they_grow_and_are_read_on(tree, index):
    source = Source(str(tree))
    before = index.refresh(source).points
    for number in range(0, 200, 10):
        with (tree / f"run{number % 150}" / f"events.out.tfevents.{number}.host").open(
            "ab"
        ) as file:
            file.write(event(1000))
    after = index.refresh(source)
    assert (after.files_read, after.points) == (20, 20)
    assert before > 1000


def test_what_cannot_be_read_is_said_and_the_rest_goes_on(tree, index, monkeypatch):
    (tree / "run0" / "events.out.tfevents.0.host").unlink()
    os.mkfifo(tree / "run0" / "events.out.tfevents.0.host")
    gone = tree / "run8" / "events.out.tfevents.8.host"
    real = reader.scan_small_files

    def scan(*given):
        gone.unlink(missing_ok=True)  # it was listed
        return real(*given)

    monkeypatch.setattr(reader, "scan_small_files", scan)
    report = index.refresh(Source(str(tree)))
    [problem] = report.problems
    assert str(problem).startswith(f"{gone}: file or directory not found")
    assert report.files_read == 198


def test_a_confined_process_checks_every_file_that_it_opens(tree, tmp_path, index, monkeypatch):
    outside = tmp_path / "secret"
    outside.write_bytes(content(0) + event(1))
    (tree / "run1" / "events.out.tfevents.999.host").symlink_to(outside)
    monkeypatch.setattr(local, "_real", (f"{os.path.realpath(tree)}/",))
    report = index.refresh(Source(str(tree)))
    [problem] = report.problems
    assert "a link leads out of its root" in str(problem)
    assert report.files_read == 200


def test_two_processes_that_read_the_same_files_store_them_once(tree, tmp_path):
    path = tmp_path / "index.db"
    source = Source(str(tree))
    with Index(path) as first, Index(path) as second:
        real = reader.scan_small_files
        interrupted = []

        def scan(*given):
            if not interrupted:
                interrupted.append(True)
                second.refresh(source)
            return real(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "scan_small_files", scan)
            first.refresh(source)
        assert len(first.files(source)) == 200
    with Index(tmp_path / "alone.db") as alone:
        alone.refresh(source)
    assert dump(path) == dump(tmp_path / "alone.db")
