"""A board over a directory and a bucket with credentials of its own, a live run in it."""

import urllib.request

from hubs import create, log_run, points, served, until

from aboard import EventWriter
from aboard.hub.config import Root


def test_a_directory_and_a_bucket_on_one_board(tmp_path, s3_server, environment):
    log_run(tmp_path / "made", "cloud/run1", [7.0, 6.0])
    file = next((tmp_path / "made" / "cloud" / "run1").iterdir())
    address = f"{s3_server}/training-logs/hub/cloud/run1/{file.name}"
    urllib.request.urlopen(urllib.request.Request(address, file.read_bytes(), method="PUT")).close()
    variables = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    local = tmp_path / "logs"
    roots = [
        Root(str(local), "local"),
        Root("s3://training-logs/hub", "cloud", variables),
    ]
    with (
        EventWriter(local / "here" / "run1") as live,
        served(tmp_path, roots) as hub,
        hub.client("max") as client,
    ):
        live.scalar("loss", 1.0, 0)
        live.flush()
        board = create(client, "here", "cloud")["id"]
        until(lambda: len(points(client, board)) == 2)
        assert points(client, board) == {
            "cloud/run1": [(0, 7.0), (1, 6.0)],
            "here/run1": [(0, 1.0)],
        }
        live.scalar("loss", 0.5, 1)
        live.flush()
        until(lambda: points(client, board)["here/run1"] == [(0, 1.0), (1, 0.5)])
        text = client.get("/metrics").text
        assert 'aboard_storage_requests_total{bucket="s3://training-logs",kind="list"}' in text
        bucket = create(client, "s3://training-logs/hub/cloud")["id"]
        until(lambda: points(client, bucket) == {"run1": [(0, 7.0), (1, 6.0)]})
