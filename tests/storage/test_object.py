"""What is special about clouds: who may come in, what is not there, and silence."""

import datetime
import ipaddress
import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from aboard.storage import (
    BadUri,
    NoCredentials,
    NoSuchBucket,
    NoSuchPath,
    PermissionDenied,
    Storage,
    StorageError,
    StorageFull,
    Unreachable,
    open_storage,
)
from aboard.storage import object as object_module
from tests.engines.fake_gcs import FakeGcs

BUCKET = "training-logs"


def refusal(ask: Callable[[], object], kind: type[StorageError]) -> str:
    with pytest.raises(StorageError) as caught:
        ask()
    assert type(caught.value) is kind, str(caught.value)
    return str(caught.value)


def every_verb(storage: Storage) -> list[Callable[[], object]]:
    return [
        lambda: list(storage.list()),
        lambda: storage.read("run.json"),
        lambda: storage.write("run.json", b"{}"),
        lambda: storage.create_new("run.json", b"{}"),
    ]


@pytest.mark.parametrize("bucket", ["s3_bucket", "gcs_bucket", "azure_bucket", "oss_bucket"])
def test_a_bucket_that_does_not_exist(request: pytest.FixtureRequest, bucket: str) -> None:
    scheme = str(request.getfixturevalue(bucket)).partition("://")[0]
    storage = open_storage(f"{scheme}://no-such-bucket/logs")
    for ask in every_verb(storage):
        message = refusal(ask, NoSuchBucket)
        assert message.endswith(
            ": the bucket 'no-such-bucket' does not exist. Check its name and the account."
        )
    with pytest.raises(NoSuchPath):
        storage.delete("run.json")


def test_the_root_of_an_empty_bucket_exists(gcs_server: FakeGcs, gcs_bucket: str) -> None:
    gcs_server.buckets.setdefault("empty-bucket", type(gcs_server.buckets[BUCKET])())
    assert list(open_storage("gs://empty-bucket").list()) == []
    assert refusal(lambda: list(open_storage("gs://empty-bucket/logs").list()), NoSuchPath) == (
        "gs://empty-bucket/logs: nothing is stored here. Check the path."
    )


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("variable", "uri", "hint"),
    [
        ("AWS_ENDPOINT_URL", "s3://bucket/logs", "AWS_ENDPOINT_URL"),
        ("STORAGE_EMULATOR_HOST", "gs://bucket/logs", "STORAGE_EMULATOR_HOST"),
        ("AZURE_STORAGE_ENDPOINT", "az://bucket/logs", "AZURE_STORAGE_ENDPOINT"),
        ("OSS_ENDPOINT", "oss://bucket/logs", "OSS_ENDPOINT"),
    ],
)
def test_nobody_listens(
    environment: pytest.MonkeyPatch, closed_port: int, variable: str, uri: str, hint: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT"):
        environment.setenv(name, "testing")
    for name in ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "AZURE_STORAGE_KEY"):
        environment.setenv(name, "testing0")
    environment.setenv("OSS_CNAME", "true")
    environment.setenv(variable, f"http://127.0.0.1:{closed_port}")
    assert refusal(lambda: list(open_storage(uri).list()), Unreachable) == (
        f"{uri}: 127.0.0.1:{closed_port} refuses connections."
        f" Check the network, and {hint} if you set it."
    )


