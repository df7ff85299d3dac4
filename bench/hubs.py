"""The cost of a hub: starting a board, many boards, many clients, lists, jobs and curves."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import peers
import personal
import trees
import views
from cases import MIB, Action, Figures, Result, Sizes, Target, alternate
from client import Site, decompress
from measure import Measured, run_command, run_server
from personal import Hub, Memory
from trees import Tree

Start = Callable[[Hub, Path], tuple[str, float]]
"""Starts a board of a directory; returns its id, and the CPU time spent outside the hub."""
API, COMMAND = "the hub's API", "aboard start"
STOCK = "tensorboard --load_fast=true"
_POLL_SECONDS = 0.05  # between two requests that wait for something; more would compete with it


def start(sizes: Sizes, cache: Path) -> Result:
    """Time the start of a board to its first complete curve, on a running hub.

    Each measurement has a new hub that has shown one board of other logs. A directory is known if
    another process has read it into the index; this hub has not read it.
    """
    found: dict[str, Figures] = {}
    targets = []
    for tree in sizes.started:
        place = trees.make(tree, cache)
        trees.warm(place)
        name = f"{tree.points:,} points"
        with peers.new_index(cache) as index:
            peers.aboard_index(tree, place, index)
            actions: dict[str, Action] = {
                f"{name}, {state}: {way}": partial(_measure_start, tree, place, cache, by, kept)
                for way, by in {API: _by_api, COMMAND: _by_command}.items()
                for state, kept in {"known": index, "unknown": None}.items()
            }
            if peers.has_data_server():
                actions[f"{name}: {STOCK}"] = partial(_stock, tree, place)
            found |= alternate(actions, sizes.times)
        if stock := found.get(f"{name}: {STOCK}"):
            times = stock.best / found[f"{name}, known: {API}"].best
            targets.append(Target(f"a board of {name}, times as fast as tensorboard", 20, times))
    return Result("a board started, to its first curve", found, targets=targets)


def _measure_start(tree: Tree, place: Path, cache: Path, by: Start, index: Path | None) -> Measured:
    with peers.new_index(cache) as home, personal.running(home, index=index) as hub:
        other = trees.make(personal.SMALL, cache)
        personal.wait_for_curve(personal.SMALL, hub.site(hub.create(other)))
        before = hub.cpu()
        began = time.perf_counter()
        board, cpu = by(hub, place)
        seconds = personal.wait_for_curve(tree, hub.site(board)) - began
        return Measured(seconds, hub.memory().peak, hub.cpu() - before + cpu)


def _by_api(hub: Hub, place: Path) -> tuple[str, float]:
    return hub.create(place), 0.0


def _by_command(hub: Hub, place: Path) -> tuple[str, float]:
    command = [*peers.ABOARD, "start", str(place), "--no-browser", "--json"]
    done = run_command(command, hub.environment)
    return json.loads(done.output)["id"], done.cpu


def _stock(tree: Tree, place: Path) -> Measured:
    port = peers.free_port()
    answers = []

    def ready(process: subprocess.Popen[str]) -> None:
        peers.wait_for_line(process, peers.LOADED)
        answers.append(Site(port, "/").ask("curve", trees.tag_name(0)))

    measured = run_server(peers.tensorboard_command(place, port), peers.environment(), ready)
    if not personal.is_whole(tree, answers[0]):
        raise peers.MeasurementError("tensorboard did not serve the complete curve")
    return measured


def many_boards(sizes: Sizes, cache: Path) -> Result:
    """Compare many boards of different directories on one hub with a process for each."""
    tree, count = sizes.base, sizes.hub_boards
    found = {}
    with personal.copies(tree, count, cache) as places:
        began = time.perf_counter()
        with peers.new_index(cache) as home, personal.running(home) as hub:
            found["a hub, no board"] = _memory_figures(time.perf_counter() - began, hub.memory())
            for place in places:
                _open(tree, hub.site(hub.create(place)))
            ours = hub.memory()
            found[f"a hub, {count} boards"] = _memory_figures(time.perf_counter() - began, ours)
        targets, notes = [], []
        if peers.has_data_server():
            some = places[: sizes.stock_boards]
            seconds, theirs = _stock_boards(tree, some)
            scale = count / len(some)
            scaled = Memory(round(theirs.peak * scale), round(theirs.fair * scale))
            found[f"tensorboard, {len(some)} processes"] = _memory_figures(seconds, theirs)
            extrapolated = f"tensorboard, {count} processes"
            found[extrapolated] = _memory_figures(seconds * scale, scaled)
            found[extrapolated].note += f"; not run: {len(some)} measured, times {scale:g}"
            less = scaled.fair / ours.fair
            targets = [Target("PSS of many boards, times less than stock's", 30, less)]
            notes = ["PSS counts a page that processes share only once; peak memory does not."]
    return Result(f"{count} boards, each of another {tree}", found, targets=targets, notes=notes)


def _open(tree: Tree, site: Site) -> None:
    """Send the requests of a page that shows one chart."""
    site.page()
    personal.wait_for_curve(tree, site)
    peers.check("the runs", len(site.runs()), tree.runs)
    peers.check("the tags", len(site.tags()["scalars"]["runTagInfo"]), tree.runs)


def _stock_boards(tree: Tree, places: list[Path]) -> tuple[float, Memory]:
    """Run stock boards at the same time; return the time to open all, and their memory."""
    began = time.perf_counter()
    with ExitStack() as running:
        pids = []
        for place in places:
            port = peers.free_port()
            command = peers.tensorboard_command(place, port)
            server = views.running_server(command, peers.environment(), peers.LOADED)
            pids.append(running.enter_context(server))
            _open(tree, Site(port, "/"))
        seconds = time.perf_counter() - began
        peaks, fair = zip(*map(personal.memory_of, pids), strict=True)
    return seconds, Memory(sum(peaks), sum(fair))


def _memory_figures(seconds: float, memory: Memory) -> Figures:
    note = f"PSS {memory.fair / MIB:,.0f} MiB at the end"
    return Figures(seconds, seconds, memory.peak / MIB, note=note)


def crowd(sizes: Sizes, cache: Path) -> Result:
    """Load some boards of one hub with many clients that never pause between requests."""
    tree = sizes.base
    with (
        personal.copies(tree, sizes.client_boards, cache) as places,
        peers.new_index(cache) as home,
        personal.running(home) as hub,
    ):
        boards = [hub.create(place) for place in places]
        for board in boards:
            _open(tree, hub.site(board))
        before = hub.cpu()
        delays, errors, seconds = asyncio.run(_visits(hub, boards, sizes))
        used = hub.cpu() - before
        peak = hub.memory().peak / MIB
    if errors:
        raise RuntimeError(f"{len(errors)} requests failed, such as: {'; '.join(errors[:3])}")
    delays["any of these"] = list(itertools.chain.from_iterable(delays.values()))
    found = {question: _delay_figures(taken, peak) for question, taken in delays.items()}
    total = len(delays["any of these"])
    note = f"{total:,} requests, no errors, {total / seconds:,.0f} per second;"
    note += f" {used / seconds:.2f} cores used by the hub. No client pauses, so a request"
    note += " waits for those of all others."
    title = (
        f"{sizes.clients} clients on {sizes.client_boards} boards of {tree}, for {seconds:.0f} s"
    )
    return Result(title, found, notes=[note])


def _delay_figures(taken: list[float], peak_mib: float) -> Figures:
    taken.sort()
    slow = taken[int(len(taken) * 0.99)]
    note = f"{len(taken):,} requests, 99 of 100 within {slow * 1000:,.0f} ms"
    return Figures(taken[0], statistics.median(taken), peak_mib, note=note)


async def _visits(
    hub: Hub, boards: list[str], sizes: Sizes
) -> tuple[dict[str, list[float]], list[str], float]:
    """Return the delays by kind of request, the errors, and the total seconds."""
    import aiohttp

    data = "data/plugin/timeseries"
    form = {"requests": json.dumps([{"plugin": "scalars", "tag": trees.tag_name(0)}])}
    questions = {
        "runs": ("GET", "data/runs", None),
        "tags": ("GET", f"{data}/tags", None),
        "curve": ("POST", f"{data}/timeSeries", form),
    }
    delays: dict[str, list[float]] = {question: [] for question in questions}
    errors: list[str] = []
    lengths: dict[tuple[str, str], int] = {}
    ends = time.monotonic() + sizes.load_seconds

    async def visit(session: aiohttp.ClientSession, board: str) -> None:
        for question, (method, path, form) in itertools.cycle(questions.items()):
            if time.monotonic() > ends and all(delays.values()):  # each has one response or more
                return
            began = time.perf_counter()
            try:
                url = f"{hub.address}/b/{board}/{path}"
                async with session.request(method, url, data=form) as answer:
                    length = len(await answer.read())
                    first = lengths.setdefault((board, question), length)
                    if answer.status != 200 or length != first:
                        errors.append(f"{path}: {answer.status}, {length} bytes, not {first}")
            except (aiohttp.ClientError, TimeoutError) as error:
                errors.append(f"{path}: {error!r}")
            delays[question].append(time.perf_counter() - began)

    # Responses are not decompressed: the clients share the cores with the hub.
    options = {"headers": hub.headers, "auto_decompress": False}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), **options) as session:
        began = time.perf_counter()
        crowd = [visit(session, boards[one % len(boards)]) for one in range(sizes.clients)]
        await asyncio.gather(*crowd)
        return delays, errors, time.perf_counter() - began


def lists(sizes: Sizes, cache: Path) -> Result:
    """List all runs and boards of a hub, over the API and with the commands."""
    found: dict[str, Figures] = {}
    for factor in sizes.factors:
        found |= _measure_lists(
            sizes.listed_runs * factor, sizes.listed_boards * factor, sizes, cache
        )
    most = sizes.listed_runs * sizes.factors[-1]
    targets = [
        Target(f"seconds, {way}", 1, found[way].best, at_least=False)
        for way in (f"{most:,} runs: the API", f"{most:,} runs: aboard runs")
    ]
    return Result("growing lists", found, targets=targets)


def _measure_lists(runs: int, boards: int, sizes: Sizes, cache: Path) -> dict[str, Figures]:
    root = personal.recorded(runs, cache)
    with peers.new_index(cache) as home, personal.running(home, root=root) as hub:
        began = time.perf_counter()
        while len(list(hub.pages("runs"))) < runs:
            if time.perf_counter() - began > 300:
                raise peers.MeasurementError(f"the hub did not find all {runs} runs in 300 s")
            time.sleep(_POLL_SECONDS)
        noticed = time.perf_counter() - began
        began = time.perf_counter()
        for number in range(boards):
            hub.create(personal.recorded_label(number))
        made = time.perf_counter() - began
        list_runs = ["runs", "--root", str(root), "--json"]
        found = alternate(
            {
                f"{runs:,} runs: the API": lambda: _by_pages(hub, "runs", runs),
                f"{runs:,} runs: aboard runs": lambda: _by_list(hub, list_runs, "runs", runs),
                f"{boards:,} boards: the API": lambda: _by_pages(hub, "boards", boards),
                f"{boards:,} boards: aboard list": lambda: _by_list(
                    hub, ["list", "--json"], "boards", boards
                ),
            },
            sizes.times,
        )
    found[f"{runs:,} runs: the API"].note = f"a new hub found all in {noticed:.2f} s"
    found[f"{boards:,} boards: the API"].note = f"all were started in {made:.2f} s"
    return found


def _by_pages(hub: Hub, what: str, wanted: int) -> Measured:
    before, began = hub.cpu(), time.perf_counter()
    count = sum(1 for _ in hub.pages(what))
    seconds = time.perf_counter() - began
    peers.check(f"the list of {what}", count, wanted)
    return Measured(seconds, hub.memory().peak, hub.cpu() - before)


def _by_list(hub: Hub, command: list[str], what: str, wanted: int) -> Measured:
    measured = run_command([*peers.ABOARD, *command], hub.environment)
    peers.check(f"aboard {command[0]}", len(json.loads(measured.output)[what]), wanted)
    return measured


def jobs(sizes: Sizes, cache: Path) -> Result:
    """Time `aboard jobs` with a job of many members; one runs and the others wait."""
    found: dict[str, Figures] = {}
    most = 100
    for factor in sizes.factors:
        most = 100 * factor
        with peers.new_index(cache) as home, tempfile.TemporaryDirectory() as root:
            environment = peers.environment(home) | {"ABOARD_ROOT": root}
            words = ["submit", "--name", "swept", "--repeat", str(most), "--parallel", "1"]
            run_command([*peers.ABOARD, *words, "--", "sleep", "600"], environment)
            try:
                listing = partial(_by_jobs, most, environment)
                found |= alternate({f"{most:,} members: aboard jobs": listing}, sizes.times)
            finally:
                run_command([*peers.ABOARD, "jobs", "stop", "swept", "--now"], environment)
    best = found[f"{most:,} members: aboard jobs"].best
    target = Target(f"seconds, a job of {most:,} members", 0.3, best, at_least=False)
    return Result("a job of many members, listed", found, targets=[target])


def _by_jobs(members: int, environment: Mapping[str, str]) -> Measured:
    measured = run_command([*peers.ABOARD, "jobs", "--json"], environment)
    [job] = json.loads(measured.output)["jobs"]
    peers.check("the members of the job", sum(job["states"].values()), members)
    return measured


def series(sizes: Sizes, cache: Path) -> Result:
    """Request the curves of many runs at once, and a window of one very long curve."""
    tree, longest = sizes.curves, sizes.longest
    samples = min(1000, tree.steps)
    place, long_place = trees.make(tree, cache), trees.make(longest, cache)
    for one in (place, long_place):
        trees.warm(one)
    name = f"{samples:,} of {tree.steps:,} points of {tree.runs:,} runs"
    third, part = longest.steps // 3, longest.steps // 10
    of_long = f"{samples:,} of {part:,} of {longest.steps:,} points"
    with (
        peers.new_index(cache) as home,
        ExitStack() as running,
        personal.running(home, root=place) as hub,
    ):
        hub.ask("POST", "/roots", {"uri": str(long_place.absolute())})
        many = {"selectors": [str(place.absolute())], "samples": samples}
        one = {"selectors": [str(long_place.absolute())], "samples": samples}
        for runs, body, steps in ((tree.runs, many, tree.steps), (1, one, longest.steps)):
            _wait_for_points(hub, body, runs, steps)
        smoothed = {**many, "smoothing": 0.9}
        window = {**one, "start": third, "stop": third + part - 1}
        points = tree.runs * samples
        actions: dict[str, Action] = {
            f"{name}, arrays": lambda: _curves(hub, {**many, "format": "binary"}, points),
            f"{name}, JSON": lambda: _curves(hub, many, points),
            f"{name}, smoothed, arrays": lambda: _curves(
                hub, {**smoothed, "format": "binary"}, points
            ),
            of_long: lambda: _curves(hub, {**window, "format": "binary"}, samples),
        }
        if peers.has_data_server():
            port = peers.free_port()
            command = peers.tensorboard_command(place, port)
            server = views.running_server(command, peers.environment(), peers.LOADED)
            pid = running.enter_context(server)
            site = Site(port, "/")
            actions[f"{name}: {STOCK}"] = lambda: _stock_curve(site, tree, pid)
        found = alternate(actions, max(sizes.times, sizes.inner_times // 2))
    targets = [
        Target("seconds, all runs as arrays", 0.3, found[f"{name}, arrays"].best, at_least=False),
        Target("milliseconds, of the long curve", 50, 1000 * found[of_long].best, at_least=False),
    ]
    return Result("curves by request", found, f"{name}, arrays", targets=targets)


def _wait_for_points(hub: Hub, body: dict[str, object], runs: int, steps: int) -> None:
    """Poll until the hub has read all points."""
    for _ in range(1000):
        found = hub.ask("POST", "/series", {**body, "samples": 5, "tags": [trees.tag_name(0)]})
        whole = {one["points"] for one in found["series"]} == {steps}
        if whole and len(found["series"]) == runs:
            return
        time.sleep(0.2)
    raise peers.MeasurementError(f"the hub never had {runs} runs of {steps} steps")


def _curves(hub: Hub, body: dict[str, object], points: int) -> Measured:
    before, began = hub.cpu(), time.perf_counter()
    content = hub.send("POST", "/series", {**body, "tags": [trees.tag_name(0)]})
    seconds = time.perf_counter() - began
    used = hub.cpu() - before
    if body.get("format") == "binary":
        found = (len(content) - 8 - int.from_bytes(content[4:8], "little")) // 16
    else:
        found = sum(len(one["y"]) for one in json.loads(content)["series"])
    peers.check("the points", found, points)
    return Measured(seconds, hub.memory().peak, used)


def _stock_curve(site: Site, tree: Tree, pid: int) -> Measured:
    began = time.perf_counter()
    answer = site.ask("curve", trees.tag_name(0))
    seconds = time.perf_counter() - began
    curve = json.loads(decompress(answer))[0]["runToSeries"]
    peers.check("tensorboard's curves", len(curve), tree.runs)
    return Measured(seconds, personal.memory_of(pid).peak, 0.0)


CASES = {
    "series": series,
    "start": start,
    "hub-boards": many_boards,
    "hub-crowd": crowd,
    "hub-lists": lists,
    "jobs": jobs,
}
