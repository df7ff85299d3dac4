"""What plugins compute can be ended, takes its share only, and does not block other requests."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest

from aboard import EventWriter
from aboard.index.library import Library, Member
from aboard.system import children, find_process
from aboard.tensorboard import app, workers
from aboard.tensorboard.app import make_app
from aboard.tensorboard.board import Board
from aboard.tensorboard.provider import Boards
from aboard.tensorboard.worker import MEMORY_BYTES
from aboard.tensorboard.workers import ForkServer, Ticket, Turns, WorkerPool
from aboard.web.gate import VISITOR
from tests.engines.sick_tensorboard import PROGRAM
from tests.waiting import until, until_async

ROOT = Path(__file__).parent.parent.parent
PLUGIN = "data/plugin/odd"


@pytest.fixture(scope="module")
def sick_server():
    """A fork server of sick workers; what it was started for is over when the tests are."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv(
            "PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        )
        server = ForkServer(PROGRAM)
        server.start()
    yield server
    server.close()


@pytest.fixture
def boards(tmp_path, index):
    found = Boards(Library(index))
    for name in ("mine", "yours"):
        with EventWriter(tmp_path / name / "run") as writer:
            writer.scalar("loss", 1.0, 0)
        member = Member.parse(str(tmp_path / name))
        index.refresh(member.source)
        found.add(Board(name, name.title(), (member,)))
    return found


class Client:
    """Requests to an application whose workers are sick, as some visitor."""

    def __init__(self, app, pool):
        self.app = app
        self.pool = pool
        self.http = httpx.AsyncClient(transport=self._transport(), base_url="http://aboard")

    def _transport(self):
        async def named(scope, receive, send):
            visitor = dict(scope["headers"]).get(b"x-visitor", b"").decode()
            scope[VISITOR] = type("Visitor", (), {"name": visitor})
            await self.app(scope, receive, send)

        return httpx.ASGITransport(named)

    async def get(self, what, board="mine", visitor="", **query):
        path = f"/b/{board}/{what if '/' in what else f'{PLUGIN}/{what}'}"
        return await self.http.get(path, params=query, headers={"x-visitor": visitor})

    async def post(self, content, visitor=""):
        path = f"/b/mine/{PLUGIN}/echo"
        return await self.http.post(path, content=content, headers={"x-visitor": visitor})

    async def is_prompt(self, board="yours", visitor=""):
        """Ask a hot route and a worker for another board."""
        hot = await self.get("data/runs", board, visitor)
        computed = await self.get("echo", board, visitor)
        return (hot.status_code, computed.status_code) == (200, 200)

    async def running(self, count):
        """Wait until so many calls are computed."""
        await until_async(lambda: len(self.pool._busy) >= count)


@pytest.fixture
def opened(boards, sick_server, monkeypatch):
    """Run a test of an application: `opened(test, deadline=1.0)`."""
    monkeypatch.setattr(workers, "_fork_server", sick_server)

    def run(test, **options):
        async def whole():
            with ExitStack() as closing:
                pool = WorkerPool(boards, {}, **{"workers": 4, "deadline": 1.0} | options)
                monkeypatch.setattr(app, "WorkerPool", lambda *_: pool)
                client = Client(make_app(boards, closing=closing), pool)
                async with client.http:
                    return await test(client)

        return asyncio.run(whole())

    return run


def error_of(response):
    assert response.headers["content-type"] == "application/json"
    return response.json()["error"]


def test_a_call_reaches_the_plugin_as_it_was_sent(opened):
    async def test(client):
        path = f"/b/mine/{PLUGIN}/echo?x=%2F%20&y"
        response = await client.http.post(path, content="a body" * 100_000)
        found = response.json()
        assert (found["method"], found["query"], found["board"]) == ("POST", "x=%2F%20&y", "mine")
        assert found["body"] == "a body" * 100_000
        assert response.headers["x-odd"] == "é"
        assert found["pid"] not in {os.getpid(), os.getppid()}
        again = (await client.get("echo")).json()
        assert again["pid"] == found["pid"]  # an idle worker is used again

    opened(test)


