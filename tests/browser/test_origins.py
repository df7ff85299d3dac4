"""A hostile script on a board that has an origin of its own: it reads and changes nothing."""

import asyncio
import threading
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from aboard.web import listen
from tests.browser.page import wait_for_words
from tests.hub.hubs import create, log_run
from tests.hub.test_origins import boards_url, link_to, served_apart, served_twice

# As a plugin's script might: every way to send a request with the visitor's cookies, or to look
# into a page of the hub. Returns what came back.
_ATTACK = """async ([hub, board]) => {
  const found = [];
  const send = async (path, options) => {
    try {
      const answer = await fetch(hub + path, {credentials: 'include', ...options});
      found.push([path, answer.status, await answer.text()]);
    } catch (error) { /* the browser or the hub refused it */ }
  };
  for (const path of ['/api/v1/me', '/api/v1/tokens', '/', '/b/' + board + '/data/runs']) {
    await send(path, {});
    await send(path, {mode: 'no-cors'});
    await send(path, {headers: {'x-aboard-csrf': '1'}});
  }
  const change = {method: 'POST', body: '{}'};
  for (const path of ['/api/v1/tokens', '/api/v1/boards/' + board + '/stop', '/logout']) {
    await send(path, {...change, headers: {'x-aboard-csrf': '1'}});
    await send(path, {...change, mode: 'no-cors'});
    navigator.sendBeacon(hub + path, '{}');
  }
  for (const path of ['/api/v1/me', '/console/app.js']) {
    await new Promise((resolve) => {
      const script = document.createElement('script');
      script.onload = () => { found.push([path, 'ran', '']); resolve(); };
      script.onerror = resolve;
      script.src = hub + path;
      document.head.append(script);
    });
  }
  const frame = document.createElement('iframe');
  frame.src = hub + '/runs';
  document.body.append(frame);
  await new Promise((resolve) => { frame.onload = resolve; setTimeout(resolve, 5000); });
  try {
    found.push(['frame', 0, frame.contentWindow.document.body.innerText]);
  } catch (error) { /* of another origin */ }
  for (const path of ['/api/v1/me', '/runs', '/api/v1/boards/' + board]) {
    const answer = await fetch(path, {credentials: 'include'});
    found.push(['own ' + path, answer.status, await answer.text()]);
    try {
      const page = await fetch(path, {credentials: 'include', headers: {accept: 'text/html'}});
      found.push(['page ' + path, page.status, await page.text()]);
    } catch (error) { /* it leads to the hub */ }
  }
  return {found, cookies: document.cookie};
}"""


@pytest.fixture
def apart(tmp_path):
    log_run(tmp_path / "logs", "cifar10/run1", [1.0, 0.5])
    with served_apart(tmp_path, tmp_path / "logs") as found:
        yield found


def test_a_script_on_a_board_cannot_use_the_session_of_its_visitor(apart, browser):
    with apart.client("max") as client:
        board = create(client, "cifar10")["id"]
    key = apart.hub.auth.mint_key(apart.hub.auth.user("max"))[0]
    with apart.client("max") as client:
        link = f"{apart.url}/boards?key={key}"
        attack(browser, client, board, link, apart.url, boards_url(apart))


@contextmanager
def forwarded(port):
    """Forward a port of both addresses of localhost to one of 127.0.0.1, as `ssh -L` does."""
    sockets = listen("localhost", 0)
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def pass_on(reader, writer):
        try:
            while content := await reader.read(1 << 16):
                writer.write(content)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def connect(reader, writer):
        with suppress(asyncio.CancelledError):  # when the test ends
            inner = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pass_on(reader, inner[1]), pass_on(inner[0], writer))

    async def run():
        for one in sockets:
            await asyncio.start_server(connect, sock=one)
        await ended.wait()

    def forward():
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=forward, daemon=True)
    thread.start()
    try:
        yield sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        for one in sockets:
            one.close()


@pytest.fixture
def own(tmp_path):
    log_run(tmp_path / "logs", "cifar10/run1", [1.0, 0.5])
    with served_twice(tmp_path, tmp_path / "logs") as found:
        yield found


def test_a_script_on_a_board_of_a_personal_hub_cannot_use_its_session(own, browser):
    with own.client("me") as client:
        board = create(client, "cifar10")["id"]
        attack(browser, client, board, link_to(own, "/boards"), own.url, own.boards)


def test_boards_open_through_one_forwarded_port_and_their_scripts_get_nothing(own, browser):
    with own.client("me") as client, forwarded(urlsplit(own.url).port) as port:
        board = create(client, "cifar10")["id"]
        hub, boards = f"http://localhost:{port}", f"http://127.0.0.1:{port}"
        link = link_to(own, "/boards").replace(own.url, hub)
        attack(browser, client, board, link, hub, boards)


def attack(browser, client, board, link, hub, boards):
    """Open a board from the console, and let its page send requests to the hub."""
    before = client.get("/api/v1/tokens").json()
    user = client.get("/api/v1/me").json()["user"]
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.get_by_role("link", name="cifar10").or_(page.locator("tbody a").first).first.click()
    page.wait_for_url(f"{boards}/b/{board}/**")
    wait_for_words(page.locator("body"), "Time Series")
    result = page.evaluate(_ATTACK, [hub, board])
    # What the hub's origin has sent is not seen at all, or only that it was refused.
    assert [one for one in result["found"] if one[1] not in {0, 403, 404}] == []
    assert not any(user in one[2] and one[1] == 200 for one in result["found"])
    assert all(text == "" for path, status, text in result["found"] if status == 0)
    assert "aboard" not in result["cookies"]
    assert client.get(f"/api/v1/boards/{board}").json()["state"] == "running"
    known = [one["id"] for one in before["tokens"]]
    assert [one["id"] for one in client.get("/api/v1/tokens").json()["tokens"]] == known
    page.goto(f"{hub}/boards")  # still logged in
    page.get_by_role("button", name="New board").wait_for()
    context.close()
