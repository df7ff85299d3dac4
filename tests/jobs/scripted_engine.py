"""An engine that does what a test says, and nothing by itself."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from aboard.executors.base import Batch, BatchExecutor, ExecutorError, Handle, TaskState, TaskStatus
from aboard.jobs.service import JobRequest, Jobs
from aboard.runs import catalog, manifest
from aboard.runs.manifest import Manifest, State
from aboard.storage import open_storage

WAITING = TaskStatus(TaskState.WAITING, reason="Priority")
RUNNING = TaskStatus(TaskState.RUNNING, unit="77")


def ended(code: int | None, reason: str = "") -> TaskStatus:
    return TaskStatus(TaskState.ENDED, code, reason)


class ScriptedEngine(BatchExecutor):
    name = "process"

    def open(self) -> None:
        self.batches: dict[str, Batch] = {}
        self.states: dict[str, dict[int, TaskStatus]] = {}
        self.cancelled: list[tuple[str, list[int] | None]] = []
        self.released: list[str] = []
        self.queries = 0
        self.refusal = ""
        self.is_down = False
        self.words = b""
        self.before_answer: Callable[[], None] = lambda: None

    def submit(self, batch: Batch) -> Handle:
        if self.refusal:
            raise ExecutorError(self.refusal)
        if batch.name not in self.batches:
            self.batches[batch.name] = batch
            self.states[batch.name] = dict.fromkeys(batch.numbers, WAITING)
        self.before_answer()
        return {"name": batch.name}

    def preview(self, batch: Batch) -> str:
        return f"{batch.name}: {len(batch.numbers)} tasks in {batch.workdir}\n"

    def tasks(self, handles: Mapping[str, Handle]) -> dict[str, dict[int, TaskStatus]]:
        self.queries += 1
        known = {key: self.states[handle["name"]] for key, handle in handles.items()}
        if self.is_down:
            down = TaskStatus(TaskState.UNKNOWN, reason="slurmctld does not answer")
            return {key: dict.fromkeys(tasks, down) for key, tasks in known.items()}
        return {key: dict(tasks) for key, tasks in known.items()}

    def cancel(
        self, handle: Handle, numbers: Collection[int] | None = None, *, now: bool = False
    ) -> None:
        self.cancelled.append((handle["name"], None if numbers is None else list(numbers)))
        tasks = self.states[handle["name"]]
        for number in tasks if numbers is None else numbers:
            tasks[number] = ended(None, "CANCELLED")

    def logs(self, handle: Handle, number: int, *, tail: int | None = None) -> Iterator[bytes]:
        yield self.words

    def release(self, handle: Handle) -> None:
        self.released.append(handle["name"])


class Desk:
    """Jobs below a root, on a scripted engine."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.engine = ScriptedEngine()
        self.problems: list[Exception] = []
        self.jobs = self.look_anew()

    def look_anew(self, *, strict: bool = False) -> Jobs:
        """Return what another process would use."""
        jobs = Jobs([str(self.root)], {}, on_error=self.problems.append, strict=strict)
        jobs._executors["process"] = self.engine
        return jobs

    def submit(self, *command: str, **options: Any) -> Any:
        return self.jobs.submit(JobRequest(command=command or ("true",), **options))

    def tell(self, job: str, number: int, status: TaskStatus, attempt: int = 1) -> None:
        self.engine.states[f"aboard-{job}-{attempt}"][number] = status

    def record(self, job: str, number: int, state: State | None, code: int | None = None) -> None:
        """Write the record of a member's run as `aboard run` does; None begins an attempt."""
        storage, record = open_storage(str(self.root)), self.jobs.find(job)
        name, directory = record.run_name(number), record.run_directory(number)

        def begin(run: Manifest) -> None:
            run.begin(at=1000.0 + len(run.attempts), host="here", pid=1, job=job)

        def end(run: Manifest) -> None:
            run.end(state or State.RUNNING, code, f"exit code {code}" if code else "")

        def described(name: str) -> Manifest:
            run = Manifest(name, record.experiment)
            begin(run)
            return run

        if state is not None:
            manifest.update(storage, end, directory)
        else:
            try:
                catalog.claim(storage, record.experiment, name, described)
            except catalog.RunExists:
                manifest.update(storage, begin, directory)
