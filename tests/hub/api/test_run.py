"""Runs over the API: details, logs, edits and deletion of one; facets of many."""

import io
import json
import math
import threading
import time

import numpy as np
import pytest
from PIL import Image

from aboard.hub.api.run import MetricList, RunDetail
from aboard.hub.api.runs import FacetDocument
from aboard.hub.runs import content_type
from aboard.runs import manifest
from aboard.runs.catalog import directory_of_id, run_id
from aboard.runs.manifest import Manifest, State
from aboard.storage import open_storage
from aboard.track.summary import SummaryWriter
from tests.hub.hubs import create, log_run
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
        assert "delete runs of other users" in refused.json()["error"]["message"]
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
        # Names are checked as soon as all runs are read.
        until(lambda: client.get("/api/v1/runs/facets", params=query).status_code == 400)
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


def test_facets_count_numbers_that_are_not_finite_by_name(hub, root):
    values = [1.0, 1.0, 2.0, math.nan, math.inf, -math.inf, math.nan]
    for number, value in enumerate(values):
        log_run(root, f"bad/run{number}", [value])
    with hub.client("vera") as client:
        until(lambda: len(ids(client)) == 3 + len(values))
        query = {"selector": "bad", "columns": "metrics.loss.last"}
        until(lambda: client.get("/api/v1/runs", params=query).json()["unread"] == 0)
        query = {"field": "metrics.loss.last", "selector": "bad"}
        names = [("NaN", 2), ("-Infinity", 1), ("Infinity", 1)]
        found = client.get("/api/v1/runs/facets", params=query).json()
        assert {(one["value"], one["count"]) for one in found["values"]} == {(1, 2), (2, 1), *names}
        assert (found["bins"], found["distinct"], found["missing"]) == ([], 5, 0)
        found = client.get("/api/v1/runs/facets", params=query | {"limit": 1}).json()
        assert found["bins"] == [{"low": 1.0, "high": 2.0, "count": 3}]
        assert found["values"] == [{"value": "NaN", "count": 2}]


# Images, audio, text, histograms and files of runs over HTTP.


HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def logged(root):
    directory = root / "cifar10/run1"
    with SummaryWriter(directory / "eval") as writer:
        for step in (0, 10, 20):
            picture = np.full((3, 4, 6), step * 10, np.uint8)
            writer.add_image("samples", picture, step)
            writer.add_text("notes", f"{HOSTILE} {step}", step)
            writer.add_histogram("weights", np.arange(100) + step, step)
    return root


def run_of(client, name="cifar10/run1"):
    found = client.get("/api/v1/runs", params={"selector": name}).json()["runs"]
    return f"/api/v1/runs/{found[0]['id']}"


def medium(client, run, tag, **more):
    path = f"{run}/media"
    answer = until(lambda: (a := client.get(path, params={"tag": tag, **more})).is_success and a)
    return answer.json()


def test_images_are_blobs_of_a_step(hub, logged):
    with hub.client("vera") as client:
        run = run_of(client)
        found = medium(client, run, "eval/samples")
        assert (found["kind"], found["steps"], found["step"]) == ("image", [0, 10, 20], 20)
        assert found["time"].endswith("Z")
        assert medium(client, run, "eval/samples", step=19)["step"] == 10
        assert medium(client, run, "eval/samples", step=-5)["step"] == 0
        (address,) = medium(client, run, "eval/samples", step=10)["blobs"]
        blob = client.get(f"/{address}")
        assert blob.headers["content-type"] == "image/png"
        assert blob.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in blob.headers["content-security-policy"]
        picture = Image.open(io.BytesIO(blob.content))
        assert (picture.size, picture.getpixel((0, 0))) == ((6, 4), (100, 100, 100))


