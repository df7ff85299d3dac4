"""How many points of a series are sent to the browser."""

import sys

import pytest

from aboard.tensorboard.samples import BadSamples, limits, parse_samples


def test_a_number_alone_limits_curves():
    assert parse_samples(["5000", "images=100"]) == {"scalars": 5000, "images": 100}
    assert parse_samples([]) is None


def test_zero_is_no_limit():
    assert limits({"scalars": 0, "images": 3}) == {"scalars": sys.maxsize, "images": 3}
    assert limits(None) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graphs=3", "there is no kind 'graphs'. Known: scalars, images"),
        ("images=-1", "'-1' is not a number of values"),
        ("many", "'many' is not a number of values"),
        ("1.5", "'1.5' is not a number of values"),
    ],
)
def test_an_invalid_limit_is_refused(text, message):
    with pytest.raises(BadSamples, match=message):
        parse_samples([text])
