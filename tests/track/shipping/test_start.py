"""The first moment of a run in a bucket: no place for its logs, no answer, an earlier attempt."""

import os
import signal
from pathlib import Path

from aboard.runs import manifest
from aboard.runs.manifest import State
from aboard.storage import open_storage
from aboard.track.shipping.shipper import send_abandoned
from aboard.track.shipping.spool import Spool
from tests.track.shipping.carrying import spools
from tests.track.training import train
from tests.waiting import until

LOG = """
name = sys.argv[1]
with aboard.init(hparams={name: 1}, tags=name) as run:
    run.log_metrics({name: 1.0})
"""


def test_a_run_that_cannot_begin_does_not_seem_to_run(s3_bucket: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = {"ABOARD_SPOOL": f"{tmp_path}/file/spool", "TMPDIR": f"{tmp_path}/file"}
    script = "import tempfile\ntempfile.tempdir = os.environ['TMPDIR']\naboard.init('x', 'a')"
    ended = train(script, tmp_path, ABOARD_ROOT=f"{s3_bucket}/phantom", **nowhere)
    assert ended.code == 1
    assert "logs for a bucket cannot be kept here" in ended.err
    found = manifest.read(open_storage(f"{s3_bucket}/phantom"), "x/a")
    assert (found.state, found.attempts[0].state) == (State.FAILED, State.FAILED)
    assert "cannot be kept here" in found.reason


def test_an_attempt_that_begins_without_the_bucket_is_the_next(
    s3_bucket: str, tmp_path: Path, closed_port: int
) -> None:
    target = f"{s3_bucket}/jobs/mine"
    assert train(LOG, tmp_path, "first", ABOARD_LOGDIR=target).code == 0
    nowhere = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port}", "ABOARD_FINISH_SECS": "0"}
    ended = train(LOG, tmp_path, "second", ABOARD_LOGDIR=target, **nowhere)
    assert (ended.code, "refuses connections" in ended.err) == (0, True)
    (owner_file,) = spools()
    left = Spool(owner_file.parent)
    end_shipper(left)
    owner = left.owner()
    assert owner is not None
    assert send_abandoned(left, owner, lambda _: None).complete
    found = manifest.read(open_storage(target))
    assert [one.number for one in found.attempts] == [1, 2]
    assert len({one.pid for one in found.attempts}) == 2
    assert [one.state for one in found.attempts] == [State.COMPLETED] * 2
    assert found.name == "mine"
    assert found.hparams == {"first": 1, "second": 1}
    assert found.tags == {"first": True, "second": True}
    assert found.metrics == {"first": 1.0, "second": 1.0}


def end_shipper(spool: Spool) -> None:
    """End the process that tries in the background to reach nobody."""
    until(lambda: spool.status().pid)
    os.kill(spool.status().pid, signal.SIGKILL)
    until(lambda: not spool.is_served())