def test_files_are_downloaded_and_never_shown(hub, logged):
    (logged / "cifar10/run1/page ü.html").write_bytes(HOSTILE.encode())
    (logged / "cifar10/run1/empty").touch()
    (logged / "cifar10/secret").write_text("of another run")
    with hub.client("vera") as client:
        run = run_of(client)
        listed = {one["name"]: one["bytes"] for one in client.get(f"{run}/files").json()["files"]}
        assert {"page ü.html", "empty", "run.json"} < set(listed)
        for name, size in listed.items():
            answer = client.get(f"{run}/file", params={"name": name})
            assert answer.content == (logged / "cifar10/run1" / name).read_bytes()
            assert int(answer.headers["content-length"]) == size
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "sandbox" in answer.headers["content-security-policy"]
        wanted = {"name": "page ü.html"}
        shown = client.get(f"{run}/file", params=wanted).headers["content-disposition"]
        assert shown.endswith("page%20%C3%BC.html")


def test_a_part_of_a_file(hub, logged):
    (logged / "cifar10/run1/digits").write_bytes(b"0123456789")
    with hub.client("vera") as client:
        run = run_of(client)
        wanted = {"name": "digits"}
        tag = client.get(f"{run}/file", params=wanted).headers["etag"]
        for asked, status, content, where in (
            ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
            ("bytes=8-", 206, b"89", "bytes 8-9/10"),
            ("bytes=-3", 206, b"789", "bytes 7-9/10"),
            ("bytes=10-", 416, b"", "bytes */10"),
            ("bytes=1-2,4-5", 200, b"0123456789", None),
        ):
            answer = client.get(f"{run}/file", params=wanted, headers={"range": asked})
            assert (answer.status_code, answer.content) == (status, content), asked
            assert answer.headers.get("content-range") == where
        for condition, status in ((tag, 206), ('"other"', 200)):
            headers = {"range": "bytes=0-1", "if-range": condition}
            answer = client.get(f"{run}/file", params=wanted, headers=headers)
            assert answer.status_code == status


def test_no_name_leads_out_of_the_run(hub, logged):
    odd = ("", ".", "..", "../run2/run.json", "/etc/passwd", "eval/../run.json", "./run.json")
    odder = ("eval", "eval/", "//etc/passwd", "none", "run.json\0", "run.json/", "..\\run2")
    odder += ("0" * 300, "a/" * 2000 + "b")  # longer than the file system allows
    with hub.client("vera") as client:
        run = run_of(client)
        for name in odd + odder:
            answer = client.get(f"{run}/file", params={"name": name})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), name


def test_a_link_does_not_lead_out_of_the_roots(hub, logged, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (logged / "cifar10/run1/file").symlink_to(outside / "secret")
    (logged / "cifar10/run1/directory").symlink_to(outside)
    with hub.client("vera") as client:
        for name in ("file", "directory/secret"):
            answer = client.get(f"{run_of(client)}/file", params={"name": name})
            assert answer.status_code >= 400
            assert b"secret" not in answer.content.replace(name.encode(), b"")


def test_text_and_histograms(hub, logged):
    with hub.client("vera") as client:
        run = run_of(client)
        assert medium(client, run, "eval/notes/text_summary")["texts"] == [f"{HOSTILE} 20"]
        found = medium(client, run, "eval/weights", step=0)
        assert (found["kind"], found["blobs"], found["texts"]) == ("histogram", [], [])
        assert sum(count for _, _, count in found["buckets"]) == 100
        assert all(low <= high for low, high, _ in found["buckets"])


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("media?tag=none", 404, "has no tag 'none'"),
        ("media?tag=loss", 422, "is not an image, audio, text or histogram"),
        ("blob?tag=eval/samples&step=3", 404, "has no value 0 at step 3"),
        ("blob?tag=eval/samples&step=10&place=1", 404, "has no value 1 at step 10"),
        ("blob?tag=eval/notes/text_summary&step=10", 404, "has no value 0"),
        ("media", 422, "tag"),
    ],
)
def test_what_is_not_there(hub, logged, path, status, text):
    with hub.client("vera") as client:
        run = run_of(client)
        medium(client, run, "eval/samples")
        answer = client.get(f"{run}/{path}")
        assert answer.status_code == status
        assert text in answer.json()["error"]["message"]


