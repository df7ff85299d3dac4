"""Users, and what they prove themselves with: sessions and tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request, Response

from aboard.boards.accounts import Role
from aboard.hub.amounts import read_seconds
from aboard.hub.api.asked import TheHub, TheUser, TheVisitor, api_router
from aboard.hub.documents import (
    Login,
    Me,
    NewPassword,
    NewToken,
    NewUser,
    TokenDocument,
    TokenList,
    UserChange,
    UserDocument,
    UserList,
)
from aboard.hub.origin import end_cookie, session_cookie
from aboard.hub.permissions import Action, require
from aboard.hub.service import Hub
from aboard.hub.visitors import Visitor

router = api_router("users")
UserName = Annotated[str, Path(min_length=1, max_length=64)]


@router.get("/me")
def me(hub: TheHub, user: TheUser) -> Me:
    """Tell who you are."""
    return Me(user=user.name, role=user.role, personal=hub.personal)


@router.post("/login")
async def login(hub: TheHub, request: Request, response: Response, wish: Login) -> Me:
    """Open a session, which the cookie of the answer holds."""
    opened = await hub.auth.enter(wish.user, wish.password)
    response.headers["set-cookie"] = session_cookie(request.scope, hub.config, opened)
    role = hub.auth.user(wish.user).role
    return Me(user=wish.user, role=role, personal=hub.personal)


@router.post("/logout", status_code=204)
def logout(hub: TheHub, request: Request, response: Response, visitor: TheVisitor) -> None:
    """End the session that the request came with."""
    end_session(hub, visitor)
    response.headers["set-cookie"] = end_cookie(request.scope, hub.config)


def end_session(hub: Hub, visitor: Visitor | None) -> None:
    """Let the session that somebody came with open nothing from now on."""
    if visitor is not None and visitor.session:
        hub.auth.log_out(visitor.session)
        hub.visitors.forget()


@router.get("/users")
def list_users(hub: TheHub) -> UserList:
    """List the users."""
    return UserList(users=[UserDocument.of(user) for user in hub.auth.users()])


@router.post("/users", status_code=201)
def add_user(hub: TheHub, wish: NewUser) -> UserDocument:
    """Let somebody in."""
    user = hub.auth.add_user(wish.name, Role(wish.role), wish.password)
    hub.visitors.forget()
    return UserDocument.of(user)


@router.patch("/users/{name}")
def change_user(hub: TheHub, name: UserName, wish: UserChange) -> UserDocument:
    """Give a user another role, which counts from the next request on."""
    hub.auth.set_role(name, wish.role)
    hub.visitors.forget()
    return UserDocument.of(hub.auth.user(name))


@router.delete("/users/{name}", status_code=204)
def remove_user(hub: TheHub, name: UserName) -> None:
    """Shut somebody out, with his tokens, sessions and links; his boards stay."""
    hub.auth.remove_user(name)
    hub.visitors.forget()


@router.put("/users/{name}/password", status_code=204)
def set_password(hub: TheHub, name: UserName, wish: NewPassword) -> None:
    """Set a password, which ends all sessions of its user."""
    hub.auth.set_password(name, wish.password)
    hub.visitors.forget()


@router.get("/tokens")
def list_tokens(hub: TheHub, user: TheUser) -> TokenList:
    """List your tokens; everybody's for those who manage users."""
    return TokenList(tokens=[TokenDocument.of(token) for token in hub.auth.tokens(user)])


@router.post("/tokens", status_code=201)
def create_token(hub: TheHub, user: TheUser, wish: NewToken | None = None) -> TokenDocument:
    """Make a token; its secret is in the answer, and nowhere else."""
    wish = wish or NewToken.model_validate({})
    if wish.user is not None and wish.user != user.name:
        require(user, Action.MANAGE_USERS)
        user = hub.auth.user(wish.user)
    lasts = None if wish.lasts is None else read_seconds(wish.lasts)
    made = hub.auth.create_token(user, wish.name, lasts=lasts)
    return TokenDocument.of(made.token, made.secret)


@router.delete("/tokens/{token}", status_code=204)
def revoke_token(hub: TheHub, user: TheUser, token: str) -> None:
    """Let a token open nothing from now on."""
    hub.auth.revoke_token(user, token)
    hub.visitors.forget()
