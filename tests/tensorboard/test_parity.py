"""Every route of every plugin answers as TensorBoard's own backend does over the same files."""

import csv
import json
from urllib.parse import parse_qsl

import pytest

from aboard.index import Index
from tests.tensorboard.servers import EVERYTHING, VERSION, Ours, Stock, one_board


class Both:
    """Our server and TensorBoard's, asked the same."""

    def __init__(self, ours, stock):
        self.ours, self.stock = ours, stock

    def same(self, path, **query):
        """Ask both, ours with and without the experiment in the path; return what they say."""
        theirs = self.stock.get(path, **query)
        for prefix in ("experiment/defaultExperimentId/", ""):
            mine = self.ours.through(prefix).get(path, **query)
            assert (mine.status, mine.kind) == (theirs.status, theirs.kind)
            if theirs.kind == "application/json":
                assert mine.json == theirs.json
            else:
                assert mine.body == theirs.body
        return theirs.json if theirs.kind == "application/json" else theirs

    def pair(self, path, **query):
        """Ask both; return both answers, which hold keys of their own."""
        return self.ours.get(path, **query).json, self.stock.get(path, **query).json

    def same_blob(self, path, mine, theirs):
        """Compare what two keys open."""
        ours, stock = self.ours.get(path, **mine), self.stock.get(path, **theirs)
        assert (ours.status, ours.kind, ours.body) == (stock.status, stock.kind, stock.body)
        assert ours.status == 200

    def tags(self, plugin):
        """Yield every run and tag of a plugin, and what is said of it."""
        listed = self.stock.get(f"data/plugin/{plugin}/tags").json
        for run, tags in listed.items():
            for tag in tags:
                yield run, tag, tags[tag] if isinstance(tags, dict) else None


@pytest.fixture(scope="module")
def both(tree, tmp_path_factory):
    with Index(tmp_path_factory.mktemp("index") / "index.db") as index:
        ours = Ours(one_board(index, tree), samples=EVERYTHING)
        yield Both(ours, Stock(str(tree)))
        ours.close()


def without(answer, *keys):
    return {key: value for key, value in answer.items() if key not in keys}


# The core.


def test_the_page_and_its_environment(both):
    mine, theirs = both.pair("data/environment")
    ours_alone = ("window_title", "experiment_name", "debug")
    assert without(mine, *ours_alone) == without(theirs, *ours_alone)
    assert mine["window_title"] == mine["experiment_name"] == "A board"
    assert "debug" not in mine


@pytest.mark.parametrize("path", ["experiments", "experiment_runs", "notifications"])
def test_core(both, path):
    both.same(f"data/{path}")


def test_runs_but_those_that_hold_only_hyperparameters(both):
    mine, theirs = both.pair("data/runs")
    runs = both.ours.boards.get("board").runs()
    only_hparams = [name for name in theirs if runs[name].only_hparams]
    assert mine == [name for name in theirs if name not in only_hparams]
    assert (only_hparams == ["run"]) is ("run/validation" in mine)


def test_the_tabs(both):
    mine, theirs = both.pair("data/plugins_listing")
    # Stock TensorBoard has the projector as a plugin of another package.
    assert without(mine, "projector") == theirs
    assert "projector" in mine


@pytest.mark.parametrize(
    "path", ["data/nothing", "data/plugin/nothing/tags", "data/plugin/scalars/nothing", "nothing"]
)
def test_what_is_not_there_is_not_found(both, path):
    both.same(path)
    assert both.ours.get(path).status == 404


@pytest.mark.parametrize(
    "plugin", ["scalars", "images", "audio", "histograms", "distributions", "pr_curves", "mesh"]
)
def test_tags(both, plugin):
    both.same(f"data/plugin/{plugin}/tags")


# Time series.


def test_time_series_tags(both):
    both.same("data/plugin/timeseries/tags")


def time_series(both, *requests):
    """Ask for series with GET and POST; return our answer and theirs."""
    path, text = "data/plugin/timeseries/timeSeries", json.dumps(requests)
    mine, theirs = both.pair(path, requests=text)
    assert both.ours.post(path, {"requests": text}).json == mine
    assert both.stock.post(path, {"requests": text}).json == theirs
    return mine, theirs


