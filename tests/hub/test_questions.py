"""Queries over HTTP: the listed runs, and boards that always show the current result."""

import pytest

from aboard.runs.manifest import State
from aboard.sdk.client import Client
from tests.hub.hubs import create, log_run, points, served
from tests.waiting import until

BEST = {"sort": ["-metrics.loss.max"], "limit": 2}


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "logs"
    log_run(root, "a/run1", [1.0, 0.5], hparams={"lr": 0.1}, tags={"baseline": True})
    log_run(root, "a/run2", [3.0, 0.1], hparams={"lr": 0.01}, state=State.COMPLETED)
    log_run(root, "a/run3", [2.0], hparams={"lr": 0.1}, state=State.FAILED)
    log_run(root, "b/run1", [float("nan")])
    return root


@pytest.fixture
def client(hub):
    with hub.client("max") as client:
        yield client


def get(client, **query):
    answer = client.get("/api/v1/runs", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def labels(client, **query):
    """List runs once the event files are read that the question needs."""
    document = until(lambda: (found := get(client, **query))["unread"] == 0 and found)
    return [f"{run['experiment']}/{run['name']}" for run in document["runs"]]


def names(client, board):
    return set(points(client, board["id"]))


# Lists.


def test_runs_are_narrowed_sorted_and_counted(client):
    until(lambda: get(client)["total"] == 4)
    assert labels(client, where="hparams.lr == 0.1") == ["a/run1", "a/run3"]
    assert labels(client, where="metrics.loss.max > 1", sort="metrics.loss") == ["a/run2", "a/run3"]
    assert labels(client, sort=["-metrics.loss.max", "run"]) == [
        "a/run2", "a/run3", "a/run1", "b/run1",
    ]  # fmt: skip
    assert labels(client, sort="-metrics.loss.max,run") == ["a/run2", "a/run3", "a/run1", "b/run1"]
    assert labels(client, selector="b", where="metrics.loss.nans == 1") == ["b/run1"]
    counted = get(client, where='state in ("completed", "failed")', count=True)
    assert counted == {"runs": [], "total": 2, "unread": 0, "next": None}


def test_pages_continue_in_the_order_of_the_query(client):
    query = {"sort": "-run", "limit": 3}
    first = until(lambda: (found := get(client, **query))["total"] == 4 and found)
    second = get(client, **query, cursor=first["next"])
    found = [run["name"] for page in (first, second) for run in page["runs"]]
    assert found == ["run1", "run3", "run2", "run1"]
    assert (first["total"], second["next"]) == (4, None)


def test_the_next_page_neither_repeats_nor_skips_a_run(client, root):
    query = {"sort": ["-hparams.lr", "run"], "limit": 2}
    first = until(lambda: (found := get(client, **query))["total"] == 4 and found)
    assert [run["name"] for run in first["runs"]] == ["run1", "run3"]
    log_run(root, "a/run0", [1.0], hparams={"lr": 0.5})  # before them
    log_run(root, "b/run0", [1.0], hparams={"lr": 0.05})  # behind them
    until(lambda: get(client, **query)["total"] == 6)
    second = get(client, **query, cursor=first["next"])
    assert [run["uri"].rpartition("/logs/")[2] for run in second["runs"]] == ["b/run0", "a/run2"]
    third = get(client, **query, cursor=second["next"])
    assert [run["uri"].rpartition("/logs/")[2] for run in third["runs"]] == ["b/run1"]
    assert third["next"] is None
    fourth = get(client, **query, cursor="4")  # a place
    assert [run["name"] for run in fourth["runs"]] == ["run2", "run1"]


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "-1",
        "0" * 5000,
        "W10=",
        "W1tbMV1dLDEsMiwzXQ==",
        "W1tdLCIiLCIiLCIiXQ==",
        "W1tudWxsXSwgImEiLCAiYiIsICJjIiwgMV0=",
        "W1tudWxsXSwgImEiLCAiYiIsICJjIiwgMWU5OTld",
    ],
)
def test_an_invalid_cursor_is_refused(client, cursor):
    answer = client.get("/api/v1/runs", params={"sort": "name", "cursor": cursor})
    assert answer.status_code == 422
    assert "invalid cursor" in answer.text