def test_what_exceeds_its_deadline_is_ended_and_refused_while_others_go_on(opened, monkeypatch):
    computed = []
    real = WorkerPool._run

    def noted(pool, worker, setup, listing, work):
        computed.append((work.scope or {}).get("query_string"))
        return real(pool, worker, setup, listing, work)

    monkeypatch.setattr(WorkerPool, "_run", noted)

    async def test(client):
        client.pool._deadline = 600
        sick = [asyncio.create_task(client.get("spin", number=number)) for number in range(40)]
        await client.running(2)
        assert await client.is_prompt()
        assert not any(task.done() for task in sick)
        for task in sick:
            task.cancel()
        client.pool._deadline = 1.0
        found = await client.get("spin", number=100)
        assert found.status_code == 504
        assert error_of(found)["code"] == "too_slow"
        message = error_of(found)["message"]
        assert "1 seconds of CPU time, or 4 seconds in total" in message
        assert "data/plugin/odd/spin of board mine" in message
        assert "--engine stock" in error_of(found)["hint"]
        assert int(found.headers["retry-after"]) > 0
        again = await client.get("spin", number=100)
        assert again.status_code == 504
        assert computed.count(b"number=100") == 1  # not again
        client.pool._deadline = 600
        assert await client.is_prompt("mine", "another")

    opened(test)


def test_one_visitor_who_was_too_slow_leaves_a_worker_of_the_board_to_others(opened):
    async def test(client):
        assert (await client.get("spin", visitor="eve", number=0)).status_code == 504
        client.pool._deadline = 600
        sick = [
            asyncio.create_task(client.get("spin", visitor="eve", number=number))
            for number in range(1, 10)
        ]
        await client.running(1)
        assert await client.is_prompt("mine", "adam")
        assert not any(task.done() for task in sick)
        for task in sick:
            task.cancel()

    opened(test, deadline=0.5)


def test_a_client_that_leaves_ends_its_work(opened):
    async def test(client):
        sick = [asyncio.create_task(client.get("sleep:60", number=n)) for n in range(10)]
        await client.running(2)
        for task in sick:
            task.cancel()
        await asyncio.wait(sick)
        await until_async(lambda: not (client.pool._busy or client.pool._turns._waiting))
        assert not client.pool._held
        assert await client.is_prompt("mine")

    opened(test, deadline=600)


def test_a_client_that_disconnects_ends_its_work(opened):
    async def test(client):
        sent = []

        async def receive():
            if not sent:
                sent.append("request")
                return {"type": "http.request", "body": b"", "more_body": False}
            await client.running(1)
            return {"type": "http.disconnect"}

        async def send(message):
            raise AssertionError(message)

        path = f"/b/mine/{PLUGIN}/spin"
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "http_version": "1.1",
            "headers": [],
        }
        await client.app(scope, receive, send)
        assert not client.pool._busy
        assert await client.is_prompt("mine")

    opened(test, deadline=600)


def test_more_than_can_wait_is_refused_at_once(opened, monkeypatch):
    monkeypatch.setattr(workers, "_MOST_WAITING_OF_ONE", 3)
    monkeypatch.setattr(workers, "_QUEUE_SECONDS", 0.3)

    async def test(client):
        tasks = [asyncio.create_task(client.get("sleep:60", number=n)) for n in range(9)]
        await client.running(2)
        found = [await one for one in islice(asyncio.as_completed(tasks), 7)]
        assert {response.status_code for response in found} == {503}
        reasons = {error_of(response)["message"] for response in found}
        assert reasons == {
            "Too many requests for TensorBoard's plugins are waiting.",
            "All workers that board mine may use were busy for 0.3 seconds.",
        }
        assert all(response.headers["retry-after"] == "5" for response in found)
        for task in tasks:
            task.cancel()

    opened(test, deadline=600)


