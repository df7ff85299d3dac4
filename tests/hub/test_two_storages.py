"""A board over a directory and a bucket with its own credentials and a live run."""

from aboard import EventWriter
from aboard.index.library import Root
from aboard.storage import open_storage
from tests.hub.hubs import create, log_run, points, served
from tests.waiting import until


def test_a_directory_and_a_bucket_on_one_board(tmp_path, s3_server, environment):
    log_run(tmp_path / "made", "cloud/run1", [7.0, 6.0])
    file = next((tmp_path / "made" / "cloud" / "run1").iterdir())
    variables = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    with environment.context() as whole_process:
        for name, value in variables.items():
            whole_process.setenv(name, value)
        bucket = open_storage("s3://training-logs/hub")
        bucket.write(f"cloud/run1/{file.name}", file.read_bytes())
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
        whole = create(client, "s3://training-logs/hub/cloud")["id"]
        until(lambda: points(client, whole) == {"run1": [(0, 7.0), (1, 6.0)]})
