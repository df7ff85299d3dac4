"""Runs from Python, on a real hub."""

import asyncio

import pytest

import aboard
from aboard.runs.manifest import Manifest, State
from tests.engines.real_hub import log_run


@pytest.fixture
def run(client, root):
    """Log a run with a record and an output log."""
    log_run(root, "svhn/run1", [4.0, 2.0])
    record = Manifest("run1", experiment="svhn", hparams={"lr": 0.5}, state=State.COMPLETED)
    (root / "svhn/run1/run.json").write_bytes(record.to_json())
    (root / "svhn/run1/output.log").write_bytes(b"one\ntwo\n")
    return client.runs("svhn/run1")[0]


def test_a_run_is_found_by_its_id_its_document_and_a_selector(client, run, root):
    assert client.run(run["id"]) == client.run(run) == client.run("svhn/run1")
    assert client.run(str(root / "svhn/run1"))["id"] == run["id"]
    assert client.run(run)["hparams"] == {"lr": 0.5}
    with pytest.raises(aboard.HubError, match="'cifar10' matches several runs") as raised:
        client.run("cifar10")
    assert raised.value.code == "ambiguous"
    with pytest.raises(aboard.NotFound, match="not found"):
        client.run(f"{run['id']}0")


def test_a_run_is_changed_read_and_deleted(client, run, root):
    assert client.change_run(run, tags={"best": True}, note="keep")["tags"] == {"best": True}
    assert client.run(run)["note"] == "keep"
    assert client.change_run(run, tags={"best": None})["tags"] == {}
    assert [(one["name"], one["last"]) for one in client.run_metrics(run)] == [("loss", 2.0)]
    assert b"".join(client.run_log(run)) == b"one\ntwo\n"
    assert b"".join(client.run_log(run, tail=1)) == b"two\n"
    assert b"".join(client.run_log(run, offset=1, follow=True)) == b"ne\ntwo\n"
    assert client.examine_run(run)["complete"]
    assert client.facet("hparams.lr", "svhn")["values"] == [{"value": 0.5, "count": 1}]
    assert client.fields("svhn") == [{"name": "hparams.lr", "runs": 1}]
    files = client.run(run)["files"]
    lost = client.delete_run(run)
    assert (lost["deleted"], lost["files"]) == (False, files)
    assert client.delete_run(run, confirm=lost["confirm"])["deleted"]
    assert not (root / "svhn/run1").exists()


def test_the_log_of_a_run_is_read_in_an_event_loop(client, run):
    async def read():
        hub = aboard.AsyncClient(client)
        assert (await hub.run("svhn/run1"))["id"] == run["id"]
        return [chunk async for chunk in hub.run_log(run)]

    assert b"".join(asyncio.run(read())) == b"one\ntwo\n"