def test_pages_by_duration_have_each_run_once(client, root):
    for number in range(4):
        log_run(root, f"c/run{number}", [1.0], started=1000.0 + number, ended=2000.0)
    query = {"selector": "c", "sort": "-duration", "limit": 3}
    first = until(lambda: (found := get(client, **query))["total"] == 4 and found)
    second = get(client, **query, cursor=first["next"])
    found = [run["name"] for page in (first, second) for run in page["runs"]]
    assert (found, second["next"]) == (["run0", "run1", "run2", "run3"], None)


def test_an_empty_list_tells_which_type_or_tag_is_wrong(client):
    def hint(where):
        labels(client, where=where)  # waits until all are read
        return get(client, where=where).get("hint")

    until(lambda: get(client)["total"] == 4)
    assert hint('hparams.lr == "0.1"') == (
        "hparams.lr is a number in all runs, not a string. Write it without quotes."
    )
    adam = "hparams.lr is a number in all runs, not a string."
    assert hint('hparams.lr == "adam"') == adam
    assert hint('hparams.lr in ("0.1", "true")') == adam
    assert hint('"baselin" in tags') == "No run has a tag 'baselin'. Did you mean 'baseline'?"
    assert hint("hparams.lr == 99") is None


def test_columns_and_groups(client):
    columns = 'run,metrics["loss"].max,metrics.loss.last,created,tags'
    until(lambda: (found := get(client, columns=columns))["total"] == 4 and not found["unread"])
    rows = get(client, columns=columns)["runs"]
    assert rows[0] == {
        "run": "a/run1", 'metrics["loss"].max': 1.0, "metrics.loss.last": 0.5, "created": None,
        "tags": ["baseline"],
    }  # fmt: skip
    assert (rows[3]['metrics["loss"].max'], rows[3]["metrics.loss.last"]) == (None, "NaN")
    groups = get(client, group_by="hparams.lr", columns="metrics.loss.max", limit=2)
    assert groups["groups"] == [
        {"values": {"hparams.lr": 0.01}, "count": 1, "means": {"metrics.loss.max": 3.0}},
        {"values": {"hparams.lr": 0.1}, "count": 2, "means": {"metrics.loss.max": 1.5}},
    ]
    assert (groups["total"], groups["next"]) == (3, "2")
    groups = get(client, group_by="experiment,hparams.lr")["groups"]
    assert groups[0]["values"] == {"experiment": "a", "hparams.lr": 0.01}
    pages = get(client, sort="-experiment,run", limit=2)
    assert get(client, sort="-experiment,run", limit=2, cursor=pages["next"])["total"] == 4


@pytest.mark.parametrize(
    ("query", "message", "picture"),
    [
        ({"where": "stat == 1"}, "unknown field 'stat'.", "stat == 1\n^^^^"),
        ({"where": "run and hparams.lrr > 1"}, "no run has a hyperparameter 'lrr'.",
         "run and hparams.lrr > 1\n        ^^^^^^^^^^^"),
        ({"sort": "-metrics"}, "'metrics' needs a name.", "metrics\n^^^^^^^"),
        ({"group_by": "x"}, "unknown field 'x'.", "x\n^"),
        ({"columns": "run,x"}, "unknown field 'x'.", "x\n^"),
    ],
)  # fmt: skip
def test_an_invalid_query_is_a_bad_request_with_a_caret(client, query, message, picture):
    until(lambda: get(client)["total"] == 4)
    # A run without a record may have a hyperparameter of that name, until it is read.
    answer = until(
        lambda: (found := client.get("/api/v1/runs", params=query)).status_code != 200 and found
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["message"]) == (400, "bad_question", message)
    assert error["picture"] == picture


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("lr < 0.1", "Did you mean hparams.lr?"),
        ("loss.max > 1", "Did you mean metrics.loss.max?"),
        ("nothing_like_it", "For a hyperparameter write hparams.nothing_like_it"),
    ],
)
def test_a_bare_name_is_suggested_with_its_group(client, where, hint):
    until(lambda: get(client)["total"] == 4)
    assert labels(client, where="metrics.loss.max > 0")
    error = client.get("/api/v1/runs", params={"where": where}).json()["error"]
    assert error["hint"].startswith(hint)
    answer = client.post("/api/v1/boards", json={"selectors": ["a"], "where": where})
    assert (answer.status_code, answer.json()["error"]["hint"]) == (400, error["hint"])


