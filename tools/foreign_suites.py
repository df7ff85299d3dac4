"""Run the test suites of PyTorch, tensorboardX and TensorBoard against Aboard.

    python -m tools.foreign_suites pytorch ~/src/pytorch
    python -m tools.foreign_suites tensorboardx ~/src/tensorboardX
    python -m tools.foreign_suites tensorboard ~/src/tensorboard

Needs a checkout of the project, of a version near the installed package; it is not changed. The
tests run twice: unchanged, and with `SummaryWriter`, or TensorBoard's data provider, replaced by
ours. Only tests that use the replaced class count. The exit code is 1 if one of them passes with
theirs, fails with ours, and is not in `DELIBERATE`.

PyTorch's suite needs `pip install expecttest`. TensorBoard's runs in an environment with
TensorFlow, built by `tools/environments.py`. This file is also the pytest plugin.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ORDER = "ABOARD_FOREIGN_SUITE"  # the plugin's arguments, as JSON

FILES = {
    "pytorch": ["test/test_tensorboard.py", "test/expect/TestTensorBoard*"],
    "tensorboardx": ["tests/*", "tests/expect/*"],
    "tensorboard": [
        "tensorboard/backend/event_processing/data_provider_test.py",
        "tensorboard/plugins/*/*_plugin_test.py",
        "tensorboard/plugins/hparams/*_test.py",
    ],
}
DELIBERATE: dict[str, dict[str, str]] = {
    "pytorch": {},
    "tensorboardx": {
        "*::test_flush": "reads the name of the event file from a private attribute",
        "*::test_flush_after_close": "reads the name of the event file from a private attribute",
        "*::test_writer_with_default_metadata": "checks calls of one of their classes",
    },
    "tensorboard": {
        "*::test_read_scalars_but_not_rank_0": "the same error with another text: run and tag",
    },
}
"""Intended differences: patterns of test names, and the reason."""


class Result(NamedTuple):
    outcome: str  # passed, failed or skipped
    uses: bool  # whether the test uses the replaced class
    reason: str = ""


Results = dict[str, Result]


# The command.


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=FILES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", help="interpreter that has their package")
    options = parser.parse_args()
    if not any(options.checkout.glob(FILES[options.suite][0])):
        parser.error(f"{options.checkout} has no {FILES[options.suite][0]}")
    theirs, ours = (run(options, ours=ours) for ours in (False, True))
    return report(options.suite, theirs, ours)


def run(options: argparse.Namespace, *, ours: bool) -> Results:
    python = options.python or sys.executable
    if options.suite == "tensorboard" and options.python is None:
        from tools.environments import interpreter

        python = str(interpreter("tensorflow"))
    with tempfile.TemporaryDirectory(prefix="foreign-suite-") as directory:
        work = Path(directory)
        copy(options.suite, options.checkout, work / "suite")
        (work / "pytest.ini").write_text("[pytest]\npython_files = test_*.py *_test.py\n")
        order = {
            "suite": options.suite,
            "checkout": str(options.checkout.resolve()),
            "ours": ours,
            "results": str(work / "results.json"),
        }
        variables = {
            ORDER: json.dumps(order),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
            "ABOARD_CACHE": str(work / "cache"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        command = [python, "-m", "pytest", "-q", "-W", "ignore", "-c", str(work / "pytest.ini")]
        command += ["--noconftest", "-p", "no:cacheprovider", "-p", "tools.foreign_suites"]
        done = subprocess.run(
            [*command, "--continue-on-collection-errors", str(work / "suite")],
            cwd=work,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if not (work / "results.json").exists():
            sys.exit(f"the tests could not be run:\n{done.stdout}{done.stderr}")
        found = json.loads((work / "results.json").read_text())
        return {name: Result(*one) for name, one in found.items()}


def copy(suite: str, checkout: Path, target: Path) -> None:
    """Copy the tests, so that they do not import the package in the checkout."""
    for pattern in FILES[suite]:
        for path in checkout.glob(pattern):
            inner = path.relative_to(checkout)
            if suite == "tensorboard":
                inner = Path("_".join(inner.parts[1:]))
            if path.is_file():
                (target / inner).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / inner)


def report(suite: str, theirs: Results, ours: Results) -> int:
    users = {name: one for name, one in ours.items() if one.uses or theirs_use(theirs, name)}
    valid = {name: one for name, one in users.items() if passes(theirs, name)}
    applicable = {name: one for name, one in valid.items() if one.outcome != "skipped"}
    failed = {name: one for name, one in applicable.items() if one.outcome == "failed"}
    deliberate = {name: why for name in failed if (why := reason_of_difference(suite, name))}
    unexpected = {name: one for name, one in failed.items() if name not in deliberate}
    print(f"{suite}: {len(ours)} tests, {len(users)} use the replaced class")
    print(f"  {len(users) - len(valid)} do not pass with their own class and do not count")
    for name, one in theirs.items():
        if "::" not in name and one.outcome == "failed":
            print(f"  cannot be imported: {name}: {one.reason}")
    for name in sorted(valid.keys() - applicable.keys()):
        print(f"  not applicable: {name}: {valid[name].reason}")
    for name, why in sorted(deliberate.items()):
        print(f"  deliberate: {name}: {why}")
    for name, one in sorted(unexpected.items()):
        print(f"  UNEXPECTED: {name}: {one.reason}")
    share = f"{len(applicable) - len(failed)} of {len(applicable)}"
    print(f"  {share} pass with ours, {len(deliberate)} are deliberate differences")
    return 1 if unexpected or not applicable else 0


def passes(results: Results, name: str) -> bool:
    return name in results and results[name].outcome == "passed"


def theirs_use(results: Results, name: str) -> bool:
    return name in results and results[name].uses


def reason_of_difference(suite: str, name: str) -> str:
    return next((why for pattern, why in DELIBERATE[suite].items() if fnmatch(name, pattern)), "")


# The plugin.


class Plugin:
    def __init__(self, suite: str, checkout: str, ours: bool, results: str) -> None:
        self.current = ""
        self.users: set[str] = set()
        self.results: Results = {}
        self._place = Path(results)
        self._closing = ExitStack()
        {
            "pytorch": self._replace_torch,
            "tensorboardx": self._replace_tensorboardx,
            "tensorboard": self._replace_provider,
        }[suite](Path(checkout), ours)

    def _replace_torch(self, _: Path, ours: bool) -> None:
        import torch.utils.tensorboard as module

        module.SummaryWriter = self._recorded(_our_writer() if ours else module.SummaryWriter)

    def _replace_tensorboardx(self, _: Path, ours: bool) -> None:
        import tensorboardX as module  # noqa: N813 - its name

        writer = self._recorded(_our_writer() if ours else module.SummaryWriter)
        module.SummaryWriter = module.writer.SummaryWriter = writer

    def _replace_provider(self, checkout: Path, ours: bool) -> None:
        sys.meta_path.append(Checkout(checkout))
        from tensorboard.compat import tf2

        tf2.summary  # noqa: B018 - load TensorFlow before our import, which disables it
        from tensorboard.backend.event_processing import data_provider as module

        theirs = module.MultiplexerDataProvider
        module.MultiplexerDataProvider = self._recorded(self._our_provider() if ours else theirs)

    def _recorded(self, replaced: Any) -> Any:
        """Return a subclass that records which tests create an instance."""

        class Recorded(replaced):  # type: ignore[misc]
            def __init__(instance, *arguments: Any, **options: Any) -> None:  # noqa: N805
                self.users.add(self.current)
                super().__init__(*arguments, **options)

        Recorded.__name__ = Recorded.__qualname__ = replaced.__name__
        return Recorded

    def _our_provider(self) -> Any:
        import pytest

        from aboard.index import Index
        from aboard.index.library import Library, Member
        from aboard.tensorboard.board import Board
        from aboard.tensorboard.provider import BoardDataProvider, Boards

        class OneBoard(Boards):
            """Returns one board for every experiment, refreshed at each request."""

            def get(self, board_id: str) -> Any:  # noqa: ARG002
                for board in self:
                    for member in board.members:
                        self.index.refresh(member.source)
                return super().get("board")

        class Provider(BoardDataProvider):
            def __init__(provider, _: Any, logdir: str) -> None:  # noqa: N805
                if not logdir or not Path(logdir).is_dir():
                    pytest.skip("the data is not in a log directory")
                cache = self._closing.enter_context(tempfile.TemporaryDirectory())
                index = self._closing.enter_context(Index(Path(cache) / "index.db"))
                boards = OneBoard(Library(index))
                boards.add(Board("board", "", (Member.parse(logdir),)))
                super().__init__(boards)

        return Provider

    def pytest_runtest_setup(self, item: Any) -> None:
        self.current = item.nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.split("/")[-1]
        before = self.results.get(name, Result("passed", False))
        outcome, reason = before.outcome, before.reason
        if report.outcome != "passed" and outcome != "failed":
            outcome, reason = report.outcome, _reason(report)
        self.results[name] = Result(outcome, report.nodeid in self.users, reason)

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":
            self.results[report.nodeid] = Result("failed", False, _reason(report))

    def pytest_sessionfinish(self) -> None:
        self._place.write_text(json.dumps(self.results))
        self._closing.close()


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Plugin(**json.loads(os.environ[ORDER])))


class Checkout(importlib.abc.MetaPathFinder):
    """Imports modules that the tests need and the wheel does not contain from the checkout."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        file = self._checkout.joinpath(*name.split(".")).with_suffix(".py")
        if not name.startswith("tensorboard.") or not file.is_file():
            return None
        return importlib.util.spec_from_file_location(name, file)


def _our_writer() -> Any:
    import aboard

    return aboard.SummaryWriter


def _reason(report: Any) -> str:
    if isinstance(report.longrepr, tuple):  # the test was skipped
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join((crash.message if crash else str(report.longrepr)).split())[:200]


if __name__ == "__main__":
    sys.exit(main())