def test_bodies_that_wait_have_a_bound(opened, monkeypatch):
    monkeypatch.setattr(workers, "_MOST_HELD_BYTES", 1000)

    async def test(client):
        refused = await client.post(b"x" * 1001)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "busy")
        assert (await client.post(b"x" * 1000)).status_code == 200
        assert not client.pool._held

    opened(test)


def test_bodies_that_do_not_come_to_their_end_hinder_no_other_visitor(opened, monkeypatch):
    monkeypatch.setattr(workers, "_MOST_HELD_BYTES_OF_ONE", 1000)

    async def test(client):
        begun, end = asyncio.Event(), asyncio.Event()

        async def body():
            yield b"x" * 1000
            begun.set()
            await end.wait()

        stalled = asyncio.create_task(client.post(body(), "eve"))
        await begun.wait()
        refused = await client.post(b"x", "eve")
        assert (refused.status_code, error_of(refused)["code"]) == (503, "busy")
        assert (await client.post(b"x" * 1000, "adam")).status_code == 200
        end.set()
        assert (await stalled).status_code == 200
        assert (await client.post(b"x", "eve")).status_code == 200
        assert not client.pool._held

    opened(test)


def test_a_form_is_counted_until_it_is_answered(opened, monkeypatch):
    async def test(client):
        held = []
        parse = app._parse_form

        def parse_form(*form):
            held.append(client.pool._held.total())
            return parse(*form)

        monkeypatch.setattr(app, "_parse_form", parse_form)
        form = {"requests": '[{"plugin": "scalars", "tag": "%s"}]' % ("x" * 100_000)}
        path = "/b/mine/data/plugin/timeseries/timeSeries"
        assert (await client.http.post(path, data=form)).status_code == 200
        assert held[0] > 100_000
        assert not client.pool._held

    opened(test)


def test_what_takes_too_much_memory_is_ended(opened):
    async def test(client):
        found = await client.get("allocate:2000")
        assert (found.status_code, error_of(found)["code"]) == (503, "worker_ended")
        limit = f"needs more than {MEMORY_BYTES >> 20} MB of memory"
        assert limit in error_of(found)["message"]
        assert (await client.get("allocate:100")).status_code == 200
        assert await client.is_prompt("mine")

    opened(test, deadline=30)


@pytest.mark.parametrize("what", ["end", "write"])
def test_a_worker_that_ends_or_talks_nonsense_is_replaced(opened, what):
    async def test(client):
        first = (await client.get("echo")).json()["pid"]
        found = await client.get(what)
        assert (found.status_code, error_of(found)["code"]) == (503, "worker_ended")
        assert "could not answer data/plugin/odd/" in error_of(found)["message"]
        assert (await client.get("echo")).json()["pid"] != first

    opened(test)


def test_a_worker_that_was_ended_while_idle_is_replaced_and_nobody_notices(opened):
    async def test(client):
        first = (await client.get("echo")).json()["pid"]
        os.kill(first, signal.SIGKILL)
        assert (await client.get("echo")).json()["pid"] != first

    opened(test)


def test_a_plugin_that_fails_is_logged_and_answers_with_an_error(opened, caplog):
    async def test(client):
        assert (await client.get("fail")).status_code == 500
        assert (await client.get("warn")).status_code == 200
        assert "RuntimeError: a plugin fails" in caplog.text
        assert ("plugin.of.others", 30, "a plugin warns") in caplog.record_tuples

    opened(test)


def test_a_large_answer_comes_through_a_file_and_whole(opened, monkeypatch):
    monkeypatch.setattr(workers, "_MOST_RESPONSE_BYTES", 20 << 20)

    async def test(client):
        assert (await client.get("large:12")).content == b"x" * (12 << 20)
        found = await client.get("large:21")
        assert (found.status_code, error_of(found)["code"]) == (503, "worker_ended")
        assert "the response is larger than 20 MB" in error_of(found)["message"]
        again = await client.get("large:21")
        assert (again.status_code, error_of(again)) == (503, error_of(found))
        assert 0 < int(again.headers["retry-after"]) <= 60

    opened(test, deadline=30)


