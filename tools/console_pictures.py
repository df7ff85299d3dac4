"""Makes docs/pictures/console-*.png: every page of the console, light and dark, full and empty.

    .venv/bin/python tools/console_pictures.py [DIRECTORY]

The pages are those of a team's hub with synthetic runs of three users. The runs are written to
`/data`, as the pictures show the path, or to a temporary directory if `/data` exists or cannot be
created. Needs Chromium and `make console`.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from zlib import crc32

import httpx
import numpy as np
from pictures import BROWSER, PICTURE

import aboard
from aboard.jobs.model import JobRecord, Submission
from aboard.jobs.store import JobStore
from aboard.runs.manifest import Attempt, Manifest, State

NOW = time.time()
HOUR, DAY = 3600.0, 86400.0
ADMIN, PASSWORD = "ada", "correct horse battery"
USERS = {"grace": "member", "linus": "member", "marie": "viewer"}
EPOCHS, STEPS_PER_EPOCH = 60, 390


@dataclass
class Training:
    """A synthetic run; its curves follow from its hyperparameters."""

    experiment: str
    name: str
    lr: float
    depth: int
    batch: int = 128
    optimizer: str = "sgd"
    state: State = State.COMPLETED
    ago: float = DAY
    """Seconds since it started."""
    share: float = 1.0
    """The completed share of its steps."""
    user: str = ADMIN
    host: str = "gpu01"
    job: str = ""
    note: str = ""
    tags: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    reason: str = ""
    preempted: bool = False

    @property
    def label(self) -> str:
        return f"{self.experiment}/{self.name}"

    @property
    def hparams(self) -> dict[str, Any]:
        return {
            "lr": self.lr,
            "depth": self.depth,
            "optimizer": self.optimizer,
            "batch_size": self.batch,
        }

    @property
    def command(self) -> list[str]:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in self.hparams.items()]
        return ["python", "train.py", f"configs/{self.experiment}.toml", *options]

    @property
    def seconds_per_step(self) -> float:
        return 0.06 + 0.012 * self.depth * self.batch / 128

    @property
    def steps(self) -> int:
        return int(EPOCHS * STEPS_PER_EPOCH * self.share)

    @property
    def diverges(self) -> bool:
        return self.reason.startswith("FloatingPointError")


def trainings() -> list[Training]:
    """Return the runs of a week, with the members of the sweep first."""
    found = []
    for number, (lr, depth) in enumerate(
        ((lr, depth) for lr in (0.1, 0.03, 0.01, 0.003) for depth in (4, 8, 16)), 1
    ):
        for optimizer in ("sgd", "adamw"):
            one = Training("cifar10", f"sweep-{len(found) + 1}", lr, depth, optimizer=optimizer)
            one.ago, one.host = 2 * DAY - number * HOUR, f"gpu0{1 + number % 4}"
            one.user, one.job = "grace", "cifar10-sweep"
            if lr == 0.1 and optimizer == "adamw" and depth > 4:
                one.state, one.share, one.exit_code = State.FAILED, 0.18 + depth / 200, 1
                one.reason = "FloatingPointError: loss is nan"
            found.append(one)
    lost = found[19]
    lost.state, lost.share, lost.host = State.LOST, 0.7, "gpu03"
    best = found[8]
    best.note = "Best of the sweep. Candidate for table 2: repeat with three seeds."
    best.tags, best.preempted = {"baseline": True, "paper": "table 2"}, True
    resnet = {"experiment": "imagenet", "depth": 50, "batch": 256, "user": "linus"}
    found += [
        Training(name="resnet50-a", lr=0.1, ago=6 * DAY, host="gpu07", **resnet),
        Training(name="resnet50-b", lr=0.05, ago=5 * DAY, host="gpu08", **resnet),
        Training(
            name="resnet50-c",
            lr=0.2,
            ago=4 * DAY,
            host="gpu07",
            share=0.3,
            state=State.KILLED,
            exit_code=137,
            reason="out of memory: 512 images per step",
            **resnet,
        ),
        Training(
            name="resnet50-d",
            lr=0.1,
            ago=19 * HOUR,
            host="gpu08",
            share=0.8,
            optimizer="lamb",
            state=State.RUNNING,
            **resnet,
        ),
    ]
    late = {"experiment": "cifar10", "user": ADMIN, "host": "gpu02"}
    found += [
        Training(name="cutmix", lr=0.03, depth=8, ago=7 * HOUR, tags={"augment": "cutmix"}, **late),
        Training(
            name="no-warmup", lr=0.1, depth=16, ago=3 * HOUR, share=0.12, state=State.FAILED,
            exit_code=1, reason="FloatingPointError: loss is nan", **late,
        ),
        Training(
            name="warmup", lr=0.1, depth=16, ago=1.4 * HOUR, share=0.75, state=State.RUNNING,
            note="As no-warmup, with 500 steps of warm-up.", **late,
        ),
        Training(
            name="cutmix-lr", lr=0.06, depth=8, ago=0.6 * HOUR, share=0.5, state=State.RUNNING,
            tags={"augment": "cutmix"}, **late,
        ),
    ]  # fmt: skip
    return found


def curves(one: Training) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the points of each metric."""
    dice = np.random.default_rng(crc32(one.label.encode()))
    magnitude = math.log10(one.lr) + (1.5 if one.optimizer == "sgd" else 2.1)
    worse = 0.045 * magnitude**2 + 0.018 * abs(math.log2(one.depth / 8))
    best = (0.945 if one.experiment == "cifar10" else 0.77) - worse
    pace = STEPS_PER_EPOCH * (4 + 5 * abs(magnitude))
    last = EPOCHS * STEPS_PER_EPOCH

    def noise(count: int, size: float) -> np.ndarray:
        slow = np.convolve(dice.normal(0, size, count + 8), np.ones(9) / 5, "valid")
        return np.asarray(slow + dice.normal(0, size / 2, count))

    steps = np.arange(0, one.steps, 50)
    fit = 1 - np.exp(-steps / pace) * 0.75 - 0.25 * np.exp(-steps / pace / 6)
    loss = 2.3 - (2.3 - 0.9 * (1 - best)) * fit + noise(len(steps), 0.035) * (1.2 - fit)
    epochs = np.arange(STEPS_PER_EPOCH, one.steps + 1, STEPS_PER_EPOCH)
    grown = 1 - np.exp(-epochs / pace) * 0.7 - 0.3 * np.exp(-epochs / pace / 5)
    accuracy = 0.1 + (best - 0.1) * grown + noise(len(epochs), 0.007)
    checked = 2.3 - (2.3 - 2.6 * (1 - best)) * grown + noise(len(epochs), 0.03)
    if one.diverges:
        loss = loss + np.exp(np.minimum((steps - one.steps + 600) / 260, 2.2))
        checked = checked + np.exp(np.minimum((epochs - one.steps + 500) / 300, 1.6))
        accuracy = np.where(epochs > one.steps - 700, accuracy * 0.7, accuracy)
    rate = one.lr * np.minimum(1, (steps + 25) / 1500) * (1 + np.cos(np.pi * steps / last)) / 2
    return {
        "train/loss": (steps, np.maximum(loss, 0.01)),
        "train/lr": (steps, rate),
        "eval/accuracy": (epochs, np.clip(accuracy, 0.05, 1)),
        "eval/loss": (epochs, np.maximum(checked, 0.02)),
    }


