import asyncio

from aboard.web.brake import Brake


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_delay_grows_with_each_failure_up_to_a_limit() -> None:
    brake = Brake(clock=Clock())
    delays = [brake.failed() for _ in range(8)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_failures_are_forgotten() -> None:
    clock = Clock()
    brake = Brake(clock=clock, calm=5)
    for _ in range(1000):
        brake.failed()
    clock.now += 25
    assert brake.failed() == 2.0
    clock.now += 50
    assert brake.failed() == 0.1


def test_only_so_many_wait() -> None:
    async def rush() -> tuple[list[bool], bool]:
        held: list[asyncio.Future[None]] = []

        def sleep(_: float) -> asyncio.Future[None]:
            held.append(asyncio.get_running_loop().create_future())
            return held[-1]

        brake = Brake(sleep=sleep, waiting=3)
        tasks = [asyncio.create_task(brake.hold()) for _ in range(10)]
        await asyncio.sleep(0)
        assert len(held) == 3
        for future in held:
            future.set_result(None)
        answers = [await task for task in tasks]
        later = asyncio.create_task(brake.hold())
        await asyncio.sleep(0)
        held[-1].set_result(None)
        return answers, await later

    answers, later = asyncio.run(rush())
    assert answers == [True] * 3 + [False] * 7
    assert later


def test_whoever_gives_up_makes_room() -> None:
    async def leave() -> bool:
        brake = Brake(waiting=1, first=60, longest=60)
        waiting = asyncio.create_task(brake.hold())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        again = asyncio.create_task(brake.hold())
        await asyncio.sleep(0)
        is_waiting = not again.done()
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        return is_waiting

    assert asyncio.run(leave())
