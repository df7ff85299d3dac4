"""The selector language: what is meant, what is refused, and what is said when nothing matches."""

import json
import random
import re
from contextlib import suppress
from fnmatch import translate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aboard.runs import selectors as language
from aboard.runs.catalog import KnownRun, natural
from aboard.runs.manifest import Attempt, Manifest, State
from aboard.runs.selectors import (
    AmbiguousRun,
    BadSelector,
    Known,
    NothingMatches,
    parse,
    parse_all,
    selector_for,
)
from tests.runs.tables import RunsInMemory

NOW = 1_800_000_000.0


def run(label, **fields):
    experiment, _, name = label.rpartition("/")
    record = Manifest(name, experiment, heartbeat=NOW, **fields)
    return KnownRun.of_record("/data/runs", label, record)


RUNS = [
    run("cifar10/run1", job="2300", hparams={"lr": 0.1, "opt": "adam"}, tags={"baseline": True}),
    run("cifar10/run3", job="2301", hparams={"lr": 0.01, "amp": True}, tags={"team": "vision"}),
    run("cifar10/run7", job="2300", hparams={"lr": 1e-3, "opt": "sgd"}, state=State.FAILED),
    run("cifar10/run10", hparams={"opt": "sgd"}, state=State.COMPLETED),
    run("mnist/run1", job="99", hparams={"lr": 10**400, "note": "nan"}),
    run("mnist/best-2", tags={"baseline": "v2"}),
    KnownRun.of_path("/data/runs", "raw"),
]


def match(selectors, runs, now):
    rows = language.match(selectors, Known(RunsInMemory(runs, now)))
    return [runs[row] for row in rows]


def select(selectors, runs, now, **options):
    known = Known(RunsInMemory(runs, now), bounded=True)
    return [runs[row] for row in language.select(selectors, known, **options)]


def chosen(*texts, runs=RUNS, now=NOW):
    return [one.label for one in select(parse_all(texts), runs, now)]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("cifar10", ["cifar10/run1", "cifar10/run3", "cifar10/run7", "cifar10/run10"]),
        ("cifar10/run1", ["cifar10/run1"]),
        ("cifar10/run3-run7", ["cifar10/run3", "cifar10/run7"]),
        ("cifar10/run2-7", ["cifar10/run3", "cifar10/run7"]),
        ("cifar10/run1-run1", ["cifar10/run1"]),
        ("cifar10/run1*", ["cifar10/run1", "cifar10/run10"]),
        ("*/run1", ["cifar10/run1", "mnist/run1"]),
        ("m*", ["mnist/run1", "mnist/best-2"]),
        ("run3", ["cifar10/run3"]),
        ("cifar10/3", ["cifar10/run3"]),
        ("cifar10/2-7", ["cifar10/run3", "cifar10/run7"]),
        ("3", ["cifar10/run3"]),
        ("7-10", ["cifar10/run7", "cifar10/run10"]),
        ("run1", ["cifar10/run1", "mnist/run1"]),
        ("best-2", ["mnist/best-2"]),
        ("raw", ["raw"]),
        ("job:2300", ["cifar10/run1", "cifar10/run7"]),
        ("job:23*", ["cifar10/run1", "cifar10/run3", "cifar10/run7"]),
        ("tag:baseline", ["cifar10/run1", "mnist/best-2"]),
        ("tag:baseline=v2", ["mnist/best-2"]),
        ("tag:baseline=true", ["cifar10/run1"]),
        ("tag:te*=vis*", ["cifar10/run3"]),
        ("state:failed", ["cifar10/run7"]),
        ("state:RUNNING", ["cifar10/run1", "cifar10/run3", "mnist/run1", "mnist/best-2"]),
        ("hparam:lr<0.1", ["cifar10/run3", "cifar10/run7"]),
        ("hparam:lr <= 1e-1", ["cifar10/run1", "cifar10/run3", "cifar10/run7"]),
        ("hparam:lr>1e300", ["mnist/run1"]),
        ("hparam:lr=0.10", ["cifar10/run1"]),
        ("hparam:lr!=0.1", ["cifar10/run3", "cifar10/run7", "mnist/run1"]),
        ("hparam:opt=SGD", ["cifar10/run7", "cifar10/run10"]),
        ("hparam:opt!=sgd", ["cifar10/run1"]),
        ("hparam:amp=true", ["cifar10/run3"]),
        ("hparam:note=nan", ["mnist/run1"]),
    ],
)
def test_what_a_selector_means(text, labels):
    assert chosen(text) == labels


def attempted(label, job, *engine_jobs):
    return run(label, job=job, attempts=[Attempt(1, job=one) for one in engine_jobs])


