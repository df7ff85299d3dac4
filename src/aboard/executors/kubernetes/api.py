"""The API server of a Kubernetes cluster: credentials, requests, logs and port-forwards.

A small client over aiohttp, which the hub needs anyway, for the few requests of boards and jobs.
Existing clients are large: kr8s is 40 MB and takes 1.3 s of CPU to import, and retries a failing
port-forward forever without a pause; the official client is 100 MB and takes 1.4 s, with
port-forwards over blocking sockets; lightkube (7 MB, 0.7 s) has no port-forward.

All requests run in the event loop of one thread; methods are called from other threads and wait.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import concurrent.futures
import json
import logging
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aboard.system import requires

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Json = dict[str, Any]
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FILE_SECONDS = 60.0  # between reads of tokens and certificates in files, which rotate
_EXPIRY_MARGIN = 60.0
_PLUGIN_SECONDS = 60.0
_CONNECT_SECONDS, _REQUEST_SECONDS = 5.0, 20.0
_CLOSE_SECONDS = 1.0  # for the other side to close a WebSocket
_LOG_SECONDS = 10.0  # the API server waits longer for a node
_IDLE_SECONDS = 0.5
_BLOCK = 1 << 16
_UNAUTHORIZED, FORBIDDEN, MISSING, _CONFLICT, _NODE_AWAY = 401, 403, 404, 409, 504
_NOT_BEGUN = 400  # the status of a request for the log of a container that has not begun
# Kubelets send these texts instead of an error.
_NO_LOG = (b"unable to retrieve container logs for ", b"failed to try resolving symlinks in path ")
_DATA, _ERROR = 0, 1  # the channels of a port-forward with one port


class ApiError(Exception):
    """The API server rejected a request or did not answer, or credentials are missing.

    `status` is the HTTP status; 0 if there was no response.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Access:
    """The address of an API server, and the credentials for it."""

    server: str
    namespace: str
    tls: ssl.SSLContext
    server_name: str | None = None
    proxy: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    rotates: bool = False  # a file has the token or the certificate
    expires: float | None = None  # see `time.time`


