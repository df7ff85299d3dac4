"""Curves over HTTP: selection of runs and metrics, axes, smoothing and limits."""

import asyncio
import json
import math
import struct
import threading
from typing import ClassVar

import numpy as np
import pytest

from aboard import EventWriter
from aboard.hub.api import runs as module
from aboard.hub.api.runs import RootDocument
from aboard.index.curves import smooth
from aboard.index.library import Root
from aboard.sdk.client import Client
from tests.hub.hubs import log_run, served
from tests.waiting import until


def ask(client, *selectors, tags=("loss",), **more):
    body = {"selectors": list(map(str, selectors)), "tags": list(tags), **more}

    def answer():
        found = client.post("/api/v1/series", json=body)
        if found.headers["content-type"] != "application/json":
            return found
        return found if not found.json().get("unread") else None

    return until(answer)


def curves(client, *selectors, **more):
    answer = ask(client, *selectors, **more)
    assert answer.status_code == 200, answer.text
    return {
        (one["run"], one["tag"]): list(zip(one["x"], one["y"], strict=True))
        for one in answer.json()["series"]
    }


def log(directory, tag, values, step=1):
    with EventWriter(directory) as writer:
        for place, value in enumerate(values):
            writer.scalar(tag, value, place * step, wall_time=1000.0 + 2 * place)


def test_many_runs_and_metrics_in_one_request(hub, root):
    log(root / "cifar10/run1/eval", "acc", [0.5, 0.75])
    log(root / "cifar10/run1", "lr", [0.1])
    with hub.client("vera") as client:
        found = curves(client, "cifar10", "mnist", tags=["eval/acc", "loss", "lr", "none"])
        assert found == {
            ("cifar10/run1", "eval/acc"): [(0, 0.5), (1, 0.75)],
            ("cifar10/run1", "loss"): [(0, 1.0), (1, 0.5)],
            ("cifar10/run1", "lr"): [(0, pytest.approx(0.1))],
            ("cifar10/run2", "loss"): [(0, 2.0), (1, 1.5)],
            ("mnist/run1", "loss"): [(0, 3.0)],
        }
        log(root / "cifar10/run1", "eval/acc", [9.0])  # of the run's own directory
        until(lambda: curves(client, "cifar10", tags=["eval/acc"]).popitem()[1] == [(0, 9.0)])


def test_new_points_and_runs_are_served(hub, root):
    with hub.client("max") as client:
        assert len(curves(client, "cifar10")) == 2
        log_run(root, "cifar10/run3", [7.0])
        until(lambda: curves(client, "cifar10").get(("cifar10/run3", "loss")) == [(0, 7.0)])


def test_runs_of_a_path_that_was_not_requested_before(hub, root):
    with hub.client("max") as client:
        assert len(curves(client, root / "cifar10")) == 2
        (root / "empty").mkdir()
        answer = ask(client, root / "empty")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "nothing_matches")


def test_axes_and_ranges(hub, root):
    log(root / "one/run1", "loss", [5.0, 4.0, 3.0, 2.0], step=10)
    log(root / "one/run1", "samples", [0.0, 64.0, 128.0], step=10)
    with hub.client("max") as client:

        def xs(**more):
            ((_, points),) = curves(client, "one", **more).items()
            return [x for x, _ in points]

        assert xs() == [0, 10, 20, 30]
        assert xs(start=10, stop=25) == [10, 20]
        assert xs(x="wall_time") == [1000, 1002, 1004, 1006]
        assert xs(x="relative_time", start=2) == [2, 4, 6]
        assert xs(x="metric", metric="samples") == [0, 64, 128]
        assert curves(client, "one", x="metric", metric="missing") == {}


def test_smoothing_is_over_all_points_and_before_sampling(hub, root):
    values = np.random.default_rng(3).normal(size=5000).astype(np.float32)
    log(root / "one/run1", "loss", values.tolist())
    with hub.client("max") as client:
        ((_, points),) = curves(client, "one", smoothing=0.9, samples=100).items()
        expected = smooth(values.astype(np.float64), 0.9)
        assert len(points) == 100
        assert points == [(step, pytest.approx(expected[int(step)])) for step, _ in points]
        ((_, points),) = curves(client, "one", window=3, start=1, stop=2).items()
        assert points == [(at, pytest.approx(values[at - 1 : at + 2].mean())) for at in (1, 2)]


