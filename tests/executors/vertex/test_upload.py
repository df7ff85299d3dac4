"""Boards on Vertex: every point arrives once, whatever happens meanwhile."""

import json
import math
import os
import random
import signal
import sqlite3
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aboard.events.writer import EventWriter
from aboard.executors.base import PYTHON, Batch, Resources
from aboard.executors.vertex import api as vertex_api
from aboard.executors.vertex import upload as vertex_upload
from aboard.executors.vertex.api import Location, VertexError
from aboard.executors.vertex.engine import VertexBatches, VertexSettings
from aboard.executors.vertex.upload import (
    UPLOAD,
    Destination,
    Upload,
    micros_of,
    parse_timestamp,
    timestamp,
)
from aboard.index import Index, Source
from aboard.index.library import Library, Member
from aboard.storage import open_storage
from aboard.tensorboard.board import Board
from aboard.tensorboard.provider import Boards
from tests.engines.command import fork_command
from tests.engines.environments import python
from tests.engines.fake_vertex import LOCATION, PROJECT, FakeVertex, Fault
from tests.waiting import until

VERTEX_TYPES = Path(__file__).parents[2] / "engines" / "vertex_types.py"


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vertex_api, "_FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(vertex_api, "_OPERATION_SECONDS", 0.01)
    monkeypatch.setattr(vertex_upload, "_FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(vertex_upload, "_LONGEST_BACKOFF", 0.05)
    monkeypatch.setattr(vertex_upload, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(vertex_upload, "_BETWEEN_WRITES", 0.0)


def log(directory: Path, values: list[float], *, start: int = 0, tag: str = "loss") -> None:
    with EventWriter(directory) as writer:
        for step, value in enumerate(values, start):
            writer.scalar(tag, value, step, wall_time=1.7e9 + step + 0.123456)


class Uploads:
    """A board of one directory that is uploaded, stopped and uploaded again."""

    def __init__(self, vertex: FakeVertex, root: Path, directory: Path) -> None:
        self.vertex = vertex
        self.root = root
        self.destination = Destination(
            Location(PROJECT, LOCATION, vertex.url), "team", "aboard-b1", str(directory)
        )

    @contextmanager
    def run(self) -> Iterator[Upload]:
        source = Source.parse(str(self.root))
        with Index() as index:
            boards = Boards(Library(index, ()))
            boards.add(Board("view", "A board", (Member(source),)))
            listing = boards.get("view")
            assert listing is not None
            upload = Upload(self.destination, listing, index, lambda: index.refresh(source))
            upload.start()
            try:
                yield upload
            finally:
                upload.close()

    def until_whole(self, expected: dict[str, list[float]], tag: str = "loss") -> None:
        with self.run():
            until(lambda: self._counts(tag) >= {run: len(one) for run, one in expected.items()})
        self.check(expected, tag)

    def _counts(self, tag: str) -> "_AtLeast":
        return _AtLeast({run: len(one) for run, one in self.vertex.points(tag).items()})

    def check(self, expected: dict[str, list[float]], tag: str = "loss") -> None:
        found = {run: sorted(points) for run, points in self.vertex.points(tag).items()}
        assert found == {run: list(enumerate(one)) for run, one in expected.items()}


class _AtLeast(dict[str, int]):
    def __ge__(self, other: dict[str, int]) -> bool:
        return all(self.get(run, -1) >= count for run, count in other.items())


@pytest.fixture
def uploads(vertex: FakeVertex, tmp_path: Path) -> Uploads:
    return Uploads(vertex, tmp_path / "runs", tmp_path / "board")


def test_all_scalars_arrive_in_order(uploads: Uploads, vertex: FakeVertex) -> None:
    expected = {"a": [0.5 * one for one in range(4500)], "b/eval": [1.0, 2.0]}
    for run, values in expected.items():
        log(uploads.root / run, values)
    with uploads.run() as upload:
        until(lambda: uploads._counts("loss") >= {"a": 4500, "b/eval": 2})
        assert upload.url == (
            "https://us-central1.tensorboard.googleusercontent.com/experiment/"
            "projects+demo+locations+us-central1+tensorboards+1001+experiments+aboard-b1"
        )
        assert upload.problems == []
    assert vertex.points() == {run: list(enumerate(one)) for run, one in expected.items()}
    assert 3 <= vertex.writes <= 4  # 2,000 points per request
    (experiment,) = vertex.experiments.values()
    assert experiment["displayName"] == "A board"


def test_values_that_are_not_finite_arrive(uploads: Uploads, vertex: FakeVertex) -> None:
    log(uploads.root / "a", [math.nan, math.inf, -math.inf, 0.0, -0.0])
    with uploads.run():
        until(lambda: uploads._counts("loss") >= {"a": 5})
    values = [value for _, value in vertex.points()["a"]]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, 0.0, 0.0]
    assert struct.pack("d", values[4]) == struct.pack("d", -0.0)


def test_new_points_and_runs_follow(uploads: Uploads, vertex: FakeVertex) -> None:
    log(uploads.root / "a", [0.0, 1.0])
    with uploads.run():
        until(lambda: uploads._counts("loss") >= {"a": 2})
        log(uploads.root / "a", [2.0], start=2)
        log(uploads.root / "b", [0.0])
        until(lambda: uploads._counts("loss") >= {"a": 3, "b": 1})
    uploads.check({"a": [0.0, 1.0, 2.0], "b": [0.0]})


def test_a_second_upload_writes_what_is_new(uploads: Uploads, vertex: FakeVertex) -> None:
    log(uploads.root / "a", [0.0, 1.0])
    uploads.until_whole({"a": [0.0, 1.0]})
    before = vertex.writes
    log(uploads.root / "a", [2.0], start=2)
    uploads.until_whole({"a": [0.0, 1.0, 2.0]})
    assert vertex.writes == before + 1
    assert not any(one.path.endswith(":read") for one in vertex.recorded)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(":write", 500, keeps=0.5),
        Fault(":write", 503, keeps=1.0),
        Fault(":write", 503),
        Fault(":write", drops=True, keeps=1.0),
        Fault(":write", drops=True, keeps=0.3),
        Fault("runs:batchCreate", 500, keeps=1.0),
        Fault("aboard-b1:batchCreate", 500, keeps=1.0),
        Fault("aboard-b1:batchCreate", drops=True),
    ],
)
def test_what_was_done_in_part_is_completed(
    uploads: Uploads, vertex: FakeVertex, fault: Fault
) -> None:
    fault.times = 1
    expected = {run: [float(one) for one in range(90)] for run in ("a", "b", "c")}
    for run, values in expected.items():
        log(uploads.root / run, values)
    vertex.faults.append(fault)
    uploads.until_whole(expected)
    assert fault.times == 0


