"""Boards with groups of runs, instant and isolated, and invalid groups."""

import pytest

from aboard.sdk.client import Client
from tests.hub.hubs import create, log_run, points
from tests.waiting import until


@pytest.fixture
def seeds(root):
    for number, (lr, loss) in enumerate([(0.1, 4.0), (0.1, 6.0), (0.5, 1.0)]):
        log_run(root, f"seeds/run{number}", [loss], hparams={"lr": lr})
    return root


@pytest.mark.parametrize("on", ["instant", "process"])
def test_a_board_serves_its_groups(hub, seeds, on):
    with hub.client("max") as client:
        board = create(client, "seeds", group_by=["hparams.lr"], band="minmax", on=on)
        assert (board["group_by"], board["band"], board["show"]) == (
            ["hparams.lr"],
            "minmax",
            "groups",
        )
        try:
            until(lambda: client.get(f"/api/v1/boards/{board['id']}").json()["runs"] == 3)
            expected = {
                "lr=0.1 mean": [(0, 5.0)],
                "lr=0.1 max": [(0, 6.0)],
                "lr=0.1 min": [(0, 4.0)],
                "lr=0.5 mean": [(0, 1.0)],
            }
            until(lambda: points(client, board["id"]) == expected)
            log_run(seeds, "seeds/run7", [9.0], hparams={"lr": 0.5})
            until(lambda: points(client, board["id"])["lr=0.5 mean"] == [(0, 5.0)])
        finally:  # a process would outlive its hub
            client.post(f"/api/v1/boards/{board['id']}/stop", json={"now": True})
            state = lambda: client.get(f"/api/v1/boards/{board['id']}").json()["state"]  # noqa: E731
            until(lambda: state() == "stopped")


def test_other_groups_are_another_board(hub, seeds):
    client = Client(hub.url, hub.tokens["max"])
    plain = client.create("seeds")
    grouped = client.create("seeds", group_by=["hparams.lr"])
    assert plain.id != grouped.id
    assert client.create("seeds", group_by=["hparams.lr"]).id == grouped.id
    assert client.create("seeds", group_by=["hparams.lr"], show="both").id != grouped.id
    assert client.create("seeds", group_by="hparams.lr, state", sort="name,-run").group_by == (
        "hparams.lr",
        "state",
    )
    assert (grouped.group_by, grouped.band, grouped.show) == (("hparams.lr",), "std", "groups")


@pytest.mark.parametrize(
    ("wish", "code", "text"),
    [
        ({"group_by": ["metrics.loss"]}, "bad_question", "cannot be grouped by 'metrics.loss'"),
        ({"group_by": ["hparms.lr"]}, "bad_question", "Did you mean 'hparams'"),
        ({"group_by": ["hparams.lr"], "engine": "stock"}, "bad_value", "cannot group runs"),
        ({"group_by": ["hparams.lr"], "band": "wide"}, "invalid", "band"),
    ],
)
def test_what_is_refused(hub, seeds, wish, code, text):
    with hub.client("max") as client:
        answer = client.post("/api/v1/boards", json={"selectors": ["seeds"], **wish})
        status = 400 if code == "bad_question" else 422
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert text in str(answer.json()["error"])