def test_the_client_sends_the_same_query(hub):
    client = Client(hub.url, hub.tokens["max"])
    until(lambda: len(client.runs()) == 4)
    assert client.count_runs("a", where="hparams.lr > 0.05") == 2
    best = client.runs("a", sort="-hparams.lr", limit=1, columns=["name"])
    assert best == [{"name": "run1"}]
    (group, *_) = client.group_runs("experiment", sort=["-experiment"], limit=1)
    assert group == {"values": {"experiment": "b"}, "count": 1, "means": {}}
    board = client.create("a", where='state != "failed"', sort="-run", limit=1)
    assert (board.where, board.sort, board.limit) == ('state != "failed"', ("-run",), 1)


# Boards.


def test_a_better_run_replaces_the_worst_one(client, root):
    board = create(client, "a", **BEST)
    assert (board["sort"], board["limit"]) == (["-metrics.loss.max"], 2)
    until(lambda: names(client, board) == {"a/run2", "a/run3"})
    log_run(root, "a/run4", [9.0], hparams={"lr": 1})
    until(lambda: names(client, board) == {"a/run2", "a/run4"})
    log_run(root, "a/run1", [8.0, 8.5])  # another attempt at a run that is there
    until(lambda: names(client, board) == {"a/run1", "a/run4"})
    described = client.get(f"/api/v1/boards/{board['id']}").json()
    assert described["runs"] == 2
    assert sorted(described["sources"]) == [f"{root}/a/run1", f"{root}/a/run4"]


def test_a_run_leaves_when_its_record_changes(client, root):
    board = create(client, "a", where='state != "failed"')
    until(lambda: names(client, board) == {"a/run1", "a/run2"})
    log_run(root, "a/run2", [3.0], state=State.FAILED)
    until(lambda: names(client, board) == {"a/run1"})


def test_the_same_query_is_the_same_board(client):
    board = create(client, "a", **BEST)
    assert create(client, "a", **BEST)["id"] == board["id"]
    assert create(client, "a")["id"] != board["id"]
    assert create(client, "a", **BEST | {"limit": 1})["id"] != board["id"]


def test_a_metric_that_no_run_has_yet_may_come(client, root):
    board = create(client, "a", where="metrics.accuracy.max > 0.5")
    until(lambda: names(client, board) == set())
    log_run(root, "a/run9", [0.9], tag="accuracy", hparams={"lr": 1})
    until(lambda: set(points(client, board["id"], "accuracy")) == {"a/run9"})


def test_an_invalid_query_creates_no_board(client):
    answer = client.post("/api/v1/boards", json={"selectors": ["a"], "where": "stat == 1"})
    assert (answer.status_code, answer.json()["error"]["picture"]) == (400, "stat == 1\n^^^^")
    assert client.get("/api/v1/boards").json()["boards"] == []


def test_a_query_can_be_limited_to_a_path(client, root):
    board = create(client, root / "a", where="hparams.lr == 0.01")
    until(lambda: names(client, board) == {"a/run2"})


def test_a_personal_hub_finds_the_runs_below_a_path(tmp_path, root):
    other = tmp_path / "elsewhere"
    log_run(other, "c/run1", [1.0])
    log_run(other, "c/run2", [2.0])
    with served(tmp_path, [root], personal=True) as hub, hub.client("max") as client:
        board = create(client, other, where="metrics.loss.max > 1")
        until(lambda: names(client, board) == {"c/run2"})
        assert str(other) in [one["uri"] for one in client.get("/api/v1/roots").json()["roots"]]


def test_an_isolated_board_with_a_query(client, root):
    board = create(client, "a", on="process", **BEST)

    def shown():
        described = client.get(f"/api/v1/boards/{board['id']}").json()
        return names(client, board) if described["runs"] else set()

    try:
        until(lambda: shown() == {"a/run2", "a/run3"})
        log_run(root, "a/run4", [9.0], hparams={"lr": 1})
        until(lambda: shown() == {"a/run2", "a/run4"})
    finally:
        client.post(f"/api/v1/boards/{board['id']}/stop", json={"now": True})
        until(lambda: client.get(f"/api/v1/boards/{board['id']}").json()["state"] == "stopped")