def test_scalar_series_of_all_runs_and_of_one(both):
    tags = sorted({tag for _, tag, _ in both.tags("scalars")})
    mine, theirs = time_series(both, *({"plugin": "scalars", "tag": tag} for tag in tags))
    assert mine == theirs
    each = [(run, tag) for run, tag, _ in both.tags("scalars")]
    asked = [{"plugin": "scalars", "tag": tag, "run": run} for run, tag in each]
    mine, theirs = time_series(both, *asked)
    assert mine == theirs


def test_histogram_series(both):
    each = [(run, tag) for run, tag, _ in both.tags("histograms")]
    asked = [{"plugin": "histograms", "tag": tag, "run": run} for run, tag in each]
    mine, theirs = time_series(both, *asked)
    assert mine == theirs


def test_image_series(both):
    asked = [
        {"plugin": "images", "tag": tag, "run": run, "sample": sample}
        for run, tag, about in both.tags("images")
        for sample in range(about["samples"] + 1)
    ]
    mine, theirs = time_series(both, *asked)
    for one, other in zip(mine, theirs, strict=True):
        assert without(one, "runToSeries") == without(other, "runToSeries")
        assert one["runToSeries"].keys() == other["runToSeries"].keys()
        for run, series in other["runToSeries"].items():
            for ours, stock in zip(one["runToSeries"][run], series, strict=True):
                keys = [{"imageId": point.pop("imageId")} for point in (ours, stock)]
                assert ours == stock
                both.same_blob("data/plugin/timeseries/imageData", *keys)


@pytest.mark.parametrize(
    "request_", [
        {},
        {"plugin": "scalars"},
        {"plugin": "nothing", "tag": "loss"},
        {"plugin": "histograms", "tag": "weights"},
        {"plugin": "images", "tag": "pictures", "run": "."},
        {"plugin": "images", "tag": "pictures", "sample": 0},
        {"plugin": "scalars", "tag": "nothing"},
        {"plugin": "scalars", "tag": "loss", "run": "nothing"},
        {"plugin": "scalars", "tag": "loss", "run": ""},
        {"plugin": "scalars", "tag": "loss", "run": ".", "sample": 3},
        {"plugin": "histograms", "tag": "nothing", "run": "."},
        {"plugin": "scalars", "tag": "weights"},
    ], ids=str
)  # fmt: skip
def test_series_that_are_not_there(both, request_):
    mine, theirs = time_series(both, request_)
    assert mine == theirs


@pytest.mark.parametrize("nothing", ["[]", "{}", '""'])
def test_no_series(both, nothing):
    both.same("data/plugin/timeseries/timeSeries", requests=nothing)


def test_a_request_for_series_that_cannot_be_understood(both):
    path = "data/plugin/timeseries/timeSeries"
    for query in ({}, {"requests": ""}, {"requests": "["}):
        both.same(path, **query)
        assert both.ours.get(path, **query).status == 400
        mine, theirs = both.ours.post(path, query), both.stock.post(path, query)
        assert (mine.status, mine.text) == (theirs.status, theirs.text)


# Scalars and custom scalars.


def rows(text):
    """Read a table; a whole number is the same with and without a point."""
    head, *lines = csv.reader(text.splitlines())
    return head, [[repr(float(cell)) for cell in line] for line in lines]


def test_scalars_as_json_and_csv(both):
    for run, tag, _ in both.tags("scalars"):
        both.same("data/plugin/scalars/scalars", run=run, tag=tag)
        both.same("data/plugin/custom_scalars/download_data", run=run, tag=tag, format="json")
        for path in ("scalars/scalars", "custom_scalars/download_data"):
            query = {"run": run, "tag": tag, "format": "csv"}
            mine = both.ours.get(f"data/plugin/{path}", **query)
            theirs = both.stock.get(f"data/plugin/{path}", **query)
            assert mine.kind == theirs.kind == "text/csv"
            assert rows(mine.text) == rows(theirs.text)


