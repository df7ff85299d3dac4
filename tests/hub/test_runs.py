"""Runs over the API: details, logs, edits and deletion of one; facets of many."""

import json
import threading
import time

import pytest

from aboard.hub.api.run import MetricList, RunDetail
from aboard.hub.api.runs import FacetDocument
from aboard.runs import manifest
from aboard.runs.catalog import directory_of_id, run_id
from aboard.runs.manifest import Manifest, State
from aboard.storage import open_storage
from tests.hub.hubs import log_run
from tests.waiting import until


def ids(client):
    runs = until(lambda: client.get("/api/v1/runs").json()["runs"])
    return {f"{one['experiment']}/{one['name']}": one["id"] for one in runs}


def error_of(response):
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize(
    "directory",
    ["", "cifar10/run1", "a b/ü", "x:y/~z", "100%/lr=0.1,bs=2", "a~3Ab", "a/b/c.d-e_f"],
)
def test_an_id_names_one_directory_of_one_root(directory):
    identity = run_id("/data/runs", directory)
    assert "/" not in identity
    assert "%" not in identity
    assert directory_of_id("/data/runs", identity) == directory
    assert directory_of_id("/data/others", identity) is None


@pytest.mark.parametrize("identity", ["", "x", "00000000:a", ":a", "{mark}:~ff", "{mark}:a~41"])
def test_what_is_not_an_id_names_nothing(identity):
    mark = run_id("/data/runs", "").partition(":")[0]
    assert directory_of_id("/data/runs", identity.format(mark=mark)) is None


def test_a_run_is_described_in_full(hub, root):
    record = Manifest("run9", experiment="cifar10", hparams={"lr": 0.1}, command=["a", "b"])
    record.git_commit = "c0ffee"
    record.begin(at=1000.0, host="node1", pid=7)
    record.end(State.FAILED, 3, "out of memory", at=1060.0)
    record.begin(at=2000.0, host="node2", pid=8, job="2300_4")
    record.end(State.COMPLETED, 0, at=2100.0)
    log_run(root, "cifar10/run9/train", [1.0, 0.5])
    log_run(root, "cifar10/run9/eval", [0.7])
    (root / "cifar10/run9/run.json").write_bytes(record.to_json())
    with hub.client("vera") as client:
        until(lambda: "cifar10/run9" in ids(client))
        found = client.get(f"/api/v1/runs/{ids(client)['cifar10/run9']}").json()
    assert set(found) == set(RunDetail.model_fields)
    assert (found["state"], found["command"], found["git_commit"]) == (
        "completed",
        ["a", "b"],
        "c0ffee",
    )
    assert [(one["state"], one["host"], one["exit_code"]) for one in found["attempts"]] == [
        ("failed", "node1", 3),
        ("completed", "node2", 0),
    ]
    assert found["attempts"][1]["started"] == "1970-01-01T00:33:20.000Z"
    assert [(one["name"], one["files"]) for one in found["stages"]] == [("eval", 1), ("train", 1)]
    assert (found["files"], found["complete"], found["problems"]) == (3, True, [])


def test_what_a_run_has_logged_is_listed_by_stage_and_tag(hub, root):
    log_run(root, "cifar10/run1/eval", [0.25, 0.75], tag="acc")
    with hub.client("vera") as client:
        found = client.get(f"/api/v1/runs/{ids(client)['cifar10/run1']}/metrics").json()
    MetricList(**found)
    assert found["complete"]
    assert {
        one["name"]: (one["count"], one["last_step"], one["last"]) for one in found["metrics"]
    } == {
        "loss": (2, 1, 0.5),
        "eval/acc": (2, 1, 0.75),
    }
    (acc,) = [one for one in found["metrics"] if one["name"] == "eval/acc"]
    assert (acc["min"], acc["max"], acc["max_step"], acc["mean"]) == (0.25, 0.75, 1, 0.5)


def test_an_unknown_run_is_not_found(hub):
    with hub.client("vera") as client:
        known = ids(client)["mnist/run1"]
        for wrong in ("none", f"{known}0", f"{known}:x", known.replace(":", "::", 1)):
            response = client.get(f"/api/v1/runs/{wrong}")
            assert error_of(response) == (404, "not_found"), wrong


