"""Servers whose certificates come from an authority of their own."""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from aboard.storage import StorageError, Unreachable, open_storage

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
