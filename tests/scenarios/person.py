"""A user at a terminal: types commands in a directory, has a hub from the first board on, and sees
boards in a browser.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.browser.page import data_table, eventually, run_list, wait_for_words
from tests.engines.command import forked_hubs, run_command
from tests.waiting import until

Points = list[tuple[int, float]]
_HIDDEN = ("ABOARD_", "XDG_", "SLURM_", "SSH_")


class Typed(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Started(NamedTuple):
    """A board, as `aboard start` and `aboard open` tell of it."""

    name: str
    id: str
    url: str
    link: str


class Person:
    """A user with a home and a directory to work in."""

    def __init__(self, home: Path, variables: Mapping[str, str] | None = None) -> None:
        self.place = home / "work"
        self.place.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self.variables = {**kept, "HOME": str(home), "PATH": programs, **(variables or {})}
        self.state = home / ".local" / "state" / "aboard"

    def types(self, line: str, answers: str = "") -> Typed:
        """Type a command as it stands, and wait for its end."""
        words = shlex.split(line)
        if words[0] == "aboard" and words[1] != "run":
            with forked_hubs():
                ended = run_command(words[1:], env=self.variables, cwd=self.place, stdin=answers)
            return Typed(*ended)
        done = subprocess.run(
            words,
            cwd=self.place,
            env=self.variables,
            input=answers,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Typed(done.returncode, done.stdout, done.stderr)

    def does(self, line: str, answers: str = "") -> Typed:
        """Type a command that works."""
        done = self.types(line, answers)
        assert done.code == 0, f"{line}: {done.err}"
        return done

    def starts(self, rest: str) -> Started:
        """Start a board, and read where it is."""
        return read_link(self.does(f"aboard start {rest} --no-browser").out)

    def writes(self, name: str, text: str) -> Path:
        """Write a file in the directory of the user."""
        path = self.place / name
        path.write_text(text)
        return path

    @contextmanager
    def training(self, line: str) -> Iterator["Training"]:
        """Run a training that goes on for as long as it is told how."""
        with subprocess.Popen(
            shlex.split(line),
            cwd=self.place,
            env=self.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield Training(process)
            assert process.stdin
            process.stdin.close()
            assert process.wait(180) == 0

    def leaves(self) -> None:
        """End the hub, and the processes of boards, which would outlive it."""
        if (self.state / "hub.json").exists():
            self.does("aboard hub stop --boards")

    def points(self, url: str, tag: str = "loss") -> dict[str, Points]:
        """Return what a board serves of a tag, by run."""
        asked = json.dumps([{"plugin": "scalars", "tag": tag}])
        request = urllib.request.Request(
            f"{url}data/plugin/timeseries/timeSeries",
            urllib.parse.urlencode({"requests": asked}).encode(),
            {"authorization": f"Bearer {self.token}"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=180) as answer:
            return series(json.load(answer))

    def gets(self, url: str, expected: dict[str, Points], tag: str = "loss") -> None:
        """Wait until a board serves exactly these points."""
        until(lambda: self.points(url, tag) == expected, lambda: self.points(url, tag))

    @property
    def token(self) -> str:
        return (self.state / "hub-token").read_text().strip()


class Training:
    """A training that is going on."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def logs(self, step: int, value: float) -> None:
        """Let it log a point, and wait until it has."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{step} {value}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{step}\n"


def read_link(text: str) -> Started:
    """Read the line that tells of a board, and nothing else."""
    found = re.fullmatch(r"(\S+) \((\w{12})\): (http://localhost:\d+/b/\2/)(\?key=\S+)\n", text)
    assert found, text
    return Started(found[1], found[2], found[3], found[3] + found[4])


def series(document: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Return the points in an answer that the page fetches, by run."""
    return {
        run: [(point["step"], point["value"]) for point in points]
        for run, points in document[0]["runToSeries"].items()
    }


# At the browser.


def opens(page: Any, link: str, *runs: str) -> None:
    """Open a link that is good for once, and wait until the runs can be chosen."""
    page.goto(link)
    wait_for_words(page.locator("runs-data-table"), *runs)
    assert set(run_list(page)) == set(runs)
    assert "key" not in page.url


def chart(page: Any, tag: str) -> Any:
    """Return the chart of a tag."""
    place = page.locator("metrics-dashboard")
    place.locator("metrics-tag-filter input").fill(f"^{tag}$")
    card = place.locator("metrics-filtered-view scalar-card")
    card.locator("scalar-card-data-table").wait_for()
    return card


def shown(card: Any) -> dict[str, tuple[int, float]]:
    """Return step and value of each run, as the table below a chart has them."""
    return {run: (int(row["Step"]), float(row["Value"])) for run, row in data_table(card).items()}


def sees(card: Any, expected: dict[str, tuple[int, float]]) -> None:
    """Wait until the table below a chart has exactly these steps and values."""
    eventually(card.page, lambda: shown(card) == expected)
