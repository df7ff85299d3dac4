"""How a board groups its runs: fields, and what they are called."""

import pytest

from aboard.runs.groups import Band, Grouping, Show
from aboard.runs.question import BadQuestion


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
