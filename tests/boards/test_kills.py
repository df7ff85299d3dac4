"""Hubs that are killed at any moment: no board is lost, doubled or damaged."""

import random
import sqlite3
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa

from aboard.boards.accounts import Role
from aboard.boards.database import metadata
from aboard.boards.lifecycle import Lifecycle, Settings
from aboard.boards.model import LEGAL, BoardRecord, BoardsError, BoardState, Limits, Transition
from aboard.boards.registry import Registry
from tests.boards.crashes import is_killed
from tests.boards.fake_executor import PretendExecutor

MANY = Limits(isolated=None)
ALONE = Settings()


def assert_sound(address: str) -> None:
    """Check what must hold in a database whatever happened to those who wrote it."""
    if Path(address).exists():
        with sqlite3.connect(address) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
    with Registry(address) as registry, registry._database.read() as connection:
        rows = connection.execute(sa.select(metadata.tables["board"])).all()
        history = metadata.tables["change"]
        query = sa.select(history).order_by(history.c.board, history.c.version)
        changes = connection.execute(query).all()
    histories: dict[str, list] = {}
    for change in changes:
        histories.setdefault(change.board, []).append(change)
    assert histories.keys() == {row.id for row in rows}
    for row in rows:
        states = [BoardState(change.state) for change in histories[row.id]]
        assert states[0] is BoardState.PENDING
        assert states[-1] == row.state
        assert all(after in LEGAL[before] for before, after in pairwise(states))
        assert histories[row.id][-1].version <= row.version
        assert states.count(BoardState.PENDING) == row.attempt
    names = Counter((row.owner, row.name) for row in rows if row.live)
    assert not [name for name, count in names.items() if count > 1]


def write_a_lot(address: str, seed: int, noted: Path) -> None:
    """Do whatever a hub does with its registry, and note each board that was promised."""
    rng = random.Random(seed)
    with Registry(address) as registry, noted.open("a") as promised:
        for number in range(12):
            draft = BoardRecord(
                owner=rng.choice("ab"), selectors=(rng.choice("xyz"),), on="process"
            )
            board = registry.create(
                draft,
                new=rng.random() < 0.5,
                key=rng.choice([None, f"{seed}-{number}"]),
                limits=MANY,
            ).board
            promised.write(f"{board.id}\n")
            promised.flush()
            for _ in range(3):
                board = registry.get(board.id)
                state = rng.choice(sorted(LEGAL[board.state]))
                with suppress(BoardsError):
                    board = registry.transition(board, Transition(state, "why"), limits=MANY)
                    board = registry.update(board, title=str(number), handle={"pid": number})
                registry.touch({board.id: float(number)})
            with suppress(BoardsError):
                registry.accounts.add_user(f"user{seed}-{number}", Role.MEMBER, "hash")


@pytest.mark.soak
@pytest.mark.parametrize(("how", "most"), [("lines", 12_000), ("steps", 20_000)])
def test_a_registry_survives_its_writers(tmp_path, rounds, how, most):
    address, noted, rng = str(tmp_path / "hub.db"), tmp_path / "promised", random.Random(how)
    noted.touch()
    lives = []
    for seed in rounds(8):
        after = int(most ** rng.uniform(0.5, 1))
        lives.append(is_killed(lambda seed=seed: write_a_lot(address, seed, noted), **{how: after}))
        if seed % 10 == 0:
            assert_sound(address)
    assert_sound(address)
    assert sum(lives) > len(lives) / 4
    with Registry(address) as registry:
        known = {board.id for board in everything(registry)}
    promised = set(noted.read_text().split())
    assert len(promised) > len(lives) / 4
    assert promised <= known


def everything(registry: Registry) -> list:
    boards, after = [], None
    while True:
        page = registry.list(limit=1000, after=after)
        boards += page.boards
        after = page.next
        if after is None:
            return boards


def be_a_hub(address: str, seed: int, home: Path) -> None:
    """Make, start, stop and restart boards, and note each that was promised."""
    rng, executor = random.Random(seed), PretendExecutor(home / "boards")
    with Registry(address) as registry, (home / "promised").open("a") as promised:
        lifecycle = Lifecycle(
            registry,
            {"process": executor},
            executor.specify,
            limits=lambda _: MANY,
            settings=ALONE,
            workers=0,
        )
        for _ in range(6):
            lifecycle.tick()
            live = sorted(lifecycle.snapshot().boards)
            on = rng.choice(["process", "process", "instant"])
            draft = BoardRecord(owner="ann", selectors=(rng.choice("abc"),), on=on)
            for _ in range(2):
                with suppress(BoardsError):
                    match rng.randrange(4):
                        case 0:
                            board = lifecycle.create(draft, new=len(live) < 6).board
                            promised.write(f"{board.id}\n")
                            promised.flush()
                        case 1 if live:
                            lifecycle.stop(rng.choice(live), now=rng.random() < 0.5)
                        case 2 if live:
                            lifecycle.restart(rng.choice(live))
                        case _:
                            become_ready(executor, rng)
            lifecycle.tick()
        lifecycle.close()


def become_ready(executor: PretendExecutor, rng: random.Random) -> None:
    for alive in sorted(executor.root.glob("*/alive-*")):
        if rng.random() < 0.7:
            executor.is_ready(alive.parent.name)


@pytest.mark.soak
def test_hubs_that_are_killed_lose_and_double_no_board(database, tmp_path, rounds):
    home, rng = tmp_path / "home", random.Random(7)
    home.mkdir()
    (home / "promised").touch()
    executor = PretendExecutor(home / "boards")
    is_file = "://" not in database
    lives = []
    for seed in rounds(8):
        after = int(16_000 ** rng.uniform(0.5, 1))
        how = "steps" if is_file and seed % 3 == 0 else "lines"
        lives.append(is_killed(lambda seed=seed: be_a_hub(database, seed, home), **{how: after}))
        if seed % 10 == 0:
            assert_sound(database)
        for directory in executor.root.glob("*"):
            assert executor.alive(directory.name) <= 1
    assert sum(lives) > len(lives) / 4
    assert_sound(database)
    with Registry(database) as registry:
        lifecycle = Lifecycle(
            registry, {"process": executor}, executor.specify, settings=ALONE, workers=0
        )
        for _ in range(6):
            lifecycle.tick()
            become_ready(executor, random.Random(1))
        boards = {board.id: board for board in everything(registry)}
        lifecycle.close()
    promised = set((home / "promised").read_text().split())
    assert len(promised) > len(lives) / 10
    assert promised <= boards.keys()
    assert {path.name for path in executor.root.glob("*")} <= boards.keys()
    for board in boards.values():
        assert board.state in {BoardState.RUNNING, BoardState.STARTING} or not board.is_live
        should = int(board.is_live and board.is_isolated)
        assert executor.alive(board.id) == should, board
