"""Runs that declare experiments of their own, as PyTorch writes them, share one table."""

import json

import pytest

from aboard.events import encode
from aboard.events.messages import keep_tensorflow_out
from aboard.events.writer import EventWriter
from tests.tensorboard.servers import Stock

keep_tensorflow_out()

from tensorboard.plugins.hparams import api_pb2  # noqa: E402

RUNS = {
    "a": ({"lr": 0.1, "old": 1.0}, ["acc"]),
    "b": ({"lr": 0.2, "dropout": 0.3, "opt": "sgd"}, ["acc", "f1"]),
    "c": ({"lr": 0.2, "opt": "adam"}, ["acc", "f1"]),
}


@pytest.fixture
def logdir(tmp_path):
    return tmp_path / "logs"


def declare(directory, hparams, metrics, **values):
    """Write a run with an experiment of its own."""
    with EventWriter(directory) as writer:
        writer.add([encode.hparams_experiment(hparams, metrics)], 0)
        writer.add([encode.hparams_start(values, start_time=5.0)], 0)
        for metric in ("acc", "f1"):
            writer.scalar(metric, 0.5, 0)


def infos(**domains):
    return [info(name, **domain) for name, domain in domains.items()]


def info(name, *, interval=None, domain=()):
    if interval is None:
        return encode.hparam_info(name, domain=domain)
    low, high = interval
    found = api_pb2.HParamInfo(name=name, type=api_pb2.DATA_TYPE_FLOAT64)
    found.domain_interval.min_value, found.domain_interval.max_value = low, high
    return found.SerializeToString()


def experiment(server):
    return server.get("data/plugin/hparams/experiment", request="{}").json


def columns(server):
    answer = experiment(server)
    metrics = [info["name"]["tag"] for info in answer["metricInfos"]]
    return [info["name"] for info in answer["hparamInfos"]], metrics


def test_a_table_has_the_columns_of_every_run(logdir, serve):
    for run, (values, metrics) in RUNS.items():
        declared = [encode.hparam_info(name, domain=[value]) for name, value in values.items()]
        declare(logdir / run, declared, [encode.metric_info(one) for one in metrics], **values)
    ours = serve(logdir)
    assert columns(ours) == (["dropout", "lr", "old", "opt"], ["acc", "f1"])
    # TensorBoard takes the first experiment that it finds.
    assert columns(Stock(str(logdir))) in [
        (sorted(values), metrics) for values, metrics in RUNS.values()
    ]
    request = {
        "colParams": [{"hparam": "opt"}, {"hparam": "old"}, {"metric": {"tag": "f1"}}],
        "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_RUNNING"],
        "startIndex": 0,
        "sliceSize": 10,
    }
    path = "data/plugin/hparams/session_groups"
    groups = ours.get(path, request=json.dumps(request)).json["sessionGroups"]
    shown = {group["sessions"][0]["name"]: group["hparams"] for group in groups}
    assert shown == {run: values for run, (values, _) in RUNS.items()}


@pytest.mark.parametrize(
    ("first", "second", "key", "domain"),
    [
        ({"domain": ["sgd"]}, {"domain": ["adam", "sgd"]}, "domainDiscrete", {"adam", "sgd"}),
        ({"interval": (0.1, 1.0)}, {"interval": (0.5, 9.0)}, "domainInterval", (0.1, 9.0)),
        ({"domain": ["sgd"]}, {}, None, None),
        ({"domain": ["sgd"]}, {"domain": [True]}, None, None),
        ({"domain": [0.5]}, {"interval": (0.0, 1.0)}, None, None),
    ],
    ids=["values", "intervals", "one says nothing", "other types", "other forms"],
)
def test_a_domain_holds_what_any_run_may_have(logdir, serve, first, second, key, domain):
    declare(logdir / "a", infos(one=first), [], one="sgd")
    declare(logdir / "b", infos(one=second), [], one="sgd")
    (info,) = experiment(serve(logdir))["hparamInfos"]
    if key == "domainDiscrete":
        assert set(info[key]) == domain
    elif key == "domainInterval":
        assert (info[key]["minValue"], info[key]["maxValue"]) == domain
    else:
        assert not {"domainDiscrete", "domainInterval"} & info.keys()


def test_an_experiment_that_cannot_be_understood_hides_no_other(logdir, serve):
    declare(logdir / "b", infos(lr={}), [], lr=0.1)
    with EventWriter(logdir / "a") as writer:
        odd = encode.metadata("hparams", b"\xff\xff", data_class="tensor")
        value = encode.scalar_tensor("_hparams_/experiment", 1.0, "float32")
        writer.add([value._replace(metadata=odd)], 0)
    assert columns(serve(logdir)) == (["lr"], [])


def test_the_same_experiment_in_many_runs_is_told_as_it_is(logdir, serve):
    for run in "ab":
        declare(logdir / run, infos(lr={"interval": (0.0, 1.0)}), [], lr=0.1)
    assert experiment(serve(logdir)) == experiment(Stock(str(logdir)))
