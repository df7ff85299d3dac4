"""Saved views: owners, visibility and permissions."""

import pytest

from aboard import Client, HubError
from aboard.boards.model import Limits
from tests.hub.hubs import PASSWORD, served

QUERY = "where=state+%3D%3D+%22completed%22&sort=-created"


@pytest.fixture
def hub(tmp_path):
    with served(tmp_path) as found:
        yield found


def names(client):
    return [(view["owner"], view["name"]) for view in client.get("/api/v1/views").json()["views"]]


def save(client, name, query=QUERY, **more):
    return client.put("/api/v1/views", json={"name": name, "query": query, **more})


def test_a_view_is_private_unless_it_is_for_the_team(hub):
    with hub.client("max") as max_, hub.client("mia") as mia, hub.client("vera") as vera:
        saved = save(max_, " best runs ").json()
        assert (saved["name"], saved["owner"], saved["query"]) == ("best runs", "max", QUERY)
        assert (saved["visibility"], saved["changed"][:2]) == ("private", "20")
        save(max_, "a/b & <i>", visibility="team")
        save(vera, "best runs")
        assert names(max_) == [("max", "a/b & <i>"), ("max", "best runs")]
        assert names(mia) == [("max", "a/b & <i>")]
        assert names(vera) == [("max", "a/b & <i>"), ("vera", "best runs")]


def test_saving_again_replaces(hub):
    with hub.client("max") as client, hub.client("mia") as mia:
        save(client, "mine", visibility="team")
        save(client, "mine", "sort=run")
        (only,) = client.get("/api/v1/views").json()["views"]
        assert (only["query"], only["visibility"]) == ("sort=run", "private")
        assert names(mia) == []


def test_viewers_do_not_share(hub):
    with hub.client("vera") as client:
        answer = save(client, "mine", visibility="team")
        assert answer.status_code == 403
        assert "vera (viewer) may not share views" in answer.json()["error"]["message"]
        assert names(client) == []


def test_owners_delete_their_views_and_administrators_shared_ones(hub):
    with hub.client("max") as max_, hub.client("mia") as mia, hub.client("anna") as anna:
        save(max_, "shared", visibility="team")
        save(max_, "private")
        of_max = {"owner": "max", "name": "shared"}
        assert mia.delete("/api/v1/views", params=of_max).status_code == 403
        assert mia.delete("/api/v1/views", params={"name": "shared"}).status_code == 404
        private = {"owner": "max", "name": "private"}
        assert anna.delete("/api/v1/views", params=private).status_code == 404
        assert anna.delete("/api/v1/views", params=of_max).status_code == 204
        assert max_.delete("/api/v1/views", params={"name": "private"}).status_code == 204
        assert names(max_) == []


@pytest.mark.parametrize(
    ("name", "query"), [("", ""), ("  ", ""), ("x" * 65, ""), ("a\0b", ""), ("a", "x" * 16_001)]
)
def test_what_cannot_be_saved(hub, name, query):
    with hub.client("max") as client:
        answer = save(client, name, query)
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] in {"invalid", "bad_value"}


def test_too_many_views(hub, monkeypatch):
    monkeypatch.setattr("aboard.boards.accounts.MOST_VIEWS", 2)
    with hub.client("max") as client:
        assert save(client, "one").status_code == save(client, "two").status_code == 200
        answer = save(client, "three")
        assert answer.status_code == 422
        assert "at most 2 views" in answer.json()["error"]["message"]
        assert save(client, "two", "sort=run").status_code == 200  # replaces


def test_views_of_a_removed_user(hub):
    with hub.client("max") as max_, hub.client("anna") as anna:
        save(max_, "shared", visibility="team")
        save(max_, "private")
        anna.delete("/api/v1/users/max")
        assert names(anna) == [("max", "shared")]
        anna.post("/api/v1/users", json={"name": "max"})
    hub.tokens["max"] = hub.hub.auth.create_token(hub.hub.auth.user("max")).secret
    with hub.client("max") as again:
        assert names(again) == [("max", "shared")]


def test_the_client(hub):
    client = Client(hub.url, token=hub.tokens["max"])
    client.save_view("best", QUERY, visibility="team")
    assert [view["name"] for view in client.views()] == ["best"]
    other = Client(hub.url, token=hub.tokens["mia"])
    assert other.views()[0]["query"] == QUERY
    with pytest.raises(HubError, match="may not manage the hub"):
        other.delete_view("best", owner="max")
    client.delete_view("best")
    assert client.views() == []


# Sessions and limits over the API, and who may see and revoke them.


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
