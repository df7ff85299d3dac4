"""Name templates: what they accept, what comes out, how bad ones are refused; names of groups."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.runs.naming import (
    KNOWN_FIELDS,
    PLAIN_FIELDS,
    BadTemplate,
    Band,
    Grouping,
    Show,
    Template,
    distinct,
    fields_of_path,
)
from aboard.runs.question import BadQuestion

RUN = {
    "workspace": "ws1",
    "experiment": "cifar10",
    "run": "run23",
    "logdir": "train",
    "created": datetime(2026, 1, 31, 9, 5),
    "hparams": {"lr": ".01", "epochs": 2500, "wd": 0.1, "depth": 18.0, "nested.name": "x"},
    "tags": ["baseline"],
    "metrics": {"val/acc": 0.91234567, "loss:0": float("nan"), "big": 10**5000},
}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{workspace}_{run}_{logdir}", "ws1_run23_train"),
        (
            "{workspace}_{run}_{logdir}_lr={hparams.lr}_epochs={hparams.epochs}",
            "ws1_run23_train_lr=.01_epochs=2500",
        ),
        ("{experiment}/{run}", "cifar10/run23"),
        ("{{{run}}}", "{run23}"),
        ("{created}", "2026-01-31_09-05-00"),
        ("{hparams.wd} {hparams.depth} {hparams.nested.name}", "0.1 18 x"),
        ("{metrics.val/acc}", "0.912346"),
        ("{metrics.val/acc:.2f} {metrics.val/acc:.0%}", "0.91 91%"),
        ("{hparams.epochs:,d} {metrics.loss:0:} {metrics.loss:0:d}", "2,500 nan nan"),
        ("{hparams.lr:.3g}", ".01"),
        ("""{metrics["val/acc"]:.2f} {hparams['lr']} {metrics["loss:0"]:d}""", "0.91 .01 nan"),
        ("{metrics.big:.3g}{metrics.big}", "--"),
        ("{tags.baseline}_{tags.other}", "baseline_-"),
        ("{job}_{hparams.no}_{metrics.no}", "-_-_-"),
        ("{logdir}/../{job}//./x", "train/-/x"),
        ("/", "-"),
    ],
)
def test_names(template, name):
    assert Template.parse(template).render(RUN) == name


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("two\nlines\tand \x1b[31mred", "two lines and [31mred"),
        ("/data/../x/", "data/x"),
        ("s3://bucket/runs", "s3:/bucket/runs"),
        ("\u202eolleh", "olleh"),
        ("  ", "-"),
        (".", "-"),
        ("x" * 500, "x" * 119 + "…"),
        (True, "True"),
    ],
)
def test_values_are_made_safe(value, shown):
    assert Template.parse("{run}").render({"run": value}) == shown


KNOWN = (
    "Known: workspace, experiment, run, logdir, job, user, host, state, created, source,"
    " hparams.<name>, tags.<name>, metrics.<tag>."
)
FORMATS = "Write one such as ':.3g', or ':' at the end of a name that contains a colon."
AT_A_BRACE = "name template {!r}, character {}: {}"


@pytest.mark.parametrize(
    ("template", "place", "message"),
    [
        ("{run", 1, "unmatched '{'. Write '{{' for a brace."),
        ("{run{job}", 1, "unmatched '{'. Write '{{' for a brace."),
        ("{run}}", 6, "unmatched '}'. Write '}}' for a brace."),
        ("a_{rn}", 3, f"unknown field 'rn'. Did you mean 'run'? {KNOWN}"),
        ("{hparam.lr}", 1, f"unknown field 'hparam.lr'. Did you mean 'hparams.'? {KNOWN}"),
        ("{hparam['lr']}", 1, f"unknown field 'hparam.lr'. Did you mean 'hparams.'? {KNOWN}"),
        ("{hparams.lr:.3q}", 1, f"invalid number format '.3q'. {FORMATS}"),
    ],
)
def test_bad_templates(template, place, message):
    with pytest.raises(BadTemplate) as caught:
        Template.parse(template)
    assert str(caught.value) == AT_A_BRACE.format(template, place, message)


def test_an_empty_template_is_refused():
    with pytest.raises(BadTemplate, match=r"is empty\. Write one such as '{run}'"):
        Template.parse("")


@pytest.mark.parametrize("template", ["{}", "{hparams}", "{hparams.}", "{run.x}", "{0}"])
def test_unknown_fields_are_refused(template):
    with pytest.raises(BadTemplate, match="unknown field") as caught:
        Template.parse(template)
    assert all(field in str(caught.value) for field in KNOWN_FIELDS)


def test_a_template_knows_its_fields():
    template = Template.parse("{run}{metrics.loss:.2f}{run}")
    assert template.fields == ("run", "metrics.loss")


@pytest.mark.parametrize(
    ("source", "run", "experiment", "name", "logdir"),
    [
        ("/logs", "cifar10/run3/train", "cifar10", "run3", "train"),
        ("/logs/cifar10", "run3/train", "cifar10", "run3", "train"),
        ("/logs/cifar10/run3", "train", "cifar10", "run3", "train"),
        ("/logs/cifar10/run3/train", ".", "cifar10", "run3", "train"),
        ("/logs/cifar10/run3", ".", "cifar10", "run3", None),
        ("/logs", "cifar10/run3", "cifar10", "run3", None),
        ("/logs", "cifar10/run3/gpu/eval/rank-3", "cifar10", "run3", "gpu/eval/rank-3"),
        ("s3://bucket", "run1", "bucket", "run1", None),
        ("gs://bucket/vision", "run1/Validation", "vision", "run1", "Validation"),
        ("/runs", ".", None, "runs", None),
        ("/", "train", None, "train", None),
        ("/", ".", None, None, None),
    ],
)
def test_fields_of_a_path(source, run, experiment, name, logdir):
    found = fields_of_path(source, run)
    assert found["source"] == source
    assert (found.get("experiment"), found.get("run"), found.get("logdir")) == (
        experiment,
        name,
        logdir,
    )


def test_names_that_are_taken_get_a_number():
    assert distinct(["a", "a", "b", "a", "a_2"]) == ["a", "a_2", "b", "a_3", "a_2_2"]


names = st.lists(st.text("ab_23", max_size=4), max_size=30)


@given(names)
def test_distinct_names_are_distinct_and_in_order(given_names):
    found = distinct(given_names)
    assert len(set(found)) == len(found) == len(given_names)
    assert all(one.startswith(name) for one, name in zip(found, given_names, strict=True))
    assert distinct(found) == found


@given(names, st.integers(0, 30))
def test_what_joins_later_renames_nothing(given_names, count):
    assert distinct(given_names)[:count] == distinct(given_names[:count])


@given(st.text(max_size=30))
def test_any_literal_text_can_be_written(text):
    escaped = text.replace("{", "{{").replace("}", "}}")
    template = Template.parse(escaped or "-")
    assert "".join(map(str, template.parts)) == (text or "-")


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes()


@given(
    st.lists(st.sampled_from(PLAIN_FIELDS) | st.just("hparams.x"), min_size=1, max_size=5),
    st.dictionaries(st.sampled_from(PLAIN_FIELDS), values),
    st.dictionaries(st.just("x"), values),
    st.sampled_from(["_", "/", ".", " ", "\n"]),
    st.sampled_from(["", ".3g", ",d", "05.1%"]),
)
def test_every_name_is_safe_and_complete(fields, run, hparams, between, form):
    template = Template.parse(between.join(f"{{{field}:{form}}}" for field in fields))
    name = template.render({**run, "hparams": hparams})
    assert name.isprintable()
    assert not {"", ".", ".."} & set(name.split("/"))
    assert name == name.strip()


@given(st.text(max_size=20))
def test_any_text_is_a_template_or_refused(text):
    message = ""
    try:
        Template.parse(text).render({})
    except BadTemplate as error:
        message = str(error)
    assert message.isprintable()


@given(st.text("ab/.-", max_size=12), st.text("ab/.train", max_size=12))
def test_fields_of_any_path_can_be_shown(source, run):
    Template.parse("{experiment}_{run}_{logdir}_{source}").render(fields_of_path(source, run))


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        (["hparams.lr"], "lr=0.1"),
        (['hparams["learning rate"]', "tags.team"], "learning rate=-, team=vision"),
        (["experiment", "state"], "experiment=cifar10, state=running"),
        (["name"], "name=run1"),
    ],
)
def test_groups_are_named_by_their_values(fields, label):
    values = {
        "hparams": {"lr": 0.1},
        "tags": {"team": "vision"},
        "experiment": "cifar10",
        "state": "running",
        "run": "run1",
    }
    assert Grouping.parse(fields).template.render(values) == label


def test_values_are_told_apart_beyond_the_digits_of_a_name():
    template = Grouping.parse(["hparams.lr"]).template
    one, other = ({"hparams": {"lr": value}} for value in (0.1, 0.10000000001))
    assert template.render(one) == template.render(other)
    assert template.values(one) != template.values(other)


def test_nothing_to_group_by():
    assert Grouping.parse([]) is None
    found = Grouping.parse(["hparams.lr"], "sem", "both")
    assert (found.band, found.show) == (Band.SEM, Show.BOTH)


@pytest.mark.parametrize("field", ["metrics.loss", "duration", "tags", "hparms.lr", "lr"])
def test_what_is_not_grouped_by(field):
    with pytest.raises(BadQuestion):
        Grouping.parse([field])
