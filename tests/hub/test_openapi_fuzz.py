"""Requests that a fuzzer generates from the OpenAPI document."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from aboard.hub.app import make_api
from aboard.runs.catalog import run_id
from tests.hub.hubs import create, log_run, served

pytestmark = pytest.mark.slow
pytest_plugins = ["schemathesis.pytest.plugin"]
DOCUMENT = make_api().openapi()
# Wrong passwords take their time.
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT).exclude(path="/api/v1/login")
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    place = tmp_path_factory.mktemp("openapi")
    log_run(place / "logs", "cifar10/run1", [1.0], user="anna")
    (place / "logs/cifar10/run1/output.log").write_text("a\nb\n")
    with served(place, [place / "logs"]) as found:
        yield found


@SCHEMA.parametrize()
@settings(
    max_examples=5,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_nothing_that_fits_the_document_breaks_the_hub(case, hub):
    if "ref" in (case.path_parameters or {}):
        with hub.client("max") as client:
            case.path_parameters["ref"] = create(client, "cifar10")["id"]
    if "run" in (case.path_parameters or {}):
        case.path_parameters["run"] = run_id(str(hub.hub.library.uris[0]), "cifar10/run1")
    headers = {"Authorization": f"Bearer {hub.tokens['anna']}"}
    if case.query and "follow" in case.query:
        del case.query["follow"]
    if case.path == "/api/v1/events":
        case.query = {**(case.query or {}), "seconds": 0}
    response = case.call(base_url=hub.url, headers=headers, timeout=180)
    case.validate_response(response, checks=CHECKS)
