"""As whom a root is read that has variables of its own: never as the process that reads it."""

import json
from collections.abc import Iterator
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from aboard.storage import NoCredentials, StorageError, open_storage
from aboard.storage.settings import set_profile

S3, GCS, AZURE, OSS = "s3://team/logs", "gs://team/logs", "az://team/logs", "oss://team/logs"
HUB_KEYS = {
    "AWS_ACCESS_KEY_ID": "HUB",
    "AWS_SECRET_ACCESS_KEY": "hub",
    "AWS_SESSION_TOKEN": "HUB-TOKEN",
}
TEAM_KEYS = {"AWS_ACCESS_KEY_ID": "TEAM", "AWS_SECRET_ACCESS_KEY": "team"}
KEY = "a2V5"


class Recorder(ThreadingHTTPServer):
    """Refuses every request, and remembers what it said."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.seen: list[tuple[str, Message]] = []


class _Request(BaseHTTPRequestHandler):
    server: Recorder

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_profiles() -> Iterator[None]:
    yield
    for uri in (S3, GCS, AZURE, OSS):
        set_profile(uri, {})


def request_of(recorder: Recorder, uri: str, profile: dict[str, str]) -> tuple[str, Message]:
    """Read a file below a root that has a profile; return what was asked of the cloud."""
    set_profile(uri, profile)
    with suppress(StorageError):
        open_storage(uri).read("x")
    return recorder.seen[-1]


@pytest.fixture
def hub(environment: pytest.MonkeyPatch, recorder: Recorder) -> pytest.MonkeyPatch:
    """Send what goes to any cloud to the recorder."""
    environment.setenv("AWS_ENDPOINT_URL", recorder.url)
    environment.setenv("GOOGLE_BASE_URL", recorder.url)
    environment.setenv("AZURE_STORAGE_ENDPOINT", recorder.url)
    environment.setenv("OSS_ENDPOINT", recorder.url)
    environment.setenv("OSS_CNAME", "true")
    return environment


def test_the_process_s_session_token_does_not_go_with_a_root_s_keys(
    hub: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    for name, value in HUB_KEYS.items():
        hub.setenv(name, value)
    _, headers = request_of(recorder, S3, TEAM_KEYS)
    assert "Credential=TEAM/" in headers["Authorization"]
    assert headers["x-amz-security-token"] is None
    _, headers = request_of(recorder, S3, {})
    assert "Credential=HUB/" in headers["Authorization"]
    assert headers["x-amz-security-token"] == "HUB-TOKEN"


def test_a_root_s_profile_outranks_the_process_s_keys(
    hub: pytest.MonkeyPatch, recorder: Recorder, home: Path
) -> None:
    for name, value in HUB_KEYS.items():
        hub.setenv(name, value)
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(
        "[vision]\naws_access_key_id = VISION\naws_secret_access_key = v\n"
    )
    _, headers = request_of(recorder, S3, {"AWS_PROFILE": "vision"})
    assert "Credential=VISION/" in headers["Authorization"]


def test_a_root_s_login_outranks_the_process_s_keys(
    hub: pytest.MonkeyPatch, recorder: Recorder, home: Path
) -> None:
    pytest.importorskip("boto3")
    for name, value in {**HUB_KEYS, "AWS_PROFILE": "absent"}.items():
        hub.setenv(name, value)
    keys = json.dumps({"Version": 1, "AccessKeyId": "LOGIN", "SecretAccessKey": "l"})
    (home / "keys.json").write_text(keys)
    config = home / "config"
    config.write_text(f"[profile vision]\ncredential_process = cat {home}/keys.json\n")
    profile = {"AWS_PROFILE": "vision", "AWS_CONFIG_FILE": str(config)}
    _, headers = request_of(recorder, S3, profile)
    assert "Credential=LOGIN/" in headers["Authorization"]


def test_a_root_that_is_signed_where_the_process_is_not(
    hub: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    hub.setenv("AWS_SKIP_SIGNATURE", "true")
    _, headers = request_of(recorder, S3, TEAM_KEYS)
    assert "Credential=TEAM/" in headers["Authorization"]
    hub.setenv("AWS_SKIP_SIGNATURE", "false")
    _, headers = request_of(recorder, S3, {"AWS_NO_SIGN_REQUEST": "true"})
    assert headers["Authorization"] is None


@pytest.mark.parametrize(
    "hub_name",
    ["GOOGLE_BEARER_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN", "GOOGLE_OAUTH_ACCESS_TOKEN"],
)
def test_a_root_s_bearer_token(hub: pytest.MonkeyPatch, recorder: Recorder, hub_name: str) -> None:
    hub.setenv(hub_name, "HUB")
    _, headers = request_of(recorder, GCS, {"GOOGLE_BEARER_TOKEN": "TEAM"})
    assert headers["Authorization"] == "Bearer TEAM"


@pytest.mark.parametrize(
    "hub_variables",
    [
        {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=hub;AccountKey={KEY}"},
        {"AZURE_STORAGE_ACCOUNT_NAME": "hub", "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=hub"},
        {"AZURE_STORAGE_ACCOUNT": "hub", "AZURE_STORAGE_TOKEN": "HUB"},
        {"AZURE_CLIENT_ID": "hub", "AZURE_CLIENT_SECRET": "hub", "AZURE_TENANT_ID": "hub"},
    ],
)
def test_a_root_s_azure_account(
    hub: pytest.MonkeyPatch, recorder: Recorder, hub_variables: dict[str, str]
) -> None:
    for name, value in hub_variables.items():
        hub.setenv(name, value)
    account = {"AZURE_STORAGE_ACCOUNT": "team"}
    _, headers = request_of(recorder, AZURE, {**account, "AZURE_STORAGE_KEY": KEY})
    assert headers["Authorization"].startswith("SharedKey team:")
    path, headers = request_of(recorder, AZURE, {**account, "AZURE_STORAGE_SAS_TOKEN": "sig=T"})
    assert path.endswith("sig=T")
    assert headers["Authorization"] is None
    _, headers = request_of(recorder, AZURE, {**account, "AZURE_STORAGE_TOKEN": "TEAM"})
    assert headers["Authorization"] == "Bearer TEAM"


def test_a_root_that_names_only_its_azure_account_goes_as_the_process(
    hub: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    hub.setenv("AZURE_STORAGE_ACCOUNT", "hub")
    hub.setenv("AZURE_STORAGE_TOKEN", "HUB")
    hub.setenv("AZURE_STORAGE_CONNECTION_STRING", f"AccountName=hub;AccountKey={KEY}")
    _, headers = request_of(recorder, AZURE, {"AZURE_STORAGE_ACCOUNT": "team"})
    assert headers["Authorization"] == "Bearer HUB"


def test_a_root_s_oss_keys(hub: pytest.MonkeyPatch, recorder: Recorder) -> None:
    for name, value in HUB_KEYS.items():
        hub.setenv(name.replace("AWS", "OSS").replace("SECRET_ACCESS", "ACCESS_SECRET"), value)
    hub.setenv("OSS_ACCESS_KEY_SECRET", "hub")
    keys = {"ALIBABA_CLOUD_ACCESS_KEY_ID": "TEAM", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "t"}
    _, headers = request_of(recorder, OSS, keys)
    assert "Credential=TEAM/" in headers["Authorization"]
    assert headers["x-amz-security-token"] is None


@pytest.mark.parametrize(
    ("uri", "hub_variables", "profile"),
    [
        (S3, HUB_KEYS, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "arn:aws:iam::1:r"}),
        (S3, HUB_KEYS, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/keys"}),
        (S3, HUB_KEYS, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}),
        (GCS, {"GOOGLE_BEARER_TOKEN": "HUB"}, {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}),
        (GCS, {"GOOGLE_SERVICE_ACCOUNT": "/hub.json"}, {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}),
        (
            AZURE,
            {"AZURE_STORAGE_ACCOUNT": "hub", "AZURE_STORAGE_KEY": KEY},
            {"AZURE_CLIENT_ID": "T", "AZURE_CLIENT_SECRET": "T", "AZURE_TENANT_ID": "T"},
        ),
    ],
)
def test_what_the_library_would_find_first_is_refused(
    hub: pytest.MonkeyPatch,
    recorder: Recorder,
    uri: str,
    hub_variables: dict[str, str],
    profile: dict[str, str],
) -> None:
    for name, value in hub_variables.items():
        hub.setenv(name, value)
    set_profile(uri, profile)
    with pytest.raises(NoCredentials) as caught:
        open_storage(uri).read("x")
    rest = " of this process takes precedence over the credentials of the root"
    assert caught.value.problem.endswith(rest)
    assert caught.value.problem.partition(" ")[0] in hub_variables
    assert recorder.seen == []


def test_a_root_s_service_account_is_used(
    hub: pytest.MonkeyPatch, recorder: Recorder, tmp_path: Path
) -> None:
    hub.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/hub.json")
    account = {
        "private_key": "k",
        "private_key_id": "i",
        "client_email": "team@x",
        "disable_oauth": True,
    }
    (tmp_path / "team.json").write_text(json.dumps(account))
    profile = {"GOOGLE_SERVICE_ACCOUNT": str(tmp_path / "team.json")}
    _, headers = request_of(recorder, GCS, profile)
    assert headers["Authorization"] is None  # as the account says


def test_the_place_is_named_as_it_was_given(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ACCESS_KEY_ID", "A")
    with pytest.raises(NoCredentials) as caught:
        open_storage("s3://bucket/deep/logs").read("x")
    assert str(caught.value).startswith("s3://bucket/deep/logs: AWS_ACCESS_KEY_ID is set and")