def test_a_hub_that_has_not_listed_its_roots_finds_a_run_by_id(hub, root):
    with hub.client("vera") as client:
        found = client.get(f"/api/v1/runs/{run_id(str(root), 'cifar10/run2')}")
        assert found.json()["hparams"] == {"lr": 0.01}


def test_tags_and_a_note_go_into_the_record_and_keep_what_others_wrote(hub, root):
    path = root / "cifar10/run1/run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mine": [1], "tags": {"old": 1}}))
    with hub.client("max") as client:
        run = f"/api/v1/runs/{ids(client)['cifar10/run1']}"
        change = {"tags": {"baseline": True, "old": None, "seed": 3}, "note": "of the <paper>"}
        changed = client.patch(run, json=change).json()
        assert (changed["tags"], changed["note"]) == (
            {"baseline": True, "seed": 3},
            "of the <paper>",
        )
        written = json.loads(path.read_text())
        assert (written["mine"], written["note"]) == ([1], "of the <paper>")
        assert written["hparams"] == {"lr": 0.1}
        selected = client.get("/api/v1/runs", params={"selector": "tag:baseline"}).json()["runs"]
        assert [one["name"] for one in selected] == ["run1"]
        assert client.patch(run, json={"tags": {"seed": None}}).json()["note"] == "of the <paper>"
        assert client.patch(run, json={"note": ""}).json()["note"] == ""
        assert client.get(run).json()["tags"] == {"baseline": True}


def test_what_looks_secret_is_not_recorded(hub):
    with hub.client("max") as client:
        run = f"/api/v1/runs/{ids(client)['cifar10/run1']}"
        change = {"tags": {"api_key": "sk-1234567890"}, "note": "log in with --password hunter22"}
        changed = client.patch(run, json=change).json()
    assert changed["tags"] == {"api_key": "***"}
    assert "hunter22" not in changed["note"]


