"""What sets Alibaba's OSS apart from S3, as a proxy in front of an S3 server.

It accepts only addresses with the bucket in the host name, rejects the standard condition for
creating an object, and honours OSS's own header for it. The rest it leaves to the S3 server. As
a proxy it receives requests for any host name, so no name has to be resolved.
"""

import http.client
from http.server import ThreadingHTTPServer
from urllib.parse import urlsplit

from engines.relay import Relay

ENDPOINT = "oss-cn-test.example"


class FakeOss(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, s3_url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.s3 = urlsplit(s3_url).netloc


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
        connection = http.client.HTTPConnection(self.server.s3, timeout=10)
        query = f"?{address.query}" if address.query else ""
        connection.request(self.command, f"/{bucket}{address.path}{query}", content, headers)
        response = connection.getresponse()
        body = response.read()
        if create_only and response.status == 412:
            self._answer(409, [], b"<Error><Code>FileAlreadyExists</Code></Error>")
        else:
            self._answer(response.status, response.getheaders(), body)
        connection.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815
