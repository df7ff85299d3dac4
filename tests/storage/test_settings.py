"""Where endpoints and credentials are found, for each cloud."""

import json
from pathlib import Path

import pytest

from aboard.storage import BadUri, NoCredentials, Unreachable, settings
from aboard.storage.base import SCHEMES, RemoteUri
from aboard.storage.settings import ANONYMOUS, Keys, credential_files

S3 = RemoteUri("s3", "bucket", "logs")
GCS = RemoteUri("gs", "bucket", "logs")
AZURE = RemoteUri("az", "box", "logs")
OSS = RemoteUri("oss", "bucket", "logs")
PAIR = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}
OSS_PAIR = {"OSS_ACCESS_KEY_ID": "A", "OSS_ACCESS_KEY_SECRET": "S"}


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def keys(found: settings.Settings) -> Keys:
    assert found.identity.keys is not None
    return found.identity.keys()


def test_amazon_keys_from_the_environment_come_first(home: Path) -> None:
    put(home / ".aws/credentials", "[default]\naws_access_key_id=F\naws_secret_access_key=F\n")
    found = settings.s3(S3, {**PAIR, "AWS_SESSION_TOKEN": "T", "AWS_REGION": "eu-west-1"}, home)
    assert keys(found) == Keys("A", "S", "T")
    assert found.config["region"] == "eu-west-1"
    assert found.endpoint == ""


def test_amazon_profile_files(home: Path) -> None:
    put(
        home / ".aws/credentials",
        "[default]\naws_access_key_id = D1\naws_secret_access_key = D2%\n"
        "[team]\naws_access_key_id = T1\naws_secret_access_key = T2\naws_session_token = T3\n",
    )
    put(
        home / ".aws/config",
        "[default]\nregion = us-west-2\ns3 =\n  addressing_style = path\n"
        "[profile team]\nregion = eu-north-1\nendpoint_url = http://minio:9000\n",
    )
    default = settings.s3(S3, {}, home)
    assert keys(default) == Keys("D1", "D2%", None)
    assert default.config["region"] == "us-west-2"
    team = settings.s3(S3, {"AWS_PROFILE": "team"}, home)
    assert keys(team) == Keys("T1", "T2", "T3")
    assert team.config["region"] == "eu-north-1"
    assert team.endpoint == "http://minio:9000"


def test_amazon_keys_that_are_replaced_in_the_file_are_noticed(home: Path) -> None:
    file = put(
        home / "elsewhere", "[default]\naws_access_key_id = old\naws_secret_access_key = x\n"
    )
    found = settings.s3(S3, {"AWS_SHARED_CREDENTIALS_FILE": str(file)}, home)
    assert keys(found).access_key == "old"
    file.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = x\n")
    assert keys(found).access_key == "new"