def test_changes_by_many_at_once_all_arrive(hub, root):
    with hub.client("max") as client:
        run = f"/api/v1/runs/{ids(client)['cifar10/run1']}"
        threads = [
            threading.Thread(
                target=client.patch, args=(run,), kwargs={"json": {"tags": {f"t{n}": n}}}
            )
            for n in range(8)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    tags = manifest.read(open_storage(str(root / "cifar10/run1"))).tags
    assert tags == {f"t{n}": n for n in range(8)}


@pytest.mark.parametrize(
    "body",
    [
        {"tags": {"": 1}},
        {"tags": {"x": [1]}},
        {"note": "x" * 10_001},
        {"name": "y"},
        {"tags": ["x"]},
    ],
)
def test_a_change_that_is_invalid_changes_nothing(hub, root, body):
    before = (root / "cifar10/run1/run.json").read_bytes()
    with hub.client("max") as client:
        response = client.patch(f"/api/v1/runs/{ids(client)['cifar10/run1']}", json=body)
    assert error_of(response) == (422, "invalid")
    assert (root / "cifar10/run1/run.json").read_bytes() == before


def test_a_directory_without_a_record_has_no_tags(hub):
    with hub.client("max") as client:
        response = client.patch(f"/api/v1/runs/{ids(client)['mnist/run1']}", json={"note": "x"})
    assert error_of(response) == (422, "bad_value")
    assert "has no run.json" in response.json()["error"]["message"]


def test_a_run_is_deleted_with_the_token_of_what_is_lost(hub, root):
    with hub.client("anna") as client:
        run = f"/api/v1/runs/{ids(client)['cifar10/run1']}"
        lost = client.delete(run).json()
        assert (lost["deleted"], lost["files"], lost["run"]) == (False, 2, "cifar10/run1")
        assert lost["bytes"] > 0
        assert (root / "cifar10/run1").exists()
        wrong = client.delete(run, params={"confirm": "0" * 32})
        assert error_of(wrong) == (409, "conflict")
        log_run(root, "cifar10/run1/eval", [1.0])
        old = client.delete(run, params={"confirm": lost["confirm"]})
        assert error_of(old) == (409, "conflict")
        assert (root / "cifar10/run1").exists()
        token = client.delete(run).json()["confirm"]
        gone = client.delete(run, params={"confirm": token}).json()
        assert (gone["deleted"], gone["files"], gone["confirm"], gone["problems"]) == (
            True,
            3,
            None,
            [],
        )
        assert not (root / "cifar10/run1").exists()
        assert client.get(run).status_code == 404
        assert "cifar10/run1" not in ids(client)


def test_a_run_that_is_running_is_deleted_by_force_only(hub, root):
    record = {"state": State.RUNNING, "heartbeat": time.time() + 1e6, "user": "max"}
    log_run(root, "cifar10/live", [1.0], **record)
    with hub.client("max") as client:
        until(lambda: "cifar10/live" in ids(client))
        run = f"/api/v1/runs/{ids(client)['cifar10/live']}"
        refused = client.delete(run)
        assert error_of(refused) == (409, "conflict")
        assert "still running" in refused.json()["error"]["message"]
        token = client.delete(run, params={"force": True}).json()["confirm"]
        assert error_of(client.delete(run, params={"confirm": token})) == (409, "conflict")
        gone = client.delete(run, params={"confirm": token, "force": True}).json()
        assert gone["deleted"]
    assert not (root / "cifar10/live").exists()


def test_members_delete_their_own_runs_and_viewers_none(hub, root):
    log_run(root, "cifar10/mine", [1.0], user="max", state=State.COMPLETED)
    with hub.client("max") as client:
        until(lambda: "cifar10/mine" in ids(client))
        known = ids(client)
        assert client.delete(f"/api/v1/runs/{known['cifar10/mine']}").status_code == 200
        refused = client.delete(f"/api/v1/runs/{known['cifar10/run1']}")
        assert error_of(refused) == (403, "forbidden")
        assert "delete runs of others" in refused.json()["error"]["message"]
    with hub.client("vera") as client:
        for method in ("DELETE", "PATCH"):
            path = f"/api/v1/runs/{known['cifar10/mine']}"
            refused = client.request(method, path, json={"note": "x"})
            assert error_of(refused) == (403, "forbidden")


LOG = "".join(f"line {number}\n" for number in range(1000)).encode()


@pytest.mark.parametrize(
    ("wanted", "status", "expected", "content_range"),
    [
        ("bytes=0-9", 206, LOG[:10], f"bytes 0-9/{len(LOG)}"),
        ("bytes=100-", 206, LOG[100:], f"bytes 100-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=-7", 206, LOG[-7:], f"bytes {len(LOG) - 7}-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=0-999999", 206, LOG, f"bytes 0-{len(LOG) - 1}/{len(LOG)}"),
        ("bytes=999999-", 416, b"", f"bytes */{len(LOG)}"),
        ("bytes=9-3", 416, b"", f"bytes */{len(LOG)}"),
        ("lines=1-2", 200, LOG, None),
        ("bytes=0-1,4-5", 200, LOG, None),
        (None, 200, LOG, None),
    ],
)
def test_the_log_of_a_run_is_served_completely_or_by_ranges(
    hub, root, wanted, status, expected, content_range
):
    (root / "cifar10/run1/output.log").write_bytes(LOG)
    with hub.client("vera") as client:
        path = f"/api/v1/runs/{ids(client)['cifar10/run1']}/log"
        answer = client.get(path, headers={"range": wanted} if wanted else {})
    assert (answer.status_code, answer.content) == (status, expected)
    assert answer.headers.get("content-range") == content_range
    assert answer.headers["content-type"].startswith("text/plain")


def test_the_end_of_a_log_and_a_missing_log(hub, root):
    (root / "cifar10/run1/output.log").write_bytes(LOG)
    with hub.client("vera") as client:
        known = ids(client)
        path = f"/api/v1/runs/{known['cifar10/run1']}/log"
        assert client.get(path, params={"tail": 2}).content == b"line 998\nline 999\n"
        assert client.get(path, params={"offset": len(LOG) - 4}).content == LOG[-4:]
        both = client.get(path, params={"tail": 1, "offset": 1})
        assert error_of(both) == (422, "bad_value")
        none = client.get(f"/api/v1/runs/{known['cifar10/run2']}/log")
        assert (none.status_code, none.content) == (200, b"")


def test_a_log_is_followed_from_an_offset_until_the_run_finishes(hub, root):
    directory = root / "cifar10/run5"
    log_run(root, "cifar10/run5", [1.0], state=State.RUNNING, heartbeat=time.time() + 1e6)
    (directory / "output.log").write_bytes(b"one\ntwo\nhal")
    with hub.client("vera") as client:
        until(lambda: "cifar10/run5" in ids(client))
        path = f"/api/v1/runs/{ids(client)['cifar10/run5']}/log"
        with client.stream("GET", path, params={"follow": True, "offset": 4}) as answer:
            pieces = answer.iter_raw()
            assert next(pieces) == b"two\n"
            with (directory / "output.log").open("ab") as log:
                log.write(b"f\nlast")
            assert next(pieces) == b"half\n"
            manifest.update(open_storage(str(directory)), lambda one: one.end(State.COMPLETED, 0))
            assert b"".join(pieces) == b"last"


def test_doctor_reports_findings_of_a_run(hub, root):
    log_run(root, "cifar10/run1", [float("nan")] * 3, tag="bad")
    with hub.client("vera") as client:
        found = client.get(f"/api/v1/runs/{ids(client)['cifar10/run1']}/doctor").json()
    assert found["complete"]
    (finding,) = [one for one in found["findings"] if one["code"] == "not-finite"]
    assert finding["where"] == ["'bad' of . (NaN from the start)"]
    assert (finding["severity"], finding["advice"][:5]) == ("info", "Lower")


def test_facets_count_values_and_put_many_numbers_into_bins(hub, root):
    for number in range(60):
        hparams = {"lr": number / 10, "optimizer": "adam" if number % 3 else "sgd"}
        log_run(root, f"sweep/run{number}", [1.0], hparams=hparams, tags={"big": number > 9})
    with hub.client("vera") as client:
        until(lambda: len(ids(client)) == 63)

        def facet(field, **query):
            found = client.get("/api/v1/runs/facets", params={"field": field, **query}).json()
            return FacetDocument(**found)

        lr = facet("hparams.lr", selector="sweep")
        assert (lr.distinct, lr.missing, lr.runs, lr.values) == (60, 0, 60, [])
        assert sum(one.count for one in lr.bins) == 60
        assert (lr.bins[0].low, lr.bins[-1].high) == (0.0, 5.9)
        optimizer = facet("hparams.optimizer")
        assert [(one.value, one.count) for one in optimizer.values] == [("adam", 40), ("sgd", 20)]
        assert (optimizer.missing, optimizer.bins) == (3, [])
        assert [(one.value, one.count) for one in facet("experiment").values] == [
            ("sweep", 60),
            ("cifar10", 2),
            ("mnist", 1),
        ]
        assert [(one.value, one.count) for one in facet("tags.big").values] == [
            (True, 50),
            (False, 10),
        ]
        few = facet("hparams.lr", selector="cifar10")
        assert {(one.value, one.count) for one in few.values} == {(0.1, 1), (0.01, 1)}
        fast = facet("hparams.optimizer", where="hparams.lr >= 5")
        assert ({(one.value, one.count) for one in fast.values}, fast.runs) == (
            {("adam", 7), ("sgd", 3)},
            10,
        )
        query = {"field": "state", "where": "hparams.lrr == 1"}
        wrong = client.get("/api/v1/runs/facets", params=query)
        assert (wrong.status_code, wrong.json()["error"]["hint"]) == (400, "Did you mean 'lr'?")
        wrong = client.get("/api/v1/runs/facets", params={"field": "hparam.lr"})
        assert error_of(wrong) == (400, "bad_question")
        fields = client.get("/api/v1/runs/fields", params={"selector": "sweep"}).json()["fields"]
        assert fields == [
            {"name": "hparams.lr", "runs": 60},
            {"name": "hparams.optimizer", "runs": 60},
            {"name": "tags.big", "runs": 60},
        ]
