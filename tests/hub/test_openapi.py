"""The OpenAPI document is complete; `test_openapi_fuzz` sends requests generated from it."""

import pytest

from aboard.hub.app import make_api
from aboard.hub.permissions import RULES, Open
from tests.hub.hubs import log_run, served

DOCUMENT = make_api().openapi()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    place = tmp_path_factory.mktemp("openapi")
    log_run(place / "logs", "cifar10/run1", [1.0])
    with served(place, [place / "logs"]) as found:
        yield found


def test_the_document_is_served_and_names_the_secret_of_each_route(hub):
    with hub.client("vera") as client:
        assert client.get("/openapi.json").json() == DOCUMENT
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            is_open = RULES[method.upper(), path] is Open.PUBLIC
            assert bool(operation["security"]) is not is_open
            assert operation["summary"]
            assert operation["description"]
            for status in ("401", "403", "404", "422", "503"):
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorDocument"}
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"token", "session"}