def test_a_blob_is_never_a_page():
    assert content_type(b"<html><script>") == "application/octet-stream"
    assert content_type(b"<svg onload=alert(1)>") == "application/octet-stream"
    assert content_type(b"\x89PNG\r\n\x1a\n...") == "image/png"
    assert content_type(b"RIFF....WAVE") == "audio/wav"
    assert content_type(b"RIFF....WEBP") == "image/webp"
    assert content_type(b"RIFF....EVIL") == "application/octet-stream"


def test_the_files_of_a_run(hub, root):
    (root / "cifar10/run1/model").mkdir()
    (root / "cifar10/run1/model/weights.pt").write_bytes(b"12345")
    with hub.client("vera") as client:
        found = client.get(f"{run_of(client)}/files").json()
        assert found["complete"] is True
        names = [one["name"] for one in found["files"]]
        assert names == sorted(names)
        assert {"name": "model/weights.pt", "bytes": 5} in found["files"]
        assert "run.json" in names


def test_what_many_runs_have_logged(hub, logged, monkeypatch):
    with hub.client("vera") as client:

        def listed(**query):
            answer = client.get("/api/v1/runs/metrics", params=query)
            assert answer.is_success, answer.text
            return answer.json()

        found = until(lambda: (one := listed())["runs"] == 3 and not one["unread"] and one)
        by_name = {one["name"]: one for one in found["metrics"]}
        assert found["runs"] == 3
        assert (by_name["loss"]["runs"], by_name["loss"]["scalar"]) == (3, True)
        assert (by_name["loss"]["first_step"], by_name["loss"]["last_step"]) == (0, 1)
        assert by_name["eval/samples"]["plugin"] == "images"
        assert by_name["eval/weights"]["runs"] == 1
        assert [one.partition(":")[2] for one in by_name["eval/weights"]["ids"]] == ["cifar10:run1"]
        assert by_name["loss"]["ids"] == []
        assert {one["name"] for one in listed(selector="mnist")["metrics"]} == {"loss"}
        one = client.get("/api/v1/runs", params={"selector": "mnist"}).json()["runs"][0]["id"]
        assert listed(selector=f"id:{one}")["runs"] == 1
        assert listed(where="hparams.lr < 0.05")["runs"] == 1
        monkeypatch.setattr("aboard.hub.runs._MOST_SERIES", 2)
        assert len(listed()["metrics"]) == 2


def test_the_boards_that_show_a_run(hub, root):
    with hub.client("max") as max_client, hub.client("mia") as mia:
        both = create(max_client, "cifar10", name="both", visibility="team")
        create(max_client, "mnist", name="other")
        create(max_client, "cifar10/run2", name="not-this")
        narrow = create(
            max_client, "cifar10", where="hparams.lr > 0.05", name="narrow", visibility="team"
        )
        create(max_client, root / "cifar10/run1", name="place", visibility="private")
        run = run_of(max_client)

        def names(client):
            return {one["name"] for one in client.get(f"{run}/boards").json()["boards"]}

        assert names(max_client) == {both["name"], narrow["name"], "place"}
        assert names(mia) == {both["name"], narrow["name"]}


def test_runs_by_their_ids(hub, root):
    log_run(root, "cifar10/a=b c", [1.0])
    with hub.client("vera") as client:

        def listed():
            found = client.get("/api/v1/runs").json()["runs"]
            return found if len(found) == 4 else None

        for run in until(listed):
            answer = client.get("/api/v1/runs", params={"selector": f"id:{run['id']}"})
            assert [one["uri"] for one in answer.json()["runs"]] == [run["uri"]]
        answer = client.get("/api/v1/runs", params={"selector": "id:00000000:none"})
        assert "matches no run. The " in answer.json()["error"]["message"]
