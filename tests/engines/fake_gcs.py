"""A fake Google Cloud Storage for the XML requests of an object store client.

It keeps objects in memory, lists in short pages so that paging is always tested, and rejects the
bearer token 'wrong', the bucket 'forbidden', and unknown buckets.
"""

import re
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Lock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 7


@dataclass
class Bucket:
    objects: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)


class FakeGcs(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *buckets: str) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.buckets = {name: Bucket() for name in buckets}
        self.lock = Lock()
        self.generations = count(1_700_000_000_000_000)


class _Requests(BaseHTTPRequestHandler):
    server: FakeGcs
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._admitted():
            return
        if not self.key:
            self._list()
            return
        found = self.bucket.objects.get(self.key)
        if found is None:
            self._refuse(404, "NoSuchKey")
            return
        generation, content = found
        headers = {"ETag": f'"{generation}"', "x-goog-generation": str(generation)}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, content, headers)
            return
        start, end = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        if start >= len(content):
            self._refuse(416, "InvalidRange")
            return
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self._answer(206, content[start:end], headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        content = self._body()
        if not self._admitted():
            return
        if upload := self.query.get("uploadId"):
            self.bucket.uploads[upload][int(self.query["partNumber"])] = content
            self._answer(200, b"", {"ETag": '"part"'})
            return
        with self.server.lock:
            held, _ = self.bucket.objects.get(self.key, (0, b""))
            if self.headers.get("x-goog-if-generation-match", str(held)) != str(held):
                self._refuse(412, "PreconditionFailed")
                return
            generation = self._store(content)
        self._answer(200, b"", {"ETag": f'"{generation}"', "x-goog-generation": str(generation)})

    def do_POST(self) -> None:
        self._body()
        if not self._admitted():
            return
        if "uploads" in self.query:
            upload = f"upload-{next(self.server.generations)}"
            self.bucket.uploads[upload] = {}
            self._answer(
                200, _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            )
            return
        parts = self.bucket.uploads.pop(self.query["uploadId"])
        with self.server.lock:
            generation = self._store(b"".join(content for _, content in sorted(parts.items())))
        result = f"<ETag>&quot;{generation}&quot;</ETag>"
        self._answer(200, _xml("CompleteMultipartUploadResult", result))

    def do_DELETE(self) -> None:
        if not self._admitted():
            return
        if self.bucket.objects.pop(self.key, None) is None:
            self._refuse(404, "NoSuchKey")
        else:
            self._answer(204, b"")

    def log_message(self, *_: object) -> None:
        pass

    def _admitted(self) -> bool:
        """Parse the address; reject invalid tokens and unknown buckets."""
        address = urlsplit(self.path)
        name, _, self.key = unquote(address.path).lstrip("/").partition("/")
        self.query = {
            key: values[0]
            for key, values in parse_qs(address.query, keep_blank_values=True).items()
        }
        if self.headers.get("Authorization") == "Bearer wrong":
            self._refuse(401, "AuthenticationRequired")
            return False
        if name == "forbidden":
            self._refuse(403, "AccessDenied")
            return False
        if name not in self.server.buckets:
            self._refuse(404, "NoSuchBucket")
            return False
        self.bucket = self.server.buckets[name]
        return True

    def _store(self, content: bytes) -> int:
        generation = next(self.server.generations)
        self.bucket.objects[self.key] = (generation, content)
        return generation

    def _list(self) -> None:
        prefix, after = self.query.get("prefix", ""), self.query.get("continuation-token", "")
        delimiter = self.query.get("delimiter")
        found: dict[str, tuple[int, bytes] | None] = {}
        for key, value in sorted(self.bucket.objects.items()):
            if not key.startswith(prefix):
                continue
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if cut:
                found[prefix + head + cut] = None
            else:
                found[key] = value
        names = [name for name in found if name > after]
        body = "".join(_listed(name, found[name]) for name in names[:PAGE])
        if len(names) > PAGE:
            body += f"<NextContinuationToken>{escape(names[PAGE - 1])}</NextContinuationToken>"
        self._answer(200, _xml("ListBucketResult", body))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, _xml("Error", f"<Code>{code}</Code><Message>refused</Message>"))

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Last-Modified", formatdate(usegmt=True))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _listed(name: str, value: tuple[int, bytes] | None) -> str:
    if value is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    generation, content = value
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
        f"<Size>{len(content)}</Size><ETag>&quot;{generation}&quot;</ETag></Contents>"
    )


def _xml(tag: str, body: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{tag}>{body}</{tag}>'.encode()
