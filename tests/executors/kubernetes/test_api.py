"""Credentials for an API server: what a server with TLS gets to see, and that they are rotated."""

import asyncio
import base64
import gc
import json
import socket
import ssl
import sys
import threading
import warnings
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web

from aboard.executors.kubernetes import api as kubernetes_api
from aboard.executors.kubernetes.api import ApiError, KubernetesApi
from tests.engines.certificates import Authority
from tests.waiting import until


class Server:
    """An API server that says by which certificate or token it knows the client.

    As the real one, it asks for a certificate and does not insist on one: who has no valid
    credentials gets a 401.
    """

    def __init__(self, authority: Authority, place: Path) -> None:
        certificate, key = authority.issue("server", hosts=["127.0.0.1"])
        (place / "server.pem").write_bytes(certificate + key)
        self._tls = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode()
        )
        self._tls.load_cert_chain(place / "server.pem")
        self._tls.verify_mode = ssl.CERT_OPTIONAL
        self.valid: set[str] = set()
        self.refused = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(180)

    async def _serve(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/{path:.*}portforward", self._forward)])
        app.add_routes([web.get("/{path:.*}", self._who)])
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._ended.wait()
        await runner.cleanup()

    def _known(self, request: web.Request) -> str:
        shown = request.transport.get_extra_info("peercert") if request.transport else None
        names = [value for part in (shown or {}).get("subject", ()) for _, value in part]
        names.append(request.headers.get("authorization", ""))
        for name in names:
            if name in self.valid:
                return name
        self.refused += 1
        raise web.HTTPUnauthorized(text=json.dumps({"message": "Unauthorized"}))

    async def _who(self, request: web.Request) -> web.Response:
        return web.json_response({"who": self._known(request)})

    async def _forward(self, request: web.Request) -> web.WebSocketResponse:
        self._known(request)
        response = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await response.prepare(request)
        for channel in (b"\0", b"\1"):
            await response.send_bytes(channel + b"\x76\x17")
        async for message in response:
            if message.type is WSMsgType.BINARY:
                await response.send_bytes(message.data)
                while message.data.endswith(b"stall"):  # no answer to what follows
                    await asyncio.sleep(0.05)
        return response

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def server(authority, tmp_path):
    made = Server(authority, tmp_path)
    yield made
    made.close()


@pytest.fixture
def connect(server, authority, tmp_path):
    """Return the API by a kubeconfig with a user; end its connections with the test."""
    made = []

    def connect(**user):
        ca = base64.b64encode(authority.pem).decode()
        cluster = {"server": server.url, "certificate-authority-data": ca}
        document = {
            "current-context": "x",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        (tmp_path / "config").write_text(json.dumps(document))
        made.append(KubernetesApi(str(tmp_path / "config")))
        return made[-1]

    yield connect
    for api in made:
        api.close()


def encoded(content):
    return base64.b64encode(content).decode()


class TestClientCertificates:
    def test_in_the_kubeconfig(self, server, connect, authority):
        server.valid = {"alice"}
        certificate, key = authority.issue("alice")
        api = connect(
            **{"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
        )
        assert api.get("/api") == {"who": "alice"}

    def test_in_files_beside_it(self, server, connect, authority, tmp_path):
        server.valid = {"alice"}
        write_pair(tmp_path, authority.issue("alice"))
        api = connect(**{"client-certificate": "me.pem", "client-key": "me.key"})
        assert api.get("/api") == {"who": "alice"}

    def test_files_that_were_rotated(self, server, connect, authority, tmp_path):
        server.valid = {"alice"}
        write_pair(tmp_path, authority.issue("alice"))
        api = connect(**{"client-certificate": "me.pem", "client-key": "me.key"})
        assert api.get("/api") == {"who": "alice"}
        write_pair(tmp_path, authority.issue("alice-2"))
        server.valid = {"alice-2"}
        assert api.get("/api") == {"who": "alice-2"}
        assert server.refused == 1

    def test_files_are_read_again_before_they_expire(
        self, server, connect, authority, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(kubernetes_api, "_FILE_SECONDS", 0.0)
        server.valid = {"alice", "alice-2"}
        write_pair(tmp_path, authority.issue("alice"))
        api = connect(**{"client-certificate": "me.pem", "client-key": "me.key"})
        assert api.get("/api") == {"who": "alice"}
        write_pair(tmp_path, authority.issue("alice-2"))
        assert api.get("/api") == {"who": "alice-2"}

    def test_one_that_the_server_does_not_know(self, connect, authority):
        certificate, key = authority.issue("mallory")
        api = connect(
            **{"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
        )
        with pytest.raises(ApiError, match="Unauthorized") as raised:
            api.get("/api")
        assert raised.value.status == 401

    def test_one_of_another_authority(self, connect):
        certificate, key = Authority("another").issue("alice")
        api = connect(
            **{"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
        )
        with pytest.raises(ApiError, match=r"^https://127\.0\.0\.1:\d+ does not answer: "):
            api.get("/api")

    def test_one_whose_key_is_another(self, connect, authority, tmp_path):
        certificate, _ = authority.issue("alice")
        _, key = authority.issue("alice")
        api = connect(
            **{"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
        )
        with pytest.raises(ApiError, match="credentials of context 'x' cannot be used"):
            api.get("/api")

    def test_a_file_that_is_missing_is_named(self, connect, tmp_path):
        api = connect(**{"client-certificate": "me.pem", "client-key": "me.key"})
        with pytest.raises(ApiError, match=f"'x' cannot be used: .*{tmp_path}/me.pem"):
            api.get("/api")


def write_pair(place, pair):
    for name, content in zip(("me.pem", "me.key"), pair, strict=True):
        (place / name).write_bytes(content)


class TestTokens:
    def test_a_file_that_was_rotated(self, server, connect, tmp_path):
        (tmp_path / "token").write_text("first\n")
        server.valid = {"Bearer first"}
        api = connect(tokenFile="token")
        assert api.get("/api") == {"who": "Bearer first"}
        (tmp_path / "token").write_text("second\n")
        assert api.get("/api") == {"who": "Bearer first"}
        server.valid = {"Bearer second"}
        assert api.get("/api") == {"who": "Bearer second"}
        assert server.refused == 1

    def test_a_file_is_read_again_before_its_token_expires(
        self, server, connect, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(kubernetes_api, "_FILE_SECONDS", 0.0)
        server.valid = {"Bearer first", "Bearer second"}
        (tmp_path / "token").write_text("first\n")
        api = connect(tokenFile="token")
        assert api.get("/api") == {"who": "Bearer first"}
        (tmp_path / "token").write_text("second\n")
        assert api.get("/api") == {"who": "Bearer second"}
        assert server.refused == 0

    def test_of_a_service_account(self, server, authority, tmp_path, environment, monkeypatch):
        host, port = server.url.removeprefix("https://").split(":")
        environment.setenv("KUBECONFIG", str(tmp_path / "none"))
        environment.setenv("KUBERNETES_SERVICE_HOST", host)
        environment.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(kubernetes_api, "SERVICE_ACCOUNT", tmp_path)
        (tmp_path / "namespace").write_text("boards")
        (tmp_path / "ca.crt").write_bytes(authority.pem)
        (tmp_path / "token").write_text("first")
        server.valid = {"Bearer first"}
        api = KubernetesApi()
        try:
            assert api.in_cluster
            assert (api.get("/api"), api.namespace) == ({"who": "Bearer first"}, "boards")
            (tmp_path / "token").write_text("second")
            server.valid = {"Bearer second"}
            assert api.get("/api") == {"who": "Bearer second"}
        finally:
            api.close()

    def test_a_port_forward_with_a_token_that_was_rotated(self, server, connect, tmp_path):
        (tmp_path / "token").write_text("first")
        server.valid = {"Bearer first"}
        api = connect(tokenFile="token")
        port = api.forward("boards", "pod", 6006)
        for token in ("first", "second", "third"):
            (tmp_path / "token").write_text(token)
            server.valid = {f"Bearer {token}"}
            with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
                connection.sendall(b"hello")
                assert connection.recv(5) == b"hello"

    def test_a_port_forward_that_is_closing_leaves_no_socket(self, server, connect):
        server.valid = {"Bearer first"}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(20):  # each is closed at another moment
                api = connect(token="first")
                port = api.forward("boards", "pod", 6006)
                connection = socket.create_connection(("127.0.0.1", port), timeout=60)
                connection.sendall(b"stall")
                assert connection.recv(5) == b"stall"
                connection.close()
                api.close()
            until(lambda: "kubernetes" not in {one.name for one in threading.enumerate()})
            gc.collect()
        assert [str(one.message) for one in told] == []

    def test_a_token_that_is_refused_twice(self, server, connect):
        api = connect(token="wrong")
        with pytest.raises(ApiError, match="Unauthorized"):
            api.get("/api")
        assert server.refused == 2


class TestPlugins:
    @pytest.fixture
    def plugin(self, tmp_path):
        """Return the entry of a plugin that prints what a file has, and counts its calls."""
        (tmp_path / "plugin").write_text(
            f"#!{sys.executable} -S\n"
            "import json, os, pathlib, sys\n"
            f"place = pathlib.Path({str(tmp_path)!r})\n"
            "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
            "assert sys.argv[1:] == ['get-token'] and os.environ['COLOUR'] == 'green'\n"
            "with (place / 'calls').open('a') as calls: calls.write('x')\n"
            "print(json.dumps({'status': json.loads((place / 'status').read_text())}))\n"
        )
        (tmp_path / "plugin").chmod(0o755)
        return {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": "./plugin",
            "args": ["get-token"],
            "env": [{"name": "COLOUR", "value": "green"}],
        }

    @staticmethod
    def prints(place, **status):
        (place / "status").write_text(json.dumps(status))

    @staticmethod
    def calls(place):
        return len((place / "calls").read_text())

    def test_its_token_is_used_until_it_expires(self, server, connect, plugin, tmp_path):
        server.valid = {"Bearer first", "Bearer second"}
        soon = datetime.now(UTC) + timedelta(seconds=30)  # less than the margin
        self.prints(tmp_path, token="first", expirationTimestamp=soon.isoformat())
        api = connect(exec=plugin)
        assert api.get("/api") == {"who": "Bearer first"}
        later = datetime.now(UTC) + timedelta(hours=1)
        stamp = later.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.prints(tmp_path, token="second", expirationTimestamp=stamp)
        assert api.get("/api") == {"who": "Bearer second"}
        called = self.calls(tmp_path)
        assert api.get("/api") == {"who": "Bearer second"}
        assert self.calls(tmp_path) == called

    def test_a_token_that_was_revoked_is_fetched_anew(self, server, connect, plugin, tmp_path):
        server.valid = {"Bearer first"}
        self.prints(tmp_path, token="first")
        api = connect(exec=plugin)
        assert api.get("/api") == {"who": "Bearer first"}
        server.valid = {"Bearer second"}
        self.prints(tmp_path, token="second")
        assert api.get("/api") == {"who": "Bearer second"}
        assert self.calls(tmp_path) == 2

    def test_its_certificate(self, server, connect, authority, plugin, tmp_path):
        server.valid = {"alice"}
        certificate, key = authority.issue("alice")
        self.prints(
            tmp_path, clientCertificateData=certificate.decode(), clientKeyData=key.decode()
        )
        assert connect(exec=plugin).get("/api") == {"who": "alice"}

    def test_one_that_fails_says_why(self, connect, plugin, tmp_path):
        (tmp_path / "plugin").write_text("#!/bin/sh\necho 'log in first' >&2\nexit 3\n")
        with pytest.raises(ApiError, match="plugin failed: log in first"):
            connect(exec=plugin).get("/api")

    def test_one_that_is_not_installed(self, connect):
        with pytest.raises(ApiError, match="no-such-plugin cannot be run"):
            connect(exec={"command": "no-such-plugin"}).get("/api")
