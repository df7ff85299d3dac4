"""The hub's REST API from Python: `Client` has one method per request.

Each request uses its own connection, so threads may share a client. Finding the hub, and starting
the user's own, is left to `personal`.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Unpack, get_type_hints

from aboard.boards.model import ENDED, INSTANT, BoardChanges, BoardOptions
from aboard.sdk import HubError, NotFound, NotReady, Unreachable, error_of
from aboard.sdk.board import (
    Board,
    Selectors,
    absolute,
    as_selectors,
    is_ready,
    not_ready_error,
    one_of,
)
from aboard.sdk.personal import KnownHub, require_hub

Document = dict[str, Any]
Documents = list[Document]

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.02, 1.0
_LAST_JOB_POLL_SECONDS = 5.0
_STOP_SECONDS, _KILL_SECONDS = 60.0, 10.0  # to wait for the end of a board
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.1, 10.0  # before a lost stream is reopened
_RUN_ID = re.compile(r"[0-9a-f]{8}:")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Client:
    """A hub.

    Args:
        url: its address; by default from `ABOARD_HUB`, `aboard login`, or your own hub.
        token: its token; by default from `ABOARD_HUB_TOKEN` or the login.
        start: start your own hub if there is no other.
        seconds: the timeout of a request.

    Raises:
        Unreachable: no hub was found.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        start: bool = True,
        seconds: float = 120.0,
    ) -> None:
        for name, value in (("url", url), ("token", token)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} is {value!r:.60}, not a string")
        self.hub: KnownHub = require_hub(url, token, start=start)
        self._seconds = seconds
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise Unreachable(
                f"{self.url!r} is not a valid hub address.", "Use https://HOST.", code="bad_url"
            )
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if parts.hostname in _LOOPBACK:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    @property
    def url(self) -> str:
        """The address of the hub."""
        return self.hub.url

    def me(self) -> Document:
        """Return your `user` and `role`, and whether the hub is `personal`."""
        return self._document("GET", "/me")

    # Boards.

    def create(
        self,
        selectors: Selectors | None = None,
        *,
        uri: Selectors | None = None,
        new: bool = False,
        **options: Unpack[BoardOptions],
    ) -> Board:
        """Start a board of a selection, or return the live one with the same selection.

        Args:
            selectors: a path, a URI, a selector, or several.
            uri: the same as `selectors`.
            new: create a board even if this selection has a live one.
            options: `name`, `title`, `template` of the runs' names, `where`, `sort` and `limit` as
                in `runs`, evaluated again whenever points arrive, `group_by` (fields such as
                `["hparams.lr"]`) with `band` (`std`, `sem`, `minmax`, `quartiles`) and `show`
                (`groups`, `runs`, `both`), `on` (`instant`, or an engine of the hub such as
                `process` or `slurm:long`; see `engines`), `engine` (`fast` or `stock`), `timeout`
                and `idle_timeout` in seconds or as in `"7d"`, `memory` as in `"2GiB"` for an
                isolated board, `visibility` (`private` or `team`).

        Raises:
            BoardLimitExceeded: you have reached your limit of boards.
            TypeError: neither `selectors` nor `uri` is given, or both, or an unknown option.
        """
        body = _given(options, BoardOptions)
        for name in ("sort", "group_by"):
            if isinstance(body.get(name), str):
                body[name] = [body[name]]
        body |= {"selectors": as_selectors(one_of(selectors, uri)), "new": new}
        key = {"idempotency-key": os.urandom(16).hex()}
        return Board(self, self._document("POST", "/boards", body, headers=key))

    def get(self, board: str | Board) -> Board:
        """Return a board by its id, its name, or a prefix of either.

        Raises:
            NotFound: it does not exist, or you may not see it.
        """
        return Board(self, self._document("GET", _path(board)))

    def list(
        self,
        *,
        all: bool = False,  # noqa: A002 - the word of the API
        states: Sequence[str] = (),
        owner: str | None = None,
        name: str | None = None,
    ) -> list[Board]:
        """Return the boards that you may see, newest first; with `all`, also ended ones."""
        query: list[tuple[str, str]] = [("state", state) for state in states]
        query += [("all", "true")] if all else []
        query += [(key, value) for key, value in (("owner", owner), ("name", name)) if value]
        return [Board(self, one) for one in self._pages("/boards", "boards", query)]

    def wait(
        self,
        board: str | Board,
        *,
        seconds: float = 300.0,
        data: bool = True,
        until: Callable[[Board], bool] | None = None,
        on_change: Callable[[Board], None] | None = None,
    ) -> Board:
        """Wait until a board serves data.

        Args:
            board: the board.
            seconds: the longest time to wait.
            data: if false, wait only until it runs, even without data.
            until: another condition to wait for, which an ended board may also meet.
            on_change: called with the board after every poll.

        Raises:
            BoardFailed: it has ended.
            NotReady: it is not ready in time, or its sources cannot be read.
        """
        for _ in _polls(seconds, _LAST_POLL_SECONDS):
            now = self.get(board)
            if on_change is not None:
                on_change(now)
            if until(now) if until is not None else is_ready(now, data=data):
                return now
        raise not_ready_error(now, seconds)

    def stop(
        self,
        board: str | Board,
        *,
        now: bool = False,
        wait: bool = True,
        seconds: float = _STOP_SECONDS,
        on_change: Callable[[Board], None] | None = None,
    ) -> Board:
        """Stop a board and wait until it has stopped; an ended one does not change.

        While its engine does not answer, it stays `stopping`, with a reason, and the hub retries.

        Raises:
            NotReady: it has not stopped after `seconds`.
        """
        stopped = Board(self, self._document("POST", f"{_path(board)}/stop", {"now": now}))
        if not wait or stopped.state in ENDED:
            return stopped
        return self.wait(
            stopped, seconds=seconds, until=lambda one: one.state in ENDED, on_change=on_change
        )

    def restart(self, board: str | Board) -> Board:
        """Restart a board at the same address."""
        return Board(self, self._document("POST", f"{_path(board)}/restart"))

    def delete(self, board: str | Board, *, force: bool = False) -> str:
        """Delete a board with its history; an isolated one is stopped first.

        With `force` it is killed, and deleted even if its engine does not answer. Return what may
        still run then, and how to stop it by hand; otherwise an empty string.

        Raises:
            NotReady: it has not stopped.
        """
        known = self.get(board)
        if known.on != INSTANT and known.state not in ENDED:
            try:
                self.stop(known, now=force, seconds=_KILL_SECONDS if force else _STOP_SECONDS)
            except NotReady:
                if not force:
                    raise
        query = "?force=true" if force else ""
        left: str = self._document("DELETE", f"{_path(known)}{query}").get("left", "")
        return left

    def change(
        self,
        board: str | Board,
        *,
        extend: str | float | None = None,
        **changes: Unpack[BoardChanges],
    ) -> Board:
        """Change a board's `name`, `visibility`, `timeout` and `idle_timeout`, or extend it."""
        body = _given(changes, BoardChanges) | ({} if extend is None else {"extend": extend})
        return Board(self, self._document("PATCH", _path(board), body))

    def select(self, board: str | Board, *, add: Selectors = (), remove: Selectors = ()) -> Board:
        """Add selectors to a board and remove others, while it is open."""
        body = {"add": as_selectors(add), "remove": as_selectors(remove)}
        return Board(self, self._document("POST", f"{_path(board)}/selection", body))

    def history(self, board: str | Board) -> Documents:
        """Return the states of a board, oldest first: `state`, `reason`, `at`."""
        return self._list(f"{_path(board)}/history", "events")

    def logs(
        self, board: str | Board, *, tail: int | None = None, follow: bool = False
    ) -> Generator[bytes]:
        """Yield the log of an isolated board in chunks; with `follow`, as it grows."""
        return self._log(_path(board), [], tail=tail, follow=follow)

    def fetch(self, board: Board, path: str) -> bytes:
        """Return the response of a board at a path below its address, such as `data/runs`."""
        with self._request("GET", f"/b/{board.id}/{path}", below="") as response:
            return response.read()

    def console_link(self) -> str:
        """Return a one-time link that opens the hub's console in a browser."""
        return self._reachable(self._document("POST", "/link")["url"])

    def link(self, board: str | Board) -> str:
        """Return a one-time link that opens a board in a browser."""
        return self._reachable(self._document("POST", f"{_path(board)}/link")["url"])

    def share(self, board: str | Board, *, lasts: str | float | None = None) -> Document:
        """Create a link that shows a board without a login: `id`, `url`, `expires`."""
        body = {} if lasts is None else {"for": lasts}
        made = self._document("POST", f"{_path(board)}/shares", body)
        return made | {"url": self._reachable(made["url"])}

    def shares(self, board: str | Board) -> Documents:
        """Return the links to a board, without their secrets."""
        return self._list(f"{_path(board)}/shares", "shares")

    def unshare(self, board: str | Board, share: str) -> None:
        """Revoke a link."""
        self._document("DELETE", f"{_path(board)}/shares/{_quoted(share)}")

    # Engines.

    def engines(self, *, probe: bool = True) -> Documents:
        """Return the engines on which boards can run, each with its profiles.

        Args:
            probe: query each engine: whether it `answers`, its `version`, the free `resources`, the
                `problem` and a `hint`. If false, return only names.
        """
        return self._list(f"/engines?probe={str(probe).lower()}", "engines")

    def try_engine(self, engine: str, *, roots: bool = True) -> Board:
        """Start a trial on an engine: a board that writes a few points and shows them.

        Args:
            engine: its name, such as `slurm` or `slurm:long`.
            roots: let the board read the hub's local roots; its log lists those it can read.
        """
        path = f"/engines/{_quoted(engine)}/trials"
        return Board(self, self._document("POST", path, {"roots": roots}))

    def trial(self, engine: str, board: str | Board) -> Document:
        """Return how the hub reaches a trial, its status without a token, and what remains."""
        ref = board if isinstance(board, str) else board.id
        return self._document("GET", f"/engines/{_quoted(engine)}/trials/{_quoted(ref)}")

    # Jobs.

    def jobs(
        self, *, states: Sequence[str] = (), experiment: str | None = None, user: str | None = None
    ) -> Documents:
        """Return the jobs below the hub's roots, newest first.

        Each has `id`, `state`, `reason`, and in `states` the number of members in each state.
        `aboard.Job` has the same without a hub.
        """
        query: list[tuple[str, str]] = [("state", state) for state in states]
        given = (("experiment", experiment), ("user", user))
        query += [(key, value) for key, value in given if value]
        return list(self._pages("/jobs", "jobs", query))

    def job(self, job: str) -> Document:
        """Return a job by its id or a prefix of it.

        Raises:
            NotFound: it is in no root of the hub.
        """
        return self._document("GET", _job_path(job))

    def job_members(self, job: str, *, states: Sequence[str] = ()) -> Documents:
        """Return the members of a job, each with its `number`, `run`, `hparams` and `state`."""
        query = [("state", state) for state in states]
        return list(self._pages(f"{_job_path(job)}/members", "members", query))

    def job_logs(
        self,
        job: str,
        member: int | None = None,
        *,
        tail: int | None = None,
        follow: bool = False,
    ) -> Generator[bytes]:
        """Yield the log of a member in chunks; with `follow`, until it ends.

        `member` may be omitted if the job has only one.
        """
        query = [] if member is None else [("member", str(member))]
        return self._log(_job_path(job), query, tail=tail, follow=follow)

    def submit(
        self,
        command: Sequence[str],
        /,
        *,
        root: str | os.PathLike[str] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Document:
        """Submit a job to an engine of the hub, as the hub's user.

        A team's hub allows this only to administrators, and only if its settings do.
        `aboard.submit` needs no hub.

        Args:
            command: its words; `{lr}` stands for the value of `lr`.
            root: the root of the hub for its runs; by default the first.
            workdir: where the command runs; by default the working directory.
            options: those of `aboard.submit`.
        """
        body = {name: value for name, value in options.items() if value is not None}
        body |= {
            "command": [str(word) for word in command],
            "workdir": str(Path(workdir or ".").absolute()),
        }
        if root is not None:
            body["root"] = absolute(Path(root) if "://" not in os.fspath(root) else root)
        return self._document("POST", "/jobs", body)

    def stop_job(self, job: str, *, now: bool = False) -> Document:
        """Stop the members of a job that have not ended; `now` skips the grace period."""
        return self._document("POST", f"{_job_path(job)}/stop", {"now": now})

    def retry_job(self, job: str, *, members: Sequence[int] = ()) -> Document:
        """Submit again members that did not succeed, by default all; their runs continue."""
        return self._document("POST", f"{_job_path(job)}/retry", {"members": list(members)})

    def delete_job(self, job: str, *, force: bool = False) -> None:
        """Remove an ended job from the list; its runs are kept.

        `force` also removes a job whose state is unknown; members that run are not stopped.
        """
        self._document("DELETE", f"{_job_path(job)}{'?force=true' if force else ''}")

    def wait_job(
        self,
        job: str,
        *,
        seconds: float | None = None,
        on_change: Callable[[Document], None] | None = None,
    ) -> Document:
        """Wait until all members of a job have ended, successfully or not.

        Args:
            job: its id.
            seconds: the longest time to wait; no limit by default.
            on_change: called with the job after every poll.

        Raises:
            NotReady: it has not ended in time.
        """
        for _ in _polls(seconds, _LAST_JOB_POLL_SECONDS):
            now = self.job(job)
            if on_change is not None:
                on_change(now)
            if now["exit_code"] is not None:
                return now
        raise NotReady(
            f"job {now['id']} is {now['state']} after {seconds:g} s.",
            f"It keeps running. See its state: aboard jobs show {now['id']}",
            code="not_ready",
        )

    # Runs.

    def runs(
        self,
        selectors: Selectors = (),
        *,
        where: str | None = None,
        sort: str | Sequence[str] = (),
        limit: int | None = None,
        columns: Sequence[str] = (),
    ) -> Documents:
        """Return the runs below the hub's roots, or those that selectors and a question select.

        Args:
            selectors: which runs; all by default.
            where: a condition, such as `'metrics["eval/acc"].max > 0.9'`.
            sort: one or more fields, with `-` before one for descending order.
            limit: the most runs to return.
            columns: fields; each run then has only these.
        """
        query = _question(selectors, where, sort, columns)
        return list(self._pages("/runs", "runs", query, limit))

    def count_runs(self, selectors: Selectors = (), *, where: str | None = None) -> int:
        """Return how many runs selectors and a condition select."""
        query = [*_question(selectors, where), ("count", "true")]
        total: int = self._document("GET", f"/runs?{urllib.parse.urlencode(query)}")["total"]
        return total

    def group_runs(
        self,
        by: str | Sequence[str],
        selectors: Selectors = (),
        *,
        where: str | None = None,
        sort: str | Sequence[str] = (),
        limit: int | None = None,
        columns: Sequence[str] = (),
    ) -> Documents:
        """Return groups of runs with the same values: `values`, `count`, `means` of columns.

        Args:
            by: one or more fields.
            selectors: which runs; all by default.
            where: a condition.
            sort: fields; groups are in the order of their first runs, by default of their values.
            limit: the most groups to return.
            columns: fields whose means are returned.
        """
        query = _question(selectors, where, sort, columns)
        query += [("group_by", one) for one in _several(by)]
        return list(self._pages("/runs", "groups", query, limit))

    def series(
        self,
        selectors: Selectors,
        tags: str | Sequence[str],
        *,
        x: str = "step",
        start: float | None = None,
        stop: float | None = None,
        samples: int = 1000,
        smoothing: float = 0.0,
        window: int = 1,
        where: str | None = None,
        sort: str | Sequence[str] = (),
        limit: int | None = None,
        group_by: str | Sequence[str] = (),
        band: str = "std",
        counts: bool = False,
        seconds: float = 60.0,
    ) -> Documents:
        """Return the curves of metrics of runs, with the numpy arrays `x` and `y`.

        Args:
            selectors: which runs.
            tags: which metrics: `TAG`, or `DIRECTORY/TAG` in a directory of the run.
            x: `step`, `wall_time`, `relative_time` (since the curve's first point), or the name of
                a metric.
            start: the least x.
            stop: the greatest x.
            samples: the most points of a curve; spikes are kept.
            smoothing: the weight of TensorBoard's smoothing, computed over all points.
            window: how many points to average around each one, also computed over all points. An
                even number is increased by one.
            where: a condition on the runs.
            sort: fields to sort the runs by, in descending order with '-'; groups are sorted by
                their first run.
            limit: the most runs; with `group_by`, the most groups.
            group_by: fields that the runs of a group share; each group then has three curves, the
                middle and the edges of its band.
            band: `std`, `sem`, `minmax` or `quartiles`.
            counts: with `group_by`, also return how many runs each point has, as a curve.
            seconds: the longest time to wait for runs that the hub has not read yet.
        """
        import numpy as np

        is_axis = x in {"step", "wall_time", "relative_time"}
        body = {
            "selectors": as_selectors(selectors),
            "tags": [tags] if isinstance(tags, str) else list(tags),
            "x": x if is_axis else "metric",
            "metric": "" if is_axis else x,
            "start": start,
            "stop": stop,
            "samples": samples,
            "smoothing": smoothing,
            "window": window,
            "group_by": list(_several(group_by)),
            "band": band,
            "format": "binary",
        }
        # A hub of an earlier version does not know these.
        added = {"where": where, "sort": list(_several(sort)) or None, "limit": limit}
        added["counts"] = counts or None
        body |= {name: value for name, value in added.items() if value is not None}
        for _ in _polls(seconds, _LAST_POLL_SECONDS):
            with self._request("POST", "/series", body) as response:
                content = response.read()
            end = 8 + int.from_bytes(content[4:8], "little")
            header = json.loads(content[8:end])
            if not header["unread"]:
                break
        found: Documents = header["series"]
        numbers = np.frombuffer(content, "<f8", offset=end)
        for one in found:
            count = one.pop("count")
            one["x"], one["y"] = numbers[:count], numbers[count : 2 * count]
            numbers = numbers[2 * count :]
        return found

    def run(self, run: str | Document) -> Document:
        """Return a run with its attempts, stages, command, note and files.

        Args:
            run: its `id`, one of `runs`, or a selector of one run.

        Raises:
            NotFound: it does not exist.
        """
        return self._document("GET", self._run_path(run))

    def run_metrics(self, run: str | Document) -> Documents:
        """Return what a run has logged: `name`, `plugin`, `count`, `last_step`, `last` of each."""
        return self._list(f"{self._run_path(run)}/metrics", "metrics")

    def run_files(self, run: str | Document) -> Documents:
        """Return the files of a run: `name` and `bytes`."""
        return self._list(f"{self._run_path(run)}/files", "files")

    def run_file(self, run: str | Document, name: str) -> Generator[bytes]:
        """Yield a file of a run, as `run_files` names it, in chunks."""
        query = urllib.parse.urlencode({"name": name})
        return self._chunks(f"{self._run_path(run)}/file?{query}", endless=False)

    def run_boards(self, run: str | Document) -> Documents:
        """Return the live boards that show a run: `id`, `name`, `title`, `owner`, `state`."""
        return self._list(f"{self._run_path(run)}/boards", "boards")

    def run_media(self, run: str | Document, tag: str, *, step: int | None = None) -> Document:
        """Return the images, clips, texts or the histogram of a run at a step.

        Args:
            run: as for `run`.
            tag: a name that `run_metrics` lists.
            step: this step, or the last one before it; by default the last of all.
        """
        query = [("tag", tag)] + ([] if step is None else [("step", str(step))])
        path = f"{self._run_path(run)}/media?{urllib.parse.urlencode(query)}"
        return self._document("GET", path)

    def run_blob(self, run: str | Document, tag: str, step: int, place: int = 0) -> bytes:
        """Return an image or a clip of a step, as it was logged."""
        query = urllib.parse.urlencode({"tag": tag, "step": step, "place": place})
        path = f"{self._run_path(run)}/blob?{query}"
        with self._request("GET", path, headers={"accept": "*/*"}) as response:
            content: bytes = response.read()
        return content

    def run_log(
        self,
        run: str | Document,
        *,
        tail: int | None = None,
        offset: int | None = None,
        follow: bool = False,
    ) -> Generator[bytes]:
        """Yield the recorded output of a run in chunks; with `follow`, until it ends.

        Args:
            run: as for `run`.
            tail: only this many of the last lines.
            offset: begin at this byte instead.
            follow: continue until the run has ended.
        """
        given = [("tail", tail), ("offset", offset)]
        query = [(name, str(value)) for name, value in given if value is not None]
        query += [("follow", "true")] if follow else []
        path = f"{self._run_path(run)}/log?{urllib.parse.urlencode(query)}"
        return self._chunks(path, endless=follow)

    def change_run(
        self,
        run: str | Document,
        *,
        tags: Mapping[str, object] | None = None,
        note: str | None = None,
    ) -> Document:
        """Set tags of a run, remove those whose value is None, and replace its note."""
        body: Document = {"tags": dict(tags or {})} | ({} if note is None else {"note": note})
        return self._document("PATCH", self._run_path(run), body)

    def delete_run(
        self, run: str | Document, *, confirm: str | None = None, force: bool = False
    ) -> Document:
        """Return what a deletion would delete and a token, `confirm`; delete with that token.

        Args:
            run: as for `run`.
            confirm: the token that a call without one returns.
            force: delete the run even if it is running.
        """
        query = [("confirm", confirm)] if confirm is not None else []
        query += [("force", "true")] if force else []
        return self._document("DELETE", f"{self._run_path(run)}?{urllib.parse.urlencode(query)}")

    def examine_run(self, run: str | Document) -> Document:
        """Return the findings of doctor for a run: `findings`, and whether they are `complete`."""
        return self._document("GET", f"{self._run_path(run)}/doctor")

    def facet(
        self, field: str, selectors: Selectors = (), *, where: str | None = None, limit: int = 50
    ) -> Document:
        """Return the values of a field such as `hparams.lr`, and how many runs have each.

        Many different numbers are counted in `bins`.
        """
        query = [*_question(selectors, where), ("field", field), ("limit", str(limit))]
        return self._document("GET", f"/runs/facets?{urllib.parse.urlencode(query)}")

    def fields(self, selectors: Selectors = (), *, where: str | None = None) -> Documents:
        """Return the hyperparameters, metrics and tags that runs have: `name` and `runs`."""
        query = _question(selectors, where)
        return self._list(f"/runs/fields?{urllib.parse.urlencode(query)}", "fields")

    def logged(self, selectors: Selectors = (), *, where: str | None = None) -> Documents:
        """Return what runs have logged: `name`, `plugin`, `scalar`, `runs`, steps."""
        query = _question(selectors, where)
        return self._list(f"/runs/metrics?{urllib.parse.urlencode(query)}", "metrics")

    def _run_path(self, run: str | Document) -> str:
        if not isinstance(run, str):
            run = str(run["id"])
        elif not _RUN_ID.match(run):
            query = [("selector", one) for one in as_selectors(run)]
            query.append(("limit", "2"))
            found = self._document("GET", f"/runs?{urllib.parse.urlencode(query)}")["runs"]
            if not found:
                raise NotFound(f"no run found at {run!r}.", "Check the path.", code="not_found")
            if len(found) > 1:
                message = f"{run!r} matches several runs."
                raise HubError(message, "Name one of them, or use its id.", code="ambiguous")
            run = str(found[0]["id"])
        return f"/runs/{_quoted(run)}"

    def roots(self) -> Documents:
        """Return the roots below which the hub finds runs."""
        return self._list("/roots", "roots")

    def add_root(self, root: str | os.PathLike[str]) -> Document:
        """Add a root, for administrators and on your own hub; an existing one does not change."""
        return self._document("POST", "/roots", {"uri": absolute(root)})

    # Saved views.

    def views(self) -> Documents:
        """Return your saved views and the team's: `name`, `owner`, `query`, `visibility`."""
        return self._list("/views", "views")

    def save_view(self, name: str, query: str, *, visibility: str = "private") -> Document:
        """Save a view of the table of runs; it replaces your view with the same name.

        Args:
            name: its name.
            query: the part after the `?` in the address of the page.
            visibility: `private`, or `team` to share it.
        """
        body = {"name": name, "query": query, "visibility": visibility}
        return self._document("PUT", "/views", body)

    def delete_view(self, name: str, *, owner: str | None = None) -> None:
        """Delete one of your views or, as an administrator, a shared view of `owner`."""
        query = [("name", name)] + ([] if owner is None else [("owner", owner)])
        self._document("DELETE", f"/views?{urllib.parse.urlencode(query)}")

    # Events.

    def events(
        self,
        kinds: Sequence[str] = (),
        *,
        follow: Iterable[str | Document] = (),
        last: str | None = None,
    ) -> Generator[Document]:
        """Yield the events of the hub until the caller stops iterating.

        Each event has its name in `event` and its position in `cursor`. The names are `hello`, the
        first event; `run`, `board` and `job`, with `change` and the document; `runs` and `jobs`, if
        there were too many changes; `points`, with the `runs` or the `source` that have new points;
        and `reset`, if events were missed, so that everything has to be listed again. A lost
        connection is reopened.

        Args:
            kinds: of `run`, `board`, `job` and `points`; all by default.
            follow: runs whose new points are read, as for `run`; by default all that boards show.
            last: the `cursor` of an event after which to continue.
        """
        for event in self._events(kinds, follow, last):
            if event is not None:
                yield event

    def _events(
        self, kinds: Sequence[str], follow: Iterable[str | Document], last: str | None
    ) -> Generator[Document | None]:
        """Yield events, and None for keep-alives, so that the caller can check whether to stop."""
        query = [("kind", str(one)) for one in kinds]
        query += [("follow", self._run_path(one).rpartition("/")[2]) for one in follow]
        query = [(name, urllib.parse.unquote(value)) for name, value in query]
        path = f"/events?{urllib.parse.urlencode(query)}"
        pause: float | None = None  # None before the first connection, whose errors are raised
        while True:
            headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
            try:
                with self._request("GET", path, headers=headers) as response:
                    pause = _FIRST_PAUSE_SECONDS
                    for event in _parsed_events(response):
                        last = event["cursor"] if event is not None else last
                        yield event
            except Unreachable:
                if pause is None:
                    raise
            except (OSError, HTTPException):
                pass  # in the middle of a stream
            time.sleep(pause or 0.0)
            pause = min((pause or 0.0) * 2, _LAST_PAUSE_SECONDS)
            yield None

    # Users and tokens.

    def users(self) -> Documents:
        """Return the users, by name: `name`, `role`, `created`."""
        return self._list("/users", "users")

    def add_user(self, name: str, *, role: str = "member", password: str | None = None) -> Document:
        """Add a `viewer`, `member` or `admin`; without a password, only tokens authenticate."""
        body = {"name": name, "role": role, "password": password}
        return self._document("POST", "/users", body)

    def set_role(self, name: str, role: str) -> Document:
        """Change the role of a user to `viewer`, `member` or `admin`."""
        return self._document("PATCH", f"/users/{_quoted(name)}", {"role": role})

    def set_password(self, name: str, password: str) -> None:
        """Set the password of a user or your own, and end all sessions of the user."""
        self._document("PUT", f"/users/{_quoted(name)}/password", {"password": password})

    def remove_user(self, name: str) -> None:
        """Remove a user with all tokens, sessions and links; boards are kept."""
        self._document("DELETE", f"/users/{_quoted(name)}")

    def limits(self) -> Document:
        """Return the limits of each user: numbers of boards, and ceilings per board."""
        return self._document("GET", "/limits")

    def sessions(self) -> Documents:
        """Return your browser sessions; for an administrator, those of all users."""
        return self._list("/sessions", "sessions")

    def end_session(self, session: str) -> None:
        """End a session by its id."""
        self._document("DELETE", f"/sessions/{_quoted(session)}")

    def tokens(self) -> Documents:
        """Return your tokens without their secrets; for an administrator, those of all users."""
        return self._list("/tokens", "tokens")

    def create_token(
        self, name: str = "", *, lasts: str | float | None = None, user: str | None = None
    ) -> Document:
        """Create a token; its secret is in `token` of this response only.

        Args:
            name: what it is for.
            lasts: how long it is valid, in seconds or as in `"90d"`; no limit by default.
            user: its user; you by default.
        """
        body = {"name": name, "lasts": lasts, "user": user}
        return self._document("POST", "/tokens", body)

    def revoke_token(self, token: str) -> None:
        """Revoke a token."""
        self._document("DELETE", f"/tokens/{_quoted(token)}")

    # HTTP.

    def _pages(
        self,
        path: str,
        field: str,
        query: Sequence[tuple[str, str]],
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ValueError(f"limit must be an integer of at least 1, not {limit!r:.60}.")
        cursor: str | None = ""
        while cursor is not None:
            parameters = [*query, ("limit", str(min(limit or 1000, 1000)))]
            parameters += [("cursor", cursor)] if cursor else []
            page = self._document("GET", f"{path}?{urllib.parse.urlencode(parameters)}")
            found = page[field] if limit is None else page[field][:limit]
            yield from found
            limit = None if limit is None else limit - len(found)
            cursor = None if limit == 0 else page["next"]

    def _document(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> Document:
        with self._request(method, path, body, headers=headers) as response:
            text = response.read()
        document = _parsed(text) if text else {}
        if not isinstance(document, dict):
            raise error_of(response.status, None)
        return document

    def _log(
        self, path: str, query: Sequence[tuple[str, str]], *, tail: int | None, follow: bool
    ) -> Generator[bytes]:
        given = [*query, *([("follow", "true")] if follow else [])]
        given += [("tail", str(tail))] if tail is not None else []
        return self._chunks(f"{path}/logs?{urllib.parse.urlencode(given)}", endless=follow)

    def _chunks(self, path: str, *, endless: bool) -> Generator[bytes]:
        with self._request("GET", path, endless=endless) as response:
            while chunk := response.read1(1 << 16):
                yield chunk

    def _reachable(self, link: str) -> str:
        """Return a link with this client's address of the hub, which may be that of a tunnel."""
        parts = urllib.parse.urlsplit(link)
        if parts.hostname not in _LOOPBACK:
            return link
        here = urllib.parse.urlsplit(self.url)
        return parts._replace(scheme=here.scheme, netloc=here.netloc).geturl()

    def _list(self, path: str, field: str) -> Documents:
        return list(self._document("GET", path)[field])

    def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        headers: dict[str, str] | None = None,
        endless: bool = False,
        below: str = "/api/v1",
    ) -> HTTPResponse:
        sent = {"accept": "application/json", **(headers or {})}
        if self.hub.token:
            sent["authorization"] = f"Bearer {self.hub.token}"
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            sent["content-type"] = "application/json"
        request = urllib.request.Request(  # noqa: S310 - http or https, checked in __init__
            f"{self.url}{below}{path}", content, sent, method=method
        )
        try:
            response: HTTPResponse = self._opener.open(
                request, timeout=None if endless else self._seconds
            )
        except urllib.error.HTTPError as error:
            with error:
                refusal = error_of(error.code, _parsed(error.read()))
            if error.code == 401 and path != "/login":
                raise self.hub.auth_error(refusal) from None
            raise refusal from None
        except (OSError, HTTPException) as error:
            raise self.hub.unreachable(error) from error
        return response


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, because the token is only for the hub."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _polls(seconds: float | None, longest: float) -> Iterator[None]:
    """Yield with growing pauses of at most `longest`, the last time after `seconds`."""
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    pause = _FIRST_POLL_SECONDS
    yield
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, longest)
        yield


def _given(options: Mapping[str, Any], known: type) -> Document:
    if unknown := options.keys() - get_type_hints(known).keys():
        raise TypeError(f"unknown option: {', '.join(sorted(unknown))}")
    for name, value in options.items():
        try:
            json.dumps(value)
        except TypeError:
            raise TypeError(f"{name} is {value!r:.60}, which a hub does not accept") from None
    return {name: value for name, value in options.items() if value is not None}


def _path(board: str | Board) -> str:
    ref = board if isinstance(board, str) else board.id
    if not ref:
        raise HubError("the board's name is empty.", "List them: aboard list", code="bad_value")
    return f"/boards/{_quoted(ref)}"


def _job_path(job: str) -> str:
    return f"/jobs/{_quoted(job.removeprefix('job:'))}"


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _parsed_events(response: HTTPResponse) -> Iterator[Document | None]:
    """Yield the events of a stream as they arrive; None for keep-alives."""
    text = b""
    while chunk := response.read1(1 << 16):
        *blocks, text = (text + chunk).split(b"\n\n")
        for block in blocks:
            lines = (line.partition(": ") for line in block.decode().split("\n"))
            fields = {name: value for name, _, value in lines if name}
            if "data" in fields:
                named = {"event": fields["event"], "cursor": fields["id"]}
                yield named | json.loads(fields["data"])
            else:
                yield None


def _question(
    selectors: Selectors,
    where: str | None,
    sort: str | Sequence[str] = (),
    columns: Sequence[str] = (),
) -> list[tuple[str, str]]:
    query = [("selector", one) for one in as_selectors(selectors)]
    query += [("where", where)] if where else []
    query += [("sort", one) for one in _several(sort)]
    return query + ([("columns", ",".join(_several(columns)))] if columns else [])


def _several(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts
