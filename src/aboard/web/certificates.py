"""Certificates for listeners whose clients know the fingerprint beforehand, on both sides."""

from __future__ import annotations

import hashlib
import ssl
from datetime import UTC, datetime, timedelta
from functools import cache

from aboard.requirements import requires

_VALID = timedelta(days=3650)  # clients compare the fingerprint, not the dates


def make_certificate() -> tuple[str, str]:
    """Return a new key and its certificate as PEM, and the certificate's SHA-256 in hex.

    The certificate names no host: a client that knows its fingerprint needs none.
    """
    with requires("cryptography"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aboard")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # the board's clock may be behind
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    der = certificate.public_bytes(serialization.Encoding.DER)
    return (private + public).decode(), hashlib.sha256(der).hexdigest()


@cache
def pinning_context() -> ssl.SSLContext:
    """Return a context that accepts any certificate: its fingerprint is compared instead."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