JOBS = [
    attempted("a/run1", "sweep", "2300_1", "2400_1"),
    attempted("a/run2", "sweep", "2300_12"),
    attempted("a/run3", "2300_3", "2300_3"),
    attempted("a/run4", "23001", "23001"),
    attempted("a/run5", "other_2"),
    attempted("a/run6", ""),
]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("job:sweep", [1, 2]),
        ("job:other", [5]),
        ("job:2300", [1, 2, 3]),
        ("job:2300_1", [1]),
        ("job:2400", [1]),
        ("job:2300_1*", [1, 2]),
        ("job:*e*", [1, 2, 5]),
        ("job:23001", [4]),
        ("not:job:2300", [4, 5, 6]),
    ],
)
def test_a_job_is_known_by_its_own_id_and_those_of_its_engine(text, numbers):
    assert chosen(text, runs=JOBS) == [f"a/run{number}" for number in numbers]


def test_a_job_that_no_run_has_names_the_nearest_id():
    with pytest.raises(NothingMatches, match=r"'job:2401' matches no run. The nearest is 'job:24"):
        chosen("job:2401", runs=JOBS)


def test_names_that_are_equally_near_are_all_told():
    runs = [run(f"a/run{number}") for number in (21, 22, 24, 25, 7)]
    expected = "'a/run23' matches no run. The nearest are 'a/run21', 'a/run22' and 'a/run24'."
    with pytest.raises(NothingMatches, match=re.escape(expected)):
        chosen("a/run23", runs=runs)


def test_a_selector_of_a_job_has_its_id():
    ids = {text: parse(text).job for text in ("job:abc", "job: 7", "not:job:abc", "tag:x", "job")}
    assert ids == {"job:abc": "abc", "job: 7": "7", "not:job:abc": "", "tag:x": "", "job": ""}


def test_several_make_a_union_and_commas_are_allowed():
    assert chosen("run3, run7,", "mnist/run1") == ["cifar10/run3", "cifar10/run7", "mnist/run1"]
    assert chosen("run310, run341, run400", runs=[run(f"a/run{n}") for n in (310, 341, 400)]) == [
        "a/run310",
        "a/run341",
        "a/run400",
    ]


def test_runs_are_left_out_of_what_the_others_mean():
    some = chosen("cifar10", "not:cifar10/run3", "not:state:failed")
    assert some == [one for one in chosen("cifar10") if one not in {"cifar10/run3", "cifar10/run7"}]
    assert chosen("not:cifar10") == [one.label for one in RUNS if one.experiment != "cifar10"]
    assert chosen("not: run1", "mnist") == ["mnist/best-2"]
    assert match([], RUNS, NOW) == []
    assert match(parse_all(["/data/logs", "not:mnist"]), RUNS, NOW) == []


@pytest.mark.parametrize("text", ["not:./logs", "not:not:cifar10", "not:", "not:s3://b/logs"])
def test_only_runs_can_be_left_out(text):
    with pytest.raises(BadSelector, match=r"only runs can be excluded|empty selector"):
        parse_all([text])


@given(st.lists(st.sampled_from(["cifar10", "mnist", "run1", "tag:*", "state:running"])))
def test_what_is_left_out_is_never_there(words):
    assume = [*words, *(f"not:{word}" for word in words[1:])]
    found = match(parse_all(assume), RUNS, NOW)
    gone = match(parse_all(words[1:]), RUNS, NOW)
    assert not set(found) & set(gone)
    assert set(found) | set(gone) == set(match(parse_all(words), RUNS, NOW))


def test_a_heart_that_stopped_beating_is_lost():
    late = NOW + 3600
    assert "mnist/run1" in chosen("state:lost", now=late)
    with pytest.raises(NothingMatches, match=r"states of runs are completed, failed, lost\.$"):
        chosen("state:running", now=late)


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [
        ("new=runs/", "new", "runs/"),
        ("new=./runs/", "new", "./runs/"),
        ("new=/logs/runs/", "new", "/logs/runs/"),
        ("old=s3://bucket/runs/", "old", "s3://bucket/runs/"),
        ("runs/lr=0.1/", "", "runs/lr=0.1/"),
        ("./lr=0.1/", "", "./lr=0.1/"),
    ],
)
def test_a_directory_can_have_a_name(text, name, place):
    found = parse(text)
    assert (found.name, found.place) == (name, place)


def test_a_directory_that_exists_is_no_name():
    found = parse("lr=0.1/", exists="lr=0.1/".__eq__)
    assert (found.name, found.place) == ("", "lr=0.1/")


def test_an_experiment_outranks_a_run_of_that_name():
    runs = [run("a/mnist"), run("mnist/run1")]
    assert chosen("mnist", runs=runs) == ["mnist/run1"]
    assert chosen("a/mnist", runs=runs) == ["a/mnist"]


