"""The tests as a gate: run them all, and what failed once more, alone and in order.

A test that passes the second time is printed as FLAKY, with what it first failed with, and does not
stop a change: it is a defect to mend, of the test or of the product. The gate is shut if a test
fails twice, or if more than ten failed at first.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

AT_MOST = 10
_REPORT = "ABOARD_TESTS_REPORT"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="+", help="runs the tests, such as `make test`")
    command = parser.parse_args().command
    code, report = _run(command)
    if report is None:
        print(f"{' '.join(command)} ended with exit code {code} before it had run the tests")
        return code or 1
    failed = report["failed"]
    if code and not failed:  # a crash, or a step that is no test
        print(f"{' '.join(command)} ended with exit code {code}, though no test failed")
        return code
    flaky = [] if len(failed) > AT_MOST else [name for name in failed if _passes_alone(name)]
    _print_summary(report, flaky)
    return int(len(flaky) < len(failed))


def _run(command: list[str]) -> tuple[int, dict[str, Any] | None]:
    place = Path("build", "tests.json").resolve()
    place.unlink(missing_ok=True)
    variables = {**os.environ, _REPORT: str(place)}
    code = subprocess.run(command, env=variables, check=False).returncode
    return code, json.loads(place.read_text()) if place.exists() else None


def _passes_alone(name: str) -> bool:
    print(f"--- once more, alone: {name}", flush=True)
    pytest = [sys.executable, "-m", "pytest", "-m", "", "-r", "fEs", name]
    return subprocess.run(pytest, check=False).returncode == 0


def _print_summary(report: dict[str, Any], flaky: list[str]) -> None:
    print("--- the slowest tests, in seconds")
    for name, seconds in report["slowest"].items():
        print(f"{seconds:8.1f}  {name}")
    for reason, count in report["skipped"].items():
        print(f"SKIPPED {count} tests: {reason}")
    for name, reason in report["failed"].items():
        print(f"{'FLAKY' if name in flaky else 'FAILED'} {name} - {reason}")
    failed = len(report["failed"]) - len(flaky)
    if len(report["failed"]) > AT_MOST:
        print(f"More than {AT_MOST} tests failed: none was run once more.")
    print(f"{len(flaky)} flaky; {report['seconds'] / 60:.1f} minutes")
    skipped = sum(report["skipped"].values())
    print(f"{report['passed']} passed, {failed} failed, {skipped} skipped")


if __name__ == "__main__":
    sys.exit(main())
