"""Where a run goes, by what the caller and the environment say."""

from pathlib import Path

import pytest

from aboard.runs.layout import BadName
from aboard.storage import BadUri
from aboard.track.place import find_place

LOGDIRS = ["ABOARD_LOGDIR", "PAI_OUTPUT_TENSORBOARD", "AIP_TENSORBOARD_LOG_DIR", "XT_OUTPUT_MNT"]


def test_nobody_says_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = find_place(None, None, None, {})
    assert (place.root, place.experiment, place.name) == (f"{tmp_path}/runs", "default", None)
    assert place.fallback
    assert place.uri_of("run1") == f"{tmp_path}/runs/default/run1"


def test_the_caller_comes_before_the_environment() -> None:
    told = {"ABOARD_ROOT": "/theirs", "ABOARD_RUN": "cifar10/run3", "ABOARD_LOGDIR": "/logs"}
    place = find_place("/mine", "mnist", "a", told)
    assert (place.root, place.experiment, place.name) == ("/mine", "mnist", "a")
    assert (place.directory, place.expected, place.fallback) == (None, False, False)


def test_the_environment_names_root_and_run() -> None:
    told = {"ABOARD_ROOT": "s3://bucket/runs", "ABOARD_RUN": "cifar10/run3"}
    place = find_place(None, None, None, told)
    assert place.uri_of(place.name or "") == "s3://bucket/runs/cifar10/run3"
    assert place.expected
    other = find_place(None, "mnist", None, told)
    assert (other.experiment, other.name, other.expected) == ("mnist", None, False)


@pytest.mark.parametrize("variable", LOGDIRS)
def test_a_platform_fixes_the_directory(variable: str) -> None:
    place = find_place(None, None, None, {variable: "/mnt/job-17/tb/"})
    assert (place.directory, place.name, place.root) == ("/mnt/job-17/tb", "tb", "/mnt/job-17")
    assert place.expected
    assert not place.joined
    assert place.uri_of("whatever") == "/mnt/job-17/tb"


def test_a_root_of_ours_outranks_the_directory_of_another_platform() -> None:
    told = {"ABOARD_ROOT": "/ours", "AIP_TENSORBOARD_LOG_DIR": "gs://theirs/logs"}
    assert find_place(None, None, None, told).root == "/ours"
    assert find_place(None, None, None, told).directory is None


def test_below_aboard_run_the_run_has_its_name_already() -> None:
    told = {"ABOARD_ROOT": "s3://b", "ABOARD_RUN": "x/run1", "ABOARD_LOGDIR": "/spool/1"}
    place = find_place(None, "mnist", "mine", told | {"ABOARD_ATTEMPT": "1"})
    assert (place.experiment, place.name, place.directory) == ("x", "run1", "/spool/1")
    assert place.joined
    assert find_place("s3://b/", None, None, told | {"ABOARD_ATTEMPT": "1"}).joined
    assert place.whole_uri_of("run1") == "s3://b/x/run1"
    elsewhere = find_place(None, None, None, told | {"ABOARD_ATTEMPT": "s3://b/tb"})
    assert elsewhere.whole_uri_of("run1") == "s3://b/tb"
    apart = find_place("/mine", None, None, told | {"ABOARD_ATTEMPT": "1"})
    assert (apart.root, apart.experiment, apart.name) == ("/mine", "default", None)
    assert not apart.joined


@pytest.mark.parametrize(
    ("arguments", "told", "problem"),
    [
        ((None, "a/b", None), {}, "the name of the experiment, 'a/b', has the character '/'"),
        ((None, None, ".."), {}, "the name of the run, '..', begins with a dot"),
        ((None, None, None), {"ABOARD_RUN": "a/.."}, "the name of the run in ABOARD_RUN, '..'"),
        ((None, None, None), {"ABOARD_RUN": "../a/b"}, "the experiment in ABOARD_RUN, '../a'"),
    ],
)
def test_names_are_checked(
    arguments: tuple[None, str | None, str | None], told: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadName, match=problem.replace("..", r"\.\.")):
        find_place(*arguments, told)


def test_a_root_that_is_no_uri() -> None:
    with pytest.raises(BadUri):
        find_place("ftp://host/x", None, None, {})
