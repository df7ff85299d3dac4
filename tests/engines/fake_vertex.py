"""A fake Vertex AI for the REST requests of Aboard, with Google's errors and quotas.

It validates every request as Vertex does, rejects unknown fields, stores points in the order of
arrival and duplicates twice, and issues access tokens that expire. Faults are queued by the suffix
of the path they apply to. `recorded` has all requests with their responses;
tests/engines/vertex_types.py parses them with the types of Google's client.
"""

import base64
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

PROJECT, LOCATION = "demo", "us-central1"
PARENT = f"projects/{PROJECT}/locations/{LOCATION}"
_ID = re.compile(r"[a-z0-9-]{1,128}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
_BUCKET = re.compile(r"gs://[a-z0-9._-]+(/.*)?")
_MOST_CREATED = 1000
_MOST_BYTES = 4 << 20
_VALUE_TYPES = {"SCALAR": "scalar", "TENSOR": "tensor", "BLOB_SEQUENCE": "blobs"}
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
Document = dict[str, Any]


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Fault:
    """A failure of the next `times` requests whose path has this suffix.

    `keeps` is the part of the written data that is stored before the failure; `drops` closes the
    connection without a response.
    """

    path: str
    status: int = 0
    message: str = "a fault"
    times: int = 1
    keeps: float = 0.0
    retry_after: str = ""
    delay: float = 0.0
    drops: bool = False


@dataclass
class Recorded:
    method: str
    path: str
    query: dict[str, str]
    body: Document
    status: int
    answer: Document


@dataclass
class TimeSeries:
    name: str
    document: Document
    points: list[Document] = field(default_factory=list)


class FakeVertex(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *, blobs: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.blobs = blobs
        self.lock = RLock()
        self._key = b""
        self.clear()

    def clear(self) -> None:
        self.numbers = count(1001)
        self.tensorboards: dict[str, Document] = {}
        self.experiments: dict[str, Document] = {}
        self.runs: dict[str, Document] = {}
        self.series: dict[str, TimeSeries] = {}
        self.jobs: dict[str, Document] = {}
        self.operations: dict[str, Document] = {}
        self.faults: list[Fault] = []
        self.recorded: list[Recorded] = []
        self.tokens: set[str] = set()
        self.logins = 0
        self.is_revoked = False
        self.on_write: Callable[[int], None] = lambda _: None
        self.writes = 0

    def write_key(self, directory: Path) -> Path:
        """Write the key file of a service account of this server; return its path."""
        self._key = self._key or _private_key()
        path = directory / "service-account.json"
        path.write_text(
            json.dumps(
                {
                    "type": "service_account",
                    "project_id": PROJECT,
                    "private_key_id": "1",
                    "private_key": self._key.decode(),
                    "client_email": f"aboard@{PROJECT}.iam.gserviceaccount.com",
                    "token_uri": f"{self.url}/token",
                }
            )
        )
        path.chmod(0o600)
        return path

    def expire_tokens(self) -> None:
        with self.lock:
            self.tokens.clear()

    def points(self, tag: str = "loss") -> dict[str, list[tuple[int, Any]]]:
        """Return the steps and values of a tag by the display name of the run."""
        with self.lock:
            found = {}
            for name, one in self.series.items():
                if one.document["displayName"] == tag:
                    run = self.runs[name.partition("/timeSeries/")[0]]["displayName"]
                    found[run] = [
                        (int(point.get("step", 0)), _value_of(point)) for point in one.points
                    ]
            return found

    # The requests.

    def answer(self, method: str, path: str, query: dict[str, str], body: Document) -> Document:
        for pattern, verb, handle in _ROUTES:
            found = re.fullmatch(pattern, path)
            if found and verb == method:
                project = re.match(r"projects/([^/]+)/locations/([^/]+)", path)
                if project and project[1] != PROJECT:
                    raise Refused(403, f"Permission denied on resource project {project[1]}.")
                with self.lock:
                    return handle(self, found.groups(), query, body)
        raise Refused(404, f"{method} {path}: there is no such method.")

    def list_tensorboards(self, names: Any, query: dict[str, str], _: Document) -> Document:
        _only(query, "filter", "pageSize", "pageToken")
        found = list(self.tensorboards.values())
        if named := re.fullmatch(r'display_name="(.*)"', query.get("filter", "")):
            found = [one for one in found if one["displayName"] == named[1]]
        return _page("tensorboards", found, query)

    def create_tensorboard(self, names: Any, query: dict[str, str], body: Document) -> Document:
        _only(body, "displayName", "description", "labels")
        _text(body, "displayName")
        name = f"{PARENT}/tensorboards/{next(self.numbers)}"
        made = {"name": name, "displayName": body["displayName"], "createTime": _now()}
        if self.blobs:
            made["blobStoragePathPrefix"] = self.blobs
        operation = f"{name}/operations/{next(self.numbers)}"
        self.tensorboards[name] = made
        kind = "type.googleapis.com/google.cloud.aiplatform.v1.Tensorboard"
        self.operations[operation] = {
            "name": operation,
            "done": True,
            "response": {"@type": kind, **made},
        }
        return {"name": operation}

    def get_operation(self, names: Any, query: dict[str, str], _: Document) -> Document:
        return self._held(self.operations, names[0])

    def create_experiment(self, names: Any, query: dict[str, str], body: Document) -> Document:
        self._held(self.tensorboards, names[0])
        _only(body, "displayName", "description", "labels", "source")
        _only(query, "tensorboardExperimentId")
        name = f"{names[0]}/experiments/{_id(query, 'tensorboardExperimentId')}"
        if name in self.experiments:
            raise Refused(409, f"{name} already exists.")
        self.experiments[name] = {"name": name, "createTime": _now(), **body}
        return self.experiments[name]

    def list_runs(self, names: Any, query: dict[str, str], _: Document) -> Document:
        self._held(self.experiments, names[0])
        found = [one for name, one in self.runs.items() if name.startswith(f"{names[0]}/runs/")]
        return _page("tensorboardRuns", found, query)

    def create_runs(self, names: Any, query: dict[str, str], body: Document) -> Document:
        self._held(self.experiments, names[0])
        _only(body, "requests")
        made: dict[str, Document] = {}
        shown = {
            one["displayName"]
            for name, one in self.runs.items()
            if name.startswith(f"{names[0]}/runs/")
        }
        for one in _requests(body):
            _only(one, "parent", "tensorboardRun", "tensorboardRunId")
            if one["parent"] != names[0]:
                raise Refused(400, "the parent is another experiment.")
            run = one["tensorboardRun"]
            _only(run, "displayName", "description", "labels")
            name = f"{names[0]}/runs/{_id(one, 'tensorboardRunId')}"
            if name in self.runs or name in made or _text(run, "displayName") in shown:
                raise Refused(409, f"{name} already exists.")
            shown.add(run["displayName"])
            made[name] = {"name": name, "createTime": _now(), **run}
        self.runs |= made
        return {"tensorboardRuns": list(made.values())}

    def change_run(self, names: Any, query: dict[str, str], body: Document) -> Document:
        run = self._held(self.runs, names[0])
        _only(query, "updateMask")
        if query.get("updateMask") != "displayName":
            raise Refused(400, "update_mask: unknown field.")
        experiment = names[0].partition("/runs/")[0]
        for name, one in self.runs.items():
            is_other = name != names[0] and name.startswith(experiment)
            if is_other and one["displayName"] == body["displayName"]:
                raise Refused(409, "another run has this display name.")
        run["displayName"] = _text(body, "displayName")
        return run

    def list_series(self, names: Any, query: dict[str, str], _: Document) -> Document:
        self._held(self.runs, names[0])
        found = [
            {"name": name, **one.document}
            for name, one in self.series.items()
            if name.startswith(f"{names[0]}/timeSeries/")
        ]
        return _page("tensorboardTimeSeries", found, query)

    def create_series(self, names: Any, query: dict[str, str], body: Document) -> Document:
        self._held(self.experiments, names[0])
        _only(body, "requests")
        made = []
        for one in _requests(body):
            _only(one, "parent", "tensorboardTimeSeries")
            run, series = one["parent"], one["tensorboardTimeSeries"]
            self._held(self.runs, run)
            _only(series, "displayName", "description", "valueType", "pluginName", "pluginData")
            if series.get("valueType") not in _VALUE_TYPES:
                raise Refused(400, f"value_type: {series.get('valueType')!r} is unknown.")
            _base64(series.get("pluginData", ""))
            _text(series, "displayName")
            for other in [*self.series.values(), *made]:
                is_same = other.document["displayName"] == series["displayName"]
                if is_same and other.name.startswith(f"{run}/timeSeries/"):
                    raise Refused(409, f"{series['displayName']!r} already exists.")
            made.append(TimeSeries(f"{run}/timeSeries/{next(self.numbers)}", dict(series)))
        self.series |= {one.name: one for one in made}
        return {"tensorboardTimeSeries": [{"name": one.name, **one.document} for one in made]}

    def read_series(self, names: Any, query: dict[str, str], _: Document) -> Document:
        _only(query, "maxDataPoints", "filter")
        held: TimeSeries = self._held(self.series, names[0])
        if query.get("maxDataPoints") != "-1":
            raise Refused(400, "the tests read all points.")
        values = [dict(one) for one in held.points]
        for one in values:
            if one.get("step") == "0":  # proto3 omits default values
                del one["step"]
        data = {
            "tensorboardTimeSeriesId": names[0].rpartition("/")[2],
            "valueType": held.document["valueType"],
            "values": values,
        }
        return {"timeSeriesData": data}

    def write(self, names: Any, query: dict[str, str], body: Document) -> Document:
        """Validate the complete request, then store its points."""
        for series, point in self.checked_points(names[0], body):
            series.points.append(point)
        self.writes += 1
        self.on_write(self.writes)
        return {}

    def checked_points(self, experiment: str, body: Document) -> list[tuple[TimeSeries, Document]]:
        self._held(self.experiments, experiment)
        _only(body, "writeRunDataRequests")
        found = []
        for request in body["writeRunDataRequests"]:
            _only(request, "tensorboardRun", "timeSeriesData")
            run = request["tensorboardRun"]
            self._held(self.runs, run)
            if not run.startswith(f"{experiment}/runs/"):
                raise Refused(400, "the run is of another experiment.")
            for data in request["timeSeriesData"]:
                _only(data, "tensorboardTimeSeriesId", "valueType", "values")
                name = f"{run}/timeSeries/{data['tensorboardTimeSeriesId']}"
                series: TimeSeries = self._held(self.series, name)
                if data["valueType"] != series.document["valueType"] or not data["values"]:
                    raise Refused(400, "value_type, or no values.")
                for point in data["values"]:
                    _check_point(point, _VALUE_TYPES[data["valueType"]])
                    found.append((series, point))
        return found

    def create_job(self, names: Any, query: dict[str, str], body: Document) -> Document:
        _only(body, "displayName", "labels", "jobSpec")
        _text(body, "displayName")
        for key, value in body.get("labels", {}).items():
            if not re.fullmatch(r"[a-z0-9_-]{1,63}", key) or not re.fullmatch(
                r"[a-z0-9_-]{0,63}", value
            ):
                raise Refused(400, f"labels: {key}={value} is not allowed.")
        spec = body["jobSpec"]
        _only(
            spec,
            *("workerPoolSpecs", "scheduling", "serviceAccount", "baseOutputDirectory"),
            "tensorboard",
        )
        for pool in spec["workerPoolSpecs"]:
            _only(pool, "machineSpec", "replicaCount", "containerSpec")
            _only(pool["machineSpec"], "machineType", "acceleratorType", "acceleratorCount")
            _only(pool["containerSpec"], "imageUri", "command", "args", "env")
            if not re.fullmatch(r"[1-9]\d*", str(pool["replicaCount"])):
                raise Refused(400, "replica_count")
        output = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "")
        if output and not _BUCKET.fullmatch(output):
            raise Refused(400, f"output_uri_prefix: {output!r}")
        if spec.get("tensorboard"):
            self._held(self.tensorboards, spec["tensorboard"])
            if not spec.get("serviceAccount") or not output:
                raise Refused(400, "tensorboard needs service_account and base_output_directory.")
        timeout = spec.get("scheduling", {}).get("timeout", "1s")
        if not re.fullmatch(r"\d+(\.\d+)?s", timeout):
            raise Refused(400, f"timeout: {timeout!r}")
        name = f"{names[0]}/customJobs/{next(self.numbers)}"
        self.jobs[name] = {
            "name": name,
            "createTime": _now(),
            "state": "JOB_STATE_PENDING",
            **body,
        }
        return self.jobs[name]

    def list_jobs(self, names: Any, query: dict[str, str], _: Document) -> Document:
        _only(query, "filter", "readMask", "pageSize", "pageToken")
        wanted = []
        for part in query.get("filter", "").split(" OR "):
            found = re.fullmatch(r'labels\.([a-z-]+)="([a-z0-9-]*)"', part)
            if found is None:
                raise Refused(400, f"filter: {part!r}")
            wanted.append(found.groups())
        found_jobs = [
            one
            for one in self.jobs.values()
            if any(one.get("labels", {}).get(key) == value for key, value in wanted)
        ]
        fields = query.get("readMask", "").split(",")
        masked = [{key: one[key] for key in fields if key in one} for one in found_jobs]
        return _page("customJobs", masked, query)

    def cancel_job(self, names: Any, query: dict[str, str], body: Document) -> Document:
        job = self._held(self.jobs, names[0])
        if job["state"] in {"JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_QUEUED"}:
            job["state"] = "JOB_STATE_CANCELLED"
        return {}

    def _held(self, place: dict[str, Any], name: str) -> Any:
        if name not in place:
            raise Refused(404, f"{name} is not found.")
        return place[name]


_TB = r"projects/[^/]+/locations/[^/]+/tensorboards/\d+"
_EXPERIMENT = rf"{_TB}/experiments/[a-z0-9-]+"
_RUN = rf"{_EXPERIMENT}/runs/[a-z0-9-]+"
_LOCATION = r"projects/[^/]+/locations/[^/]+"
_ROUTES: list[tuple[str, str, Any]] = [
    (rf"({_LOCATION})/tensorboards", "GET", FakeVertex.list_tensorboards),
    (rf"({_LOCATION})/tensorboards", "POST", FakeVertex.create_tensorboard),
    (rf"({_TB}/operations/\d+)", "GET", FakeVertex.get_operation),
    (rf"({_TB})/experiments", "POST", FakeVertex.create_experiment),
    (rf"({_EXPERIMENT})/runs", "GET", FakeVertex.list_runs),
    (rf"({_EXPERIMENT})/runs:batchCreate", "POST", FakeVertex.create_runs),
    (rf"({_RUN})", "PATCH", FakeVertex.change_run),
    (rf"({_RUN})/timeSeries", "GET", FakeVertex.list_series),
    (rf"({_EXPERIMENT}):batchCreate", "POST", FakeVertex.create_series),
    (rf"({_RUN}/timeSeries/\d+):read", "GET", FakeVertex.read_series),
    (rf"({_EXPERIMENT}):write", "POST", FakeVertex.write),
    (rf"({_LOCATION})/customJobs", "POST", FakeVertex.create_job),
    (rf"({_LOCATION})/customJobs", "GET", FakeVertex.list_jobs),
    (rf"({_LOCATION}/customJobs/\d+):cancel", "POST", FakeVertex.cancel_job),
]


class _Requests(BaseHTTPRequestHandler):
    server: FakeVertex
    wbufsize = 1 << 16  # head and body in one packet
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def _serve(self, method: str) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        if parts.path == "/token":
            self._login(dict(parse_qsl(content.decode())))
            return
        path = unquote(parts.path).removeprefix("/v1/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        body = json.loads(content) if content else {}
        status = 200
        fault = self._fault(path)
        try:
            self._admit(content, fault)
            if fault is not None and (fault.status or fault.drops):
                self._fail(fault, method, path, query, body)
            if fault is not None and fault.drops:
                self.close_connection = True
                return
            answer = self.server.answer(method, path, query, body)
        except Refused as error:
            status = error.status
            answer = {"error": {"code": status, "message": str(error), "status": _STATUS[status]}}
        except (KeyError, TypeError) as error:
            status = 400
            answer = {"error": {"code": 400, "message": f"{error!r}", "status": _STATUS[400]}}
        with self.server.lock:
            self.server.recorded.append(Recorded(method, path, query, body, status, answer))
        after = fault.retry_after if fault is not None else ""
        self._send(status, answer, {"Retry-After": after} if after else {})

    def _admit(self, content: bytes, fault: Fault | None) -> None:
        if fault is not None:
            time.sleep(fault.delay)
        if self.headers.get("Authorization", "").partition(" ")[2] not in self.server.tokens:
            raise Refused(401, "Request had invalid authentication credentials.")
        if len(content) > _MOST_BYTES:
            raise Refused(400, "the request is too large.")

    def _fail(
        self, fault: Fault, method: str, path: str, query: dict[str, str], body: Document
    ) -> None:
        """Perform a part of the request, then fail."""
        if path.endswith(":write") and fault.keeps:
            with self.server.lock:
                points = self.server.checked_points(path.removesuffix(":write"), body)
                for series, point in points[: round(len(points) * fault.keeps)]:
                    series.points.append(point)
        elif fault.keeps:
            self.server.answer(method, path, query, body)
        if fault.status:
            raise Refused(fault.status, fault.message)

    def _fault(self, path: str) -> Fault | None:
        with self.server.lock:
            for fault in self.server.faults:
                if path.endswith(fault.path) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def _login(self, form: dict[str, str]) -> None:
        parts = form.get("assertion", "").split(".")
        if len(parts) != 3 or "jwt-bearer" not in form.get("grant_type", ""):
            self._send(400, {"error": "invalid_request"})
            return
        if self.server.is_revoked:
            description = "Token has been expired or revoked."
            self._send(400, {"error": "invalid_grant", "error_description": description})
            return
        with self.server.lock:
            self.server.logins += 1
            token = f"ya29.{self.server.logins}"
            self.server.tokens.add(token)
        self._send(200, {"access_token": token, "expires_in": 3600, "token_type": "Bearer"})

    def _send(self, status: int, document: Document, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def _private_key() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _check_point(point: Document, kind: str) -> None:
    _only(point, "step", "wallTime", kind)
    if not isinstance(point["step"], str) or not -(1 << 63) <= int(point["step"]) < 1 << 63:
        raise Refused(400, f"step: {point['step']!r} is not an int64 in a string.")
    if not _TIME.fullmatch(point["wallTime"]):
        raise Refused(400, f"wall_time: {point['wallTime']!r}")
    value = point[kind]
    if kind == "scalar":
        _only(value, "value")
        number = value["value"]
        if isinstance(number, bool) or (
            not isinstance(number, int | float) and number not in {"NaN", "Infinity", "-Infinity"}
        ):
            raise Refused(400, f"scalar: {number!r}")
    elif kind == "tensor":
        _only(value, "value", "versionNumber")
        _base64(value["value"])
    else:
        for one in value["values"]:
            _only(one, "id")


def _value_of(point: Document) -> Any:
    if "scalar" in point:
        return float(point["scalar"]["value"])
    if "tensor" in point:
        return base64.b64decode(point["tensor"]["value"])
    return [one["id"] for one in point["blobs"]["values"]]


def _only(document: Document, *names: str) -> None:
    if not isinstance(document, dict):
        raise Refused(400, f"{document!r} is not a message.")
    for name in document:
        if name not in names:
            raise Refused(400, f"Invalid JSON payload received. Unknown name {name!r}.")


def _text(document: Document, name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 1024:
        raise Refused(400, f"{name}: {value!r}")
    return value


def _id(document: Document, name: str) -> str:
    value: str = document.get(name, "")
    if not _ID.fullmatch(value):
        raise Refused(400, f"{name}: {value!r} is not [a-z0-9-]{{1,128}}.")
    return value


def _requests(body: Document) -> list[Document]:
    requests: list[Document] = body["requests"]
    if not 0 < len(requests) <= _MOST_CREATED:
        raise Refused(400, f"{len(requests)} requests.")
    return requests


def _base64(text: str) -> None:
    base64.b64decode(text, validate=True)


def _page(key: str, found: list[Document], query: dict[str, str]) -> Document:
    start = int(query.get("pageToken") or 0)
    size = min(int(query.get("pageSize") or 100), 100)  # short, so that paging is tested
    page: Document = {key: found[start : start + size]}
    if start + size < len(found):
        page["nextPageToken"] = str(start + size)
    return page


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
