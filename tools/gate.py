"""Run the tests, then run each failed test again, alone and in order.

A test that passes the second time is printed as FLAKY with its first failure, and does not block a
change: it is a defect of the test or of the product, to be fixed next. The gate fails if a test
fails twice, or if more than ten tests fail at first.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MAX_RETRIED = 10
_REPORT = "ABOARD_TESTS_REPORT"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "command", nargs="+", help="command that runs the tests, for example `make test`"
    )
    command = parser.parse_args().command
    code, report = _run(command)
    if report is None:
        print(f"{' '.join(command)} exited with code {code} before it had run the tests")
        return code or 1
    failed = report["failed"]
    if code and not failed:  # a crash, or a step that is not a test
        print(f"{' '.join(command)} exited with code {code}, but no test failed")
        return code
    flaky = [] if len(failed) > MAX_RETRIED else [name for name in failed if _passes_alone(name)]
    _print_summary(report, flaky)
    return int(len(flaky) < len(failed))


def _run(command: list[str]) -> tuple[int, dict[str, Any] | None]:
    place = Path("build", "tests.json").resolve()
    place.unlink(missing_ok=True)
    variables = {**os.environ, _REPORT: str(place)}
    code = subprocess.run(command, env=variables, check=False).returncode
    return code, json.loads(place.read_text()) if place.exists() else None


def _passes_alone(name: str) -> bool:
    print(f"--- again, alone: {name}", flush=True)
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
    if len(report["failed"]) > MAX_RETRIED:
        print(f"More than {MAX_RETRIED} tests failed: none was run again.")
    print(f"{len(flaky)} flaky; {report['seconds'] / 60:.1f} minutes")
    skipped = sum(report["skipped"].values())
    print(f"{report['passed']} passed, {failed} failed, {skipped} skipped")


if __name__ == "__main__":
    sys.exit(main())
