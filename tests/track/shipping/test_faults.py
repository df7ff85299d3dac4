"""Shipping through bad days: a server that fails, hangs, hangs up, goes away and comes back."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aboard.runs.manifest import Manifest, State
from aboard.storage import object as object_module
from aboard.storage import open_storage
from aboard.track.shipping import segments, upload
from aboard.track.shipping.segments import Ledger
from aboard.track.shipping.shipper import Shipment, send_abandoned
from aboard.track.shipping.spool import Spool
from aboard.track.shipping.upload import Uploader
from tests.conftest import serving
from tests.engines.fake_oss import FakeOss
from tests.engines.faulty_proxy import Faulty
from tests.track.shipping import trainer
from tests.track.shipping.shipments import (
    VERSION,
    StockReader,
    append,
    indexed_steps,
    joined,
    scalar_record,
    steps_in,
)
from tests.waiting import until

NAME = trainer.NAME


@pytest.fixture
def faulty(s3_server, s3_bucket, environment) -> Iterator[Faulty]:
    server = Faulty(s3_server)
    environment.setenv("AWS_ENDPOINT_URL", server.url)
    yield server
    server.close()


@pytest.fixture
def target(request, s3_bucket) -> str:
    return f"{s3_bucket}/{request.node.name}"


@pytest.fixture
def shipment(faulty, target) -> Iterator[Shipment]:
    """Give a shipment that, whatever happens to the test, is finished or ended."""
    made = Shipment(target)
    yield made
    faulty.fault = ""
    if not made.finish(30) and made._process:
        made._process.kill()
        made._process.wait()


def fetched(target: str, place: Path) -> Path:
    """Copy what is in the bucket now into a directory, as a mirror of it would."""
    storage = open_storage(target)
    for entry in storage.list():
        path = place / entry.name
        content = storage.read(entry.name)
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "wb") as file:
                file.write(content)
    return place


@pytest.mark.parametrize("fault", ["500", "403", "reset", "hang", "deaf", "away"])
def test_a_bad_day_delays_and_loses_nothing(fault, faulty, shipment, target, tmp_path):
    events = shipment.directory / NAME
    append(events, VERSION + scalar_record(0))
    until(lambda: faulty.total)
    faulty.fault = "reset" if fault == "away" else fault  # also for connections that are open
    if fault == "away":
        faulty.away()
    # Not more at once than is given up soon: on a large upload the storage has a minute's patience.
    for step in range(1, 1000):
        append(events, scalar_record(step))
    if fault == "away":
        until(lambda: shipment.spool.status().problem)
        faulty.back()
    else:
        until(lambda: faulty.requests[fault] > 1)
    faulty.fault = ""
    assert shipment.finish(60)
    arrived = joined(fetched(target, tmp_path / "arrived"), NAME)
    assert steps_in(arrived) == list(range(1000))


@pytest.fixture(params=["s3", "gcs", "azure", "oss", "rclone"])
def behind_faulty(request, environment) -> Iterator[tuple[Faulty, str]]:
    """Give a bucket of each cloud behind a proxy that fails as it is told."""
    cloud = request.param
    bucket = request.getfixturevalue(f"{cloud}_bucket")
    server = {"azure": "azurite", "oss": "s3_server"}.get(cloud, f"{cloud}_server")
    found = request.getfixturevalue(server)
    upstream = found.url if cloud == "gcs" else found
    proxy = Faulty(upstream)
    with contextlib.ExitStack() as stack:
        stack.callback(proxy.close)
        if cloud in ("s3", "rclone"):
            environment.setenv("AWS_ENDPOINT_URL", proxy.url)
        elif cloud == "gcs":
            environment.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        elif cloud == "azure":
            variable = "AZURE_STORAGE_CONNECTION_STRING"
            environment.setenv(
                variable, os.environ[variable].replace(urlsplit(upstream).netloc, proxy.host)
            )
        else:
            server = stack.enter_context(serving(FakeOss(proxy.url)))
            environment.setenv("HTTP_PROXY", server.url)
        yield proxy, f"{bucket}/{request.node.name}"


def test_a_write_carried_out_after_the_end_replaces_nothing(
    behind_faulty, index, tmp_path, monkeypatch
):
    """Requests are given up, repeated, acknowledged, and then carried out in reverse order."""
    proxy, target = behind_faulty
    patience = object_module._READ_TIMEOUT
    monkeypatch.setattr(object_module, "_READ_TIMEOUT", timedelta(seconds=0.4))
    monkeypatch.setattr(object_module, "_RETRIES", {**object_module._RETRIES, "max_retries": 0})
    monkeypatch.setattr(upload, "pause_before", lambda _: 0.0)
    spool = Spool.create(target, 5)
    record = Manifest("run1", "late")
    record.begin(at=1e9, host="host", pid=1)
    uploader = Uploader(spool.files, Ledger(spool.ledger), open_storage(target))
    append(spool.files / NAME, VERSION)
    step = 0
    for _ in range(3):
        record.beat(1e9 + step)
        (spool.files / "run.json").write_bytes(record.to_json())
        append(spool.files / NAME, scalar_record(step))
        proxy.fault, kept = "late", proxy.kept
        # On a busy machine a request may be given up before it is sent.
        until(lambda kept=kept: uploader.round(last=False).problem and proxy.kept > kept)
        append(spool.files / NAME, scalar_record(step + 1))
        proxy.fault = ""
        until(lambda: uploader.round(last=False).problem is None)
        step += 2
    record.end(State.COMPLETED, 0)
    (spool.files / "run.json").write_bytes(record.to_json())
    spool.mark("finish")
    owner = spool.owner()
    until(lambda: send_abandoned(spool, owner, lambda _: None).complete)
    assert proxy.carry_out_late() >= 3
    monkeypatch.setattr(object_module, "_READ_TIMEOUT", patience)  # the readers may be slow
    object_module._client.cache_clear()
    mirror = fetched(target, tmp_path / "mirror")
    assert indexed_steps(target, index) == list(range(step))
    assert StockReader(mirror).steps() == list(range(step))
    index.refresh_catalog(target)
    (run,) = index.known_runs([target])
    assert run.state_at(time.time()) is State.COMPLETED


def test_a_refusal_is_reported_with_a_hint(faulty, shipment, capfd):
    faulty.fault = "403"
    append(shipment.directory / NAME, VERSION)
    said = ""

    def complained() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "training continues." in said

    until(complained)
    assert "the credentials do not allow this. Ask for permission to read and write" in said
    assert f"Logs are kept in {shipment.spool.directory} until they can be sent" in said
    faulty.fault = ""

    def relieved() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "is reachable again" in said

    until(relieved)
    assert said.count("aboard: ") == 2


def test_writing_goes_on_while_the_server_hangs(faulty, shipment):
    faulty.fault = "hang"
    for step in range(1000):
        append(shipment.directory / NAME, scalar_record(step))
    until(lambda: faulty.requests["hang"])
    assert shipment.finish(0.2) is False
    assert steps_in((shipment.directory / NAME).read_bytes()) == list(range(1000))


WRITERS = {
    "slow": [1] * 30,
    "fast": [1500] * 15,
    "bursty": [1, 1, 40_000, 1, 1, 10_000, 1],
}


@pytest.mark.parametrize("writer", WRITERS)
def test_little_more_is_sent_than_was_written(writer, faulty, shipment, target, tmp_path):
    """Measured where the network would be: the bodies of all requests, headers aside."""
    events = shipment.directory / NAME
    append(events, VERSION)
    step = open_segments = 0
    for count in WRITERS[writer]:
        append(events, b"".join(scalar_record(step + one) for one in range(count)))
        step += count
        before = faulty.requests[""]
        until(lambda before=before: faulty.requests[""] > before)
        size = events.stat().st_size
        open_segments += min(size, segments.MAX_SIZE, max(segments.MIN_SIZE, size // 8))
    written = events.stat().st_size
    assert shipment.finish(60)
    assert faulty.total <= 1.2 * written + open_segments
    assert faulty.largest <= segments.MAX_SIZE
    arrived = joined(fetched(target, tmp_path / "arrived"), NAME)
    assert arrived[: len(VERSION)] == VERSION
    assert len(arrived) == written
    assert steps_in(arrived) == list(range(step))


@pytest.mark.soak
def test_what_is_there_can_be_read_at_every_moment(
    rounds, faulty, shipment, target, s3_server, environment, tmp_path, index
):
    """TensorBoard over a mirror, and our index over the bucket, while faults come and go."""
    environment.setenv("AWS_ENDPOINT_URL", s3_server)  # we look past the faults
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    stock = StockReader(mirror)
    events = shipment.directory / NAME
    chance = random.Random(2)
    stopping = threading.Event()
    step = 0
    append(events, VERSION)
    until(lambda: faulty.total)

    def disturb() -> None:
        while not stopping.wait(chance.uniform(0.1, 0.4)):
            faulty.fault = chance.choice(["500", "reset", "deaf", "", "", ""])
        faulty.fault = ""

    troubles = threading.Thread(target=disturb)
    troubles.start()
    try:
        seen = 0
        for _ in rounds(5):
            for _ in range(chance.choice([1, 30, 800])):
                append(events, scalar_record(step))
                step += 1
            fetched(target, mirror)
            read = stock.steps()
            assert indexed_steps(target, index)[: len(read)] == read
            assert read == list(range(len(read)))
            assert len(read) >= seen
            seen = len(read)
    finally:
        stopping.set()
        troubles.join()
    assert shipment.finish(60)
    fetched(target, mirror)
    assert stock.steps() == list(range(step))
    assert indexed_steps(target, index) == list(range(step))