def filters(seed: str, learned: float) -> np.ndarray:
    """Return an image like the filters of a first layer, which emerge from noise."""
    dice = random.Random(seed)
    noise = np.random.default_rng(crc32(seed.encode()))
    size, across, down = 11, 8, 4
    image = np.ones((down * (size + 1) + 1, across * (size + 1) + 1, 3))
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    for place in range(across * down):
        angle, phase = dice.uniform(0, math.pi), dice.uniform(0, 2 * math.pi)
        wave = np.cos((x * math.cos(angle) + y * math.sin(angle)) * dice.uniform(3, 8) + phase)
        wave *= np.exp(-(x**2 + y**2) * dice.uniform(0.8, 2))
        tint = np.array([dice.uniform(-1, 1) for _ in range(3)]) if place % 3 == 0 else np.ones(3)
        pattern = learned * wave[..., None] * tint
        pattern += (1 - learned) * noise.normal(0, 0.3, (size, size, 3))
        top, left = (place // across) * (size + 1) + 1, (place % across) * (size + 1) + 1
        image[top : top + size, left : left + size] = np.clip(0.5 + 0.5 * pattern, 0, 1)
    return np.asarray((image * 255).astype(np.uint8))


def output(one: Training, found: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    text = io.StringIO()
    print(f"$ {' '.join(one.command)}", file=text)
    print(f"\x1b[2mdata: {one.experiment}, 50,000 images; 2 x A100 on {one.host}\x1b[0m", file=text)
    epochs, accuracy = found["eval/accuracy"]
    for number, (step, value) in enumerate(zip(epochs, accuracy, strict=True), 1):
        loss = found["eval/loss"][1][number - 1]
        line = f"epoch {number:2}/{EPOCHS}  step {step:6,}  loss {loss:6.3f}  accuracy {value:.4f}"
        best = value >= max(accuracy[:number])
        print(line + ("  \x1b[32mbest, saved\x1b[0m" if best else ""), file=text)
    if one.diverges:
        print('Traceback (most recent call last):\n  File "train.py", line 88', file=text)
        print(f"\x1b[31m{one.reason} at step {one.steps:,}\x1b[0m", file=text)
    return text.getvalue()


def write_points(
    directory: Path, one: Training, found: dict[str, tuple[np.ndarray, np.ndarray]], since: float
) -> None:
    for tag, (steps, values) in found.items():
        stage, _, name = tag.partition("/")
        with aboard.EventWriter(directory / stage) as writer:
            for step, value in zip(steps, values, strict=True):
                wall_time = since + float(step) * one.seconds_per_step
                writer.scalar(name, float(value), int(step), wall_time=wall_time)
    with aboard.SummaryWriter(directory) as writer:
        for part in (0.0, 0.1, 0.3, 1.0):
            step = int(part * (one.steps - 1)) // STEPS_PER_EPOCH * STEPS_PER_EPOCH
            learned = 1 - math.exp(-step / 4000)
            wall_time = since + step * one.seconds_per_step
            writer.add_image("filters", filters(one.label, learned), step, wall_time, "HWC")
            weights = np.random.default_rng(step).standard_normal(4000) * (0.04 + 0.03 * learned)
            writer.add_histogram("weights/conv1", weights, step, walltime=wall_time)
    (directory / "output.log").write_text(output(one, found))


def write_run(root: Path, one: Training) -> None:
    directory = root / one.label
    found = curves(one)
    took = one.steps * one.seconds_per_step
    started = NOW - (took + 20 if one.state is State.RUNNING else one.ago)
    ended = started + took
    write_points(directory, one, found, started)
    lives = one.state is State.RUNNING
    attempt = Attempt(1, one.state, one.host, 4711, one.job, started)
    attempts = [attempt]
    if one.preempted:
        until = started - 0.4 * HOUR
        first = Attempt(1, State.KILLED, "gpu04", 3099, one.job, until - 1.3 * HOUR, until, 143)
        first.reason = "preempted"
        attempt.number, attempts = 2, [first, attempt]
    if not lives and one.state is not State.LOST:
        attempt.ended = ended
        attempt.exit_code = one.exit_code or 0
    record = Manifest(
        one.name,
        experiment=one.experiment,
        job=one.job,
        # A lost run is recorded as running, with an old heartbeat.
        state=State.RUNNING if one.state is State.LOST else one.state,
        exit_code=attempt.exit_code,
        reason=one.reason,
        created=attempts[0].started - 40,
        started=attempts[0].started,
        ended=attempt.ended,
        heartbeat=NOW if lives else ended,
        heartbeat_secs=HOUR if lives else 30.0,
        hparams=one.hparams,
        tags=one.tags,
        metrics={tag: float(found[tag][1][-1]) for tag in sorted(found)},
        note=one.note,
        command=one.command,
        host=one.host,
        user=one.user,
        git_commit=random.Random(one.experiment).randbytes(20).hex(),
        attempts=attempts,
    )
    (directory / "run.json").write_bytes(record.to_json())


def write_job(root: Path, job: str, runs: list[Training], **fields: Any) -> None:
    """Write the record of a job whose members have all ended."""
    at = NOW - max(one.ago for one in runs)
    numbers = list(range(1, len(runs) + 1))
    first = runs[0]
    record = JobRecord(
        id=job,
        experiment=first.experiment,
        run=fields.pop("run"),
        command=["python", "train.py", f"configs/{first.experiment}.toml", *fields.pop("options")],
        members=[{"lr": one.lr, "depth": one.depth, "optimizer": one.optimizer} for one in runs],
        created=at,
        user=first.user,
        host="login1",
        submissions=[
            Submission(attempt=1, numbers=numbers, at=at, by="", directory="/none", handle={})
        ],
        settled={
            str(number): [one.state.value, one.exit_code or 0, one.reason]
            for number, one in zip(numbers, runs, strict=True)
        },
        **fields,
    )
    JobStore(str(root)).create(record)


def write_all(root: Path) -> None:
    found = trainings()
    for one in found:
        write_run(root, one)
    sweep = [one for one in found if one.job]
    options = ["--lr={lr}", "--depth={depth}", "--optimizer={optimizer}"]
    write_job(root, "cifar10-sweep", sweep, run="sweep-{number}", options=options, on="slurm:gpu")
    resnet = [one for one in found if one.experiment == "imagenet"][:3]
    write_job(
        root, "resnet50-lr", resnet, run="resnet50-{number}", options=options[:1], on="kubernetes"
    )


class Hub:
    """A client of each user of a team's hub."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.users: dict[str, httpx.Client] = {}
        self.log_in(ADMIN)
        for name, role in USERS.items():
            self.ask("POST", "/users", {"name": name, "role": role, "password": PASSWORD})
            self.log_in(name)

    def log_in(self, name: str) -> None:
        headers = {"x-aboard-csrf": "1", "origin": self.address}
        client = httpx.Client(base_url=self.address, headers=headers, timeout=60)
        client.post("/api/v1/login", json={"user": name, "password": PASSWORD}).raise_for_status()
        self.users[name] = client
        token = self.ask("POST", "/tokens", {"name": "notebook", "lasts": "90d"}, name)["token"]
        client.headers["authorization"] = f"Bearer {token}"
        client.cookies.clear()

    def ask(self, method: str, path: str, body: Any = None, user: str = ADMIN) -> Any:
        answer = self.users[user].request(method, f"/api/v1{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def wait(self, ready: Any) -> None:
        until = time.monotonic() + 60
        while not ready():
            assert time.monotonic() < until, "the hub takes too long"
            time.sleep(0.3)


@contextmanager
def serving(place: Path, root: Path) -> Iterator[Hub]:
    place.mkdir(parents=True)
    config = place / "aboard.toml"
    config.write_text(
        f'port = 0\ndirectory = "{place / "hub"}"\n[jobs]\nsubmit = true\n'
        f'[[roots]]\nuri = "{root}"\n[limits]\nisolated = 3\nmemory = "8GiB"\n'
    )
    command = [sys.executable, "-m", "aboard", "serve", "--config", str(config)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {
        "ABOARD_CACHE": str(place / "cache"),
        "PATH": path,
        "LOGNAME": ADMIN,
    }
    with subprocess.Popen(
        [*command, "--admin", ADMIN, "--json"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{PASSWORD}\n".encode())
        process.stdin.flush()
        try:
            yield Hub(json.loads(process.stdout.readline())["address"])
        finally:
            process.terminate()


@contextmanager
def live_boards(hub: Hub) -> Iterator[None]:
    question = 'state == "completed" and metrics["eval/accuracy"].max > 0.9'
    wishes: list[tuple[str, dict[str, Any]]] = [
        ("linus", {"selectors": ["imagenet"], "name": "resnet50", "timeout": "7d"}),
        (ADMIN, {"selectors": ["cifar10/sweep-3"], "name": "one-run"}),
        ("grace", {"selectors": ["cifar10"], "name": "sweep-best", "where": question}),
        ("grace", {"selectors": ["tag:baseline"], "name": "baselines", "visibility": "team"}),
        (ADMIN, {"selectors": ["state:running"], "name": "running-now", "timeout": "8h"}),
        ("linus", {"selectors": ["*"], "name": "nightly", "on": "process", "memory": "2GiB"}),
        (
            "grace",
            {"selectors": ["cifar10"], "name": "sweep-all", "on": "process", "memory": "24MiB"},
        ),
    ]
    made = {}
    for user, wish in wishes:
        made[wish["name"]] = hub.ask("POST", "/boards", wish, user)["id"]
    for name in ("resnet50", "sweep-best", "running-now"):
        hub.users[ADMIN].get(f"/b/{made[name]}/", follow_redirects=True)
    hub.ask("POST", f"/boards/{made.pop('one-run')}/stop", {"now": True})
    small = made.pop("sweep-all")  # exceeds its memory limit
    hub.wait(lambda: hub.ask("GET", f"/boards/{small}")["state"] == "failed")
    try:
        yield
    finally:
        for board in made.values():  # isolated ones outlive the hub
            hub.ask("POST", f"/boards/{board}/stop", {"now": True})


def grow_old(database: Path) -> None:
    """Move the times of accounts, tokens, sessions and boards into the past."""
    old = {
        "account": {"created": 17 * DAY},
        "token": {"created": 5 * DAY, "expires": 5 * DAY, "last_used": 2.3 * HOUR},
        "visit": {"created": 1.7 * DAY, "expires": 1.7 * DAY},
        "board": {"last_request": 0.4 * HOUR},
    }
    with sqlite3.connect(database, timeout=60) as connection:
        for table, columns in old.items():
            shifts = ", ".join(f"{name} = {name} - {by} * rowid" for name, by in columns.items())
            connection.execute(f"UPDATE {table} SET {shifts}")


@contextmanager
def running_job(hub: Hub, root: Path, place: Path) -> Iterator[None]:
    """Submit a job, write points and earlier times for its running members, and stop it."""
    place.mkdir(exist_ok=True)
    (place / "train.py").write_text("import time\n\ntime.sleep(3600)\n")
    job = hub.ask(
        "POST",
        "/jobs",
        {
            "command": ["python", "train.py", "--lr={lr}", "--optimizer=adamw"],
            "workdir": str(place),
            "experiment": "wmt14",
            "name": "wmt14-lr",
            "sweep": {"lr": [0.001, 0.0005, 0.0003]},
            "hparams": {"depth": 12, "optimizer": "adamw", "batch_size": 256},
            "parallel": 2,
        },
    )
    records = root / "wmt14"
    hub.wait(lambda: len(list(records.glob("*/run.json"))) == 2)
    for number, path in enumerate(sorted(records.glob("*/run.json"))):
        record = json.loads(path.read_bytes())
        one = Training("wmt14", path.parent.name, record["hparams"]["lr"], 12, 256, "adamw")
        one.share, one.state, one.host = 0.42 - number / 10, State.RUNNING, f"gpu0{5 + number}"
        found = curves(one)
        since = NOW - one.steps * one.seconds_per_step
        write_points(path.parent, one, found, since)
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
        record |= {"created": moment, "started": moment, "host": one.host}
        record["metrics"] = {tag: float(found[tag][1][-1]) for tag in sorted(found)}
        path.write_text(json.dumps(record))
    try:
        hub.wait(lambda: hub.ask("GET", f"/jobs/{job['id']}")["states"].get("running") == 2)
        yield
    finally:
        hub.ask("POST", f"/jobs/{job['id']}/stop", {})
        hub.wait(lambda: hub.ask("GET", f"/jobs/{job['id']}")["state"] == "stopped")


def settle(page: Any) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2_500)


def picture(page: Any, url: str, name: str, folder: Path) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.goto(url)
        settle(page)
        page.screenshot(path=folder / f"console-{name}-{theme}.png")


def take_full(browser: Any, place: Path, folder: Path) -> None:
    root = place / "runs"
    write_all(root)
    with (
        serving(place / "hub", root) as hub,
        running_job(hub, root, place / "wmt14"),
        live_boards(hub),
    ):
        hub.wait(lambda: hub.ask("GET", "/runs")["total"] == len(trainings()) + 2)
        hub.ask("POST", "/tokens", {"name": "nightly export", "lasts": "365d"})
        grow_old(place / "hub" / "hub" / "hub.db")
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        log_in(page, hub.address)
        for name, path in pages(hub).items():
            # The output of a run is below its curves and images.
            page.set_viewport_size({"width": 1280, "height": 1000 if name == "run" else 800})
            picture(page, f"{hub.address}{path}", name, folder)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(f"{hub.address}/runs")
        settle(page)
        page.screenshot(path=folder / "console-phone.png")
        page.set_viewport_size({"width": 1280, "height": 800})
        for one in trainings()[:6]:
            shutil.copytree(root / one.label, place / "archive" / one.label)
        for name in ("archive", "scratch"):  # scratch does not exist
            hub.ask("POST", "/roots", {"uri": str(place / name)})
        picture(page, f"{hub.address}/storage", "storage", folder)
        context.close()


def take_empty(browser: Any, place: Path, folder: Path) -> None:
    (place / "none").mkdir()
    with serving(place / "empty", place / "none") as hub:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        log_in(page, hub.address)
        for name in ("runs", "boards", "jobs", "compare"):
            picture(page, f"{hub.address}/{name}", f"{name}-empty", folder)
        context.close()


def log_in(page: Any, address: str) -> None:
    page.goto(f"{address}/login")
    page.locator("input[name=user]").fill(ADMIN)
    page.locator("input[name=password]").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.locator("nav").first.wait_for()
    settle(page)


def pages(hub: Hub) -> dict[str, str]:
    """Return the path of every page by its name."""
    ids = {
        f"{one['experiment']}/{one['name']}": one["id"]
        for one in hub.ask("GET", "/runs?limit=200")["runs"]
    }
    compared = ["sweep-3", "sweep-4", "sweep-9", "sweep-13", "sweep-21"]
    compared += ["cutmix", "no-warmup", "warmup"]
    chosen = urlencode([("run", ids[f"cifar10/{name}"]) for name in compared])
    metric = {"where": 'experiment == "cifar10"', "metric": "eval/accuracy"}
    return {
        "runs": "/runs",
        "run": f"/runs/{quote(ids['cifar10/sweep-9'])}",
        "compare": f"/compare?{chosen}",
        "sweep": f"/sweep?{urlencode(metric)}",
        "boards": "/boards?all=1",
        "jobs": "/jobs?job=cifar10-sweep",
        "people": "/people",
    }


@contextmanager
def a_place() -> Iterator[Path]:
    place = Path("/data")
    try:
        place.mkdir()
    except OSError:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    try:
        yield place
    finally:
        shutil.rmtree(place)


def main() -> None:
    from playwright.sync_api import sync_playwright

    folder = Path(sys.argv[1]) if sys.argv[1:] else PICTURE.parent
    with a_place() as place, sync_playwright() as playwright:
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=list(BROWSER))
        take_full(browser, place, folder)
        take_empty(browser, place, folder)
        browser.close()


if __name__ == "__main__":
    main()
