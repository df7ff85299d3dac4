"""The benchmark runs on tiny trees and reports every case and contender."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slow benchmarks")]
BENCH = Path(__file__).parents[1] / "bench" / "run.py"
QUICK = ("long", "growth", "query", "windows", "log-silent", "hub-crowd", "series")
SLOW = ("live", "log-steps", "shipping", "start", "hub-boards", "hub-lists", "engines", "many-runs")
SLOW += ("jobs", "console", "console-live")
OURS = {"aboard index", "aboard, in process", "aboard ls, again", "aboard.open, again"}


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("bench"), QUICK)


@pytest.fixture(scope="module")
def slow_document(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("bench"), SLOW)


def measured(place, names):
    cases = [part for name in names for part in ("--only", name)]
    cases += ["--engine", "process"]
    options = ["--quick", *cases, "--cache", str(place), "--json", str(place / "out.json")]
    command = [sys.executable, BENCH, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((place / "out.json").read_text())
    assert all(f"## {case['title']}" in done.stdout for case in document["cases"].values())
    assert not list(place.glob("index-*")), "an index was left behind"
    assert not _running_below(place), "a hub was left behind"
    assert tuple(document["cases"]) == names
    for name, case in document["cases"].items():
        for figures in case["contenders"].values():
            assert 0 < figures["best"] <= figures["median"]
            assert figures["peak_mib"] > 1 or name == "engines"
            assert figures["every"] or name in {"hub-boards", "hub-crowd"}
    return document


def _running_below(place):
    """Return the processes whose working directory is below a directory."""
    return [one for one in Path("/proc").glob("[0-9]*/cwd") if _is_below(one, place)]


def _is_below(link, place):
    try:
        return link.readlink().is_relative_to(place)
    except OSError:
        return False


def test_the_measured_versions_are_reported(document):
    assert {"cores", "python", "aboard", "tensorboard"} <= set(document["versions"])
    assert document["quick"]


def test_our_commands_and_tensorboards_loader_are_measured(document):
    contenders = document["cases"]["long"]["contenders"]
    assert set(contenders) >= OURS | {"TensorBoard's Python loader"}


def test_writers_are_compared_by_time_and_by_cpu(slow_document):
    logging = slow_document["cases"]["log-steps"]
    ours = {"aboard", "aboard, log_metrics"}
    assert set(logging["contenders"]) == ours | {"torch.utils.tensorboard", "tensorboardX"}
    assert all(figures["cpu"] > 0 for figures in logging["contenders"].values())
    assert len(logging["targets"]) == 8


def test_growth_is_reported_for_every_size(document):
    growth = document["cases"]["growth"]
    assert {name.partition(":")[0] for name in growth["contenders"]} == {
        "1x longer",
        "2x longer",
        "1x more runs",
        "2x more runs",
    }
    [target] = growth["targets"]
    assert set(target) == {"name", "wanted", "measured", "at_least", "met"}


def test_a_board_is_started_in_every_way(slow_document):
    ways = {"the hub's API", "aboard start"}
    started = {f"200 points, {state}: {way}" for state in ("known", "unknown") for way in ways}
    contenders = slow_document["cases"]["start"]["contenders"]
    assert set(contenders) == started | {"200 points: tensorboard --load_fast=true"}
    [target] = slow_document["cases"]["start"]["targets"]
    assert target["wanted"] == 20


def test_extrapolated_processes_are_marked(slow_document):
    contenders = slow_document["cases"]["hub-boards"]["contenders"]
    alone, all_of_it = (
        contenders["tensorboard, 1 processes"],
        contenders["tensorboard, 3 processes"],
    )
    assert all_of_it["peak_mib"] == pytest.approx(3 * alone["peak_mib"])
    assert all_of_it["note"].endswith("not run: 1 measured, times 3")
    assert all("PSS" in figures["note"] for figures in contenders.values())


def test_a_crowd_is_reported_by_kind_of_request(document):
    crowd = document["cases"]["hub-crowd"]
    assert set(crowd["contenders"]) == {"runs", "tags", "curve", "any of these"}
    assert "no errors" in crowd["notes"][0]


def test_lists_are_reported_for_every_size(slow_document):
    wanted = {f"{count} runs: {way}" for count in (20, 40) for way in ("the API", "aboard runs")}
    wanted |= {f"{count} boards: {way}" for count in (3, 6) for way in ("the API", "aboard list")}
    assert set(slow_document["cases"]["hub-lists"]["contenders"]) == wanted


def test_a_job_is_listed_at_every_size(slow_document):
    wanted = {f"{count} members: aboard jobs" for count in (100, 200)}
    assert set(slow_document["cases"]["jobs"]["contenders"]) == wanted


def test_a_board_and_tensorboard_are_measured_on_an_engine(slow_document):
    case = slow_document["cases"]["engines"]
    assert set(case["contenders"]) == {"process: aboard", "process: tensorboard"}
    assert "times the time of tensorboard" in case["contenders"]["process: aboard"]["note"]
    [target] = case["targets"]
    assert target["wanted"] == 1.5
    assert case["notes"] == []
