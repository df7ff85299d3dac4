"""Images, audio, text, histograms and files of runs over HTTP."""

import io

import numpy as np
import pytest
from PIL import Image

from aboard.hub.runs import content_type
from aboard.track.summary import SummaryWriter
from tests.hub.hubs import create, log_run
from tests.waiting import until

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