def test_amazon_endpoints(home: Path) -> None:
    both = {**PAIR, "AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "https://b/"}
    assert settings.s3(S3, both, home).endpoint == "https://b"
    with pytest.raises(BadUri, match="'minio' is not an endpoint"):
        settings.s3(S3, {**PAIR, "AWS_ENDPOINT_URL": "minio"}, home)


@pytest.mark.parametrize("name", ["AWS_NO_SIGN_REQUEST", "AWS_SKIP_SIGNATURE"])
def test_amazon_public_buckets(home: Path, name: str) -> None:
    assert settings.s3(S3, {**PAIR, name: "true"}, home).identity == ANONYMOUS
    assert settings.s3(S3, {**PAIR, name: "false"}, home).identity != ANONYMOUS


def test_amazon_identities_of_jobs_and_machines(home: Path) -> None:
    role = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}
    job = settings.s3(S3, role, home)
    assert job.identity.config == {
        "aws_web_identity_token_file": "/token",
        "aws_role_arn": "arn:aws:iam::1:role/r",
    }
    pod = settings.s3(S3, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://pod/keys"}, home)
    assert pod.identity.config == {"aws_container_credentials_full_uri": "http://pod/keys"}
    machine = settings.s3(S3, {}, home).identity.machine_service
    assert machine == ("PUT", "http://169.254.169.254/latest/api/token")
    put(home / ".aws/config", "[default]\nsso_session = team\nsso_account_id = 1\n")
    assert settings.s3(S3, {}, home).identity.needs_package == "boto3"


@pytest.mark.parametrize(
    ("env", "text", "problem"),
    [
        ({"AWS_ACCESS_KEY_ID": "A"}, "", "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is"),
        ({"AWS_PROFILE": "absent"}, "", "the AWS profile 'absent' is neither in "),
        ({}, "not an ini file", "/.aws/credentials cannot be read"),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, "", "no credentials were found"),
    ],
)
def test_amazon_problems_are_named(
    home: Path, env: dict[str, str], text: str, problem: str
) -> None:
    put(home / ".aws/credentials", text)
    with pytest.raises(NoCredentials) as caught:
        settings.s3(S3, env, home)
    assert problem in caught.value.problem
    assert caught.value.hint.startswith("Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


def test_google_credentials(home: Path) -> None:
    login = home / ".config/gcloud/application_default_credentials.json"
    put(login, json.dumps({"type": "authorized_user"}))
    found = settings.gcs(GCS, {}, home).identity
    assert found.config == {"application_credentials": str(login)}
    given = put(home / "key.json", json.dumps({"type": "external_account"}))
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(given)}
    assert settings.gcs(GCS, environment, home).identity.needs_package == "google-auth"
    for name in ("CLOUDSDK_AUTH_ACCESS_TOKEN", "GOOGLE_OAUTH_ACCESS_TOKEN", "GOOGLE_BEARER_TOKEN"):
        assert settings.gcs(GCS, {name: "T"}, home).identity.config == {"bearer_token": "T"}
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"):
        account = settings.gcs(GCS, {name: "/key.json"}, home).identity
        assert account.config == {"service_account": "/key.json"}
    account = settings.gcs(GCS, {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}, home).identity
    assert account.config == {"service_account_key": "{}"}
    assert settings.gcs(GCS, {"GOOGLE_SKIP_SIGNATURE": "1"}, home).identity == ANONYMOUS


def test_google_without_credentials(home: Path) -> None:
    assert settings.gcs(GCS, {}, home).identity.machine_service is not None
    with pytest.raises(NoCredentials, match="absent is missing or not one of Google's"):
        settings.gcs(GCS, {"GOOGLE_APPLICATION_CREDENTIALS": str(home / "absent")}, home)


@pytest.mark.parametrize("name", ["STORAGE_EMULATOR_HOST", "GOOGLE_STORAGE_EMULATOR_HOST"])
def test_google_emulators(home: Path, name: str) -> None:
    found = settings.gcs(GCS, {name: "localhost:4443"}, home)
    assert found.endpoint == found.config["base_url"] == "http://localhost:4443"
    assert found.identity.machine_service is None


def test_azure_connection_strings(home: Path) -> None:
    text = "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=a2V5;EndpointSuffix=x.net"
    found = settings.azure(AZURE, {"AZURE_STORAGE_CONNECTION_STRING": text}, home)
    assert found.endpoint == "https://acme.blob.x.net"
    assert found.config == {"account_name": "acme", "endpoint": "https://acme.blob.x.net"}
    assert found.identity.secret == {"access_key": "a2V5"}
    signed = (
        "BlobEndpoint=https://acme.blob.x.net/;AccountName=acme;SharedAccessSignature=sv=1&sig=2"
    )
    found = settings.azure(AZURE, {"AZURE_STORAGE_CONNECTION_STRING": signed}, home)
    assert found.identity.secret == {"sas_token": "sv=1&sig=2"}
    emulator = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    assert settings.azure(AZURE, emulator, home).config == {"use_emulator": True}