def test_a_storm_of_refusals_loses_nothing(uploads: Uploads, vertex: FakeVertex) -> None:
    expected = {"a": [float(one) for one in range(5000)]}
    log(uploads.root / "a", expected["a"])
    vertex.faults += [
        Fault(end, 429, "Write requests per minute.", times=4, retry_after="0")
        for end in (":write", ":batchCreate", "experiments", "runs")
    ]
    uploads.until_whole(expected)
    assert not any(one.path.endswith(":read") for one in vertex.recorded)


def test_credentials_that_expire_are_reported_until_they_are_back(
    uploads: Uploads, vertex: FakeVertex
) -> None:
    log(uploads.root / "a", [0.0])
    with uploads.run() as upload:
        until(lambda: uploads._counts("loss") >= {"a": 1})
        vertex.is_revoked = True
        vertex.expire_tokens()
        log(uploads.root / "a", [1.0], start=1)
        until(lambda: bool(upload.problems))
        assert upload.problems[0].startswith("the Google credentials have expired")
        vertex.is_revoked = False
        until(lambda: uploads._counts("loss") >= {"a": 2})
        until(lambda: not upload.problems)
    uploads.check({"a": [0.0, 1.0]})


def test_no_permission_ends_the_start(uploads: Uploads, vertex: FakeVertex) -> None:
    uploads.root.mkdir()
    vertex.faults.append(Fault("tensorboards", 403, "Denied.", times=9))
    with pytest.raises(VertexError, match="permission denied: Denied"), uploads.run():
        pass