def test_what_computes_for_long_gets_a_lower_priority(opened, monkeypatch):
    async def test(client):
        pid = (await client.get("echo")).json()["pid"]
        monkeypatch.setattr(workers, "_SLOW_AFTER", 0.05)
        task = asyncio.create_task(client.get("sleep:3"))
        await client.running(1)
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        await until_async(lambda: os.getpriority(os.PRIO_PROCESS, pid) > usual)
        assert (await task).status_code == 200
        monkeypatch.setattr(workers, "_SLOW_AFTER", 600)
        after = (await client.get("echo")).json()
        assert (after["pid"] != pid, after["nice"]) == (True, usual)

    opened(test, deadline=30)


def test_workers_start_when_needed_and_end_when_idle(opened, monkeypatch):
    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.2)

    async def test(client):
        assert (await client.get("data/runs")).status_code == 200
        assert client.pool.size == 0
        pid = (await client.get("echo")).json()["pid"]
        assert client.pool.size == 1
        await until_async(lambda: find_process(pid) is None)
        assert client.pool.size == 0
        assert await client.is_prompt("mine")

    opened(test)


def test_a_page_is_served_where_no_process_can_be_started(opened, monkeypatch):
    async def test(client):
        monkeypatch.setattr(workers, "_fork_server", ForkServer())
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        assert (await client.http.get("/b/mine/")).status_code == 200
        found = await client.get("echo")
        assert (found.status_code, error_of(found)["code"]) == (503, "busy")

    opened(test)


def test_a_worker_keeps_few_boards(opened, boards, monkeypatch):
    monkeypatch.setattr(workers, "_BOARDS_OF_WORKER", 2)
    members = boards.get("mine").board.members
    for number in range(5):
        boards.add(Board(f"board{number}", "A board", members))

    async def test(client):
        for _ in range(2):
            for number in range(5):
                found = (await client.get("echo", f"board{number}")).json()
                assert found["board"] == f"board{number}"
        (worker,) = client.pool._idle
        assert list(worker.boards) == ["board3", "board4"]

    opened(test, workers=1)


def test_a_board_is_pickled_once_and_not_in_the_event_loop(opened, boards):
    threads = []

    class Watched(Board):
        def __reduce__(self):
            threads.append(threading.current_thread())
            return Board, (self.id, self.title, self.members)

    boards.add(Watched("large", "Large", boards.get("mine").board.members))

    async def test(client):
        first = (await client.get("echo", "large")).json()
        os.kill(first["pid"], signal.SIGKILL)
        again = (await client.get("echo", "large")).json()
        assert (again["pid"] != first["pid"], again["board"]) == (True, "large")

    opened(test)
    (thread,) = threads
    assert thread is not threading.main_thread()