def test_scalars_of_many_runs(both):
    path = "data/plugin/scalars/scalars_multirun"
    runs = both.stock.get("data/runs").json
    for tag in {tag for _, tag, _ in both.tags("scalars")}:
        form = {"tag": tag, "runs": [*runs, "nothing"]}
        assert both.ours.post(path, form).json == both.stock.post(path, form).json


def test_scalars_that_are_not_there(both):
    path = "data/plugin/scalars/scalars"
    for query in ({}, {"run": "."}, {"run": ".", "tag": "nothing"}, {"run": "no", "tag": "loss"}):
        both.same(path, **query)
    path = "data/plugin/scalars/scalars_multirun"
    assert both.ours.get(path).status == both.stock.get(path).status == 405
    for form in ({}, {"tag": ["a", "b"]}, {"tag": "nothing"}, {"tag": "loss"}):
        mine, theirs = both.ours.post(path, form), both.stock.post(path, form)
        assert (mine.status, mine.kind) == (theirs.status, theirs.kind)
        assert mine.body == theirs.body


def test_custom_scalars(both):
    both.same("data/plugin/custom_scalars/layout")
    for run in [*both.stock.get("data/runs").json, "nothing"]:
        for regex in ("loss", "l.*", ".*/g", "", "(", "nothing"):
            both.same("data/plugin/custom_scalars/scalars", run=run, tag=regex)


# Images, sounds, text, distributions.


def test_images(both):
    for run, tag, about in both.tags("images"):
        for sample in range(about["samples"] + 1):
            query = {"run": run, "tag": tag, "sample": sample}
            mine, theirs = both.pair("data/plugin/images/images", **query)
            for ours, stock in zip(mine, theirs, strict=True):
                keys = [dict(parse_qsl(one.pop("query"))) for one in (ours, stock)]
                assert ours == stock
                both.same_blob("data/plugin/images/individualImage", *keys)
    both.same("data/plugin/images/images", run=".", tag="nothing")


def test_audio(both):
    for run, tag, about in both.tags("audio"):
        for sample in range(about["samples"]):
            query = {"run": run, "tag": tag, "sample": sample}
            mine, theirs = both.pair("data/plugin/audio/audio", **query)
            for ours, stock in zip(mine, theirs, strict=True):
                keys = [dict(parse_qsl(one.pop("query"))) for one in (ours, stock)]
                assert ours == stock
                both.same_blob("data/plugin/audio/individualAudio", *keys)
    both.same("data/plugin/audio/audio", run=".", tag="nothing")


def test_text(both):
    mine, theirs = both.pair("data/plugin/text/tags")
    # The dashboard sorts the tags itself.
    assert {run: sorted(tags) for run, tags in mine.items()} == {
        run: sorted(tags) for run, tags in theirs.items()
    }
    for run, tag, _ in both.tags("text"):
        both.same("data/plugin/text/text", run=run, tag=tag)
        both.same("data/plugin/text/text", run=run, tag=tag, markdown="false")
    assert both.same("data/plugin/text/text", run="nothing", tag="nothing") == []


def test_histograms_and_distributions(both):
    for run, tag, _ in both.tags("histograms"):
        both.same("data/plugin/histograms/histograms", run=run, tag=tag)
        both.same("data/plugin/distributions/distributions", run=run, tag=tag)
    both.same("data/plugin/histograms/histograms", run=".", tag="nothing")
    both.same("data/plugin/distributions/distributions", run=".", tag="nothing")


# Graphs.


def test_graphs(both):
    info = both.same("data/plugin/graphs/info")
    for run, about in info.items():
        if about["run_graph"]:
            both.same("data/plugin/graphs/graph", run=run)
            both.same(
                "data/plugin/graphs/graph",
                run=run,
                limit_attr_size=1024,
                large_attrs_key="_too_large_attrs",
            )
        for tag, held in about["tags"].items():
            if held["conceptual_graph"]:
                both.same("data/plugin/graphs/graph", run=run, tag=tag, conceptual="true")
            if held["op_graph"]:
                both.same("data/plugin/graphs/graph", run=run, tag=tag)
            if held["profile"]:
                both.same("data/plugin/graphs/run_metadata", run=run, tag=tag)