def test_azure_variables(home: Path) -> None:
    account = {"AZURE_STORAGE_ACCOUNT": "acme"}
    key = settings.azure(AZURE, {**account, "AZURE_STORAGE_KEY": "a2V5"}, home)
    assert key.config == {"account_name": "acme"}
    assert key.identity.secret == {"access_key": "a2V5"}
    shared = settings.azure(AZURE, {**account, "AZURE_STORAGE_SAS_TOKEN": "?sv=1"}, home)
    assert shared.identity.secret == {"sas_token": "sv=1"}
    token = settings.azure(AZURE, {**account, "AZURE_STORAGE_TOKEN": "T"}, home)
    assert token.identity.secret == {"token": "T"}
    public = settings.azure(AZURE, {**account, "AZURE_SKIP_SIGNATURE": "true"}, home)
    assert public.identity == ANONYMOUS
    assert settings.azure(AZURE, account, home).identity.machine_service is not None
    job = {**account, "AZURE_FEDERATED_TOKEN_FILE": "/token", "AZURE_CLIENT_ID": "C"}
    found = settings.azure(AZURE, job, home).identity.config
    assert found == {"federated_token_file": "/token", "client_id": "C"}
    person = {"AZURE_CLIENT_ID": "C", "AZURE_CLIENT_SECRET": "S", "AZURE_STORAGE_TENANT_ID": "T"}
    found = settings.azure(AZURE, {**account, **person}, home).identity.config
    assert found == {"client_id": "C", "client_secret": "S", "tenant_id": "T"}


def test_azure_login(home: Path) -> None:
    put(home / ".azure/azureProfile.json", "{}")
    put(home / "bin/az", "#!/bin/sh\n").chmod(0o755)
    env = {"AZURE_STORAGE_ACCOUNT": "acme", "PATH": str(home / "bin")}
    assert settings.azure(AZURE, env, home).identity.config == {"use_azure_cli": True}


def test_azure_account_in_the_uri(home: Path) -> None:
    uri = RemoteUri("abfss", "box@lake.dfs.core.windows.net", "logs")
    found = settings.azure(uri, {"AZURE_STORAGE_KEY": "a2V5"}, home)
    assert found.config == {"account_name": "lake"}


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("lake.dfs.core.chinacloudapi.cn", "https://lake.blob.core.chinacloudapi.cn"),
        ("lake.blob.core.usgovcloudapi.net", "https://lake.blob.core.usgovcloudapi.net"),
        ("lake.z01.dfs.storage.azure.net", "https://lake.z01.blob.storage.azure.net"),
        ("lake", ""),
    ],
)
def test_azure_clouds_of_their_own(home: Path, host: str, endpoint: str) -> None:
    uri = RemoteUri("abfss", f"box@{host}", "logs")
    found = settings.azure(uri, {"AZURE_STORAGE_KEY": "a2V5"}, home)
    assert found.endpoint == found.config.get("endpoint", "") == endpoint
    assert found.config["account_name"] == "lake"
    told = {"AZURE_STORAGE_KEY": "a2V5", "AZURE_STORAGE_ENDPOINT": "http://azurite:1"}
    assert settings.azure(uri, told, home).endpoint == "http://azurite:1"


def test_azure_problems_are_named(home: Path) -> None:
    with pytest.raises(NoCredentials, match=r"az://box/logs: no storage account is set\. Set"):
        settings.azure(AZURE, {}, home)
    bad = {"AZURE_STORAGE_ACCOUNT": "acme", "AZURE_STORAGE_KEY": "not a key!"}
    with pytest.raises(NoCredentials, match="the account key is not base64"):
        settings.azure(AZURE, bad, home)


