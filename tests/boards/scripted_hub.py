"""A hub whose clock and processes tests control."""

from aboard.boards.lifecycle import Lifecycle, Settings
from aboard.boards.model import BoardRecord
from aboard.boards.registry import Registry
from tests.boards.fake_executor import Clock, PretendExecutor

SETTINGS = Settings(poll=0.05, poll_soon=0.02, grace=30, start_timeout=300, unhealthy_timeout=60)


class Hub:
    """What the tests hold in their hands."""

    def __init__(self, registry: Registry, executor: PretendExecutor, clock: Clock, **options):
        self.registry, self.executor, self.clock = registry, executor, clock
        options = {"settings": SETTINGS, "clock": clock, "workers": 0, **options}
        executors = options.pop("executors", {executor.name: executor})
        self.lifecycle = Lifecycle(registry, executors, executor.specify, **options)

    def make(self, selector: str = "a", on: str = "process", **values) -> BoardRecord:
        wanted = BoardRecord(owner="ann", selectors=(selector,), on=on, **values)
        return self.lifecycle.create(wanted).board

    def tick(self, board: BoardRecord, times: int = 1) -> BoardRecord:
        for _ in range(times):
            self.lifecycle.tick()
        return self.registry.get(board.id)

    def running(self, selector: str = "a", **values) -> BoardRecord:
        board = self.make(selector, **values)
        self.lifecycle.tick()
        self.executor.is_ready(board.id)
        return self.tick(board)

    def states(self, board: BoardRecord) -> list[str]:
        return [str(change.state) for change in self.registry.history(board.id)]
