"""The bar that shows on a terminal how a reading gets on."""

import io
from contextlib import redirect_stderr

import pytest

from aboard.cli import progress
from aboard.cli.progress import ReadingBar
from aboard.index import Report


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Let time pass by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch):
    """Give a wide terminal to redirect standard error to."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    return Terminal()


def test_the_bar_says_how_much_is_done_and_how_fast(terminal, clock):
    with redirect_stderr(terminal), ReadingBar("/logs [of us]") as bar:
        clock[0] += 2
        bar(Report(bytes_total=8_000_000, bytes_read=2_000_000, events=50_000))
        bar._bar.refresh()
        text = terminal.getvalue()
        assert "reading /logs [of us]" in text
        assert "2.0/8.0 MB" in text
        assert "25,000 events/s" in text
        clock[0] += 2
        bar(Report(bytes_total=8_000_000, bytes_read=8_000_000, events=400_000))
        bar._bar.refresh()
        assert "8.0/8.0 MB" in terminal.getvalue()
        assert "100,000 events/s" in terminal.getvalue()
    assert bar._bar.live.is_started is False


def test_nobody_has_to_look_at_a_bar_for_a_moment(terminal, clock):
    with redirect_stderr(terminal), ReadingBar("/logs") as bar:
        clock[0] += 0.1
        bar(Report(bytes_total=10, bytes_read=1, events=1))
    assert terminal.getvalue() == ""


def test_there_is_no_bar_in_a_file(clock):
    out = io.StringIO()
    with redirect_stderr(out), ReadingBar("/logs") as bar:
        clock[0] += 60
        bar(Report(bytes_total=10, bytes_read=1, events=1))
    assert out.getvalue() == ""


def test_a_reading_tells_the_bar(terminal, tmp_path, index, monkeypatch):
    from aboard import EventWriter
    from aboard.index.logs import Logs

    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0)
    with EventWriter(tmp_path / "run") as writer:
        for step in range(1000):
            writer.scalar("loss", 1.0, step)
    with redirect_stderr(terminal), ReadingBar("here") as bar:
        Logs(tmp_path, index=index, progress=bar)
        bar._bar.refresh()
        assert bar._bar.tasks[0].finished
    assert "events/s" in terminal.getvalue()
