"""The benchmark runs, on trees too small to tell anything, and says what it should."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "run.py"
CASES = {"long", "growth", "query", "log-steps", "log-silent", "shipping"}
OURS = {"aboard index", "aboard, in process", "aboard ls, again", "aboard.open, again"}


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    place = tmp_path_factory.mktemp("bench")
    cases = [part for name in CASES for part in ("--only", name)]
    options = ["--quick", *cases, "--cache", str(place), "--json", str(place / "out.json")]
    command = [sys.executable, BENCH, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((place / "out.json").read_text())
    assert all(f"## {case['title']}" in done.stdout for case in document["cases"].values())
    assert not list(place.glob("index-*")), "an index was left behind"
    return document


def test_it_says_which_versions_were_measured(document):
    assert {"cores", "python", "aboard", "tensorboard"} <= set(document["versions"])
    assert document["quick"]


def test_every_contender_has_times_and_memory(document):
    assert set(document["cases"]) == CASES
    contenders = document["cases"]["long"]["contenders"]
    assert set(contenders) >= OURS | {"TensorBoard's Python loader"}
    for case in document["cases"].values():
        for figures in case["contenders"].values():
            assert 0 < figures["best"] <= figures["median"]
            assert figures["peak_mib"] > 1
            assert len(figures["every"]) > 0


def test_writers_are_compared_by_time_and_by_cpu(document):
    logging = document["cases"]["log-steps"]
    ours = {"aboard", "aboard, log_metrics"}
    assert set(logging["contenders"]) == ours | {"torch.utils.tensorboard", "tensorboardX"}
    assert all(figures["cpu"] > 0 for figures in logging["contenders"].values())
    assert len(logging["targets"]) == 8


def test_growth_is_told_for_every_size(document):
    growth = document["cases"]["growth"]
    assert {name.partition(":")[0] for name in growth["contenders"]} == {
        "1x longer",
        "2x longer",
        "1x more runs",
        "2x more runs",
    }
    [target] = growth["targets"]
    assert set(target) == {"name", "wanted", "measured", "at_least", "met"}
