"""Keys of blobs: what a browser hands back to get an image, a sound or a graph.

A key names its board, run, tag, step and place in the sequence, and is signed,
so that none can be made up and a key of one board opens nothing on another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from typing import NamedTuple

_SIGNATURE = 16


class BlobKey(NamedTuple):
    """Where a blob is."""

    board: str
    run: str
    tag: str
    step: int
    place: int


class BadKey(ValueError):  # noqa: N818 - named by what is wrong
    """A key that we did not sign."""


class Signer:
    """Makes and reads keys; those of another process, or made up, are refused."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret if secret is not None else secrets.token_bytes(32)

    def sign(self, key: BlobKey) -> str:
        """Return a key as text that may stand in a URL."""
        content = json.dumps(key, separators=(",", ":")).encode()
        return _encode(self._signature(content) + content)

    def read(self, text: str) -> BlobKey:
        """Return the key that `sign` made text of."""
        try:
            octets = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (binascii.Error, ValueError):
            raise BadKey(text) from None
        signature, content = octets[:_SIGNATURE], octets[_SIGNATURE:]
        # Decoding passes over characters that do not belong there.
        if _encode(octets) != text or not hmac.compare_digest(signature, self._signature(content)):
            raise BadKey(text)
        return BlobKey(*json.loads(content))

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._secret, content, hashlib.sha256)[:_SIGNATURE]


def _encode(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).decode().rstrip("=")