@pytest.mark.parametrize(
    ("env", "endpoint", "region"),
    [
        (
            {"OSS_REGION": "cn-hangzhou"},
            "https://bucket.s3.oss-cn-hangzhou.aliyuncs.com",
            "cn-hangzhou",
        ),
        (
            {"OSS_ENDPOINT": "oss-cn-beijing-internal.aliyuncs.com"},
            "https://bucket.s3.oss-cn-beijing-internal.aliyuncs.com",
            "cn-beijing",
        ),
        (
            {"OSS_ENDPOINT": "http://bucket.oss-eu-central-1.aliyuncs.com"},
            "http://bucket.oss-eu-central-1.aliyuncs.com",
            "eu-central-1",
        ),
        (
            {"OSS_ENDPOINT": "https://logs.example.com", "OSS_CNAME": "true"},
            "https://logs.example.com",
            "oss",
        ),
    ],
)
def test_the_bucket_is_in_the_oss_endpoint(
    home: Path, env: dict[str, str], endpoint: str, region: str
) -> None:
    found = settings.oss(OSS, {**OSS_PAIR, **env}, home)
    assert found.endpoint == found.config["endpoint"] == endpoint
    assert found.config["region"] == region


def test_oss_keys(home: Path) -> None:
    region = {"OSS_REGION": "oss-cn-hangzhou"}
    found = settings.oss(OSS, {**region, **OSS_PAIR, "OSS_SESSION_TOKEN": "T"}, home)
    assert keys(found) == Keys("A", "S", "T")
    cloud = {"ALIBABA_CLOUD_ACCESS_KEY_ID": "B", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "C"}
    assert keys(settings.oss(OSS, {**region, **cloud}, home)) == Keys("B", "C", None)
    put(
        home / ".ossutilconfig",
        "[Credentials]\nlanguage=EN\nendpoint=oss-cn-shenzhen.aliyuncs.com\n"
        "accessKeyID=F1\naccessKeySecret=F2\nstsToken=F3\n",
    )
    found = settings.oss(OSS, {}, home)
    assert keys(found) == Keys("F1", "F2", "F3")
    assert found.endpoint == "https://bucket.s3.oss-cn-shenzhen.aliyuncs.com"


def test_oss_problems_are_named(home: Path) -> None:
    with pytest.raises(Unreachable) as unknown:
        settings.oss(OSS, OSS_PAIR, home)
    assert str(unknown.value) == (
        "oss://bucket/logs: the OSS endpoint is unknown."
        " Set OSS_ENDPOINT, or OSS_REGION such as cn-hangzhou."
    )
    with pytest.raises(NoCredentials, match=r"no credentials were found\. Set OSS_ACCESS_KEY_ID"):
        settings.oss(OSS, {"OSS_REGION": "cn-hangzhou"}, home)


def test_every_scheme_has_a_cloud_and_every_cloud_a_scheme() -> None:
    assert {*SCHEMES.values()} == {*settings.CLOUDS, "memory"}


def test_the_files_that_a_board_needs_are_those_of_its_clouds(tmp_path: Path) -> None:
    for name in (".aws", ".config/gcloud", ".azure"):
        (tmp_path / name).mkdir(parents=True)
    key = tmp_path / "key.json"
    key.touch()
    variables = {
        "HOME": str(tmp_path),
        "GOOGLE_APPLICATION_CREDENTIALS": str(key),
        "AWS_CONFIG_FILE": str(tmp_path / "missing"),
        "AZURE_FEDERATED_TOKEN_FILE": str(key),
    }
    assert credential_files(variables, ["/data/runs", "cifar10"]) == ()
    assert credential_files(variables, ["s3://bucket/runs", "/data"]) == (tmp_path / ".aws",)
    both = credential_files(variables, ["gs://bucket", "az://container/x"])
    assert both == (tmp_path / ".azure", key, tmp_path / ".config/gcloud")
    assert credential_files(variables, ["oss://bucket"]) == ()
    assert credential_files({"HOME": "/nonexistent"}, ["s3://bucket"]) == ()
