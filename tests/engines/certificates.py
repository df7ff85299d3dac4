"""A certificate authority for servers and clients in tests."""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM = serialization.Encoding.PEM


class Authority:
    """Signs certificates; `pem` is the certificate of the authority."""

    def __init__(self, name: str = "test-ca") -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self._name = _named(name)
        built = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.pem = built.sign(self._key, hashes.SHA256()).public_bytes(_PEM)

    def issue(
        self, name: str, organization: str = "", *, hosts: Iterable[str] = ()
    ) -> tuple[bytes, bytes]:
        """Return a certificate and its key: of a server with `hosts`, else of a client."""
        key = rsa.generate_private_key(65537, 2048)
        built = self._builder(_named(name, organization), key.public_key())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        built = built.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names := [_host(one) for one in hosts]:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        private = key.private_bytes(
            _PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        return built.sign(self._key, hashes.SHA256()).public_bytes(_PEM), private

    def _builder(self, name: x509.Name, public: rsa.RSAPublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
        )


def _named(name: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
