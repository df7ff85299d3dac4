"""The roots of a hub: damage, requests to buckets, and problems with their remedies."""

import struct

from aboard.hub.api.runs import RootDocument
from aboard.index.library import Root
from tests.hub.hubs import log_run, served
from tests.waiting import until


def test_a_root_reports_its_problem_and_what_to_do(tmp_path, root):
    damaged = log_run(root, "damaged/run1", [1.0, 0.5, 0.25])
    [file] = damaged.glob("*tfevents*")
    content = bytearray(file.read_bytes())
    [length] = struct.unpack_from("<Q", content)
    content[12 + length + 4 + 14] ^= 0xFF  # in the second record
    file.write_bytes(content)
    missing = tmp_path / "missing"
    with (
        served(tmp_path, [root, Root(str(missing), "missing")]) as hub,
        hub.client("vera") as client,
    ):

        def roots():
            return client.get("/api/v1/roots").json()["roots"]

        assert set(roots()[0]) == set(RootDocument.model_fields)
        until(lambda: all(one["lag"] is not None for one in roots()))
        runs = client.get("/api/v1/runs?selector=damaged").json()["runs"]
        client.get(f"/api/v1/runs/{runs[0]['id']}/metrics")  # reads it
        good, bad = until(lambda: (found := roots())[0]["damaged_files"] and found)
        assert (good["damaged_files"], good["damaged_bytes"] > 0) == (1, True)
        assert (good["runs"], good["problems"], good["requests"]) == (4, [], [])
        [problem] = bad["problems"]
        assert problem["where"] == str(missing)
        assert "directory" in problem["what"]
        assert bad["problem"].startswith(f"{missing}: {problem['what']}")


def test_requests_to_a_bucket_are_counted(tmp_path, root, s3_bucket):
    bucket = Root(f"{s3_bucket}/logs", "bucket")
    with served(tmp_path, [root, bucket]) as hub, hub.client("vera") as client:

        def requests():
            found = client.get("/api/v1/roots").json()["roots"][1]["requests"]
            return {one["kind"]: one["requests"] for one in found}

        assert until(requests)["list"] >= 1
