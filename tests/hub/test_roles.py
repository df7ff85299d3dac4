"""Every route for every role, from the route table: a route without a rule fails here."""

import asyncio

import httpx
import pytest
from fastapi.routing import APIRoute

from aboard.boards.accounts import Role
from aboard.hub import pages
from aboard.hub.api import (
    api_router,
    boards,
    events,
    jobs,
    run,
    runs,
    users,
)
from aboard.hub.app import make_api
from aboard.hub.config import JobSettings
from aboard.hub.permissions import RULES, TABLE, Action, Open, Whose
from tests.hub.hubs import ask, create, log_run, served

ROLES = {"vera": Role.VIEWER, "max": Role.MEMBER, "anna": Role.ADMIN}
ROUTES = sorted(RULES)
# Whose board it is: the user's own, the team's, or another user's.
BOARDS = {"own": Whose.OWN, "team": Whose.TEAM, "private": Whose.OTHER}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """One hub for all: what one role may do with a board is asked of a board of its own."""
    place = tmp_path_factory.mktemp("roles")
    log_run(place / "logs", "cifar10/run1", [1.0])
    log_run(place / "logs", "mnist/run1", [1.0])
    with served(place, [place / "logs"], jobs=JobSettings(submit=True)) as found:
        yield found


def routes_of(*routers):
    return {
        (method, route.path)
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }


def test_every_route_has_a_rule_and_every_rule_a_route():
    nouns = (boards, events, jobs, run, runs, users, pages)
    there_are = routes_of(
        boards.engines, runs.series, users.views, *(noun.router for noun in nouns)
    )
    assert there_are | {("GET", "/openapi.json")} == set(RULES)


def test_a_route_without_a_rule_is_refused_to_every_role():
    router = api_router("forgotten")

    @router.get("/forgotten")
    def forgotten():
        return "should not be seen"

    api = make_api()
    api.include_router(router)

    async def ask():
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return await client.get("/api/v1/forgotten")

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_secret(hub, method, path):
    with hub.client() as client:
        answer = ask(client, method, path)
    if RULES[method, path] is Open.PUBLIC:
        assert answer.status_code in {200, 401, 404, 303}
        if answer.status_code == 401:
            assert "/login" in path
    else:
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "not_authenticated"


@pytest.mark.parametrize("user", ROLES)
@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if "{ref}" not in route[1]])
def test_routes_without_a_board(hub, method, path, user):
    rule = RULES[method, path]
    with hub.client(user) as client:
        answer = ask(client, method, path)
    if rule is Open.SELF:
        allowed = ROLES[user] is Role.ADMIN  # the request is about another user
    else:
        allowed = isinstance(rule, Open) or bool(TABLE[rule][ROLES[user]])
    assert (answer.status_code == 403) is not allowed, answer.text
    assert answer.status_code < 500


@pytest.mark.parametrize(
    ("which", "user"),
    # A viewer has no boards.
    [(which, user) for which in BOARDS for user in ROLES if (which, user) != ("own", "vera")],
)
def test_routes_of_a_board(hub, which, user):
    owner = user if which == "own" else "mia"
    visibility = "team" if which == "team" else "private"
    role = ROLES[user]
    board = None  # one for all routes that change nothing
    for method, path in [route for route in ROUTES if "{ref}" in route[1]]:
        rule = RULES[method, path]
        assert isinstance(rule, Action)
        if board is None:
            with hub.client(owner) as client:
                board = create(client, "cifar10", visibility=visibility, new=True)["id"]
        with hub.client(user) as client:
            answer = ask(client, method, path, board)
        sees = BOARDS[which] in TABLE[Action.SEE][role]
        allowed = BOARDS[which] in TABLE[rule][role]
        refusal = 404 if not sees else 403 if not allowed else None
        if refusal is None:
            assert answer.status_code not in {401, 403}, (method, path, answer.text)
            assert answer.status_code < 500
        else:
            assert answer.status_code == refusal, (method, path, answer.text)
        if method != "GET" and refusal is None:
            board = None


@pytest.mark.parametrize("user", ROLES)
def test_the_pages_of_boards(hub, user):
    with hub.client("mia") as client:
        private = create(client, "cifar10")["id"]
        team = create(client, "mnist", visibility="team")["id"]
    with hub.client(user) as client:
        for path in ("", "data/runs", "index.js"):
            assert client.get(f"/b/{team}/{path}").status_code == 200
            expected = 200 if user == "anna" else 404
            assert client.get(f"/b/{private}/{path}").status_code == expected
        assert client.get("/b/nothing/").status_code == 404