def test_a_name_that_must_be_unambiguous_selects_one_run():
    with pytest.raises(AmbiguousRun, match=r"'run1' is the name of cifar10/run1, mnist/run1\."):
        select(parse_all(["run1"]), RUNS, NOW, unambiguous=True)
    assert len(select(parse_all(["run3", "mnist"]), RUNS, NOW, unambiguous=True)) == 3


@pytest.mark.parametrize(
    "text", ["./logs", "../logs", ".", "..", "/data", "~/logs", "~", "s3://bucket/a,b", "gs://b"]
)
def test_paths_and_uris_are_places(text):
    (selector,) = parse_all([text])
    assert selector.place
    assert selector.text == text
    assert select([selector], RUNS, NOW) == []


def test_what_exists_is_a_path_where_the_caller_says_so():
    exists = {"logs/today", "a,b"}.__contains__
    assert parse("logs/today", exists=exists).place
    assert [one.text for one in parse_all(["a,b"], exists=exists)] == ["a,b"]
    assert not parse("logs/other", exists=exists).place


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty selector. Examples: cifar10, "),
        (" , ", "empty selector"),
        ("A:/", "'A:/': write EXPERIMENT/RUN."),
        ("cifar10/run7-run3", "'run7-run3': the range ends before it begins. Write run3-run7."),
        ("jobs:2300", "'jobs:2300': unknown selector 'jobs'. Did you mean job:2300? Known:"),
        ("job:", "'job:': a value is missing after the colon."),
        ("state:runing", "unknown state. Did you mean state:running? Known: running, "),
        ("hparam:lr", "'hparam:lr': write hparam:NAME<VALUE, with <, <=, >, >=, = or !=."),
        ("hparam:<3", "write hparam:NAME<VALUE"),
        ("hparam:lr<low", "'low' is not a number. Compare strings with = or !=."),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(text, message):
    with pytest.raises(BadSelector) as caught:
        parse_all([text])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cifar1", "'cifar1' matches no run. The nearest is 'cifar10'."),
        ("cifar10/run8", "The nearest are 'cifar10/run1', 'cifar10/run3' and 'cifar10/run7'."),
        ("job2300", "The nearest is 'job:2300'."),
        ("zzz", "Known here: cifar10, mnist."),
        ("job:2309", "The nearest is 'job:2301'."),
        ("tag:baselin", "The nearest is 'tag:baseline'."),
        ("tag:qqq", "The tags are baseline, team."),
        ("state:killed", "The states of runs are completed, failed, running."),
        ("hparam:lrr<1", "The nearest is 'lr'."),
        ("hparam:opt=rmsprop", "The values of 'opt' are adam, sgd."),
    ],
)
def test_what_matches_nothing_names_the_nearest(text, message):
    with pytest.raises(NothingMatches) as caught:
        chosen(text)
    assert str(caught.value).endswith(message)
    assert repr(text) in str(caught.value)


def test_with_no_runs_at_all_that_is_what_is_said():
    with pytest.raises(NothingMatches, match="no runs were found"):
        chosen("cifar10", runs=[])


# Properties.

texts = st.text(max_size=20)
names = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=8)
pieces = st.lists(
    st.sampled_from(
        [
            "run",
            "3",
            "-",
            "*",
            "?",
            "[",
            "]",
            "!",
            "/",
            ",",
            ":",
            "job",
            "hparam",
            "<",
            "=",
            ".",
            " ",
        ]
    ),
    max_size=8,
).map("".join)


@given(st.lists(texts | pieces, max_size=4))
def test_any_text_is_understood_or_refused(written):
    try:
        selectors = parse_all(written)
    except BadSelector:
        return
    match(selectors, RUNS, NOW)
    with suppress(NothingMatches):
        assert set(select(selectors, RUNS, NOW)) <= set(RUNS)


@example("0=", "0", "")
@given(names | st.just(""), names, st.text(max_size=8))
def test_what_is_printed_selects_the_run(experiment, name, other):
    directory = "somewhere/below"
    known = KnownRun("/data/runs", directory, experiment, name)
    neighbour = KnownRun("/data/runs", "else/where", experiment + other, name + other)
    (selector,) = parse_all([selector_for(known)])
    if selector.place:
        assert selector.text == known.uri
        return
    found = select([selector], [known, neighbour], NOW)
    same = (neighbour.experiment, neighbour.name) == (experiment, name)
    assert found == ([known, neighbour] if same else [known])


@given(
    st.lists(
        st.sampled_from(["cifar10", "mnist/run1", "job:2300", "run3-run7", "tag:*"]), min_size=1
    )
)
def test_the_order_of_selectors_does_not_matter(words):
    shuffled = random.Random(1).sample(words, len(words))
    assert chosen(*words) == chosen(*shuffled) == chosen(", ".join(words))
    assert set(chosen(*words)) == {label for word in words for label in chosen(word)}


