"""A fake of Alibaba's OSS: a proxy in front of an S3 server that adds the differences.

It accepts only addresses with the bucket in the host name, rejects the standard condition for
creating an object, and supports OSS's header for it. The S3 server does the rest. As a proxy it
receives requests for any host name, so no name has to be resolved.
"""

import http.client
from contextlib import closing, nullcontext
from http.server import ThreadingHTTPServer
from threading import Lock
from urllib.parse import urlsplit

from tests.engines.relay import Relay

ENDPOINT = "oss-cn-test.example"


class FakeOss(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore errors: the client or the S3 server has closed the connection."""

    def __init__(self, s3_url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.s3 = urlsplit(s3_url).netloc
        self.creating = Lock()  # the S3 server checks for an object, and then writes it


class _Requests(Relay):
    server: FakeOss
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        address = urlsplit(self.path)
        bucket = address.netloc.removesuffix(f".{ENDPOINT}")
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if bucket == address.netloc:
            self._answer(403, [], b"<Error><Code>SecondLevelDomainForbidden</Code></Error>")
            return
        if "If-None-Match" in self.headers:
            self._answer(501, [], b"<Error><Code>NotImplemented</Code></Error>")
            return
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in {"host", "proxy-connection", "connection"}
        }
        create_only = headers.pop("x-oss-forbid-overwrite", "") == "true"
        if create_only:
            headers["If-None-Match"] = "*"
        query = f"?{address.query}" if address.query else ""
        with (
            self.server.creating if create_only else nullcontext(),
            closing(http.client.HTTPConnection(self.server.s3, timeout=10)) as connection,
        ):
            connection.request(self.command, f"/{bucket}{address.path}{query}", content, headers)
            response = connection.getresponse()
            body = response.read()
        if create_only and response.status == 412:
            self._answer(409, [], b"<Error><Code>FileAlreadyExists</Code></Error>")
        else:
            self._answer(response.status, response.getheaders(), body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815
