"""Durations and sizes, as users write and read them, and names that are nearly right."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aboard.runs import nearest
from aboard.runs.units import (
    BadAmount,
    counted,
    format_age,
    format_duration,
    format_elapsed,
    format_exact_size,
    format_memory,
    format_size,
    parse_duration,
    parse_size,
    seconds_in,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *((90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("90m", 5400), ("1.5h", 5400)),
        *(("3M", 180), ("2D", 172_800), ("1w", 604_800), (" 2 h ", 7200), ("1.5 days", 129_600)),
        *(("2 hours", 7200), ("120 Min", 7200), ("1 week", 604_800), ("10 seconds", 10)),
    ],
)
def test_a_duration_is_a_number_or_a_text(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "never", "4x", "h", "-1h", "1e3", "1h 30m", "٣h", "1 month"])
def test_other_texts_are_no_durations(text):
    with pytest.raises(BadAmount) as caught:
        parse_duration(text)
    assert str(caught.value) == (
        f"{text!r} is not a duration. Write seconds, or a number with s, m, h, d or w: 90m."
    )
    assert (seconds_in(text), caught.value.code) == (None, "bad_value")


def test_a_duration_may_last_a_hundred_years():
    assert parse_duration("36500d") == 36500 * 86400
    with pytest.raises(BadAmount, match=r"'36501d' is too long\. Use at most 36500d\."):
        parse_duration("36501d")
    assert seconds_in("36501d") == 36501 * 86400


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *((512, 512), ("512", 512), ("512b", 512), ("2GiB", 2 << 30), ("2g", 2 << 30)),
        *(("1.5 GiB", 3 << 29), ("2GB", 2 * 10**9), ("1TiB", 1 << 40), ("64 m", 64 << 20)),
    ],
)
def test_a_size_is_a_number_or_a_text(text, size):
    assert parse_size(text) == size


def test_other_texts_are_no_sizes():
    with pytest.raises(BadAmount) as caught:
        parse_size("lots" * 100)
    assert str(caught.value) == (
        f"{('lots' * 10)!r} is not a size. Write bytes, or a number with MiB or GiB: 2GiB."
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (0.5, "0.5s"), (60, "1m"), (90, "90s"), (5400, "90m"), (9000, "150m")),
        *((86400, "1d"), (129_600, "36h"), (1_234_567, "1234567s"), (3600.0000002, "1h")),
    ],
)
def test_a_duration_is_formatted_exactly(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1000, "1000B"), (2048, "2KiB"), (3 << 29, "1536MiB"), (4 << 30, "4GiB")],
)
def test_a_size_is_formatted_exactly(size, text):
    assert format_exact_size(size) == text


@given(st.integers(0, 36500 * 86400), st.integers(0, 10**14))
def test_what_is_formatted_exactly_parses_to_the_same(seconds, size):
    assert parse_duration(format_duration(seconds)) == seconds
    assert parse_size(format_exact_size(size)) == size


def test_rounded_formats():
    assert [format_size(one) for one in (0, 999, 1000, 43_900_000, 999_600)] == [
        *("0 B", "999 B", "1.00 kB", "43.9 MB", "1.00 MB")
    ]
    assert [format_memory(one) for one in (3 << 29, 1 << 30, 100 << 20)] == [
        *("1.5 GiB", "1.0 GiB", "100.0 MiB")
    ]
    assert format_memory(512 << 20, 2 << 30) == "0.5 GiB"
    assert [format_elapsed(one) for one in (0.123, 61, 7200)] == [
        *("0.12 s", "1 min 01 s", "2 h 00 min")
    ]
    assert [format_age(one) for one in (0.2, 119, 120, 7199, 7200, 172_800, 10**8)] == [
        *("0s", "119s", "2m", "120m", "2h", "2d", "1,157d")
    ]
    assert [counted(one, "run") for one in (0, 1, 2000)] == ["0 runs", "1 run", "2,000 runs"]


def test_the_nearest_name():
    assert nearest("stat", ["status", "state"]) == "state"
    assert nearest("del", ["show", "delete"]) == "delete"  # the only one that begins so
    assert nearest("de", ["show", "delete"]) == ""
    assert nearest("mertics", ["metrics", "hparams"]) == "metrics"
    assert nearest("dur", ["duration", "durable"], cutoff=0.75) == ""


def test_the_search_for_the_nearest_name_is_bounded():
    compared = []
    assert nearest("lr", (compared.append(one) or f"x{one}" for one in range(10**9))) == ""
    assert len(compared) == 5000
    assert nearest("a" * 201, ["a" * 202]) == ""


def test_a_search_imports_what_it_needs():
    code = "import aboard.runs.units, aboard.runs.selectors, sys; print('difflib' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
