"""Errors of invalid requests, as a client receives them."""

import pytest

from tests.hub.hubs import log_run, served


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    place = tmp_path_factory.mktemp("wrong")
    log_run(place / "logs", "cifar10/run1", [1.0])
    with served(place, [place / "logs"]) as found:
        yield found


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"on": "mars"}, "boards cannot run on 'mars' here."),
        ({"cpus": -1}, "cpus cannot be -1.0."),
        ({"timeout": -1}, "timeout should be greater than or equal to 0."),
        ({"timeout": "never"}, "'never' is not a duration."),
        ({"memory": "lots"}, "'lots' is not a size."),
        ({"memory": "2"}, "memory: 2 bytes are too little for a board."),
        ({"colour": "red"}, "unknown field colour."),
        ({"selectors": ["a", 7]}, "selectors.1 should be a valid string."),
        ({"selectors": None}, "selectors should be a valid list."),
    ],
)
def test_an_invalid_field_is_named_and_explained(hub, wish, said):
    with hub.client("max") as client:
        answer = client.post("/api/v1/boards", json={"selectors": ["cifar10"]} | wish)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == said


def test_missing_fields_and_invalid_json_are_reported(hub):
    with hub.client("max") as client:
        missing = client.post("/api/v1/boards", json={})
        headers = {"content-type": "application/json"}
        broken = client.post("/api/v1/boards", content="{", headers=headers)
        nothing = client.post("/api/v1/boards")
    assert missing.json()["error"]["message"] == "selectors is missing."
    assert broken.json()["error"]["message"] == "the request is not JSON."
    assert nothing.json()["error"]["message"] == "the request is missing."