@pytest.mark.parametrize("path", ["graph", "run_metadata"])
def test_graphs_that_are_not_there(both, path):
    for query in ({}, {"run": "nothing"}, {"run": ".", "tag": "nothing"}):
        both.same(f"data/plugin/graphs/{path}", **query)


# Hyperparameters.


def hparams(both, path, request, **query):
    """Ask with GET and POST; return what TensorBoard says."""
    text = json.dumps(request)
    answer = both.same(f"data/plugin/hparams/{path}", request=text, **query)
    if query:
        return answer
    mine = both.ours.post(f"data/plugin/hparams/{path}", content=text.encode())
    theirs = both.stock.post(f"data/plugin/hparams/{path}", content=text.encode())
    assert (mine.status, mine.json) == (theirs.status, theirs.json)
    return answer


STATUSES = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]


def test_hparams_experiment(both):
    experiment = hparams(both, "experiment", {})
    hparams(both, "experiment", {"includeMetrics": False})
    hparams(both, "experiment", {"hparamsLimit": 1})
    assert "hparamInfos" in experiment


def session_groups(both):
    experiment = hparams(both, "experiment", {})
    columns = [{"hparam": info["name"]} for info in experiment["hparamInfos"]]
    columns += [{"metric": info["name"]} for info in experiment["metricInfos"]]
    return {"colParams": columns, "allowedStatuses": STATUSES, "startIndex": 0, "sliceSize": 100}


def test_hparams_session_groups(both):
    request = session_groups(both)
    assert hparams(both, "session_groups", request)["totalSize"] >= 0
    for column in request["colParams"]:
        column["order"] = "ORDER_DESC"
        hparams(both, "session_groups", request)
        del column["order"]
    hparams(both, "session_groups", {**request, "allowedStatuses": STATUSES[2:3]})
    for column in request["colParams"]:
        if "metric" in column:
            least = {"aggregationType": "AGGREGATION_MIN", "aggregationMetric": column["metric"]}
            hparams(both, "session_groups", {**request, **least})


def test_hparams_metric_evals(both):
    groups = hparams(both, "session_groups", session_groups(both))
    for group in groups["sessionGroups"]:
        for session in group["sessions"]:
            for value in session["metricValues"]:
                request = {"sessionName": session["name"], "metricName": value["name"]}
                hparams(both, "metric_evals", request)
    both.same("data/plugin/hparams/metric_evals", request="not JSON")


@pytest.mark.skipif(VERSION.startswith("2.15."), reason="TensorBoard 2.15 fails at it")
def test_hparams_download(both):
    request = session_groups(both)
    visible = json.dumps([True] * len(request["colParams"]))
    for form in ("csv", "latex", "json"):
        hparams(both, "download_data", request, format=form, columnsVisibility=visible)


# Precision and recall, meshes.


def test_pr_curves(both):
    runs = {}
    for run, tag, _ in both.tags("pr_curves"):
        both.same("data/plugin/pr_curves/pr_curves", run=run, tag=tag)
        runs.setdefault(tag, []).append(run)
    for tag, held in runs.items():
        both.same("data/plugin/pr_curves/pr_curves", run=held, tag=tag)
    both.same("data/plugin/pr_curves/pr_curves", run="nothing", tag="nothing")


def test_meshes(both):
    for run, tag, about in both.tags("mesh"):
        mine, theirs = both.pair("data/plugin/mesh/meshes", run=run, tag=tag)

        # The dashboard looks for the part it wants in each step.
        def order(part):
            return part["step"], part["content_type"]

        assert sorted(mine, key=order) == sorted(theirs, key=order)
        for step in {part["step"] for part in theirs}:
            for part in ("VERTEX", "FACE", "COLOR", "nothing"):
                for sample in range(about["samples"]):
                    query = {"run": run, "tag": tag, "step": step, "sample": sample}
                    both.same("data/plugin/mesh/data", content_type=part, **query)
    both.same("data/plugin/mesh/meshes", run="nothing", tag="nothing")