def test_numbers_that_are_not_finite_are_strings(hub, root):
    log(root / "one/run1", "loss", [1.0, math.nan, math.inf, -math.inf])
    with hub.client("max") as client:
        ((_, points),) = curves(client, "one").items()
        assert [y for _, y in points] == [1.0, "NaN", "Infinity", "-Infinity"]


def test_the_binary_format(hub, root):
    log(root / "one/run1", "loss", [1.0, math.nan, 3.0])
    with hub.client("max") as client:
        curves(client, "one")
        content = ask(client, "one", "mnist", format="binary").content
    magic, length = struct.unpack_from("<4sI", content)
    assert (magic, length % 8) == (b"ABS1", 0)
    header = json.loads(content[8 : 8 + length])
    assert [(one["run"], one["count"]) for one in header["series"]] == [
        ("mnist/run1", 1),
        ("one/run1", 3),
    ]
    numbers = np.frombuffer(content, "<f8", offset=8 + length)
    np.testing.assert_array_equal(numbers, [0.0, 3.0, 0.0, 1.0, 2.0, 1.0, math.nan, 3.0])


def test_the_client_has_arrays(hub, root):
    log(root / "one/run1", "loss", [4.0, 2.0])
    log(root / "one/run1", "samples", [10.0, 20.0])
    client = Client(hub.url, hub.tokens["max"])
    found = until(lambda: client.series("one", "loss", x="samples"))
    assert [(one["run"], one["tag"], one["points"]) for one in found] == [("one/run1", "loss", 2)]
    assert (found[0]["x"].tolist(), found[0]["y"].tolist()) == ([10.0, 20.0], [4.0, 2.0])


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"x": "metric"}, 422, "invalid"),
        ({"metric": "loss"}, 422, "invalid"),
        ({"smoothing": 1}, 422, "invalid"),
        ({"window": 0}, 422, "invalid"),
        ({"selectors": []}, 422, "invalid"),
        ({"selectors": ["svhn"]}, 422, "nothing_matches"),
        ({"selectors": ["/etc"]}, 403, "outside_roots"),
        ({"tags": []}, 422, "invalid"),
    ],
)
def test_what_is_wrong(hub, more, status, code):
    with hub.client("max") as client:
        body = {"selectors": ["cifar10"], "tags": ["loss"], **more}
        answer = client.post("/api/v1/series", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_requests_beyond_the_limits_are_refused(hub, monkeypatch):
    with hub.client("max") as client:
        assert len(curves(client, "cifar10")) == 2
        for name, text, more in (
            ("MOST_SERIES", "2 curves requested; at most 1 are allowed", {}),
            ("MOST_POINTS", "4 points requested; at most 1 are allowed", {}),
            ("MOST_READ", "has to read 4 points", {"smoothing": 0.5}),
            ("MOST_OF_ONE", "has 2 points; at most 1 can be smoothed", {"smoothing": 0.5}),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(module, name, 1)
                answer = ask(client, "cifar10", **more)
                assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
                assert text in answer.json()["error"]["message"]


class Slot(asyncio.Semaphore):
    """The only slot to compute in, which counts the requests for it."""

    made: ClassVar = []

    def __init__(self, value):
        super().__init__(value)
        self.asked = 0
        self.made.append(self)

    async def acquire(self):
        self.asked += 1
        return await super().acquire()


def test_clients_take_turns(tmp_path, monkeypatch):
    """A request of one slice is answered before one of very many that came earlier."""
    root = tmp_path / "logs"
    for number in range(40):
        log_run(root, f"many/run{number}", [1.0, 2.0])
    log_run(root, "few/run1", [1.0, 2.0])
    monkeypatch.setattr(module, "_SLICE_SECONDS", 0.0)
    monkeypatch.setattr(module, "_BATCH_SERIES", 1)
    monkeypatch.setattr("aboard.hub.app.COMPUTING", 1)
    monkeypatch.setattr(asyncio, "Semaphore", Slot)
    with served(tmp_path, [root]) as hub, hub.client("max") as max_, hub.client("mia") as mia:
        assert len(curves(max_, "many")) == 40
        assert len(curves(mia, "few")) == 1
        slot = max(Slot.made, key=lambda one: one.asked)
        began, order = threading.Event(), []
        before = slot.asked
        derive = module.Shape.derive

        def noted(shape, series, metric=None):
            order.append(shape.samples)
            began.set()
            if len(order) <= 3:  # the other one waits for the slot: to select, to find, to read
                until(lambda: slot.asked >= before + 2 + 2 * len(order))
            return derive(shape, series, metric)

        monkeypatch.setattr(module.Shape, "derive", noted)
        many = threading.Thread(target=curves, args=[max_, "many"], kwargs={"samples": 40})
        many.start()
        assert began.wait(180)
        assert len(curves(mia, "few", samples=7)) == 1
        many.join()
        assert order.index(7) == 3
        assert len(order) == 41


def test_a_run_named_by_a_time_is_not_part_of_the_run_around_it(hub, root):
    log_run(root, "outer/run1", [1.0], hparams={"lr": 1})
    log(root / "outer/run1/1600000000.5", "f1", [0.5])  # as `add_hparams` does
    log_run(root, "outer/run1/1700000000.5", [2.0], hparams={"lr": 1})
    log(root / "outer/run1/1700000000.5", "score", [7.0])
    with hub.client("vera") as client:
        found = curves(client, "*", tags=["score", "f1"])
        grouped = ask(client, "*", tags=["score"], group_by=["hparams.lr"], counts=True).json()
    names = {(run.rpartition("/")[2], tag): curve for (run, tag), curve in found.items()}
    assert names == {("1700000000.5", "score"): [(0, 7.0)], ("run1", "f1"): [(0, 0.5)]}
    assert [one["y"] for one in grouped["series"] if one["line"] == "count"] == [[1]]


def test_groups_have_a_middle_and_a_band(hub, root):
    for number, (lr, values) in enumerate([(1, [1, 2]), (1, [3, 6]), (2, [5, 5])]):
        log_run(root, f"grouped/run{number}", values, hparams={"lr": lr})
    with hub.client("max") as client:
        answer = ask(client, "grouped", group_by=["hparams.lr"])
        assert answer.status_code == 200, answer.text
        found = {(one["run"], one["line"]): one for one in answer.json()["series"]}
        assert set(found) == {
            *(("lr=1", line) for line in ("middle", "lower", "upper")),
            *(("lr=2", line) for line in ("middle", "lower", "upper")),
        }
        assert found["lr=1", "middle"]["y"] == [2, 4]
        spread = math.sqrt(2)
        assert found["lr=1", "upper"]["y"] == pytest.approx([2 + spread, 4 + 2 * spread])
        assert found["lr=1", "lower"]["y"] == pytest.approx([2 - spread, 4 - 2 * spread])
        assert len(found["lr=1", "middle"]["members"]) == 2
        assert found["lr=1", "middle"]["uri"] == ""
        assert (found["lr=2", "middle"]["y"], found["lr=2", "upper"]["y"]) == ([5, 5], [])
        ends = ask(client, "grouped", group_by=["hparams.lr"], band="minmax").json()["series"]
        assert [one["y"] for one in ends if one["run"] == "lr=1"] == [[2, 4], [1, 2], [3, 6]]
        counts = ask(client, "grouped", group_by=["hparams.lr"], counts=True, smoothing=0.9).json()[
            "series"
        ]
        assert [(one["run"], one["y"]) for one in counts if one["line"] == "count"] == [
            ("lr=1", [2, 2]), ("lr=2", [1, 1]),
        ]  # fmt: skip
        smooth_ones = ask(client, "grouped", group_by=["hparams.lr"], smoothing=0.5, stop=0)
        assert smooth_ones.json()["series"][0]["y"] == [2]
        bad = client.post(
            "/api/v1/series",
            json={"selectors": ["grouped"], "tags": ["loss"], "group_by": ["hparams.nothing"]},
        )
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, "bad_question")


def test_a_query_sorts_and_limits_groups_like_a_list_of_runs(hub, root):
    for number, (lr, loss) in enumerate([(1, 5), (1, 1), (2, 9), (2, 2), (3, 7)]):
        log_run(root, f"grouped/run{number}", [loss], hparams={"lr": lr})
    with hub.client("max") as client:
        ask(client, "grouped")  # waits until all are read
    client = Client(hub.url, token=hub.tokens["max"])

    def of_curves(**query):
        found = client.series("grouped", "loss", group_by="hparams.lr", **query)
        return {one["run"]: len(one["members"]) for one in found if one["line"] == "middle"}

    def of_runs(**query):
        found = client.group_runs("hparams.lr", "grouped", **query)
        return {f"lr={one['values']['hparams.lr']:g}": one["count"] for one in found}

    for query, groups in [
        ({}, {"lr=1": 2, "lr=2": 2, "lr=3": 1}),
        ({"limit": 2}, {"lr=1": 2, "lr=2": 2}),
        ({"sort": "-metrics.loss"}, {"lr=2": 2, "lr=3": 1, "lr=1": 2}),
        ({"sort": "-metrics.loss", "limit": 1}, {"lr=2": 2}),
        ({"where": "metrics.loss < 6", "sort": "metrics.loss"}, {"lr=1": 2, "lr=2": 1}),
    ]:
        assert [*of_curves(**query).items()] == [*of_runs(**query).items()] == [*groups.items()]


def test_groups_in_the_binary_format(hub, root):
    for number in range(3):
        log_run(root, f"grouped/run{number}", [number, number], hparams={"lr": 1})
    with hub.client("max") as client:
        ask(client, "grouped")
    client = Client(hub.url, token=hub.tokens["max"])
    found = client.series("grouped", "loss", group_by="hparams.lr", band="sem")
    assert [(one["line"], one["y"].tolist()[0]) for one in found] == [
        ("middle", 1.0),
        ("lower", pytest.approx(1 - 1 / math.sqrt(3))),
        ("upper", pytest.approx(1 + 1 / math.sqrt(3))),
    ]


def test_a_query_chooses_the_runs(hub, root):
    for number, values in enumerate([[1, 9], [5, 2], [4, 3]]):
        log_run(root, f"asked/run{number}", values, hparams={"lr": number})
    with hub.client("max") as client:
        query = {"where": "hparams.lr < 2", "sort": ["-metrics.loss.max,name"]}
        assert [*curves(client, "asked", **query)] == [
            ("asked/run0", "loss"),
            ("asked/run1", "loss"),
        ]
        wrong = client.post(
            "/api/v1/series", json={"selectors": ["asked"], "tags": ["loss"], "where": "lr <"}
        )
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_question")
    client = Client(hub.url, token=hub.tokens["max"])
    (best,) = client.series("asked", "loss", sort="-metrics.loss.max", limit=1)
    assert best["run"] == "asked/run0"


# The roots of a hub: damage, requests to buckets, and problems with their remedies.


def test_a_root_reports_its_problem_and_what_to_do(tmp_path, root):
    damaged = log_run(root, "damaged/run1", [1.0, 0.5, 0.25])
    [file] = damaged.glob("*tfevents*")
    content = bytearray(file.read_bytes())
    [length] = struct.unpack_from("<Q", content)
    content[12 + length + 4 + 14] ^= 0xFF  # in the second record
    file.write_bytes(content)
    missing = tmp_path / "missing"
    with (
        served(tmp_path, [root, Root(str(missing), "missing")]) as hub,
        hub.client("vera") as client,
    ):

        def roots():
            return client.get("/api/v1/roots").json()["roots"]

        assert set(roots()[0]) == set(RootDocument.model_fields)
        until(lambda: all(one["lag"] is not None for one in roots()))
        runs = client.get("/api/v1/runs?selector=damaged").json()["runs"]
        client.get(f"/api/v1/runs/{runs[0]['id']}/metrics")  # reads it
        good, bad = until(lambda: (found := roots())[0]["damaged_files"] and found)
        assert (good["damaged_files"], good["damaged_bytes"] > 0) == (1, True)
        assert (good["runs"], good["problems"], good["requests"]) == (4, [], [])
        [problem] = bad["problems"]
        assert problem["where"] == str(missing)
        assert "directory" in problem["what"]
        assert bad["problem"].startswith(f"{missing}: {problem['what']}")


def test_requests_to_a_bucket_are_counted(tmp_path, root, s3_bucket):
    bucket = Root(f"{s3_bucket}/logs", "bucket")
    with served(tmp_path, [root, bucket]) as hub, hub.client("vera") as client:

        def requests():
            found = client.get("/api/v1/roots").json()["roots"][1]["requests"]
            return {one["kind"]: one["requests"] for one in found}

        assert until(requests)["list"] >= 1
