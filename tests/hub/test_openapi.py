"""The OpenAPI document: complete, and what a fuzzer makes of it."""

import pytest
import schemathesis
from hubs import create, log_run, served
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from aboard.hub.app import make_api
from aboard.hub.rules import RULES, Open

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
    log_run(place / "logs", "cifar10/run1", [1.0])
    with served(place, [place / "logs"]) as found:
        yield found


def test_the_document_is_served_and_says_which_secret_a_route_needs(hub):
    with hub.client("vera") as client:
        assert client.get("/openapi.json").json() == DOCUMENT
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            is_open = RULES[method.upper(), path] is Open.ANYBODY
            assert bool(operation["security"]) is not is_open
            assert operation["summary"]
            assert operation["description"]
            for status in ("401", "403", "404", "422", "503"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorDocument"}
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"token", "session"}


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
    headers = {"Authorization": f"Bearer {hub.tokens['anna']}"}
    if case.query and "follow" in case.query:
        del case.query["follow"]
    response = case.call(base_url=hub.url, headers=headers, timeout=60)
    case.validate_response(response, checks=CHECKS)
