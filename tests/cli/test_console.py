"""What commands print: tables that fit the terminal, ages and progress."""

import io
from contextlib import redirect_stderr

import pytest
import typer
from typer.main import get_command

from aboard.cli import console
from aboard.cli.app import app
from aboard.cli.console import CommandError, ReadingBar, age, fitted, shortened, table
from aboard.index import Report


def test_all_errors_of_typer_have_one_class():
    """`CommandError` is found by its place, since it has no public name before typer 0.28."""
    assert CommandError.__name__ == "ClickException"
    assert issubclass(typer.BadParameter, CommandError)
    for arguments in (["--no-such-option"], ["no-such-command"], ["runs", "--limit", "x"]):
        with pytest.raises(CommandError) as caught:
            get_command(app)(arguments, standalone_mode=False)
        assert caught.value.exit_code == 2
        assert caught.value.format_message()


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


def test_the_age_of_a_time():
    then = "2026-01-01T00:00:00.000Z"
    at = 1767225600.0
    assert [age(then, now=at + one) for one in (0, -7200, 172800)] == ["0s", "2h", "2d"]
    assert age(None) == "-"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Let time pass by hand."""
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch):
    """Give a wide terminal to redirect standard error to."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    return Terminal()


def report_of(bytes_total, bytes_read, events):
    report = Report()
    report.bytes_total, report.bytes_read, report.events = bytes_total, bytes_read, events
    return report


def test_the_bar_says_how_much_is_done_and_how_fast(terminal, clock):
    with redirect_stderr(terminal), ReadingBar("/logs [of us]") as bar:
        clock[0] += 2
        bar(report_of(8_000_000, 2_000_000, 50_000))
        bar._bar.refresh()
        text = terminal.getvalue()
        assert "reading /logs [of us]" in text
        assert "2.0/8.0 MB" in text
        assert "25,000 events/s" in text
        clock[0] += 2
        bar(report_of(8_000_000, 8_000_000, 400_000))
        bar._bar.refresh()
        assert "8.0/8.0 MB" in terminal.getvalue()
        assert "100,000 events/s" in terminal.getvalue()
    assert bar._bar.live.is_started is False


def test_nobody_has_to_look_at_a_bar_for_a_moment(terminal, clock):
    with redirect_stderr(terminal), ReadingBar("/logs") as bar:
        clock[0] += 0.1
        bar(report_of(10, 1, 1))
    assert terminal.getvalue() == ""


def test_there_is_no_bar_in_a_file(clock):
    out = io.StringIO()
    with redirect_stderr(out), ReadingBar("/logs") as bar:
        clock[0] += 60
        bar(report_of(10, 1, 1))
    assert out.getvalue() == ""


def test_a_reading_tells_the_bar(terminal, tmp_path, index, monkeypatch):
    from aboard import EventWriter
    from aboard.index.logs import Logs

    monkeypatch.setattr(console, "_BAR_DELAY_SECONDS", 0)
    with EventWriter(tmp_path / "run") as writer:
        for step in range(1000):
            writer.scalar("loss", 1.0, step)
    with redirect_stderr(terminal), ReadingBar("here") as bar:
        Logs(tmp_path, index=index, progress=bar)
        bar._bar.refresh()
        assert bar._bar.tasks[0].finished
    assert "events/s" in terminal.getvalue()
