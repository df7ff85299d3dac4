"""A hostile script on a board that has an origin of its own: it reads and changes nothing."""

import pytest

from tests.browser.looking import wait_for_words
from tests.hub.hubs import create, log_run
from tests.hub.test_origins import boards_url, served_apart

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
        before = client.get("/api/v1/tokens").json()
    context = browser.new_context()
    page = context.new_page()
    key = apart.hub.auth.mint_key(apart.hub.auth.user("max"))[0]
    page.goto(f"{apart.url}/boards?key={key}")
    page.get_by_role("link", name="cifar10").or_(page.locator("tbody a").first).first.click()
    page.wait_for_url(f"{boards_url(apart)}/b/{board}/**")
    wait_for_words(page.locator("body"), "Time Series")
    result = page.evaluate(_ATTACK, [apart.url, board])
    # What the hub's origin has sent is not seen at all, or only that it was refused.
    assert [one for one in result["found"] if one[1] not in {0, 403, 404}] == []
    assert not any("max" in one[2] and one[1] == 200 for one in result["found"])
    assert all(text == "" for path, status, text in result["found"] if status == 0)
    assert "aboard" not in result["cookies"]
    with apart.client("max") as client:
        assert client.get(f"/api/v1/boards/{board}").json()["state"] == "running"
        known = [one["id"] for one in before["tokens"]]
        assert [one["id"] for one in client.get("/api/v1/tokens").json()["tokens"]] == known
    page.goto(f"{apart.url}/boards")  # still logged in
    page.get_by_role("button", name="New board").wait_for()
    context.close()
