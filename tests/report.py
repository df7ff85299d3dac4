"""The summary at the end of a test run; a pytest plugin.

With ABOARD_TESTS_REPORT it is also written to a file, for `tools/gate.py`.
"""

import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.engines.requirements import MARK

REPORT = "ABOARD_TESTS_REPORT"
_began = time.monotonic()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    if kills := _tallied(terminalreporter):
        write(kills)
    skipped = _skipped(terminalreporter)
    for reason, count in skipped.items():
        if reason.startswith(MARK):
            write(f"NOT RUN: {count} tests: {reason.removeprefix(MARK)}")
    if place := os.environ.get(REPORT):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text(
            json.dumps(
                {
                    "passed": len(terminalreporter.getreports("passed")),
                    "skipped": skipped,
                    "failed": _failed(terminalreporter),
                    "slowest": _slowest(terminalreporter),
                    "seconds": time.monotonic() - _began,
                }
            )
        )


def _tallied(terminalreporter: pytest.TerminalReporter) -> str:
    """Return the sums of the fixture `tally`."""
    finished = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    tallies = [
        value
        for report in finished
        if report.when == "call"
        for name, value in report.user_properties
        if name == "tally"
    ]
    if not tallies:
        return ""
    kills, acknowledged, lost = map(sum, zip(*tallies, strict=True))
    return f"{kills} kills, {acknowledged} points acknowledged, {lost} points lost"


def _skipped(terminalreporter: pytest.TerminalReporter) -> dict[str, int]:
    reasons = Counter[str]()
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        reasons[reason.removeprefix("Skipped: ")] += 1
    return dict(reasons.most_common())


def _failed(terminalreporter: pytest.TerminalReporter) -> dict[str, str]:
    """Return the message of each failed test, or file that could not be imported."""
    failed = {}
    for report in (*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")):
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = (crash.message if crash else report.longreprtext).strip().splitlines()
        name = report.nodeid.partition("@")[0]  # xdist adds the group of the test
        failed.setdefault(name, lines[0 if crash else -1][:300] if lines else "")
    return failed


def _slowest(terminalreporter: pytest.TerminalReporter, count: int = 20) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
    return dict(sorted(seconds.items(), key=lambda item: -item[1])[:count])
