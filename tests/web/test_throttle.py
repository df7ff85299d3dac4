import asyncio

from aboard.web.gate import Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_delay_grows_with_each_failure_up_to_a_limit() -> None:
    throttle = Throttle(clock=Clock())
    delays = [throttle.failed() for _ in range(8)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


def test_failures_are_forgotten() -> None:
    clock = Clock()
    throttle = Throttle(clock=clock, forget=5)
    for _ in range(1000):
        throttle.failed()
    clock.now += 25
    assert throttle.failed() == 2.0
    clock.now += 50
    assert throttle.failed() == 0.1


def test_only_so_many_wait() -> None:
    async def rush() -> tuple[list[bool], bool]:
        held: list[asyncio.Future[None]] = []

        def sleep(_: float) -> asyncio.Future[None]:
            held.append(asyncio.get_running_loop().create_future())
            return held[-1]

        throttle = Throttle(sleep=sleep, max_waiting=3)
        tasks = [asyncio.create_task(throttle.hold()) for _ in range(10)]
        await asyncio.sleep(0)
        assert len(held) == 3
        for future in held:
            future.set_result(None)
        answers = [await task for task in tasks]
        later = asyncio.create_task(throttle.hold())
        await asyncio.sleep(0)
        held[-1].set_result(None)
        return answers, await later

    answers, later = asyncio.run(rush())
    assert answers == [True] * 3 + [False] * 7
    assert later


def test_whoever_gives_up_makes_room() -> None:
    async def leave() -> bool:
        throttle = Throttle(max_waiting=1, first=60, longest=60)
        waiting = asyncio.create_task(throttle.hold())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        again = asyncio.create_task(throttle.hold())
        await asyncio.sleep(0)
        is_waiting = not again.done()
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        return is_waiting

    assert asyncio.run(leave())


class TestTurns:
    def throttle(self, clock: Clock, waited: list[float]) -> Throttle:
        async def sleep(seconds: float) -> None:
            waited.append(round(seconds, 6))

        return Throttle(clock=clock, sleep=sleep, turns=3, per_second=5.0, patience=1.0)

    def take(self, throttle: Throttle, count: int) -> list[bool]:
        async def take() -> list[bool]:
            return [await throttle.turn() for _ in range(count)]

        return asyncio.run(take())

    def test_a_few_are_there_at_once_and_then_only_so_many_in_a_second(self) -> None:
        waited: list[float] = []
        throttle = self.throttle(Clock(), waited)
        assert self.take(throttle, 3) == [True] * 3
        assert waited == []
        assert self.take(throttle, 20) == [True] * 5 + [False] * 15
        assert waited == [0.2, 0.4, 0.6, 0.8, 1.0]

    def test_whoever_is_turned_away_takes_no_turn(self) -> None:
        waited: list[float] = []
        clock = Clock()
        throttle = self.throttle(clock, waited)
        self.take(throttle, 1000)
        clock.now += 0.2
        assert self.take(throttle, 2) == [True, False]

    def test_they_come_back_with_time_and_no_more_than_a_few(self) -> None:
        waited: list[float] = []
        clock = Clock()
        throttle = self.throttle(clock, waited)
        self.take(throttle, 8)
        waited.clear()
        clock.now += 3600
        assert self.take(throttle, 4) == [True] * 4
        assert waited == [0.2]

    def test_those_who_are_right_use_none_up(self) -> None:
        waited: list[float] = []
        throttle = self.throttle(Clock(), waited)
        for _ in range(100):
            assert self.take(throttle, 1) == [True]
            throttle.give_back()
        assert waited == []