class KubernetesApi:
    """One API server, by a kubeconfig file and a context in it, or from inside the cluster."""

    def __init__(self, kubeconfig: str = "", context: str = "") -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._lock = threading.Lock()  # of the event loop and the forwards
        self._renewing = threading.Lock()
        self._access: _Access | None = None
        self._renewed = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._forwards: dict[tuple[str, str, int], _Forward] = {}
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    @property
    def in_cluster(self) -> bool:
        """Whether this process runs in a pod of the cluster, without a kubeconfig."""
        return not _files(self._kubeconfig) and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))

    @property
    def server(self) -> str:
        return self._current().server

    @property
    def namespace(self) -> str:
        """The namespace of the context."""
        return self._current().namespace

    def get(self, path: str, **parameters: str) -> _Json:
        return self._request("GET", path, parameters=parameters)

    def find(self, path: str) -> _Json | None:
        """Return an object, or None if it does not exist."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == MISSING:
                return None
            raise

    def post(self, path: str, body: _Json) -> _Json:
        return self._request("POST", path, body=body)

    def create(self, path: str, body: _Json) -> _Json | None:
        """Create an object, or return None if it already exists."""
        try:
            return self.post(path, body)
        except ApiError as error:
            if error.status == _CONFLICT:
                return None
            raise

    def patch(self, path: str, changes: _Json) -> _Json | None:
        """Merge changes into an object, or return None if it does not exist."""
        try:
            return self._request("PATCH", path, body=changes)
        except ApiError as error:
            if error.status == MISSING:
                return None
            raise

    def delete(self, path: str, *, grace: int | None = None, **parameters: str) -> None:
        """Delete an object, or those that the parameters select, and the objects they own.

        An object that does not exist is not an error.
        """
        body: _Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        body["propagationPolicy"] = "Background"
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            self._request("DELETE", path, parameters=parameters, body=body)
        except ApiError as error:
            if error.status != MISSING:
                raise

    def log(
        self, namespace: str, pod: str, container: str, *, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield the log of a container; empty chunks while there is no output.

        Yields nothing if the container is gone or has not begun.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        parameters = {"container": container}
        if follow:
            parameters["follow"] = "true"
        try:
            response = self._run(self._open(path, parameters))
        except ApiError as error:
            if error.status in {MISSING, _NOT_BEGUN}:
                return
            raise
        try:
            while (piece := self._run(_read(response))) != b"":
                if piece and piece.startswith(_NO_LOG):
                    return
                yield piece or b""
        finally:
            with suppress(ApiError):
                self._run(_close(response))

    def forward(self, namespace: str, pod: str, port: int) -> int:
        """Return a local port on loopback that forwards to the port of a pod.

        It does not wait for the API server: each connection opens its own WebSocket, so a port
        keeps working after an outage of the API server.
        """
        key = (namespace, pod, port)
        with self._lock:
            forward = self._forwards.get(key)
            if forward is None:
                path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}"
                forward = _Forward(self._started(), lambda: self._open_forward(path))
                self._forwards[key] = forward
            return forward.port

    def end_forward(self, namespace: str, pod: str, port: int) -> None:
        with self._lock:
            forward = self._forwards.pop((namespace, pod, port), None)
        if forward is not None:
            forward.close()

    def close(self) -> None:
        atexit.unregister(self.close)
        with self._lock:
            forwards, self._forwards = list(self._forwards.values()), {}
            loop, self._loop = self._loop, None
            session, self._session = self._session, None
        for forward in forwards:
            forward.close()
        if loop is not None:
            with suppress(concurrent.futures.TimeoutError):
                ending = asyncio.run_coroutine_threadsafe(_end(session, self._sockets), loop)
                ending.result(_CONNECT_SECONDS)
            loop.call_soon_threadsafe(loop.stop)

    # Requests.

    def _request(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: _Json | None = None,
    ) -> _Json:
        return self._run(self._send(method, path, parameters or {}, body))

    async def _send(
        self, method: str, path: str, parameters: Mapping[str, str], body: _Json | None
    ) -> _Json:
        kind = "merge-patch+json" if method == "PATCH" else "json"
        async with self._response(
            method,
            path,
            params=dict(parameters),
            data=None if body is None else json.dumps(body),
            headers={"content-type": f"application/{kind}", "accept": "application/json"},
        ) as response:
            found: _Json = await response.json(content_type=None)
            return found

    async def _open(self, path: str, parameters: Mapping[str, str]) -> aiohttp.ClientResponse:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        opening = self._connect("GET", path, params=dict(parameters), timeout=timeout)
        try:
            return await asyncio.wait_for(opening, _LOG_SECONDS)
        except TimeoutError as error:
            raise ApiError("the node does not answer in time", _NODE_AWAY) from error

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        response = await self._connect(method, path, **options)
        try:
            yield response
        except (aiohttp.ClientError, ValueError, OSError, TimeoutError) as error:
            raise self._unanswered(error) from error
        finally:
            response.release()

    async def _connect(self, method: str, path: str, **options: Any) -> aiohttp.ClientResponse:
        """Send a request; retry once with new credentials if they have expired."""
        import aiohttp

        headers = options.pop("headers", {})
        for again in (True, False):
            access = await asyncio.to_thread(self._current)  # may run a plugin
            try:
                response = await self._client().request(
                    method,
                    access.server + path,
                    headers={**headers, **access.headers},
                    **_transport(access),
                    **options,
                )
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise self._unanswered(error) from error
            if response.status == _UNAUTHORIZED and again:
                response.release()
                await asyncio.to_thread(self._renew, access)
                continue
            break
        if response.ok:
            return response
        try:
            raise ApiError(await _refusal(response), response.status)
        finally:
            response.release()

    async def _open_forward(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open the WebSocket of a port-forward, with the retry of `_connect`."""
        import aiohttp

        access = await asyncio.to_thread(self._current)
        try:
            return await self._open_websocket(path, access)
        except aiohttp.WSServerHandshakeError as error:
            if error.status != _UNAUTHORIZED:
                raise
        return await self._open_websocket(path, await asyncio.to_thread(self._renew, access))

    async def _open_websocket(self, path: str, access: _Access) -> aiohttp.ClientWebSocketResponse:
        import aiohttp

        return await self._client().ws_connect(
            access.server + path,
            protocols=("v4.channel.k8s.io",),
            headers=access.headers,
            max_msg_size=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
            **_transport(access),
        )

    def _unanswered(self, error: Exception) -> ApiError:
        # The messages of aiohttp describe its own objects; the cause is below.
        below = getattr(error, "os_error", None) or getattr(error, "certificate_error", error)
        reason = str(below) or type(below).__name__
        if isinstance(error, TimeoutError):
            reason = "it does not answer in time"
        elif isinstance(below, socket.gaierror):
            reason = str(below.strerror).lower()
        elif isinstance(below, OSError) and not isinstance(below, ssl.SSLError) and below.errno:
            reason = os.strerror(below.errno).lower()
        server = self._access.server if self._access is not None else "the API server"
        return ApiError(f"{server} does not answer: {reason}")

    def _client(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS)
            # No limit on connections: each port-forward keeps one.
            connector = aiohttp.TCPConnector(limit=0, socket_factory=self._make_socket)
            self._session = aiohttp.ClientSession(
                timeout=timeout, connector=connector, trust_env=True
            )
        return self._session

    def _make_socket(self, address: tuple[Any, ...]) -> socket.socket:
        made = socket.socket(*address[:3])
        self._sockets.add(made)
        return made

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the thread of the event loop, and wait for it."""
        with self._lock:
            loop = self._started()
        try:
            patience = _PLUGIN_SECONDS + 2 * _REQUEST_SECONDS
            return asyncio.run_coroutine_threadsafe(work, loop).result(patience)
        except concurrent.futures.TimeoutError as error:
            raise self._unanswered(TimeoutError()) from error
        except concurrent.futures.CancelledError as error:
            raise ApiError("the connection was closed") from error

    def _started(self) -> asyncio.AbstractEventLoop:
        """Return the event loop; the caller holds the lock."""
        if self._loop is None:
            # A daemon thread: programs that submit jobs do not close this.
            atexit.register(self.close)
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(self._loop,), name="kubernetes")
            thread.daemon = True
            thread.start()
        return self._loop

    # Credentials.

    def _current(self) -> _Access:
        access = self._access
        if access is None or (access.expires is not None and time.time() >= access.expires):
            return self._renew(access)
        if access.rotates and time.monotonic() - self._renewed > _FILE_SECONDS:
            return self._renew(access)
        return access

    def _renew(self, before: _Access | None) -> _Access:
        with self._renewing:
            if self._access is not None and self._access is not before:
                return self._access  # another thread was faster
            self._renewed = time.monotonic()
            self._access = (
                _from_service_account()
                if self.in_cluster
                else _from_kubeconfig(self._kubeconfig, self._context)
            )
            return self._access


class KubernetesApis:
    """The API servers of an engine's profiles, which may share one.

    `settings` returns the settings of a profile.
    """

    def __init__(self, settings: Callable[[str], Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._apis: dict[tuple[str, str], KubernetesApi] = {}

    def of(self, profile: str) -> KubernetesApi:
        settings = self._settings(profile)
        key = (str(settings.kubeconfig or ""), settings.context)
        with self._lock:
            if key not in self._apis:
                self._apis[key] = KubernetesApi(*key)
            return self._apis[key]

    def close(self) -> None:
        with self._lock:
            apis, self._apis = list(self._apis.values()), {}
        for api in apis:
            api.close()


class _Forward:
    """A listener on loopback that forwards connections to a port of a pod.

    Each connection has a WebSocket: every message begins with the number of a channel, and the
    first message of each channel contains the port.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connect: Callable[[], Awaitable[aiohttp.ClientWebSocketResponse]],
    ) -> None:
        self._loop = loop
        self._connect = connect
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._socket.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        asyncio.run_coroutine_threadsafe(self._listen(), loop)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._socket)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = asyncio.create_task(self._carry(reader, writer))
        self._connections.add(carrying)
        try:
            await carrying
        except (ApiError, OSError, TimeoutError, asyncio.CancelledError) as error:
            _log.debug("port-forward ended: %s", error)
        except Exception as error:  # noqa: BLE001 - aiohttp's errors have no common base
            _log.debug("port-forward failed: %s", error)
        finally:
            self._connections.discard(carrying)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        websocket = await self._connect()
        both = [
            asyncio.create_task(_to_pod(reader, websocket)),
            asyncio.create_task(_from_pod(websocket, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            try:
                await asyncio.gather(*both, return_exceptions=True)
            finally:  # also if `_end` cancels this
                await websocket.close()


async def _to_pod(reader: asyncio.StreamReader, websocket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_BLOCK):
        await websocket.send_bytes(bytes([_DATA]) + data)


async def _from_pod(
    websocket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter
) -> None:
    begun: set[int] = set()
    async for message in websocket:
        data = message.data
        if not isinstance(data, bytes) or not data:
            continue
        channel = data[0]
        if channel not in begun:  # the port
            begun.add(channel)
        elif channel == _ERROR:
            _log.debug("port-forward: %s", data[1:].decode("utf-8", "replace"))
            return
        else:
            writer.write(data[1:])
            await writer.drain()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """Return the next chunk: empty at the end, None after a while without output."""
    import aiohttp

    try:
        return await asyncio.wait_for(response.content.readany(), _IDLE_SECONDS)
    except TimeoutError:
        return None
    except (aiohttp.ClientError, OSError) as error:
        raise ApiError(f"the log was interrupted: {error}") from error


async def _close(response: aiohttp.ClientResponse) -> None:
    response.close()


async def _end(
    session: aiohttp.ClientSession | None, sockets: weakref.WeakSet[socket.socket]
) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if session is not None:
        if session.connector is not None:  # close connections without waiting for the server
            await session.connector.close(abort_ssl=True)
        await session.close()
        # A closing WebSocket is no longer among them: its TLS shutdown takes its own time.
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while any(one.fileno() >= 0 for one in sockets):
                    await asyncio.sleep(0.01)


async def _refusal(response: aiohttp.ClientResponse) -> str:
    """Return the API server's message for a rejected request."""
    text = await response.text(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text)["message"])
    return text.strip()[:300] or f"{response.status} {response.reason}"


def _transport(access: _Access) -> _Json:
    return {"ssl": access.tls, "proxy": access.proxy, "server_hostname": access.server_name}


# Credentials.


def _files(kubeconfig: str) -> list[Path]:
    """Return the existing kubeconfig files: the one given, those of KUBECONFIG, or the default."""
    paths = [Path(one).expanduser() for one in _given(kubeconfig).split(os.pathsep) if one]
    return [path for path in paths if path.is_file()]


def _given(kubeconfig: str) -> str:
    return kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"


def _from_service_account() -> _Access:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"[{host}]" if ":" in host else host
    try:
        token = (SERVICE_ACCOUNT / "token").read_text().strip()
        namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
        tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    except OSError as error:
        raise ApiError(
            f"{error.filename or SERVICE_ACCOUNT}: the pod's service account cannot be used: "
            f"{error.strerror}. Set automountServiceAccountToken in the pod."
        ) from error
    return _Access(
        f"https://{address}:{port}",
        namespace,
        tls,
        headers={"authorization": f"Bearer {token}"},
        rotates=True,
    )


def _from_kubeconfig(kubeconfig: str, context: str) -> _Access:
    paths = _files(kubeconfig)
    if not paths:
        raise ApiError(
            f"{_given(kubeconfig)}: kubeconfig not found. "
            "Set KUBECONFIG, or kubeconfig in [executors.kubernetes]."
        )
    found = _merged(paths)
    name = context or found["current-context"]
    try:
        chosen = found["contexts"][name]
        cluster = found["clusters"][chosen["cluster"]]
        user = found["users"].get(chosen.get("user", ""), {})
        server = str(cluster["server"]).rstrip("/")
    except (KeyError, TypeError) as error:
        known = ", ".join(sorted(found["contexts"])) or "none"
        raise ApiError(
            f"{paths[0]}: context {name!r} is incomplete or missing. Known: {known}."
        ) from error
    try:
        return _access(server, chosen, cluster, user)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ApiError(
            f"{paths[0]}: the credentials of context {name!r} cannot be used: {error}."
        ) from error


def _access(server: str, context: _Json, cluster: _Json, user: _Json) -> _Access:
    expires = None
    if "exec" in user:
        status = _run_plugin(user["exec"], server, cluster)
        user = {
            **user,
            "token": status.get("token"),
            "client-certificate-data": _encoded(status.get("clientCertificateData")),
            "client-key-data": _encoded(status.get("clientKeyData")),
        }
        if stamp := status.get("expirationTimestamp"):
            expires = datetime.fromisoformat(stamp).timestamp() - _EXPIRY_MARGIN
    headers: dict[str, str] = {}
    token_file = Path(user["tokenFile"]) if user.get("tokenFile") else None
    token = token_file.read_text().strip() if token_file is not None else user.get("token")
    if token:
        headers["authorization"] = f"Bearer {token}"
    elif user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    elif "auth-provider" in user:
        kind = user["auth-provider"].get("name")
        raise ValueError(
            f"auth-provider {kind!r} is no longer supported by Kubernetes; use its exec plugin"
        )
    if user.get("as"):
        headers["impersonate-user"] = user["as"]
    return _Access(
        server,
        context.get("namespace") or "default",
        _tls(cluster, user),
        cluster.get("tls-server-name"),
        cluster.get("proxy-url"),
        headers,
        bool(token_file or user.get("client-certificate")),
        expires,
    )


def _tls(cluster: _Json, user: _Json) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = _content(user, "client-certificate"), _content(user, "client-key")
    if certificate and key:
        # OpenSSL reads them only from a file.
        with tempfile.NamedTemporaryFile(prefix="aboard-") as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            tls.load_cert_chain(file.name)
    return tls


def _content(section: _Json, name: str) -> bytes | None:
    if data := section.get(f"{name}-data"):
        return base64.b64decode(data)
    return Path(section[name]).read_bytes() if section.get(name) else None


def _encoded(pem: str | None) -> str | None:
    return base64.b64encode(pem.encode()).decode() if pem else None


def _run_plugin(plugin: _Json, server: str, cluster: _Json) -> _Json:
    """Run a credential plugin, such as a cloud's, and return the credentials it prints."""
    version = plugin.get("apiVersion", "client.authentication.k8s.io/v1")
    spec: _Json = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = {
            "server": server,
            "certificate-authority-data": cluster.get("certificate-authority-data"),
        }
    request = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    added = {one["name"]: one["value"] for one in plugin.get("env") or []}
    command = [plugin["command"], *(plugin.get("args") or [])]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(request)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PLUGIN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{plugin['command']} cannot be run: {error}") from error
    if done.returncode:
        raise ValueError(f"{plugin['command']} failed: {done.stderr.strip()[-300:]}")
    status: _Json = json.loads(done.stdout)["status"]
    return status


def _merged(paths: list[Path]) -> _Json:
    """Merge kubeconfig files: of entries with the same name, the first counts."""
    with requires("yaml", install="'aboard[kubernetes]'"):
        import yaml

    found: _Json = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for path in paths:
        try:
            document = yaml.safe_load(path.read_text()) or {}
            found["current-context"] = found["current-context"] or document.get("current-context")
            for kind in ("cluster", "user", "context"):
                for entry in document.get(f"{kind}s") or []:
                    section = _resolved(entry.get(kind) or {}, path.parent)
                    found[f"{kind}s"].setdefault(entry["name"], section)
        except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise ApiError(f"{path}: invalid kubeconfig file: {error}.") from error
    return found


def _resolved(section: _Json, folder: Path) -> _Json:
    """Resolve the paths in a section relative to the directory of its file."""
    names = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
    found: _Json = {name: str(folder / section[name]) for name in names if section.get(name)}
    plugin = section.get("exec")
    if plugin and os.sep in plugin.get("command", ""):
        found["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return {**section, **found}
