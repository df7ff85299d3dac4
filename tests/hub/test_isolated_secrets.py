"""The process of an isolated board has no secrets of its hub, according to the kernel."""

from pathlib import Path

import pytest

from aboard.executors.process import inherited
from aboard.index.library import Root
from aboard.storage.settings import credentials
from tests.hub.hubs import create, points, served
from tests.waiting import until

SECRETS = {
    "DATABASE_URL": "postgresql://aboard:db-password@db/aboard",
    "PGPASSWORD": "db-password",
    "ABOARD_HUB_TOKEN": "aboard_token-of-the-hub",
    "ABOARD_TOKEN": "token-of-the-shell",
    "GITHUB_TOKEN": "another-secret",
    "AZURE_STORAGE_KEY": "key-of-a-cloud-that-no-root-is-in",
}


@pytest.fixture
def started(environment, tmp_path, root):
    """A hub with secrets in its environment, and isolated boards by name and path."""
    for name, value in SECRETS.items():
        environment.setenv(name, value)
    environment.setenv("AWS_PROFILE", "the-hubs-own")
    environment.setenv("AWS_ACCESS_KEY_ID", "key-for-buckets")
    environment.setenv("TZ", "Asia/Tokyo")
    roots = [
        Root(str(root), "logs", {"MOUNT_KEY": "of-this-root", "AWS_PROFILE": "of-this-root"}),
        Root("s3://bucket/runs", "bucket", {"AWS_SECRET_ACCESS_KEY": "of-the-other-root"}),
    ]
    with served(tmp_path, roots) as hub, hub.client("max") as client:
        boards = [
            create(client, place, on="process", engine=engine)["id"]
            for place, engine in (
                ("cifar10", "fast"),
                (root / "cifar10", "fast"),
                ("cifar10", "stock"),
            )
        ]
        try:
            yield hub, client, boards
        finally:
            for board in boards:
                client.post(f"/api/v1/boards/{board}/stop", json={"now": True})
            gone = (f"/api/v1/boards/{board}" for board in boards)
            for board in gone:
                until(lambda at=board: client.get(at).json()["state"] == "stopped")


def variables_of(hub, board):
    """Return the environment of a board's process, once it is the board and not what starts it."""
    pid = until(lambda: (hub.hub.registry.get(board).handle or {}).get("pid"))
    until(lambda: b"view" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_a_board_gets_what_it_needs_and_no_secret_of_the_hub(started):
    hub, client, boards = started
    for board in boards:
        variables = variables_of(hub, board)
        assert not set(SECRETS) - {"ABOARD_TOKEN"} & set(variables)
        text = "\0".join(variables.values())
        for secret in SECRETS.values():
            assert secret not in text
        for secret in hub.tokens.values():
            assert secret not in text
        assert variables["TZ"] == "Asia/Tokyo"
        assert variables["MOUNT_KEY"] == "of-this-root"
        assert variables["AWS_PROFILE"] == "of-this-root"
        # Runs that come later may be in that cloud, if the board follows its selectors.
        assert ("AWS_ACCESS_KEY_ID" in variables) is (board == boards[0])
        assert "of-the-other-root" not in text
        assert {"PATH", "HOME", "ABOARD_CACHE", "ABOARD_TOKEN"} <= set(variables)
    for board in boards:  # and it is enough to show what there is
        until(lambda at=board: client.get(f"/b/{at}/data/runs").status_code == 200)
        until(lambda at=board: any(list(points(client, at).values())))


def test_the_process_list_contains_no_secrets(started):
    hub, _, boards = started
    for board in boards:
        token = variables_of(hub, board)["ABOARD_TOKEN"]
        pid = hub.hub.registry.get(board).handle["pid"]
        line = Path(f"/proc/{pid}/cmdline").read_text()
        for secret in (token, *SECRETS.values(), *hub.tokens.values(), "of-this-root"):
            assert secret not in line


@pytest.mark.parametrize(
    ("name", "is_passed"),
    [
        ("PATH", True),
        ("LC_ALL", True),
        ("https_proxy", True),
        ("HTTPS_PROXY", True),
        ("SSL_CERT_FILE", True),
        ("ABOARD_CACHE", True),
        ("XDG_CACHE_HOME", True),
        ("PYTHONPATH", True),
        ("PYTHONUNBUFFERED", True),
        ("REQUESTS_CA_BUNDLE", True),
        ("CURL_CA_BUNDLE", True),
        ("PYTHON_KEYRING_PASSWORD", False),
        ("PYTHONANYWHERE_TOKEN", False),
        ("IDENTITY_HEADER", False),
        ("ABOARD_HUB_TOKEN", False),
        ("ABOARD_ROOT", False),
        ("PATHS", False),
        ("DATABASE_URL", False),
        ("PGPASSWORD", False),
        ("AWS_SECRET_ACCESS_KEY", False),
        ("XDG_SESSION_ID", False),
    ],
)
def test_which_variables_pass(name, is_passed):
    assert inherited({name: "value"}) == ({name: "value"} if is_passed else {})


def test_a_board_gets_the_variables_of_its_clouds_only():
    variables = {
        "AWS_PROFILE": "a",
        "GOOGLE_APPLICATION_CREDENTIALS": "b",
        "CLOUDSDK_CONFIG": "c",
        "AZURE_STORAGE_KEY": "d",
        "IDENTITY_ENDPOINT": "h",
        "IDENTITY_HEADER": "i",
        "OSS_ACCESS_KEY_ID": "e",
        "ALIBABA_CLOUD_REGION_ID": "f",
        "PATH": "g",
    }
    for uris, expected in (
        (["/data/runs"], ""),
        (["s3://bucket/runs", "/data/runs"], "a"),
        (["gs://bucket"], "bc"),
        (["az://container", "abfss://c@account.dfs.core.windows.net/x"], "dhi"),
        (["oss://bucket", "s3://bucket"], "aef"),
        (["memory://bucket"], ""),
    ):
        assert "".join(sorted(credentials(variables, uris).values())) == expected