@pytest.mark.usefixtures("hasty")
def test_a_host_that_is_not_known(s3_bucket: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", "http://s3.invalid")
    message = refusal(lambda: open_storage("s3://bucket").read("x"), Unreachable)
    assert message.startswith("s3://bucket/x: the host name s3.invalid is unknown.")


@pytest.mark.usefixtures("hasty")
def test_a_server_without_encryption(
    s3_bucket: str, s3_server: str, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("AWS_ENDPOINT_URL", s3_server.replace("http:", "https:"))
    message = refusal(lambda: open_storage("s3://bucket").read("x"), Unreachable)
    assert "does not speak HTTPS. Check the network, and AWS_ENDPOINT_URL" in message


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up a storage that does not answer in tenths of seconds instead of seconds."""
    retries = {
        "max_retries": 2,
        "retry_timeout": timedelta(seconds=1),
        "backoff": {
            "init_backoff": timedelta(milliseconds=10),
            "max_backoff": timedelta(milliseconds=20),
            "base": 2,
        },
    }
    monkeypatch.setattr(object_module, "_RETRIES", retries)
    monkeypatch.setattr(object_module, "_READ_TIMEOUT", timedelta(seconds=0.3))
    object_module._client.cache_clear()


@pytest.mark.usefixtures("hasty")
def test_a_server_that_never_answers_is_given_up(
    s3_bucket: str, environment: pytest.MonkeyPatch, silent_port: int
) -> None:
    environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent_port}")
    message = refusal(lambda: open_storage("s3://bucket").read("x"), Unreachable)
    assert message.startswith(f"s3://bucket/x: 127.0.0.1:{silent_port} does not answer.")


def test_an_endpoint_that_is_none(s3_bucket: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", "minio.local:9000 ")
    assert refusal(lambda: open_storage("s3://bucket").read("x"), BadUri) == (
        "s3://bucket: 'minio.local:9000 ' is not an endpoint."
        " An endpoint is https://host or http://host:port."
    )


def test_no_credentials_and_a_silent_metadata_service(
    environment: pytest.MonkeyPatch, silent_port: int, closed_port: int
) -> None:
    for port in (silent_port, closed_port):
        environment.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
        assert refusal(lambda: open_storage("s3://bucket/logs").read("x"), NoCredentials) == (
            "s3://bucket/logs: no credentials were found."
            " Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE;"
            " for a public bucket set AWS_NO_SIGN_REQUEST=true."
        )


def test_a_metadata_service_without_a_role(
    environment: pytest.MonkeyPatch, gcs_server: FakeGcs
) -> None:
    environment.setenv("AWS_METADATA_ENDPOINT", gcs_server.url)
    message = refusal(lambda: open_storage("s3://bucket").read("x"), NoCredentials)
    assert message.startswith("s3://bucket/x: no credentials were found. Set AWS_ACCESS_KEY_ID")


def test_google_does_not_know_the_token(gcs_bucket: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "wrong")
    for ask in every_verb(open_storage(gcs_bucket)):
        message = refusal(ask, NoCredentials)
        assert "the credentials are not accepted. Run 'gcloud auth application-default" in message


def test_google_refuses_the_bucket(gcs_bucket: str) -> None:
    for ask in every_verb(open_storage("gs://forbidden/logs")):
        message = refusal(ask, PermissionDenied)
        assert message.endswith(
            "the credentials do not allow this."
            " Ask for permission to read and write in the bucket 'forbidden'."
        )


def test_azure_does_not_accept_the_key(
    azure_bucket: str, azurite: str, environment: pytest.MonkeyPatch
) -> None:
    connection = f"AccountName=devstoreaccount1;AccountKey=d3Jvbmc=;BlobEndpoint={azurite}"
    environment.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    for ask in every_verb(open_storage(azure_bucket)):
        message = refusal(ask, NoCredentials)
        assert "the credentials are not accepted. Set AZURE_STORAGE_CONNECTION_STRING" in message


@pytest.fixture
def guarded_s3(s3_bucket: str, s3_server: str) -> Iterator[tuple[str, str]]:
    """Let the S3 server check signatures; give the keys of a user who may only read."""
    boto3 = pytest.importorskip("boto3")
    options = {"endpoint_url": s3_server, "region_name": "us-east-1"}
    iam = boto3.client("iam", **options)
    iam.create_user(UserName="reader")
    policy = {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=document)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    open_storage(s3_bucket).write("guarded", b"content")
    _check_signatures_after(s3_server, 0)
    try:
        yield key["AccessKeyId"], key["SecretAccessKey"]
    finally:
        _check_signatures_after(s3_server, float("inf"))
        iam.delete_access_key(UserName="reader", AccessKeyId=key["AccessKeyId"])
        iam.delete_user_policy(UserName="reader", PolicyName="read")
        iam.delete_user(UserName="reader")


def _check_signatures_after(server: str, requests: float) -> None:
    request = urllib.request.Request(
        f"{server}/moto-api/reset-auth",
        str(requests).encode(),
        {"Content-Type": "application/octet-stream"},
    )
    urllib.request.urlopen(request).close()


def test_amazon_knows_its_users(
    guarded_s3: tuple[str, str], s3_bucket: str, home: Path, environment: pytest.MonkeyPatch
) -> None:
    storage = open_storage(s3_bucket)
    message = refusal(lambda: storage.read("guarded"), NoCredentials)
    assert "the access key is unknown. Set AWS_ACCESS_KEY_ID" in message

    access_key, secret_key = guarded_s3
    environment.setenv("AWS_ACCESS_KEY_ID", access_key)
    message = refusal(lambda: open_storage(s3_bucket).read("guarded"), NoCredentials)
    assert "the secret key does not belong to the access key. Set AWS_ACCESS_KEY_ID" in message

    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(
        f"[team]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n"
    )
    environment.setenv("AWS_PROFILE", "team")
    storage = open_storage(s3_bucket)
    assert storage.read("guarded") == b"content"
    message = refusal(lambda: storage.write("guarded", b""), PermissionDenied)
    assert message == (
        f"s3://{BUCKET}/guarded: the credentials do not allow this."
        f" Ask for permission to read and write in the bucket '{BUCKET}'."
    )


def test_an_object_with_an_empty_part_costs_only_its_directory(
    s3_bucket: str, s3_server: str
) -> None:
    storage = open_storage(f"{s3_bucket}/slashes")
    for name in ("a/1", "b/2", "b/sub/3", "z/4"):
        storage.write(name, b"x")
    address = f"{s3_server}/{BUCKET}/slashes/b//oops"
    urllib.request.urlopen(urllib.request.Request(address, b"x", method="PUT")).close()
    problems: list[StorageError] = []
    found = [entry.name for entry in storage.list(on_error=problems.append)]
    assert found == sorted(set(found))
    assert {"a/1", "z/4"} <= set(found)
    message = "the name of an object has an empty part ('//') or a control character."
    assert [str(problem) for problem in problems] == [
        f"{storage.uri}/b: {message} Rename that object."
    ]
    with pytest.raises(BadUri, match="the name of an object has an empty part"):
        list(storage.list())


def test_a_bad_name_repeats_and_loses_nothing_of_a_long_listing(
    gcs_bucket: str, gcs_server: FakeGcs
) -> None:
    storage = open_storage(f"{gcs_bucket}/pages")
    names = [f"run{number:02}/{name}" for number in range(20) for name in ("a", "b/c", "d")]
    for name in names:
        storage.write(name, b"x")
    objects = gcs_server.buckets[BUCKET].objects
    objects["pages/run11//oops"] = (1, b"x")
    problems: list[StorageError] = []
    try:
        found = [entry.name for entry in storage.list(on_error=problems.append)]
    finally:
        del objects["pages/run11//oops"]
    assert len(found) == len(set(found))
    assert {name for name in names if not name.startswith("run11/")} <= set(found)
    assert [problem.uri for problem in problems] == [f"{storage.uri}/run11"]


def test_directory_markers_are_no_files(s3_bucket: str, s3_server: str) -> None:
    address = f"{s3_server}/{BUCKET}/marked/"
    urllib.request.urlopen(urllib.request.Request(address, b"", method="PUT")).close()
    assert list(open_storage(f"{s3_bucket}/marked").list()) == []


@pytest.mark.parametrize("name", ["two\nlines", "bell\a", "half \ud800 a character"])
def test_names_that_buckets_cannot_hold(s3_bucket: str, name: str) -> None:
    storage = open_storage(s3_bucket)
    for ask in (lambda: storage.write(name, b""), lambda: storage.read(name)):
        message = refusal(ask, BadUri)
        assert "the name has a character that buckets do not allow. Use another name." in message


def test_memory_is_shared_by_name() -> None:
    open_storage("memory://shared/a").write("x", b"1")
    assert open_storage("memory://shared").read("a/x") == b"1"
    assert list(open_storage("memory://unshared").list()) == []


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (
            400,
            "<Code>AuthorizationHeaderMalformed</Code><Message>expecting 'eu-west-1'</Message>",
            StorageError,
            "the bucket is in the region eu-west-1. Set AWS_REGION=eu-west-1.",
        ),
        (301, "", StorageError, "the bucket is in another region. Set AWS_REGION=<region>."),
        (403, "<Code>ExpiredToken</Code>", NoCredentials, "the credentials have expired. Set AWS_"),
        (403, "<Code>RequestTimeTooSkewed</Code>", NoCredentials, "the clock of this machine is"),
        (403, "<Code>QuotaExceeded</Code>", StorageFull, "the quota is used up. Delete files or"),
        (503, "", Unreachable, "the storage answers with error 503. Try again later."),
        (418, "", StorageError, "the storage failed: Generic S3 error: Error performing"),
    ],
)
@pytest.mark.usefixtures("hasty")
def test_refusals_say_what_to_do(
    s3_bucket: str,
    environment: pytest.MonkeyPatch,
    status: int,
    body: str,
    kind: type[StorageError],
    message: str,
) -> None:
    class Refuse(BaseHTTPRequestHandler):
        def _refuse(self) -> None:
            content = f"<Error>{body}</Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._refuse()

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._refuse()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        Thread(target=server.serve_forever).start()
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        try:
            storage = open_storage("s3://bucket/logs")
            for ask in (lambda: storage.read("x"), lambda: list(storage.list())):
                assert message in refusal(ask, kind)
            assert message in refusal(lambda: storage.write("x", b"content"), kind)
        finally:
            server.shutdown()


FORK = """
import os
from aboard.storage import StorageError, open_storage
storage = open_storage("memory://parent/logs")
storage.write("x", b"")
if os.fork() == 0:
    try:
        storage.read("x")
    except StorageError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_forked_process_is_told_instead_of_hanging() -> None:
    command = [sys.executable, "-c", FORK]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout
    assert output == (
        "memory://parent/logs: a forked process cannot use the connections of its parent."
        " Start the process with the 'spawn' method.\n"
    )


# Servers that answer a request for a range as if it were for all.


class OneObject(BaseHTTPRequestHandler):
    """Serves one object at every address, whole whatever the request is for."""

    content = bytes(range(256)) * 40_000
    sent = 0

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.send_header("ETag", f'"{len(self.content)}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        with suppress(ConnectionError):
            for start in range(0, len(self.content), 1 << 16):
                self.wfile.write(self.content[start : start + (1 << 16)])
                type(self).sent += 1 << 16

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def one_object(environment: pytest.MonkeyPatch) -> Iterator[type[OneObject]]:
    class Fresh(OneObject):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Fresh) as server:
        Thread(target=server.serve_forever).start()
        environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "testing")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        try:
            yield Fresh
        finally:
            server.shutdown()


def test_a_range_is_taken_out_of_a_whole_response(one_object: type[OneObject]) -> None:
    content, storage = one_object.content, open_storage(f"s3://{BUCKET}")
    end = len(content)
    ranges = [(0, 5), (3, 70_000), (4_000_000, 4_000_003), (end - 3, end + 10), (end - 3, None)]
    for start, stop in ranges:
        assert storage.read("file", start, stop) == content[start:stop]
    assert storage.read("file", end, None) == storage.read("file", end + 5, end + 9) == b""
    buffer = bytearray(1000)
    assert storage.readinto("file", end - 400, memoryview(buffer)) == 400
    assert buffer[:400] == content[-400:]


def test_what_follows_a_range_is_not_waited_for(one_object: type[OneObject]) -> None:
    one_object.content = bytes(64 << 20)
    storage = open_storage(f"s3://{BUCKET}")
    assert storage.read("file", 0, 5) == storage.read("file", 100, 105) == bytes(5)
    assert one_object.sent < 48 << 20


def test_a_file_that_changes_with_every_request(one_object: type[OneObject]) -> None:
    def grow(request: OneObject) -> None:
        one_object.content += b"x"
        OneObject.do_HEAD(request)

    one_object.do_HEAD = grow
    message = refusal(lambda: open_storage(f"s3://{BUCKET}").read("file", 5, 9), Unreachable)
    assert message == f"s3://{BUCKET}/file: the file changes while it is read. Try again later."


# Servers whose certificates come from an authority of their own.


x509 = pytest.importorskip("cryptography.x509")

from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate for this machine that nobody knows, and its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "own authority")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "authority.pem"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path.with_suffix(".key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    path.write_bytes(certificate.public_bytes(pem))
    return path


@pytest.fixture
def endpoint(authority: Path, environment: pytest.MonkeyPatch) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("ETag", "1")
            self.end_headers()
            self.wfile.write(b"safe")

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, authority.with_suffix(".key"))
    with Quiet(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        environment.setenv("AWS_ENDPOINT_URL", f"https://{address}")
        environment.setenv("AWS_ACCESS_KEY_ID", "testing")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        yield address
        server.shutdown()
        thread.join()


def test_an_unknown_authority_is_named_as_the_reason(endpoint: str) -> None:
    with pytest.raises(Unreachable) as caught:
        open_storage("s3://bucket/logs").read("x")
    assert str(caught.value) == (
        f"s3://bucket/logs/x: the certificate of {endpoint} is not trusted (UnknownIssuer)."
        " For a private authority, set SSL_CERT_FILE to a file with its certificate."
    )


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_an_authority_of_one_s_own_is_trusted(
    endpoint: str, authority: Path, environment: pytest.MonkeyPatch, variable: str
) -> None:
    environment.setenv(variable, str(authority))
    assert open_storage("s3://bucket/logs").read("x") == b"safe"


def test_certificates_that_cannot_be_read(
    endpoint: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("AWS_CA_BUNDLE", str(tmp_path / "absent.pem"))
    with pytest.raises(StorageError) as caught:
        open_storage("s3://bucket/logs").read("x")
    assert str(caught.value) == (
        f"s3://bucket/logs: the certificates in {tmp_path}/absent.pem cannot be read."
        " Check AWS_CA_BUNDLE."
    )