def test_a_point_that_is_refused_holds_up_no_other(
    uploads: Uploads, vertex: FakeVertex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake takes times of four digits for the year only, as Vertex does."""
    log(uploads.root / "a", [float(one) for one in range(100)])
    bad = micros_of(1.7e9 + 42 + 0.123456)
    monkeypatch.setattr(
        vertex_upload, "timestamp", lambda at: "never" if at == bad else timestamp(at)
    )
    with uploads.run() as upload:
        until(lambda: uploads._counts("loss") >= {"a": 99})
        until(lambda: bool(upload.problems))
        assert "'loss' at step 42 is not on Vertex" in upload.problems[0]
    assert [step for step, _ in sorted(vertex.points()["a"])] == [
        one for one in range(100) if one != 42
    ]


def test_a_restart_of_the_training_is_followed(uploads: Uploads, vertex: FakeVertex) -> None:
    """What Vertex has of the steps before stays: points cannot be deleted there."""
    log(uploads.root / "a", [float(one) for one in range(10)])
    with uploads.run():
        until(lambda: uploads._counts("loss") >= {"a": 10})
        with EventWriter(uploads.root / "a") as writer:
            for step in range(5, 12):
                writer.scalar("loss", -1.0, step, wall_time=1.8e9 + step)
        until(lambda: uploads._counts("loss") >= {"a": 17})
    points = vertex.points()["a"]
    assert points[:10] == [(one, float(one)) for one in range(10)]
    assert points[10:] == [(one, -1.0) for one in range(5, 12)]


def test_runs_that_were_deleted_there_come_back(uploads: Uploads, vertex: FakeVertex) -> None:
    log(uploads.root / "a", [0.0, 1.0])
    with uploads.run():
        until(lambda: uploads._counts("loss") >= {"a": 2})
        with vertex.lock:
            vertex.runs.clear()
            vertex.series.clear()
        log(uploads.root / "a", [2.0], start=2)
        until(lambda: uploads._counts("loss") >= {"a": 3})
    uploads.check({"a": [0.0, 1.0, 2.0]})


def test_text_histograms_and_images_arrive(
    uploads: Uploads, vertex: FakeVertex, gcs_bucket: str
) -> None:
    from aboard import SummaryWriter

    with SummaryWriter(str(uploads.root / "a")) as writer:
        writer.add_text("note", "hello", 3)
        writer.add_text("long", "x" * (20 << 10), 3)
        writer.add_histogram("weights", [1.0, 2.0, 3.0], 4)
        writer.add_image("digit", np.zeros((3, 8, 8)), 5)
        writer.add_audio("beep", np.zeros(100), 6)
        writer.add_scalar("loss", 1.0, 1)
    with uploads.run() as upload:
        until(lambda: len(vertex.points("digit").get("a", ())) == 1)
        problems = sorted(upload.problems)
    assert problems == [
        "'long/text_summary' at step 3 has 20,492 bytes; Vertex takes 16,384.",
        "Vertex does not show values of the kind 'audio'.",
    ]
    ((step, note),) = vertex.points("note/text_summary")["a"]
    assert (step, b"hello" in note) == (3, True)
    assert vertex.points("weights")["a"][0][0] == 4
    ((step, blobs),) = vertex.points("digit")["a"]
    assert step == 5
    assert len(blobs) == 3  # width, height, and the picture
    (series,) = [one for one in vertex.series.values() if one.document["displayName"] == "digit"]
    *_, board, _, experiment, _, run, _, name = series.name.split("/")
    place = f"{gcs_bucket}/vertex-blobs/tensorboard-{board}/{experiment}/{run}/{name}"
    assert open_storage(place).read(blobs[2]).startswith(b"\x89PNG")
    assert series.document["pluginName"] == "images"


def test_a_run_takes_the_name_that_the_board_gives_it(uploads: Uploads, vertex: FakeVertex) -> None:
    log(uploads.root / "a", [0.0])
    uploads.until_whole({"a": [0.0]})
    (run,) = vertex.runs.values()
    run["displayName"] = "another"
    path = Path(uploads.destination.directory) / "vertex.db"
    with closing(sqlite3.connect(path)) as progress, progress:
        progress.execute("UPDATE run SET name = 'another'")
    with uploads.run():
        until(lambda: run["displayName"] == "a")


def test_a_run_of_the_same_name_from_elsewhere_is_another_run(
    uploads: Uploads, vertex: FakeVertex, tmp_path: Path
) -> None:
    log(uploads.root / "a", [0.0, 1.0])
    uploads.until_whole({"a": [0.0, 1.0]})
    uploads.root = tmp_path / "others"
    log(uploads.root / "a", [7.0])
    log(uploads.root / "b", [8.0])
    with uploads.run():
        until(lambda: len(vertex.points()) == 3 and all(vertex.points().values()))
    (longer,) = vertex.points().keys() - {"a", "b"}
    assert longer.startswith("a (")
    assert vertex.points() == {"a": [(0, 0.0), (1, 1.0)], "b": [(0, 8.0)], longer: [(0, 7.0)]}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.7e9 + 0.5, "2023-11-14T22:13:20.500000Z"),
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (-1.25, "1969-12-31T23:59:58.750000Z"),
        (math.nan, "1970-01-01T00:00:00.000000Z"),
        (math.inf, "9999-12-31T23:59:59.999999Z"),
        (-math.inf, "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_times_of_any_year(seconds: float, text: str) -> None:
    assert timestamp(micros_of(seconds)) == text
    assert parse_timestamp(text) == micros_of(seconds)


@pytest.mark.soak
def test_killed_uploads_lose_nothing_and_write_nothing_twice(
    vertex: FakeVertex, tmp_path: Path, rounds: Callable[[int], Iterator[int]]
) -> None:
    """Kill `aboard view` while Vertex stores a request, before it has answered."""
    root = tmp_path / "runs"
    expected: dict[str, list[float]] = {}
    for number in rounds(1):
        random.seed(number)
        run = f"run{number}"
        expected[run] = [float(random.randrange(1000)) for _ in range(300)]
        log(root / run, expected[run])
        killed = vertex.writes + random.randint(1, 3)
        process = _view(vertex, root, tmp_path, number)
        ended = threading.Event()

        vertex.on_write = partial(_kill, killed, process.pid, ended)
        try:
            assert ended.wait(180), (tmp_path / f"log{number}").read_text()
        finally:
            vertex.on_write = lambda _: None
            process.end()
        process = _view(vertex, root, tmp_path, number)
        try:
            until(lambda: sum(map(len, vertex.points().values())) >= 300 * len(expected))
        finally:
            process.terminate()
            process.wait(180)
        found = {run: sorted(points) for run, points in vertex.points().items()}
        assert found == {run: list(enumerate(one)) for run, one in expected.items()}


def _kill(at: int, pid: int, ended: threading.Event, write: int) -> None:
    if write == at:
        os.kill(pid, signal.SIGKILL)
        ended.set()


def _view(vertex: FakeVertex, root: Path, tmp_path: Path, number: int):
    place = Location(PROJECT, LOCATION, vertex.url)
    destination = Destination(place, "team", "aboard-kills", str(tmp_path / "board"))
    log = str(tmp_path / f"log{number}")
    env = {**os.environ, UPLOAD: destination.to_json()}
    words = ["view", "--json", "--no-browser", "--port", "0", "--", str(root)]
    first = "from aboard.executors.vertex import upload; upload._MOST_POINTS = 70\n"
    return fork_command(words, env=env, cwd=tmp_path, stdout=log, stderr=log, first=first)


@pytest.fixture(scope="session")  # before the home directory of a test
def google_s_python() -> str:
    return python("vertex")


@pytest.mark.slow
def test_google_s_own_client_could_have_made_the_requests(
    google_s_python: str, uploads: Uploads, vertex: FakeVertex, gcs_bucket: str, tmp_path: Path
) -> None:
    """Record every call, and parse it in an environment with google-cloud-aiplatform."""
    from aboard import SummaryWriter

    log(uploads.root / "a", [0.0, math.nan, math.inf, -1e-300])
    with SummaryWriter(str(uploads.root / "b")) as writer:
        writer.add_text("note", "hello", 3)
        writer.add_image("digit", np.zeros((3, 8, 8)), 5)
    vertex.faults.append(Fault(":write", 500, keeps=0.5))
    with uploads.run():
        until(lambda: len(vertex.points("digit").get("b", ())) == 1)
    assert len(vertex.points()["a"]) == 4
    settings = VertexSettings(
        project=PROJECT,
        location=LOCATION,
        endpoint=vertex.url,
        output=f"{gcs_bucket}/vertex",
        image="train:1",
        service_account="trainer@demo.iam.gserviceaccount.com",
        accelerator_type="NVIDIA_TESLA_T4",
    )
    batches = VertexBatches({"": settings})
    resources = Resources(gpus=1, nodes=2, time=60.0)
    batch = Batch(
        job="sweep",
        numbers=(1, 2),
        command=(PYTHON, "-m", "aboard.jobs.member"),
        payload=b"{}",
        directory=tmp_path,
        workdir=tmp_path,
        resources=resources,
    )
    handle = batches.submit(batch)
    batches.cancel(handle)
    recorded = json.dumps([asdict(one) for one in vertex.recorded])
    done = subprocess.run(
        [google_s_python, VERTEX_TYPES],
        input=recorded,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])) >= 11
