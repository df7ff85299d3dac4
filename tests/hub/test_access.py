"""The access protocol of the gate, implemented by a single token and by a hub's accounts."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest

from aboard.boards.accounts import Role
from aboard.boards.registry import Registry
from aboard.hub.access import HubAccess, board_of
from aboard.hub.auth import Auth
from aboard.hub.config import Config
from aboard.web.gate import BadKey, Credential, Gate, NewSession, Throttle, WrongSecret
from aboard.web.request import read_request
from aboard.web.tokens import TokenAccess
from tests.hub.hubs import PASSWORD
from tests.web.visitors import TOKEN, echo, raw_scope


@pytest.fixture(params=["token", "hub"])
def known(request, tmp_path):
    """An access with its token, a key, and whether keys open once."""
    throttle = Throttle(first=0.0)
    if request.param == "token":
        access = TokenAccess(TOKEN, throttle=throttle)
        yield SimpleNamespace(access=access, token=TOKEN, key=access.key, once=False)
        return
    with Registry(f"sqlite:///{tmp_path}/hub.db") as registry:
        auth = Auth(registry, throttle=throttle)
        user = auth.add_user("max", Role.MEMBER, PASSWORD)
        access = HubAccess(SimpleNamespace(auth=auth, personal=False, config=Config()))
        token, key = auth.create_token(user).secret, auth.mint_key(user)[0]
        yield SimpleNamespace(access=access, token=token, key=key, once=True)


def identify(known, headers):
    return asyncio.run(known.access.identify(read_request(raw_scope("/", headers=headers))))


def cookie(secret):
    return {"cookie": f"{read_request(raw_scope('/')).session_cookie}={secret}"}


def test_only_the_correct_secret_is_accepted(known):
    assert identify(known, {"authorization": f"Bearer {known.token}"}).credential is (
        Credential.TOKEN
    )
    for wrong in ({}, {"authorization": f"Bearer {known.token}x"}, cookie(known.token)):
        assert identify(known, wrong) is None


def test_a_key_opens_a_session(known):
    opened = asyncio.run(known.access.redeem(known.key, None))
    assert isinstance(opened, NewSession)
    assert opened.seconds > 86400
    assert identify(known, cookie(opened.secret)).credential is Credential.SESSION
    assert asyncio.run(known.access.redeem(f"{known.key}x", None)) is BadKey.UNKNOWN
    again = asyncio.run(known.access.redeem(known.key, None))
    assert again is BadKey.USED if known.once else isinstance(again, NewSession)


def test_a_login_opens_a_session(known):
    for secret in (known.token, f" http://h/b/x/?a=1&key={known.key}#top\n"):
        opened = asyncio.run(known.access.log_in({"token": secret}))
        assert identify(known, cookie(opened.secret)).credential is Credential.SESSION
    with pytest.raises(WrongSecret, match=r"Invalid token\."):
        asyncio.run(known.access.log_in({"token": "wrong"}))


def test_only_the_public_routes_are_open(known):
    for path in ("/", "/b/x/", "/api/v1/boards", "/metrics", "/s/a/b", "/login/x"):
        assert not known.access.is_open(path)
    assert known.access.is_open("/healthz") is known.once


def test_a_password_with_any_letters_logs_in_with_the_form(known):
    if not known.once:
        return
    password = "pässwörter-密码"
    known.access._auth.set_password("max", password)

    async def post(typed):
        transport = httpx.ASGITransport(Gate(echo, known.access))
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return await client.post("/login", data={"user": "max", "password": typed})

    assert asyncio.run(post(password)).status_code == 303
    refused = asyncio.run(post("wrong password"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "wrong_secret")


def test_which_board_a_path_leads_to():
    paths = ("/b/abc/x", "/b/abc", "/b/", "/b", "/boards/b/x", "/")
    assert [board_of(path) for path in paths] == ["abc", "abc", "", None, None, None]