@given(st.integers(0, 200), st.integers(0, 200), st.sets(st.integers(0, 200)))
def test_a_range_holds_its_ends_and_what_is_between(first, last, numbers):
    runs = [run(f"a/run{number}") for number in sorted(numbers)]
    if last < first:
        with pytest.raises(BadSelector):
            parse(f"a/run{first}-run{last}")
        return
    found = match([parse(f"a/run{first}-run{last}")], runs, NOW)
    assert [one.name for one in found] == [
        f"run{number}" for number in sorted(numbers) if first <= number <= last
    ]


@given(st.integers(1, 99), st.integers(1, 9999))
def test_a_run_is_never_its_neighbour(wanted, other):
    runs = [run(f"a/run{wanted}"), run(f"a/run{other}")]
    labels = {one.label for one in select([parse(f"a/run{wanted}")], runs, NOW)}
    assert labels == {f"a/run{wanted}"}


@given(st.lists(st.text(max_size=12)))
def test_any_names_have_a_natural_order(labels):
    ordered = sorted(labels, key=natural)
    assert sorted(ordered, key=natural) == ordered


def test_run10_comes_after_run9():
    labels = ["run10", "run9", "run010", "Run1", "a³"]
    assert sorted(labels, key=natural) == ["Run1", "a³", "run9", "run10", "run010"]


def test_a_record_keeps_its_mappings_until_they_are_asked():
    known = run("a/b", hparams={"x": [1, {"y": None}]}, metrics={"train/loss": 0.5})
    assert known.hparams == json.loads(known.hparams_json) == {"x": [1, {"y": None}]}
    assert known.metrics == {"train/loss": 0.5}


def test_a_number_is_the_name_of_a_run_before_it_is_short_for_one():
    runs = [run("exp/3"), run("exp/run3"), run("exp/run4"), run("5/run1"), run("exp/run5")]
    assert chosen("exp/3", runs=runs) == ["exp/3"]
    assert chosen("exp/3-4", runs=runs) == ["exp/3"]
    assert chosen("exp/4", runs=runs) == ["exp/run4"]
    assert chosen("5", runs=runs) == ["5/run1"]
    assert chosen("4", "not:3", runs=runs) == ["exp/run4"]
    with pytest.raises(
        NothingMatches, match=r"^'exp/6' matches no run\. The nearest are 'exp/run3'"
    ):
        chosen("exp/6", runs=runs)


@pytest.mark.parametrize("space", [" ", "\n"])
def test_a_long_comparison_without_a_sign_is_refused_at_once(space):
    """It took time with the square of its length, which made it hours."""
    with pytest.raises(BadSelector, match="write hparam:NAME<VALUE"):
        parse(f"hparam:a{space * 200_000}b")


def many_runs(count):
    return [KnownRun("/logs", f"exp/run{at}", "exp", f"run{at}") for at in range(count)]


@pytest.mark.parametrize(
    "pattern", ["r*{}", "exp/*{}", "tag:t{}", "hparam:lr={}", "run{}-run99999"]
)
def test_more_patterns_than_can_be_looked_at_are_refused(pattern, monkeypatch):
    monkeypatch.setattr(language, "MOST_LOOKS", language.MOST_LOOKS // 10)
    runs = many_runs(1000)
    some = parse_all([",".join(pattern.format(at) for at in range(20))])
    match(some, runs, NOW)
    with suppress(NothingMatches):
        select(some, runs, NOW)
    many = parse_all([",".join(pattern.format(at) for at in range(2000))])
    with pytest.raises(BadSelector, match="too many patterns and conditions for 1,000 runs"):
        select(many, runs, NOW)


@pytest.mark.parametrize("part", ["*a", "[ab]", "?"])
def test_long_patterns_are_refused_before_they_are_compiled(part, monkeypatch):
    """One of them takes tens of milliseconds to compile."""
    monkeypatch.setattr(language, "MOST_LOOKS", language.MOST_LOOKS // 4)
    compiled = []
    monkeypatch.setattr(language, "translate", lambda one: compiled.append(one) or translate(one))
    many = parse_all([f"{part * (4000 // len(part))}{at}" for at in range(250)])
    with pytest.raises(BadSelector, match="too many patterns and conditions for 10 runs"):
        select(many, many_runs(10), NOW)
    assert len(set(compiled)) < 20
    compiled.clear()
    with suppress(NothingMatches):
        select(parse_all([f"{part}{at}" for at in range(200)]), many_runs(10), NOW)
    assert compiled


@pytest.mark.parametrize("name", ["exp/run{}", "run{}"])
def test_every_run_of_many_can_be_chosen_by_name(name):
    runs = many_runs(10_000)
    chosen = parse_all([name.format(at) for at in range(0, 10_000, 2)])
    assert select(chosen, runs, NOW) == runs[::2]
