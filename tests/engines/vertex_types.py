"""Parse requests and responses of Vertex with the types of Google's client.

    python vertex_types.py < RECORDED.json

It runs in the environment `vertex` of tools/environments.py and builds each request as the client's
REST transport would. It prints a line for each request or response that the client could not have
sent or parsed, and then exits with 1.
"""

import json
import re
import sys

from google.api_core import path_template
from google.cloud.aiplatform_v1 import types
from google.cloud.aiplatform_v1.services.job_service.transports.rest_base import (
    _BaseJobServiceRestTransport as Jobs,
)
from google.cloud.aiplatform_v1.services.tensorboard_service.transports.rest_base import (
    _BaseTensorboardServiceRestTransport as Boards,
)
from google.longrunning import operations_pb2
from google.protobuf import json_format

OPERATION = operations_pb2.Operation
# The method of the client and the type of its response, by the verb and path of a request.
CALLS = [
    ("GET", r".*/locations/[^/]+/tensorboards", Boards, "ListTensorboards"),
    ("POST", r".*/locations/[^/]+/tensorboards", Boards, "CreateTensorboard"),
    ("POST", r".*/tensorboards/[^/]+/experiments", Boards, "CreateTensorboardExperiment"),
    ("GET", r".*/experiments/[^/]+/runs", Boards, "ListTensorboardRuns"),
    ("POST", r".*/experiments/[^/]+/runs:batchCreate", Boards, "BatchCreateTensorboardRuns"),
    ("PATCH", r".*/runs/[^/]+", Boards, "UpdateTensorboardRun"),
    ("GET", r".*/runs/[^/]+/timeSeries", Boards, "ListTensorboardTimeSeries"),
    ("POST", r".*/experiments/[^/:]+:batchCreate", Boards, "BatchCreateTensorboardTimeSeries"),
    ("GET", r".*/timeSeries/[^/:]+:read", Boards, "ReadTensorboardTimeSeriesData"),
    ("POST", r".*/experiments/[^/:]+:write", Boards, "WriteTensorboardExperimentData"),
    ("POST", r".*/customJobs", Jobs, "CreateCustomJob"),
    ("GET", r".*/customJobs", Jobs, "ListCustomJobs"),
    ("POST", r".*/customJobs/[^/:]+:cancel", Jobs, "CancelCustomJob"),
]
ANSWERS = {
    "CreateTensorboard": None,
    "CreateTensorboardExperiment": types.TensorboardExperiment,
    "UpdateTensorboardRun": types.TensorboardRun,
    "CreateCustomJob": types.CustomJob,
    "CancelCustomJob": None,
}


def main() -> int:
    problems = []
    seen = set()
    for one in json.load(sys.stdin):
        if "/operations/" in one["path"] or one["status"] >= 400:
            continue
        try:
            seen.add(check(one))
        except Exception as error:  # noqa: BLE001 - each is reported
            problems.append(f"{one['method']} {one['path']}: {error!r}"[:2000])
    print("\n".join(problems))
    print(json.dumps(sorted(seen)))
    return 1 if problems else 0


def check(one: dict) -> str:
    """Check one request and its response; return the name of the call."""
    method, path = one["method"], one["path"]
    (service, name), *_ = [
        call for verb, pattern, *call in CALLS if verb == method and re.fullmatch(pattern, path)
    ]
    base = getattr(service, f"_Base{name}")
    (option,) = base._get_http_options()[:1]
    pattern = re.sub(r"\{([\w.]+)=([^}]+)\}", lambda _: "(.*)", option["uri"])
    fields = re.findall(r"\{([\w.]+)=", option["uri"])
    found = re.fullmatch(pattern, f"/v1/{one['path']}")
    if found is None:
        raise ValueError(f"the client's path is {option['uri']}")
    document: dict = {}
    for field, value in zip(fields, found.groups(), strict=True):
        _put(document, field, value)
    body = option.get("body")
    if body == "*":
        document |= one["body"]
    elif body:
        document[_camel(body)] = {**document.get(_camel(body), {}), **one["body"]}
    elif one["body"]:
        raise ValueError("this call has no body")
    for key, value in one["query"].items():
        document[key] = int(value) if key in {"pageSize", "maxDataPoints"} else value
    request = getattr(types, f"{name}Request")()
    json_format.ParseDict(document, type(request).pb(request))  # raises for unknown fields
    # Again through the client's transport, as it would send it.
    message = type(request).pb(request)
    transcoded = path_template.transcode(base._get_http_options(), message=message)
    if f"/v1/{one['path']}" != transcoded["uri"]:
        raise ValueError(f"the client would send it to {transcoded['uri']}")
    if name == "CreateTensorboard":
        json_format.ParseDict(one["answer"], OPERATION())
    elif name in ANSWERS:
        kind = ANSWERS[name]
        if kind is not None:
            json_format.ParseDict(one["answer"], kind.pb(kind()))
    else:
        kind = getattr(types, f"{name}Response")
        json_format.ParseDict(one["answer"], kind.pb(kind()))
    return name


def _put(document: dict, field: str, value: str) -> None:
    *above, last = field.split(".")
    for part in above:
        document = document.setdefault(_camel(part), {})
    document[_camel(last)] = value


def _camel(text: str) -> str:
    first, *others = text.split("_")
    return first + "".join(other.title() for other in others)


if __name__ == "__main__":
    sys.exit(main())
