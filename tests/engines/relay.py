"""A request handler that relays the response of another server unchanged."""

from http.server import BaseHTTPRequestHandler


class Relay(BaseHTTPRequestHandler):
    """Responds with the response of another server."""

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value
            elif name.lower() not in {"connection", "transfer-encoding", "date", "server"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
