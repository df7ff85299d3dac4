"""The proxy on a port, and small fake boards behind it."""

import asyncio
import contextlib
import socket
import threading

import aiohttp
import httpx
from aiohttp import web
from starlette.applications import Starlette
from starlette.routing import Mount

from aboard.executors.base import Address
from aboard.hub.proxy import Proxy
from aboard.web import listen
from tests.hub.hubs import QUICK
from tests.web.serving import serving

TOKEN = "the-board's-own-secret"


class Front:
    """The proxy of a hub on a port, with replaceable boards."""

    def __init__(self, port):
        self.port = port
        self.boards = {}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/b/one/"

    def get(self, path="", **options):
        return self.ask("GET", path, **options)

    def ask(self, method, path="", **options):
        with httpx.Client(**QUICK) as client:
            return client.request(method, self.url + path, **options)

    def talk(self, script, path="echo", **options):
        """Open a WebSocket, and run the script with it."""

        async def main():
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(self.url + path, **options) as connection,
            ):
                return await script(connection)

        return asyncio.run(main())

    def send(self, text):
        """Send raw bytes; return all bytes received until the connection is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=180) as connection:
            connection.sendall(text)
            received = b""
            with contextlib.suppress(ConnectionError):
                while block := connection.recv(65536):
                    received += block
            return received


@contextlib.contextmanager
def fronting():
    """Serve the proxy on a port; its boards can be replaced while it runs."""
    front = Front(0)
    proxy = Proxy(front.boards.get)

    @contextlib.asynccontextmanager
    async def lifespan(_):
        async with contextlib.aclosing(proxy):
            yield

    app = Starlette(routes=[Mount("/b/{board}", proxy)], lifespan=lifespan)
    sockets = listen("127.0.0.1", 0)
    front.port = sockets[0].getsockname()[1]
    with serving(app, sockets):
        yield front


class Scripted:
    """A fake board that records each request and responds with given bytes."""

    def __init__(self, answer):
        self.requests = []
        self.left = threading.Event()
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self):
        return Address("127.0.0.1", self._listener.getsockname()[1], "/b/view/", TOKEN)

    @property
    def heads(self):
        """The header lines of the last request, with lower-case names."""
        lines = self.requests[-1].partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return [
            (name.lower(), value.strip()) for name, _, value in (x.partition(":") for x in lines)
        ]

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(60)
                request = b""
                while b"\r\n\r\n" not in request:
                    if not (block := connection.recv(65536)):
                        break
                    request += block
                if not request:
                    continue
                self.requests.append(request)
                if callable(self._answer):
                    self._answer(self, connection)
                else:
                    connection.sendall(self._answer)


def answer(*headers, body=b"done", status=b"200 OK"):
    length = b"content-length: %d" % len(body)
    lines = [b"HTTP/1.1 " + status, *headers, length, b"connection: close", b"", body]
    return b"\r\n".join(lines)


def streaming_board(app_routes):
    """Run an aiohttp server in a thread; return its address and a function that stops it."""
    started = threading.Event()
    found = {}

    async def main():
        app = web.Application(client_max_size=1 << 40)
        app.add_routes(app_routes)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found["port"] = runner.addresses[0][1]
        found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        await found["stop"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(180)

    def stop():
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()

    return Address("127.0.0.1", found["port"], "/b/view/", TOKEN), stop
