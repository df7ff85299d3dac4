"""Sessions and limits over the API, and who may see and revoke them."""

import pytest

from aboard.boards.model import Limits
from tests.hub.hubs import PASSWORD, served

CHANGE = {"x-aboard-csrf": "1"}


@pytest.fixture
def logged_in(hub):
    """Return a client with a session of a user."""
    opened = []

    def logged_in(user):
        hub.hub.auth.set_password(user, PASSWORD)
        client = hub.client(headers=CHANGE)
        opened.append(client)
        assert client.post("/api/v1/login", json={"user": user, "password": PASSWORD}).is_success
        return client

    yield logged_in
    for client in opened:
        client.close()


def sessions_of(client):
    return client.get("/api/v1/sessions").json()["sessions"]


def test_users_list_and_end_their_own_sessions(hub, logged_in):
    first = logged_in("max")
    other = hub.client(headers=CHANGE)
    form = {"user": "max", "password": PASSWORD}
    assert other.post("/api/v1/login", json=form).is_success
    assert [one["current"] for one in sessions_of(first)] == [True, False]
    [theirs] = [one["id"] for one in sessions_of(other) if one["current"]]
    assert first.delete(f"/api/v1/sessions/{theirs}").status_code == 204
    assert other.get("/api/v1/me").status_code == 401
    assert first.get("/api/v1/me").is_success
    assert first.delete(f"/api/v1/sessions/{theirs}").status_code == 404
    other.close()


def test_only_administrators_see_sessions_of_others(hub, logged_in):
    mine = sessions_of(logged_in("max"))[0]["id"]
    mia = logged_in("mia")
    assert [one["user"] for one in sessions_of(mia)] == ["mia"]
    assert mia.delete(f"/api/v1/sessions/{mine}").status_code == 404
    with hub.client("anna") as anna:
        assert {one["user"] for one in sessions_of(anna)} == {"max", "mia"}
        assert not any(one["current"] for one in sessions_of(anna))
        assert anna.delete(f"/api/v1/sessions/{mine}").status_code == 204
        assert {one["user"] for one in sessions_of(anna)} == {"mia"}


def test_no_secret_is_listed(hub, logged_in):
    client = logged_in("max")
    [cookie] = client.cookies.values()
    assert cookie not in client.get("/api/v1/sessions").text


def test_limits_are_those_of_the_settings(tmp_path, root):
    limits = Limits(isolated=2, memory=1 << 30, timeout=3600.0)
    with served(tmp_path, [root], limits=limits) as hub, hub.client("vera") as client:
        found = client.get("/api/v1/limits").json()
    assert (found["isolated"], found["instant"]) == (2, None)
    assert (found["memory"], found["timeout"], found["cpus"]) == (1 << 30, 3600.0, 0.0)