def test_workers_end_with_the_process_that_has_them(tmp_path):
    """Also one that is killed while they hold their interpreters."""
    script = """if True:
        import asyncio, sys
        from aboard.tensorboard import workers
        server = workers._fork_server = workers.ForkServer(sys.argv[1])
        async def main():
            started = [workers._Worker() for _ in range(2)]
            for worker in started:
                await worker.ready()
            print(server._process.pid, flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        server = int(process.stdout.readline())
        forked = children(server)
        assert len(forked) == 2
        for pid in forked:
            os.kill(pid, signal.SIGSTOP)  # as deaf as one that holds its interpreter
        process.kill()
    until(lambda: not any(is_alive(pid) for pid in (server, *forked)))


def is_alive(pid):
    found = find_process(pid)
    return found is not None and found.is_alive


def test_an_index_in_memory_is_copied_for_workers(tmp_path, monkeypatch):
    from aboard.index import Index, Source

    blocked = tmp_path / "blocked"
    blocked.write_text("")
    logs = tmp_path / "logs"
    with EventWriter(logs / "run1") as writer, Index(blocked / "index.db") as index:
        assert index.path is None
        boards = Boards(Library(index))
        boards.add(Board("board", "A board", (Member(Source(str(logs))),)))
        writer.scalar("loss", 1.0, 0)
        writer.flush()
        index.refresh(Source(str(logs)))
        from tests.tensorboard.servers import Ours

        ours = Ours(boards)
        for step in (1, 2):
            points = ours.get("data/plugin/scalars/scalars", run="run1", tag="loss").json
            assert len(points) == step
            writer.scalar("loss", 1.0, step)
            writer.flush()
            index.refresh(Source(str(logs)))
        ours.close()


def test_an_index_that_was_replaced_is_opened_by_workers(tmp_path, index, serve):
    from aboard.index import schema

    with EventWriter(tmp_path / "logs/run1") as writer:
        writer.scalar("loss", 1.0, 0)
    ours = serve(tmp_path / "logs")
    query = {"run": "run1", "tag": "loss"}
    assert len(ours.get("data/plugin/scalars/scalars", **query).json) == 1
    schema.remove(index.path)
    index.close()
    ours.refresh()
    assert len(ours.get("data/plugin/scalars/scalars", **query).json) == 1


# The queue.


def turns(test, most=4):
    asyncio.run(test(Turns(most)))


async def take(queue, order, board, visitor, hold):
    ticket = Ticket(board, visitor)
    async with queue.turn(ticket):
        order.append((board, visitor))
        await hold.wait()


@asynccontextmanager
async def waiting(queue, *tickets):
    order, hold = [], asyncio.Event()
    tasks = [asyncio.create_task(take(queue, order, *ticket, hold)) for ticket in tickets]
    for _ in range(5):
        await asyncio.sleep(0)
    yield order
    hold.set()
    await asyncio.gather(*tasks)
    assert (queue._total, queue._waiting, queue._lanes) == (0, 0, {})


def test_a_board_gets_half_and_a_visitor_all_but_one():
    async def test(queue):
        of_eve = [("a", "eve")] * 5 + [("b", "eve")] * 5
        async with waiting(queue, *of_eve, ("c", "adam")) as order:
            assert order == [("a", "eve"), ("a", "eve"), ("b", "eve"), ("c", "adam")]

    turns(test)


def test_boards_that_wait_take_turns():
    async def test(queue):
        first = [("a", "")] * 4 + [("b", "")] * 2
        async with waiting(queue, *first) as order:
            assert order == [("a", "")] * 1 + [("b", "")] * 1
        assert order == [("a", ""), ("b", ""), ("a", ""), ("b", ""), ("a", ""), ("a", "")]

    turns(test, most=2)


def test_a_place_in_the_queue_can_be_given_up():
    async def test(queue):
        async with waiting(queue, ("a", "")):
            left = asyncio.create_task(take(queue, [], "a", "", asyncio.Event()))
            await asyncio.sleep(0)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left

    turns(test, most=1)


def test_a_turn_that_comes_with_its_cancellation_is_given_on():
    async def test(queue):
        hold = asyncio.Event()
        first = asyncio.create_task(take(queue, [], "a", "", hold))
        second = asyncio.create_task(take(queue, [], "a", "", asyncio.Event()))
        for _ in range(3):
            await asyncio.sleep(0)
        hold.set()
        await first
        second.cancel()  # just when it got its turn
        with pytest.raises(asyncio.CancelledError):
            await second
        async with waiting(queue, ("a", "")) as order:
            assert order == [("a", "")]

    turns(test, most=1)


def test_a_place_that_is_given_up_leaves_the_places_of_later_calls():
    async def test(queue):
        order, end_first, end = [], asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(take(queue, [], "a", "", end_first))
        left = asyncio.create_task(take(queue, [], "a", "", end))
        other = asyncio.create_task(take(queue, [], "b", "", end))
        for _ in range(3):
            await asyncio.sleep(0)
        # At once, in this order: a turn ends, another call comes, and one is given up.
        end_first.set()
        last = asyncio.create_task(take(queue, order, "a", "", end))
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        end.set()
        await asyncio.gather(first, other, last)
        assert order == [("a", "")]

    turns(test, most=1)
