"""What commands print: tables that fit the terminal, numbers and times."""

from aboard.cli.console import age, duration, fitted, shortened, size, table


def test_a_list_fits_the_terminal():
    heads = ("ID", "NAME", "SHOWS", "URL", "REASON")
    rows = [["1", "otter", "a" * 30, "http://hub/b/1/", "x" * 30], ["2", "cat", "b", "-", "-"]]

    def fit(width):
        least, shortest = ("REASON", "URL"), {"SHOWS": 10, "REASON": 8}
        kept, cells = fitted(heads, rows, width, least=least, shortest=shortest)
        lines = table(kept, cells, left=len(kept)).splitlines()
        assert max(map(len, lines)) <= width
        return kept, cells[0]

    assert fit(200) == (heads, rows[0])
    kept, first = fit(60)
    assert kept == heads
    assert first[2:] == ["a" * 21 + "…", "http://hub/b/1/", "x" * 7 + "…"]
    assert fit(40) == (heads[:4], ["1", "otter", "a" * 11 + "…", "http://hub/b/1/"])
    assert fit(30)[0] == heads[:3]
    assert fit(21) == (heads[:3], ["1", "otter", "a" * 9 + "…"])


def test_wide_characters_are_aligned():
    lines = table(("NAME", "N"), [["東京", "1"], ["ab", "22"], ["e\u0301", "3"]], left=1)
    assert lines.splitlines() == ["NAME   N", "東京   1", "ab    22", "e\u0301      3"]
    assert shortened("東京都港区", 6) == "東京…"
    assert shortened("東京", 4) == "東京"


def test_sizes_and_times_read_well():
    assert [size(n) for n in (0, 999, 1000, 43_900_000, 999_600)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "43.9 MB",
        "1.00 MB",
    ]
    assert [duration(s) for s in (0.123, 61, 7200)] == ["0.12 s", "1 min 01 s", "2 h 00 min"]


def test_ages_are_written_roughly():
    then = "2026-01-01T00:00:00.000Z"
    at = 1767225600.0
    assert [age(then, now=at + one) for one in (0, 119, 120, 7199, 7200, 172800)] == [
        *("0s", "119s", "2m", "120m", "2h", "2d")
    ]
    assert age(None) == "-"
